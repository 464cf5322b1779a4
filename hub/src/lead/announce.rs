//! That another replica leads, as an Event of the Lease.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use portolan_crds::labels::LEASE_HUB;

/// An Event that is not written by then is not written: the Lease says the same.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Tells that the replica of this identity leads.
pub(crate) async fn announce(client: Client, namespace: String, identity: String) {
    let of = ObjectReference {
        api_version: Some("coordination.k8s.io/v1".to_owned()),
        kind: Some("Lease".to_owned()),
        name: Some(LEASE_HUB.to_owned()),
        namespace: Some(namespace),
        ..ObjectReference::default()
    };
    let event = Event {
        type_: EventType::Normal,
        reason: "Leads".to_owned(),
        note: Some(format!("{identity} leads")),
        action: "Lead".to_owned(),
        secondary: None,
    };
    let reporter = Reporter {
        controller: "portolan-hub".to_owned(),
        instance: None,
    };
    let recorder = Recorder::new(client, reporter);
    match tokio::time::timeout(TIMEOUT, recorder.publish(&event, &of)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "no Event says who leads"),
        Err(_) => tracing::warn!("the Event that says who leads was not written in time"),
    }
}
