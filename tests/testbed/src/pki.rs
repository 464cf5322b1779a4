//! The keys of one cluster: its own CA, the certificates of its programs, and its ServiceAccount signing key. Made
//! once per cluster folder and read again when a testbed is started there a second time.

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_RSA_SHA256, RsaKeySize, date_time_ymd,
};

use crate::private::write_private;

/// Names under which a server certificate is valid wherever it listens: the loopback address, and what Pods call the API server.
const SERVER_NAMES: [&str; 4] = [
    "127.0.0.1",
    "localhost",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// Client identities: file name, user and group.
const CLIENTS: [(&str, &str, &str); 4] = [
    ("admin", "testbed-admin", "system:masters"),
    // Upstream these two have narrow roles of their own; the controllers' roles would need a token per controller.
    ("controller-manager", "system:kube-controller-manager", "system:masters"),
    ("scheduler", "system:kube-scheduler", "system:masters"),
    ("kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
];

/// A certificate and its key.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) cert_pem: String,
    pub(crate) key_pem: String,
}

/// The folder with a cluster's keys.
#[derive(Clone, Debug)]
pub(crate) struct Pki {
    folder: PathBuf,
    ca_pem: String,
}

impl Pki {
    /// Reads the keys in `folder`, or makes them for a cluster whose API server is reached at these addresses.
    pub(crate) fn ensure(folder: &Path, cluster: &str, addresses: &[Ipv4Addr]) -> Result<Self> {
        let ca = folder.join("ca.crt");
        if !ca.exists() {
            make(folder, cluster, addresses).with_context(|| format!("making the keys of cluster {cluster}"))?;
        }
        let ca_pem = fs::read_to_string(&ca).with_context(|| format!("reading {}", ca.display()))?;
        Ok(Self {
            folder: folder.to_owned(),
            ca_pem,
        })
    }

    pub(crate) fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The certificate and key called `name`.
    pub(crate) fn identity(&self, name: &str) -> Result<Identity> {
        let read = |extension: &str| {
            let path = self.file(&format!("{name}.{extension}"));
            fs::read_to_string(&path).with_context(|| format!("reading {path}"))
        };
        Ok(Identity {
            cert_pem: read("crt")?,
            key_pem: read("key")?,
        })
    }

    /// A file of this folder, as the programs' flags want it.
    pub(crate) fn file(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }
}

fn make(folder: &Path, cluster: &str, addresses: &[Ipv4Addr]) -> Result<()> {
    fs::create_dir_all(folder)?;
    let ca_key = KeyPair::generate()?;
    let mut ca = params(&format!("testbed {cluster}"), None, [])?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    let ca_cert = ca.self_signed(&ca_key)?;
    write_private(&folder.join("ca.key"), &ca_key.serialize_pem())?;
    let issuer = Issuer::new(ca, ca_key);
    let issue = |name: &str, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose| -> Result<()> {
        let key = KeyPair::generate()?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        write_private(&folder.join(format!("{name}.key")), &key.serialize_pem())?;
        fs::write(
            folder.join(format!("{name}.crt")),
            params.signed_by(&key, &issuer)?.pem(),
        )?;
        Ok(())
    };
    let addresses: Vec<_> = addresses.iter().map(Ipv4Addr::to_string).collect();
    let names = SERVER_NAMES.iter().copied().chain(addresses.iter().map(String::as_str));
    issue(
        "server",
        params("kube-apiserver", None, names)?,
        ExtendedKeyUsagePurpose::ServerAuth,
    )?;
    for (name, user, group) in CLIENTS {
        issue(
            name,
            params(user, Some(group), [])?,
            ExtendedKeyUsagePurpose::ClientAuth,
        )?;
    }
    // RSA, as in most clusters: tokens are then RS256.
    let tokens = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048)?;
    write_private(&folder.join("service-account.key"), &tokens.serialize_pem())?;
    fs::write(folder.join("service-account.pub"), tokens.public_key_pem())?;
    // Last, because its presence says that all the others are there.
    fs::write(folder.join("ca.crt"), ca_cert.pem())?;
    Ok(())
}

fn params<'a>(user: &str, group: Option<&str>, names: impl IntoIterator<Item = &'a str>) -> Result<CertificateParams> {
    let names: BTreeSet<String> = names.into_iter().map(str::to_owned).collect();
    let mut params = CertificateParams::new(Vec::from_iter(names))?;
    params.distinguished_name.push(DnType::CommonName, user);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2120, 1, 1);
    Ok(params)
}
