//! What is asked of the member's API servers to close a fence: annotation, number of servers, and what each refuses.
//!
//! Caller: `fence`.

use http::Request;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::Status;
use kube::{Api, Client, ResourceExt};
use portolan_crds::labels::{FENCE_EPOCH, MANAGER_AGENT};
use portolan_crds::policy::{REFUSED_GRANT_OVER, REFUSED_NO_GRANT, agent_user, annotated_epochs, epochs_annotation};
use serde::Deserialize;
use serde_json::json;

use super::closing::Heard;
use crate::member::{CallError, bounded};

/// The Leases by which API servers say that they are there.
const SERVERS: &str = "apiserver.kubernetes.io/identity=kube-apiserver";
const SERVERS_NAMESPACE: &str = "kube-system";
/// Every namespace has it, and the agent may patch it.
const PROBED: &str = "default";

/// What became of an order to set the annotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Annotated {
    Set {
        /// Of the Namespace.
        uid: String,
        /// It was not before.
        anew: bool,
    },
    /// There is no such Namespace.
    Gone,
    /// Somebody wrote the Namespace meanwhile: to be tried again.
    Raced,
    /// It says more already.
    Beyond(u64),
}

/// Sets the annotation, by compare and set. It only grows: an epoch that is not open any more never is again.
pub(crate) async fn annotate(client: &Client, namespace: &str, open: &[u64]) -> Result<Annotated, CallError> {
    let namespaces = Api::<Namespace>::all(client.clone());
    // A list by name: the agent may get no Namespace.
    let params = ListParams::default().fields(&format!("metadata.name={namespace}"));
    let list = bounded(namespaces.list_metadata(&params)).await?;
    let Some(found) = list.items.into_iter().next() else {
        return Ok(Annotated::Gone);
    };
    let uid = found.uid().unwrap_or_default();
    let annotation = found.annotations().get(FENCE_EPOCH);
    // One of another Namespace of this name, or of nobody's making, counts for nothing.
    let known = annotation
        .map(|annotation| annotated_epochs(annotation, &uid))
        .unwrap_or_default();
    if known == open {
        return Ok(Annotated::Set { uid, anew: false });
    }
    if let Some(highest) = known.last().filter(|_| !grows(&known, open)) {
        return Ok(Annotated::Beyond(*highest));
    }
    let patch = Patch::Merge(json!({ "metadata": {
        "resourceVersion": found.resource_version(),
        "annotations": { FENCE_EPOCH: epochs_annotation(open, &uid) },
    } }));
    let params = PatchParams {
        field_manager: Some(MANAGER_AGENT.to_owned()),
        ..PatchParams::default()
    };
    match bounded(namespaces.patch_metadata(namespace, &params, &patch)).await {
        Ok(_) => Ok(Annotated::Set { uid, anew: true }),
        Err(error) if error.status() == Some(404) => Ok(Annotated::Gone),
        Err(error) if error.status() == Some(409) => Ok(Annotated::Raced),
        Err(error) => Err(error),
    }
}

/// Whether what is to be open and is not is beyond all that is, in order both.
fn grows(known: &[u64], open: &[u64]) -> bool {
    let beyond = known.last().copied().unwrap_or_default();
    open.iter().all(|epoch| known.contains(epoch) || *epoch > beyond)
}

/// How many API servers there are; 0: their Leases do not tell. One that stopped counts until its Lease runs out: it may only be
/// slow.
pub(crate) async fn servers(client: &Client) -> Result<usize, CallError> {
    let leases = Api::<Lease>::namespaced(client.clone(), SERVERS_NAMESPACE);
    let list = bounded(leases.list(&ListParams::default().labels(SERVERS))).await?;
    let renewals = list.items.iter().filter_map(|lease| {
        let spec = lease.spec.as_ref()?;
        Some((spec.renew_time.as_ref()?.0, spec.lease_duration_seconds?))
    });
    Ok(unexpired(&renewals.collect::<Vec<_>>()))
}

/// By the clocks of those who renew, not by ours: what was renewed last is now.
fn unexpired(renewals: &[(Timestamp, i32)]) -> usize {
    let Some(now) = renewals.iter().map(|(renewed, _)| *renewed).max() else {
        return 0;
    };
    let lives = |(renewed, seconds): &&(Timestamp, i32)| now.duration_since(*renewed).as_secs() < i64::from(*seconds);
    renewals.iter().filter(lives).count()
}

/// One connection to one of the API servers, whichever takes it.
pub(crate) struct Connection {
    client: Client,
    server: String,
}

impl Connection {
    /// By a client of one connection, which it has not made yet.
    pub(crate) async fn open(client: Client) -> Result<Self, CallError> {
        let server = address(&client).await?;
        Ok(Self { client, server })
    }

    /// The address that the API server says it has.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// Whether it is still the same API server that answers: something between may spread the requests of a connection.
    pub(crate) async fn is_same(&self) -> Result<bool, CallError> {
        Ok(address(&self.client).await? == self.server)
    }

    /// What it does with writes of an epoch that is not `open` any more, and of the highest that is: in each annotation that is new
    /// to an API server that is new.
    pub(crate) async fn probe(&self, namespace: &str, open: &[u64]) -> Heard {
        let epoch = open.last().copied().unwrap_or_default();
        let over = (0..epoch).rev().find(|epoch| !open.contains(epoch));
        match self.write(namespace, over.unwrap_or_default()).await {
            Probed::Refused => {}
            Probed::Admitted => return Heard::NotRefused,
            Probed::NotKnown => return Heard::NotYet,
            Probed::Unclear(reason) => return Heard::Unclear(reason),
        }
        match self.write(namespace, epoch).await {
            Probed::Admitted => Heard::GoesByIt,
            Probed::Refused | Probed::NotKnown => Heard::NotYet,
            Probed::Unclear(reason) => Heard::Unclear(reason),
        }
    }

    /// A write that changes nothing, as the agent itself in that epoch.
    async fn write(&self, namespace: &str, epoch: u64) -> Probed {
        let path =
            format!("/api/v1/namespaces/{namespace}/serviceaccounts/{PROBED}?dryRun=All&fieldManager={MANAGER_AGENT}");
        let request = Request::patch(path)
            .header("content-type", "application/merge-patch+json")
            .header("impersonate-user", agent_user())
            .header(
                format!("impersonate-extra-{}", FENCE_EPOCH.replace('/', "%2f")),
                epoch.to_string(),
            )
            .body(b"{}".to_vec());
        let request = match request {
            Ok(request) => request,
            Err(error) => return Probed::Unclear(error.to_string()),
        };
        match bounded(self.client.request_text(request)).await {
            Ok(_) => Probed::Admitted,
            Err(CallError::Kube(kube::Error::Api(status))) if refuses(&status, REFUSED_GRANT_OVER) => Probed::Refused,
            // It has not seen the annotation.
            Err(CallError::Kube(kube::Error::Api(status))) if refuses(&status, REFUSED_NO_GRANT) => Probed::NotKnown,
            Err(error) => Probed::Unclear(format!("a probe of ServiceAccount {namespace}/{PROBED}: {error}")),
        }
    }
}

fn refuses(status: &Status, why: &str) -> bool {
    status.code == 403 && status.message.contains(why)
}

enum Probed {
    Admitted,
    Refused,
    /// There is no annotation that it knows.
    NotKnown,
    Unclear(String),
}

/// What `/api` says.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    #[serde(rename = "serverAddressByClientCIDRs", default)]
    addresses: Vec<ServerAddress>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServerAddress {
    server_address: String,
}

async fn address(client: &Client) -> Result<String, CallError> {
    let request = Request::get("/api")
        .body(Vec::new())
        .expect("a constant path makes a request");
    let versions: Versions = bounded(client.request(request)).await?;
    let addresses = versions.addresses.into_iter().map(|one| one.server_address);
    Ok(addresses.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::answering;

    #[test]
    fn a_server_counts_until_its_lease_runs_out_by_the_clock_of_the_others() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(unexpired(&[]), 0);
        assert_eq!(unexpired(&[(at(100), 3600)]), 1);
        assert_eq!(
            unexpired(&[(at(10_000), 3600), (at(6_401), 3600), (at(6_400), 3600)]),
            2
        );
    }

    #[tokio::test]
    async fn the_annotation_only_grows() {
        let annotate_at = async |now: Option<&str>, open: &[u64]| {
            let annotations = now.map(|now| json!({ FENCE_EPOCH: now })).unwrap_or_default();
            let client = answering(move |method, path| {
                let list = json!({
                    "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {},
                    "items": [{"metadata": {"name": "a", "uid": "u", "resourceVersion": "7", "annotations": annotations}}],
                });
                match (method.as_str(), path) {
                    ("GET", "/api/v1/namespaces") => Ok(list),
                    ("PATCH", "/api/v1/namespaces/a") => Err(409),
                    other => panic!("{other:?}"),
                }
            });
            annotate(&client, "a", open).await.unwrap()
        };
        assert_eq!(annotate_at(None, &[1]).await, Annotated::Raced);
        assert_eq!(annotate_at(Some("4.u"), &[5]).await, Annotated::Raced);
        assert_eq!(annotate_at(Some("4,6.u"), &[4, 7]).await, Annotated::Raced);
        assert_eq!(annotate_at(Some("4,6.u"), &[6]).await, Annotated::Raced);
        assert_eq!(annotate_at(Some("4,6.u"), &[5, 6]).await, Annotated::Beyond(6));
        let set = Annotated::Set {
            uid: "u".to_owned(),
            anew: false,
        };
        assert_eq!(annotate_at(Some("5.u"), &[5]).await, set);
        assert_eq!(annotate_at(Some("3,5.u"), &[3, 5]).await, set);
        assert_eq!(annotate_at(Some("6.u"), &[5]).await, Annotated::Beyond(6));
        for foreign in ["6.v", "5.v", "6", "x"] {
            assert_eq!(annotate_at(Some(foreign), &[5]).await, Annotated::Raced, "{foreign}");
        }
    }
}
