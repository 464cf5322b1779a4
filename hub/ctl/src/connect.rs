//! From a kubeconfig to a client and to what a MemberCluster says of its endpoint. Called by every command.

use std::collections::HashMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client, Config, ResourceExt as _};
use serde::de::DeserializeOwned;

/// A cluster that does not answer within this is reported, not waited for.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const READ_TIMEOUT: Duration = Duration::from_mins(1);
const CLUSTER_UID_NAMESPACE: &str = "kube-system";
/// Characters to a line (RFC 7468).
const PEM_LINE: usize = 64;

/// A cluster reached by a kubeconfig.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    /// Address of the API server as the kubeconfig names it.
    pub(crate) url: String,
    /// PEM bundle of the kubeconfig; empty when it relies on the system's roots.
    pub(crate) ca_pem: String,
    pub(crate) tls_server_name: Option<String>,
    /// The kubeconfig says not to verify the API server's certificate.
    pub(crate) insecure: bool,
}

impl Cluster {
    /// What a cluster is known by, whatever it is called: the UID of its kube-system namespace.
    pub(crate) async fn uid(&self) -> anyhow::Result<String> {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let namespace = namespaces.get(CLUSTER_UID_NAMESPACE).await;
        let namespace = namespace.with_context(|| format!("cannot read namespace {CLUSTER_UID_NAMESPACE}"))?;
        namespace.uid().context("a namespace has a uid")
    }
}

/// Connects with the current context of `file`, or of kubectl's default kubeconfig.
pub(crate) async fn connect(what: &str, file: Option<&Path>) -> anyhow::Result<Cluster> {
    connect_to(what, file, None).await
}

/// The same with this context of it; `None`: the current one.
pub(crate) async fn connect_to(what: &str, file: Option<&Path>, context: Option<&str>) -> anyhow::Result<Cluster> {
    let mut config = config(what, file, context).await?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    let ca_pem = pem_bundle(config.root_cert.as_deref().unwrap_or_default());
    let url = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    let tls_server_name = config.tls_server_name.clone();
    let insecure = config.accept_invalid_certs;
    let client = Client::try_from(config).with_context(|| format!("cannot make a client for {what}"))?;
    let version = tokio::time::timeout(CONNECT_TIMEOUT, client.apiserver_version()).await;
    match version {
        Ok(Ok(_)) => Ok(Cluster {
            client,
            url,
            ca_pem,
            tls_server_name,
            insecure,
        }),
        Ok(Err(error)) => Err(anyhow!(error)).with_context(|| format!("{what} at {url} does not answer")),
        Err(_) => bail!("{what} at {url} does not answer within {} s", CONNECT_TIMEOUT.as_secs()),
    }
}

async fn config(what: &str, file: Option<&Path>, context: Option<&str>) -> anyhow::Result<Config> {
    let kubeconfig = match file {
        Some(file) => Kubeconfig::read_from(file),
        None => Kubeconfig::read(),
    };
    // In a Pod its ServiceAccount asks.
    if file.is_none()
        && context.is_none()
        && kubeconfig.as_ref().is_err_and(is_absent)
        && let Ok(config) = Config::incluster()
    {
        return Ok(config);
    }
    let from = || {
        file.map_or_else(
            || "the default kubeconfig".to_owned(),
            |file| file.display().to_string(),
        )
    };
    let kubeconfig = kubeconfig.with_context(|| format!("cannot read the kubeconfig of {what} from {}", from()))?;
    let options = KubeConfigOptions {
        context: context.map(ToOwned::to_owned),
        ..KubeConfigOptions::default()
    };
    let named = || context.map_or_else(|| "current context".to_owned(), |name| format!("context {name:?}"));
    Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .with_context(|| format!("kubeconfig of {what} ({}) has no usable {}", from(), named()))
}

/// No kubeconfig is named, and there is none at kubectl's usual place.
fn is_absent(error: &KubeconfigError) -> bool {
    match error {
        KubeconfigError::FindPath => true,
        KubeconfigError::ReadConfig(error, _) => error.kind() == std::io::ErrorKind::NotFound,
        _ => false,
    }
}

/// All objects of a kind, in all namespaces.
pub(crate) async fn list<K>(client: &Client) -> anyhow::Result<Vec<K>>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let listed = Api::<K>::all(client.clone()).list(&ListParams::default()).await;
    Ok(listed.with_context(|| format!("cannot list {}s", K::kind(&())))?.items)
}

/// One client for each kubeconfig that is used again and again.
#[derive(Default)]
pub(crate) struct Clients(pub(crate) HashMap<PathBuf, Client>);

impl Clients {
    pub(crate) async fn of(&mut self, what: &str, kubeconfig: &Path) -> anyhow::Result<Client> {
        if let Some(client) = self.0.get(kubeconfig) {
            return Ok(client.clone());
        }
        let client = connect(what, Some(kubeconfig)).await?.client;
        self.0.insert(kubeconfig.to_owned(), client.clone());
        Ok(client)
    }
}

/// kube keeps a bundle as DER; a MemberCluster wants PEM.
fn pem_bundle(certificates: &[Vec<u8>]) -> String {
    let mut pem = String::new();
    for der in certificates {
        let text = STANDARD.encode(der);
        pem.push_str("-----BEGIN CERTIFICATE-----\n");
        for line in text.as_bytes().chunks(PEM_LINE) {
            pem.push_str(&String::from_utf8_lossy(line));
            pem.push('\n');
        }
        pem.push_str("-----END CERTIFICATE-----\n");
    }
    pem
}
