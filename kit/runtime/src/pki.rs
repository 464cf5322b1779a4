//! A small certificate authority: the hub's own CA, leaf certificates, CSRs, and reading of certificates.
//!
//! The subject and the names of an issued certificate follow from the caller alone, never from the CSR; of a CSR
//! only the public key is used, after its signature proved possession of the private key. Not here: who may have
//! which subject (the hub decides), TLS itself (`tls`). Callers: hub enrolment and webhooks, agent and router
//! enrolment, `portolanctl`, tests.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, SerialNumber, SubjectPublicKeyInfo,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateSigningRequestDer};
use thiserror::Error;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use x509_parser::x509::AttributeTypeAndValue;

use crate::secret::Secret;

mod shown;

pub use shown::{Shown, certificates};

/// Life of a CA made here.
pub const CA_TTL: Duration = Duration::from_hours(10 * 365 * 24);
/// Certificates are valid from this long before now, for clocks that are behind.
pub const BACKDATE: Duration = Duration::from_mins(5);
/// A CSR is some hundred bytes; nobody may make us parse more.
pub const MAX_CSR_BYTES: usize = 16 * 1024;

/// What can be wrong with a certificate, a key or a request.
#[derive(Debug, Error)]
pub enum PkiError {
    /// A key or a certificate cannot be made.
    #[error("cannot {action}")]
    Generate {
        /// What was to be done, in words.
        action: &'static str,
        /// What the library says.
        #[source]
        source: rcgen::Error,
    },
    /// The CA key is no private key that can be read.
    #[error("unreadable CA key")]
    CaKey(#[source] rcgen::Error),
    /// The CA key belongs to another certificate.
    #[error("the CA's key does not belong to its certificate")]
    CaMismatch,
    /// The CA certificate has expired.
    #[error("the CA's certificate has expired")]
    CaExpired,
    /// The certificate must not issue others.
    #[error("the certificate is not one of a CA")]
    NotACa,
    /// The signing request cannot be read.
    #[error("unreadable certificate signing request: {0}")]
    Csr(String),
    /// The signing request does not prove that its key is held.
    #[error("the certificate signing request is not signed by its own key")]
    CsrSignature,
    /// The CA subject has an attribute twice.
    #[error("the CA's subject has more than one {0}, which cannot be written as an issuer")]
    CaSubject(String),
    /// The signing request is longer than any that is needed.
    #[error("the certificate signing request has {0} bytes, more than {MAX_CSR_BYTES}")]
    CsrTooLarge(usize),
    /// A name that no certificate can carry.
    #[error("{name:?} cannot be a name in a certificate")]
    Name {
        /// The name.
        name: String,
        /// What the library says.
        #[source]
        source: rcgen::Error,
    },
    /// The certificate cannot be read.
    #[error("unreadable certificate: {0}")]
    Certificate(String),
}

/// What an issued certificate may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// Client authentication.
    Client,
    /// Server authentication.
    Server,
    /// Client and server authentication.
    Both,
}

/// What an issued certificate shall say. Everything in it is vouched for by the caller.
#[derive(Debug, Clone)]
pub struct LeafSpec {
    /// Common name (CN) of the subject.
    pub common_name: String,
    /// One: rcgen writes each attribute type once.
    pub organization: Option<String>,
    /// DNS names and IP addresses, told apart by their form.
    pub hosts: Vec<String>,
    /// URIs among the alternative names.
    pub uris: Vec<String>,
    /// Cut to the end of the CA.
    pub ttl: Duration,
    /// What the certificate may be used for.
    pub usage: Usage,
}

/// A certificate (leaf first, then its CA) with its private key, both PEM.
#[derive(Debug, Clone)]
pub struct Issued {
    /// The certificate and its chain, PEM.
    pub cert_pem: String,
    /// The private key, PEM.
    pub key_pem: Secret,
}

/// What a certificate says of its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// Common name (CN); empty if there is none.
    pub common_name: String,
    /// Organizations (O) of the subject.
    pub organizations: Vec<String>,
    /// Common name (CN) of the CA that issued it; empty if there is none.
    pub issuer: String,
    /// DNS names and IP addresses among the alternative names.
    pub hosts: Vec<String>,
    /// URIs among the alternative names.
    pub uris: Vec<String>,
    /// The certificate is not valid before.
    pub not_before: SystemTime,
    /// The certificate is not valid after.
    pub not_after: SystemTime,
}

/// A CA with its key. `Debug` shows the certificate's subject only.
pub struct CertificateAuthority {
    issuer: Issuer<'static, KeyPair>,
    cert_pem: String,
    subject: Subject,
    /// No CA may stand between it and a leaf.
    leaves_only: bool,
}

impl std::fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CertificateAuthority")
            .field("subject", &self.subject)
            .finish_non_exhaustive()
    }
}

impl CertificateAuthority {
    /// A new self-signed CA (P-256) that may sign leaves and [intermediates](Self::intermediate), valid for [`CA_TTL`].
    pub fn generate(common_name: &str) -> Result<Self, PkiError> {
        let key = new_key()?;
        let params = ca_params(common_name, 1, SystemTime::now() + CA_TTL);
        let certificate = params
            .self_signed(&key)
            .map_err(generating("sign the CA certificate"))?;
        Self::from_parts(certificate.pem(), certificate.der(), key)
    }

    /// A new CA below this one that may sign leaves only, for as long as this one is valid; `None` where this one may not have
    /// any below it.
    pub fn intermediate(&self, common_name: &str) -> Result<Option<Self>, PkiError> {
        if self.leaves_only {
            return Ok(None);
        }
        let key = new_key()?;
        let mut params = ca_params(common_name, 0, self.subject.not_after);
        params.use_authority_key_identifier_extension = true;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(generating("sign an intermediate CA"))?;
        Self::from_parts(self.chain(&certificate.pem()), certificate.der(), key).map(Some)
    }

    /// A CA made before, or one of the user's. The first certificate must be the CA's and the key must fit it.
    pub fn from_pem(cert_pem: &str, key_pem: &Secret) -> Result<Self, PkiError> {
        let der = first_certificate(cert_pem)?;
        let key = KeyPair::from_pem(key_pem.expose()).map_err(PkiError::CaKey)?;
        let certificate = parse(&der)?;
        if certificate.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
            return Err(PkiError::CaMismatch);
        }
        if !certificate.is_ca() {
            return Err(PkiError::NotACa);
        }
        Self::from_parts(cert_pem.to_owned(), &der, key)
    }

    fn from_parts(cert_pem: String, der: &CertificateDer<'_>, key: KeyPair) -> Result<Self, PkiError> {
        // rcgen would drop the second attribute of a type, and no leaf would chain to this CA.
        let certificate = parse(der)?;
        let mut seen = BTreeSet::new();
        for attribute in certificate.subject().iter_attributes() {
            let kind = attribute.attr_type().to_id_string();
            if !seen.insert(kind.clone()) {
                return Err(PkiError::CaSubject(kind));
            }
        }
        let constraints = certificate.basic_constraints().ok().flatten();
        let leaves_only = constraints.is_some_and(|found| found.value.path_len_constraint == Some(0));
        let subject = subject_of(der)?;
        let issuer = Issuer::from_ca_cert_der(der, key).map_err(generating("read the CA certificate"))?;
        Ok(Self {
            issuer,
            cert_pem,
            subject,
            leaves_only,
        })
    }

    /// The CA's certificate (or chain, as given).
    pub fn pem(&self) -> &str {
        &self.cert_pem
    }

    /// What the CA's certificate says of it.
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// The private key of the CA, PEM.
    pub fn key_pem(&self) -> Secret {
        Secret::new(self.issuer.key().serialize_pem())
    }

    /// A server certificate with a new key. `sans`: DNS names and IP addresses.
    pub fn issue_server(&self, common_name: &str, sans: &[&str], ttl: Duration) -> Result<Issued, PkiError> {
        self.issue(&LeafSpec {
            common_name: common_name.to_owned(),
            organization: None,
            hosts: sans.iter().map(|&san| san.to_owned()).collect(),
            uris: Vec::new(),
            ttl,
            usage: Usage::Server,
        })
    }

    /// A client certificate with a new key, for Kubernetes' reading of it: CN is the user, O a group.
    pub fn issue_client(
        &self,
        common_name: &str,
        organization: Option<&str>,
        ttl: Duration,
    ) -> Result<Issued, PkiError> {
        self.issue(&LeafSpec {
            common_name: common_name.to_owned(),
            organization: organization.map(str::to_owned),
            hosts: Vec::new(),
            uris: Vec::new(),
            ttl,
            usage: Usage::Client,
        })
    }

    /// A certificate with a new key.
    pub fn issue(&self, leaf: &LeafSpec) -> Result<Issued, PkiError> {
        let key = new_key()?;
        let certificate = self
            .leaf_params(leaf)?
            .signed_by(&key, &self.issuer)
            .map_err(generating("sign a certificate"))?;
        Ok(Issued {
            cert_pem: self.chain(&certificate.pem()),
            key_pem: Secret::new(key.serialize_pem()),
        })
    }

    /// Signs the public key of a CSR (PKCS#10 in DER), with the names of `leaf`: whatever else the CSR asks for is
    /// ignored. Returns the chain as PEM, leaf first.
    pub fn sign_csr(&self, csr: &[u8], leaf: &LeafSpec) -> Result<String, PkiError> {
        if csr.len() > MAX_CSR_BYTES {
            return Err(PkiError::CsrTooLarge(csr.len()));
        }
        let public_key = verified_public_key(csr)?;
        let certificate = self
            .leaf_params(leaf)?
            .signed_by(&public_key, &self.issuer)
            .map_err(generating("sign a certificate"))?;
        Ok(self.chain(&certificate.pem()))
    }

    fn leaf_params(&self, leaf: &LeafSpec) -> Result<CertificateParams, PkiError> {
        let mut params = params(&leaf.common_name, leaf.organization.as_deref());
        for host in &leaf.hosts {
            params.subject_alt_names.push(host_name(host)?);
        }
        for uri in &leaf.uris {
            params.subject_alt_names.push(SanType::URI(ia5(uri)?));
        }
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match leaf.usage {
            Usage::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
            Usage::Server => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Usage::Both => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        };
        let (now, last) = (SystemTime::now(), self.subject.not_after);
        if last <= now {
            return Err(PkiError::CaExpired);
        }
        complete(&mut params, now.checked_add(leaf.ttl).map_or(last, |end| end.min(last)));
        Ok(params)
    }

    fn chain(&self, leaf_pem: &str) -> String {
        format!("{leaf_pem}{}", self.cert_pem)
    }
}

/// A new P-256 key, PEM.
pub fn new_private_key() -> Result<Secret, PkiError> {
    Ok(Secret::new(new_key()?.serialize_pem()))
}

/// A CSR (PKCS#10 in DER) by `key_pem`. It names nobody: whoever signs knows the subject by a proof.
pub fn signing_request(key_pem: &Secret) -> Result<Vec<u8>, PkiError> {
    let key = KeyPair::from_pem(key_pem.expose()).map_err(generating("read the key of a request"))?;
    let mut nobody = CertificateParams::default();
    nobody.distinguished_name = DistinguishedName::new();
    let request = nobody.serialize_request(&key).map_err(generating("sign a request"))?;
    Ok(request.der().to_vec())
}

/// A CSR (PEM) by `key_pem` that says whom it wants to be: a user and at most one group. For signers that know who asks by
/// other means, and compare.
pub fn named_request(key_pem: &Secret, common_name: &str, organization: Option<&str>) -> Result<String, PkiError> {
    let key = KeyPair::from_pem(key_pem.expose()).map_err(generating("read the key of a request"))?;
    let request = params(common_name, organization).serialize_request(&key);
    let request = request.map_err(generating("sign a request"))?;
    request.pem().map_err(generating("write a request"))
}

/// Whom a CSR wants to be. The sender's word and no more: see [`CertificateAuthority::sign_csr`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requested {
    /// The request in DER.
    pub der: Vec<u8>,
    /// Common name (CN); empty if there is none.
    pub common_name: String,
    /// Organizations (O).
    pub organizations: Vec<String>,
}

/// Reads a CSR in PEM.
pub fn requested(csr_pem: &[u8]) -> Result<Requested, PkiError> {
    if csr_pem.len() > 2 * MAX_CSR_BYTES {
        return Err(PkiError::CsrTooLarge(csr_pem.len()));
    }
    let unreadable = |error: &dyn std::fmt::Display| PkiError::Csr(error.to_string());
    let der = CertificateSigningRequestDer::from_pem_slice(csr_pem).map_err(|error| unreadable(&error))?;
    let (_, request) = X509CertificationRequest::from_der(&der).map_err(|error| unreadable(&error))?;
    let subject = &request.certification_request_info.subject;
    let names = texts(&mut subject.iter_common_name());
    if names.len() > 1 {
        return Err(PkiError::Csr("it has more than one common name".to_owned()));
    }
    Ok(Requested {
        common_name: names.into_iter().next().unwrap_or_default(),
        organizations: texts(&mut subject.iter_organization()),
        der: der.to_vec(),
    })
}

fn texts(names: &mut dyn Iterator<Item = &AttributeTypeAndValue<'_>>) -> Vec<String> {
    names.filter_map(|name| name.as_str().ok().map(str::to_owned)).collect()
}

/// Reads what a certificate says. Verifies nothing: only for certificates that a handshake accepted, or our own.
pub fn subject_of(cert_der: &[u8]) -> Result<Subject, PkiError> {
    let certificate = parse(cert_der)?;
    let mut subject = Subject {
        common_name: texts(&mut certificate.subject().iter_common_name())
            .into_iter()
            .next()
            .unwrap_or_default(),
        organizations: texts(&mut certificate.subject().iter_organization()),
        issuer: texts(&mut certificate.issuer().iter_common_name())
            .into_iter()
            .next()
            .unwrap_or_default(),
        hosts: Vec::new(),
        uris: Vec::new(),
        not_before: time_of(certificate.validity().not_before.timestamp()),
        not_after: time_of(certificate.validity().not_after.timestamp()),
    };
    let names = certificate.subject_alternative_name().ok().flatten();
    for name in names.iter().flat_map(|names| &names.value.general_names) {
        match name {
            GeneralName::URI(uri) => subject.uris.push((*uri).to_owned()),
            name => subject.hosts.extend(host_of(name)),
        }
    }
    Ok(subject)
}

/// The DNS name or IP address that an alternative name says; `None` for names of other kinds.
pub fn host_of(name: &GeneralName<'_>) -> Option<String> {
    let address = |bytes: &[u8]| match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    };
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => address(bytes).map(|address| address.to_string()),
        _ => None,
    }
}

/// The key of a CSR whose signature proves that the sender has the private half. Nothing else of it is read, so
/// odd names and extensions in it are harmless.
fn verified_public_key(csr: &[u8]) -> Result<SubjectPublicKeyInfo, PkiError> {
    let unreadable = |error: &dyn std::fmt::Display| PkiError::Csr(error.to_string());
    let (_, request) = X509CertificationRequest::from_der(csr).map_err(|e| unreadable(&e))?;
    request.verify_signature().map_err(|_| PkiError::CsrSignature)?;
    SubjectPublicKeyInfo::from_der(request.certification_request_info.subject_pki.raw).map_err(|e| unreadable(&e))
}

fn new_key() -> Result<KeyPair, PkiError> {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(generating("generate a key"))
}

fn params(common_name: &str, organization: Option<&str>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    if let Some(name) = organization {
        params.distinguished_name.push(DnType::OrganizationName, name);
    }
    params
}

fn ca_params(common_name: &str, cas_below: u8, not_after: SystemTime) -> CertificateParams {
    let mut params = params(common_name, None);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(cas_below));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    complete(&mut params, not_after);
    params
}

/// What a certificate has and a request has not.
fn complete(params: &mut CertificateParams, not_after: SystemTime) {
    params.not_before = (SystemTime::now() - BACKDATE).into();
    params.not_after = not_after.into();
    // Random: the default is a hash of the key, and one key may be certified more than once.
    let mut serial = rand::random::<[u8; 16]>();
    // A positive number of full length.
    serial[0] = serial[0] & 0x7f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
}

fn host_name(host: &str) -> Result<SanType, PkiError> {
    match host.parse::<IpAddr>() {
        Ok(address) => Ok(SanType::IpAddress(address)),
        Err(_) => Ok(SanType::DnsName(ia5(host)?)),
    }
}

fn ia5(name: &str) -> Result<rcgen::string::Ia5String, PkiError> {
    name.try_into().map_err(|source| PkiError::Name {
        name: name.to_owned(),
        source,
    })
}

fn first_certificate(pem: &str) -> Result<CertificateDer<'static>, PkiError> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| PkiError::Certificate(error.to_string()))
}

fn parse(der: &[u8]) -> Result<X509Certificate<'_>, PkiError> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(|error| PkiError::Certificate(error.to_string()))?;
    Ok(certificate)
}

fn time_of(timestamp: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(timestamp).unwrap_or(0))
}

fn generating(action: &'static str) -> impl FnOnce(rcgen::Error) -> PkiError {
    move |source| PkiError::Generate { action, source }
}

#[cfg(test)]
mod tests;
