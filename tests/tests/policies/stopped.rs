//! The ends of ordered faults: the switch for all of them, the hour that each names, and what the object says itself.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams};
use portolan_crds::FaultInjection;
use portolan_testbed::eventually;
use portolan_tests::door::Door;
use serde_json::{Value, json};

use crate::{Ground, alone};

const MAP: &str = "/api/v1/namespaces/stopped-e/configmaps/kube-root-ca.crt";
const WHY: &str = "a real outage has begun";
/// Of what ends by itself.
const LASTS: Duration = Duration::from_secs(5);

fn aborts() -> Value {
    json!({"httpFault": [{"name": "broken", "abort": {"httpStatus": 500}, "match": {
        "resources": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"], "namespaces": ["stopped-e"]}],
    }}]})
}

async fn until(door: &Door, status: u16) {
    eventually(&format!("it is answered {status}"), || async {
        let answer = door.get(MAP, &[]).await.map_err(|error| error.to_string())?;
        (answer.status == status).then_some(()).ok_or(answer.message())
    })
    .await;
}

impl Ground {
    async fn edit(&self, patch: Value) {
        let policies = self.policies::<FaultInjection>().await;
        let patched = policies
            .patch("stopped", &PatchParams::default(), &Patch::Merge(patch))
            .await;
        patched.unwrap();
    }

    /// Waits until the FaultInjection is said to do nothing, for this reason.
    async fn until_inactive(&self, reason: &str) {
        let words = format!("operators/stopped: Active=False {reason}");
        eventually("it is said why nothing comes of it", || async {
            let listed = self.said(&["get", "policies"]).await;
            listed.contains(&words).then_some(()).ok_or(listed)
        })
        .await;
    }
}

#[tokio::test]
async fn ordered_faults_end_when_somebody_says_so_or_their_hour_has_come() {
    let ground = alone().await;
    let door = ground.caller("stopped").await;
    assert!(
        ground
            .said(&["faults"])
            .await
            .starts_with("ordered faults are not stopped")
    );
    assert_eq!(ground.said(&["faults", "resume"]).await, "no faults are stopped\n");
    let policy: FaultInjection = ground.hold("stopped", aborts()).await;
    until(&door, 500).await;

    ground.said(&["faults", "stop", "--reason", WHY]).await;
    until(&door, 200).await;
    let told = ground.said(&["faults"]).await;
    for words in [
        "all ordered faults are stopped since 20",
        " by ",
        WHY,
        "there is 1 FaultInjection",
    ] {
        assert!(told.contains(words), "{told}");
    }
    ground.until_inactive("Stopped").await;
    ground.said(&["faults", "resume"]).await;
    until(&door, 500).await;

    ground.edit(json!({"spec": {"disabled": true}})).await;
    until(&door, 200).await;
    ground.until_inactive("Disabled").await;
    ground.edit(json!({"spec": {"disabled": false}})).await;
    until(&door, 500).await;

    let label = "faultinjection.ctrlmesh.kusionstack.io/disable";
    ground.edit(json!({"metadata": {"labels": {label: ""}}})).await;
    until(&door, 200).await;
    ground.edit(json!({"metadata": {"labels": {label: null}}})).await;
    until(&door, 500).await;

    let ends = Timestamp::now().saturating_add(LASTS).unwrap();
    ground.edit(json!({"spec": {"until": format!("{ends:.0}")}})).await;
    until(&door, 200).await;
    assert!(
        Timestamp::now() >= Timestamp::from_second(ends.as_second()).unwrap(),
        "not before its hour"
    );
    ground.until_inactive("Expired").await;
    let policies = ground.policies::<FaultInjection>().await;
    let deleted = policies
        .delete(policy.metadata.name.as_deref().unwrap(), &DeleteParams::default())
        .await;
    deleted.unwrap();
}
