//! The member's API server as seen by this agent: the client, bounded calls, and what makes the cluster itself.
//!
//! Watches live with their subjects; here is what is asked once. Callers: every module that talks to the member.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::client::{Body, ConfigExt};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher;
use kube::{Api, Client, Config};
use parking_lot::Mutex;
use portolan_runtime::backoff::jittered;
use portolan_wire::v1::MemberFacts;
use thiserror::Error;
use tower::{BoxError, Service, ServiceBuilder};

use crate::explain;

/// Longest wait for the answer to a unary call: an API server that takes longer is not well.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Shortest life of one watch request; a quarter longer at most, so that not all begin anew together.
const WATCH_LIFE: Duration = Duration::from_mins(8);
/// A connection from which nothing came for so long has died silently. API servers send a bookmark each minute.
const SILENCE: Duration = Duration::from_secs(90);
/// An answer that was read gives its connection back within milliseconds. A request that finds none by then gets none.
const COMES_BACK: Duration = Duration::from_secs(1);
const NO_CLIENT: &str = "cannot make a client for the member's API server";

/// Namespace whose UID is the cluster's.
const KUBE_SYSTEM: &str = "kube-system";

/// A call to the member's API server that gave no answer.
#[derive(Debug, Error)]
pub(crate) enum CallError {
    #[error("no answer from the member's API server within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("{}", explain::call(.0))]
    Kube(kube::Error),
}

impl From<kube::Error> for CallError {
    fn from(error: kube::Error) -> Self {
        Self::Kube(error)
    }
}

impl CallError {
    /// HTTP status, if the API server gave one.
    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Self::Kube(kube::Error::Api(status)) => Some(status.code),
            _ => None,
        }
    }
}

/// Waits for `call` at most [`CALL_TIMEOUT`].
pub(crate) async fn bounded<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(CallError::Timeout(CALL_TIMEOUT)),
    }
}

/// What every watch starts from.
pub(crate) fn watch_config() -> watcher::Config {
    let seconds = jittered(WATCH_LIFE).as_secs();
    watcher::Config::default().timeout(u32::try_from(seconds).unwrap_or(u32::MAX))
}

/// Objects of one page of a list whose objects others may make as large as they like: 1.5 MiB each is what etcd takes, and a page
/// is held whole.
pub(crate) const FAT_PAGE: u32 = 50;

/// Who repeats a request that the API server has no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeats {
    /// The client, unseen.
    Client,
    /// Its caller, who is told.
    Caller,
}

/// A client by a kubeconfig file, else by what the Pod or the user's environment has.
pub(crate) async fn connect(kubeconfig: Option<&Path>, repeats: Repeats) -> anyhow::Result<Client> {
    let mut config = config(kubeconfig).await?;
    config.read_timeout = Some(SILENCE);
    // A connection may have been idle before a request.
    config.reset_reader_on_write = true;
    config.default_retry = repeats == Repeats::Client;
    Client::try_from(config).context(NO_CLIENT)
}

/// A client as of [`connect`], but of one connection, which the first request makes. A request of after its end fails, and so
/// does one that does not wait for the answer to the one before.
pub(crate) async fn connect_once(kubeconfig: Option<&Path>) -> anyhow::Result<Client> {
    let config = config(kubeconfig).await?;
    let https = config.rustls_https_connector().context(NO_CLIENT)?;
    // A mutex: held for one take.
    let unused = Arc::new(Mutex::new(Some(https)));
    let connector = tower::service_fn(move |address: http::Uri| {
        let first = unused.lock().take();
        Box::pin(async move {
            let Some(mut https) = first else {
                tokio::time::sleep(COMES_BACK).await;
                return Err(BoxError::from("its only connection is over"));
            };
            https.call(address).await
        })
    });
    let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build::<_, Body>(connector);
    let auth = config.auth_layer().context(NO_CLIENT)?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(auth)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, config.default_namespace))
}

async fn config(kubeconfig: Option<&Path>) -> anyhow::Result<Config> {
    let Some(path) = kubeconfig else {
        let inferred = Config::infer().await;
        return inferred.context("neither in a cluster nor a kubeconfig found; give --kubeconfig");
    };
    let file = Kubeconfig::read_from(path).with_context(|| format!("cannot read {}", path.display()))?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    config.with_context(|| format!("in {}", path.display()))
}

/// What the hub pins at join: clusterUID, signing keys, version.
pub(crate) async fn facts(client: &Client) -> Result<MemberFacts, CallError> {
    let namespaces = Api::<Namespace>::all(client.clone());
    let (system, jwks, version) = futures::try_join!(
        bounded(namespaces.get_metadata(KUBE_SYSTEM)),
        jwks(client),
        version(client)
    )?;
    Ok(MemberFacts {
        cluster_uid: system.metadata.uid.unwrap_or_default(),
        jwks,
        kubernetes_version: version,
    })
}

/// The member's ServiceAccount signing keys, as its API server publishes them.
pub(crate) async fn jwks(client: &Client) -> Result<String, CallError> {
    get_text(client, "/openid/v1/jwks").await
}

/// `gitVersion` of the API server.
pub(crate) async fn version(client: &Client) -> Result<String, CallError> {
    Ok(bounded(client.apiserver_version()).await?.git_version)
}

/// The newest resourceVersion of the member: a list without one is read from etcd by quorum, and so never goes back but by a
/// restore. 0 where the answer has none.
pub(crate) async fn resource_version(client: &Client) -> Result<u64, CallError> {
    let namespaces = Api::<Namespace>::all(client.clone());
    let list = bounded(namespaces.list_metadata(&ListParams::default().limit(1))).await?;
    let version = list.metadata.resource_version.unwrap_or_default();
    Ok(version.parse().unwrap_or_default())
}

/// The body of a plain GET.
pub(crate) async fn get_text(client: &Client, path: &'static str) -> Result<String, CallError> {
    let request = http::Request::get(path)
        .body(Vec::new())
        .expect("a constant path makes a request");
    bounded(client.request_text(request)).await
}

/// The API server's clock in seconds of Unix time, as the head of an answer says it, whatever the answer.
pub(crate) async fn date(client: &Client) -> Option<i64> {
    let request = http::Request::get("/version").body(Body::empty()).ok()?;
    let answer = bounded(client.send(request)).await.ok()?;
    read_date(answer.headers().get(http::header::DATE)?.to_str().ok()?)
}

/// As HTTP writes it: `Sat, 28 Nov 2026 14:37:11 GMT`.
fn read_date(text: &str) -> Option<i64> {
    let read = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text);
    read.ok().map(jiff::Timestamp::as_second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_begin_anew_each_five_to_ten_minutes_and_not_together() {
        let lives: std::collections::BTreeSet<_> = (0..100).filter_map(|_| watch_config().timeout).collect();
        assert!(lives.iter().all(|seconds| (300..=600).contains(seconds)), "{lives:?}");
        assert!(lives.len() > 10, "{lives:?}");
    }

    #[test]
    fn a_date_is_read_as_http_writes_it() {
        assert_eq!(read_date("Sat, 28 Nov 2026 14:37:11 GMT"), Some(1_795_876_631));
        assert_eq!(read_date("now"), None);
    }
}
