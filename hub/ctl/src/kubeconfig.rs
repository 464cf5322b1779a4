//! `portolanctl kubeconfig`: what a person reaches members by, and the one writer of kubeconfig files.

use std::path::Path;

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::Api;
use portolan_crds::MemberCluster;
use portolan_runtime::files;
use serde_json::{Value, json};

use crate::cli::KubeconfigArgs;
use crate::connect::connect;
use crate::person::{self, Person};

pub(crate) async fn run(args: &KubeconfigArgs) -> anyhow::Result<()> {
    if !args.router.starts_with("https://") {
        bail!("--router {:?} is not https://HOST:PORT", args.router);
    }
    let hub = connect("the hub", args.hub.hub_kubeconfig.as_deref()).await?;
    for cluster in &args.clusters {
        let known = Api::<MemberCluster>::all(hub.client.clone())
            .get_metadata_opt(cluster)
            .await;
        match known {
            Ok(Some(_)) => {}
            Ok(None) => bail!("--cluster {cluster:?}: the hub has no MemberCluster of that name"),
            // Who may use a member need not be allowed to look at it.
            Err(kube::Error::Api(status)) if status.code == 403 => {}
            Err(error) => return Err(error).context("cannot read MemberClusters"),
        }
    }
    let person = person::certify(&hub.client, &args.user, args.ttl).await?;
    let views = ExplicitViews {
        router: &args.router,
        host: args.explicit_host.as_deref(),
        clusters: &args.clusters,
    };
    explicit(&person, views, &args.user, &args.output)?;
    println!("wrote {}: contexts {}", args.output.display(), args.clusters.join(", "));
    println!(
        "{} needs the verb proxy on memberclusters in the hub's RBAC, and `portolanctl allow --user {}` in each member",
        args.user, args.user
    );
    Ok(())
}

/// Members as a router serves them one by one.
pub(crate) struct ExplicitViews<'a> {
    /// `https://HOST:PORT`.
    pub(crate) router: &'a str,
    /// The router's `--explicit-host`.
    pub(crate) host: Option<&'a str>,
    pub(crate) clusters: &'a [String],
}

impl ExplicitViews<'_> {
    /// Name and server address of each: by path, and by host name.
    fn servers(&self) -> anyhow::Result<Vec<(String, String)>> {
        let router = self.router.trim_end_matches('/');
        let by_path = |name: &String| (name.clone(), format!("{router}/clusters/{name}"));
        let mut servers: Vec<_> = self.clusters.iter().map(by_path).collect();
        if let Some(suffix) = self.host {
            let port = router.parse::<http::Uri>().context("the router's address")?.port_u16();
            let port = port.unwrap_or(443);
            let named = |name: &String| (format!("{name}.{suffix}"), format!("https://{name}.{suffix}:{port}"));
            servers.extend(self.clusters.iter().map(named));
        }
        Ok(servers)
    }
}

/// Writes one context per member, each on its explicit view; one more with host names.
pub(crate) fn explicit(person: &Person, views: ExplicitViews<'_>, user: &str, file: &Path) -> anyhow::Result<()> {
    let servers = views.servers()?;
    let ca = STANDARD.encode(&person.ca_pem);
    let named = |(name, server): &(String, String)| json!({"name": name, "cluster": {"server": server, "certificate-authority-data": ca}});
    let context = |name: &str| json!({"name": name, "context": {"cluster": name, "user": user}});
    let credentials = json!({
        "client-certificate-data": STANDARD.encode(&person.certificate_pem),
        "client-key-data": STANDARD.encode(person.key_pem.expose()),
    });
    write(
        file,
        &json!({
            "apiVersion": "v1", "kind": "Config", "current-context": views.clusters.first(),
            "clusters": servers.iter().map(named).collect::<Vec<_>>(),
            "contexts": servers.iter().map(|(name, _)| context(name)).collect::<Vec<_>>(),
            "users": [{"name": user, "user": credentials}],
        }),
    )
}

/// A cluster reached with a token kept in a file of its own, which clients read again as it is renewed.
pub(crate) struct TokenConfig<'a> {
    pub(crate) name: &'a str,
    pub(crate) server: &'a str,
    pub(crate) ca_pem: &'a str,
    pub(crate) tls_server_name: Option<&'a str>,
    pub(crate) token_file: &'a Path,
    pub(crate) namespace: &'a str,
}

impl TokenConfig<'_> {
    pub(crate) fn write(&self, file: &Path) -> anyhow::Result<()> {
        let mut cluster = json!({"server": self.server, "certificate-authority-data": STANDARD.encode(self.ca_pem)});
        if let Some(name) = self.tls_server_name {
            cluster["tls-server-name"] = json!(name);
        }
        write(
            file,
            &json!({
                "apiVersion": "v1", "kind": "Config", "current-context": self.name,
                "clusters": [{"name": self.name, "cluster": cluster}],
                "contexts": [{"name": self.name, "context": {"cluster": self.name, "user": self.name, "namespace": self.namespace}}],
                "users": [{"name": self.name, "user": {"tokenFile": self.token_file}}],
            }),
        )
    }
}

fn write(file: &Path, kubeconfig: &Value) -> anyhow::Result<()> {
    let yaml = serde_yaml_ng::to_string(kubeconfig).context("a kubeconfig is plain data")?;
    files::write_private(file, yaml).context("cannot write the kubeconfig")
}
