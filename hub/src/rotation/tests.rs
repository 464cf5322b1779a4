//! A rotation over a hub in one process, with one agent.

use portolan_runtime::tls::TrustStore;
use portolan_wire::v1;
use portolan_wire::v1::agent_update::Kind as Told;
use portolan_wire::v1::enroll_response::Outcome;
use portolan_wire::v1::enrollment_client::EnrollmentClient;
use serde_json::json;

use super::*;
use crate::testing::{Objects, TestAgent, TestHub, hello_of, key_and_csr, scripted_api};

const NAMESPACE: &str = "portolan-system";
const FOLDER: &str = "/api/v1/namespaces/portolan-system";
const STATE: &str = "/api/v1/namespaces/portolan-system/configmaps/portolan-ca-rotation";

struct Ground {
    hub: TestHub,
    rotation: Rotation,
}

impl Ground {
    /// With the agent of east alone, which has joined.
    async fn new() -> Self {
        let hub = TestHub::start().await;
        for router in ["gateway", "part"] {
            hub.forget_router(router);
        }
        hub.until("the routers are forgotten", |hub| {
            hub.index.read(|facts| facts.routers.is_empty()).then_some(())
        })
        .await;
        let mut secret = serde_json::to_value(ca::secret_of(hub.ca.current().root())).unwrap();
        secret["metadata"]["resourceVersion"] = json!("1");
        hub.objects
            .lock()
            .insert(format!("{FOLDER}/secrets/portolan-ca"), secret);
        let client = scripted_api(hub.objects.clone());
        let rotation = Rotation::new(client, NAMESPACE, hub.index.clone(), hub.ca.clone());
        Self { hub, rotation }
    }

    /// What somebody wants, and what the hub says to it.
    async fn wants(&self, step: &str, drop_absent: bool) -> CaRotation {
        let wanted = CaRotation {
            wanted: Some(step.to_owned()),
            drop_absent,
            ..CaRotation::default()
        };
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "portolan-ca-rotation", "resourceVersion": "1"}, "data": wanted.to_data(),
        });
        self.objects().lock().insert(STATE.to_owned(), map);
        self.looks().await
    }

    async fn looks(&self) -> CaRotation {
        self.rotation.look().await.unwrap();
        let data = self.objects().lock()[STATE]["data"].clone();
        CaRotation::from_data(&serde_json::from_value(data).unwrap_or_default())
    }

    fn objects(&self) -> &Objects {
        &self.hub.objects
    }

    fn fingerprint(&self) -> String {
        TrustStore::from_pem(self.hub.ca.current().bundle())
            .unwrap()
            .fingerprint()
    }

    /// The agent's stream, when it trusts this.
    async fn agent(&self, trusts: String) -> TestAgent {
        let hello = v1::AgentHello {
            trusts,
            ..hello_of("east")
        };
        self.hub.agent("east", hello).await.unwrap()
    }

    async fn waits_for(&self, words: &[&str]) {
        let mut last = Vec::new();
        for _ in 0..200 {
            last = self.looks().await.waiting;
            if last.len() == words.len() && last.iter().zip(words).all(|(line, word)| line.contains(word)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("waits for {last:?}, not {words:?}");
    }
}

/// What an agent is told next of the hub's CAs.
async fn told(agent: &mut TestAgent) -> v1::Trust {
    loop {
        if let Told::Trust(trust) = agent.hear().await.unwrap() {
            return trust;
        }
    }
}

#[tokio::test]
async fn nothing_is_issued_before_all_trust_it_and_nothing_dropped_that_somebody_has() {
    let ground = Ground::new().await;
    let deaf = ground.hub.join("east").await;
    let first = ground.hub.ca.current().bundle().to_owned();
    let state = ground.wants("begin", false).await;
    assert_eq!((state.phase.as_str(), &state.refused), ("both", &None));
    let published = ground.objects().lock()[&format!("{FOLDER}/configmaps/portolan-ca")]["data"]["ca.crt"].clone();
    assert_eq!(published, ground.hub.ca.current().bundle());
    ground.waits_for(&["release that cannot be told"]).await;

    let before = TrustStore::from_pem(&first).unwrap().fingerprint();
    let mut agent = ground.agent(before).await;
    drop(deaf);
    let trust = told(&mut agent).await;
    assert_eq!(
        (trust.ca_pem.as_str(), trust.renew),
        (ground.hub.ca.current().bundle(), false)
    );
    ground.waits_for(&["agent east (has not taken over"]).await;
    let refused = ground.wants("issue", true).await.refused.unwrap();
    assert!(
        refused.contains("agent east"),
        "connected ones are never left behind: {refused}"
    );

    let mut agent = ground.agent(ground.fingerprint()).await;
    ground.waits_for(&[]).await;
    let state = ground.wants("issue", false).await;
    assert_eq!((state.phase.as_str(), &state.refused), ("new", &None));
    let trust = told(&mut agent).await;
    assert!(trust.renew);
    ground
        .waits_for(&["agent east (has a certificate of the old CA)"])
        .await;
    let refused = ground.wants("finish", true).await.refused.unwrap();
    assert!(refused.contains("agent east"), "{refused}");

    // It goes away for good.
    drop(agent);
    ground.waits_for(&["agent east (is not connected)"]).await;
    assert!(ground.wants("finish", false).await.refused.is_some());
    let mut late = ground.agent(ground.fingerprint()).await;
    assert!(told(&mut late).await.renew);
    drop(late);
    ground.waits_for(&["agent east (is not connected)"]).await;
    let state = ground.wants("finish", true).await;
    assert_eq!((state.phase.as_str(), &state.refused), ("one", &None));
    let hello = hello_of("east");
    assert!(
        ground.hub.agent("east", hello).await.is_err(),
        "its certificate is of the old CA"
    );
}

#[tokio::test]
async fn whose_certificate_is_of_a_ca_that_is_dropped_is_sent_away() {
    let ground = Ground::new().await;
    let (issued, key) = ground.hub.enroll_agent("east").await;
    for step in ["begin", "issue"] {
        // It is away, and comes back in time.
        assert_eq!(ground.wants(step, true).await.refused, None, "{step}");
    }
    let trusts = ground.fingerprint();
    let hello = v1::AgentHello {
        trusts,
        ..hello_of("east")
    };
    let channel = ground.hub.channel_as(&issued, &key);
    let mut agent = ground.hub.agent_over(channel.clone(), hello).await.unwrap();
    assert!(told(&mut agent).await.renew);
    let (new_key, csr) = key_and_csr();
    let renewed = EnrollmentClient::new(channel)
        .renew(v1::RenewRequest { csr })
        .await
        .unwrap();
    let Some(Outcome::Issued(renewed)) = renewed.into_inner().outcome else {
        panic!("it is renewed")
    };
    let hello = v1::AgentHello {
        trusts: ground.fingerprint(),
        ..hello_of("east")
    };
    let channel = ground.hub.channel_as(&renewed, &new_key);
    let mut next = ground.hub.agent_over(channel, hello).await.unwrap();
    ground.waits_for(&[]).await;
    assert_eq!(ground.wants("finish", false).await.refused, None);
    let trust = told(&mut next).await;
    assert_eq!(
        (trust.ca_pem.as_str(), trust.renew),
        (ground.hub.ca.current().bundle(), false)
    );
    assert!(
        !ground.objects().lock()[&format!("{FOLDER}/secrets/portolan-ca")]
            .to_string()
            .contains("previous")
    );
}
