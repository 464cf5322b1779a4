//! Somebody had a copy of the hub's CA: it is replaced under load, and nothing that it signed is taken any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Secret as KubeSecret};
use kube::Api;
use portolan_crds::labels::SYSTEM_NAMESPACE;
use portolan_runtime::tls::{Identity as TlsIdentity, IdentityStore, TrustStore};
use portolan_runtime::{Secret, pki};
use portolan_testbed::eventually;
use portolan_tests::daemon::Daemon;
use portolan_tests::door::Door;
use portolan_tests::programs::argument;
use portolan_tests::shard::federated;
use portolan_tests::watch::{WATCH_LIST, Watch};
use portolan_tests::world::{HUB, Plan, World};
use portolan_tests::{ctl, hub_cluster, routers};
use portolan_wire::client::HubLink;
use portolan_wire::v1;
use portolan_wire::v1::enrollment_client::EnrollmentClient;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

const PATH: &str = "/api/v1/namespaces/h-east/configmaps";
const PROBE_EVERY: Duration = Duration::from_millis(20);
const TTL: Duration = Duration::from_hours(1);

struct Ground {
    world: World,
    hub: String,
    token: String,
}

impl Ground {
    async fn new() -> Self {
        let plan = Plan {
            members: &["east"],
            namespaces: &["east/h-east", "east/h-more"],
            manifests: &federated("alpha", "east", &[("east", &["h-east"])]),
            ..Plan::default()
        };
        let world = World::start(plan).await.unwrap();
        world.listed_door("alpha", PATH).await.unwrap();
        Self {
            hub: argument(world.cluster(HUB).direct_kubeconfig_path()),
            token: world.fleet.merged_token("alpha").unwrap(),
            world,
        }
    }

    /// `portolanctl ca …`; `Err` is what it complained.
    async fn ca(&self, words: &[&str]) -> Result<String, String> {
        let arguments = [&["ca"], words, &["--hub-kubeconfig", &self.hub]].concat();
        ctl::ok(&arguments).await.map_err(|error| format!("{error:#}"))
    }

    async fn forget(&self, router: &str) {
        let arguments = ["router", "forget", router, "--hub-kubeconfig", &self.hub];
        ctl::ok(&arguments).await.unwrap();
    }

    /// What everybody is to trust now, as it is published.
    async fn bundle(&self) -> String {
        let maps = Api::<ConfigMap>::namespaced(self.world.cluster(HUB).client().await.unwrap(), SYSTEM_NAMESPACE);
        maps.get("portolan-ca").await.unwrap().data.unwrap()["ca.crt"].clone()
    }

    /// An operator that verifies the router by these.
    async fn door(&self, ca_pem: &str) -> Door {
        let door = self.world.merged_door("alpha").await.unwrap();
        door.with_token(ca_pem, Some(&self.token)).unwrap()
    }

    /// The chain of the certificate that the agent keeps.
    async fn agent_chain(&self) -> Vec<CertificateDer<'static>> {
        let secrets =
            Api::<KubeSecret>::namespaced(self.world.cluster("east").client().await.unwrap(), SYSTEM_NAMESPACE);
        let data = secrets.get("portolan-agent-identity").await.unwrap().data.unwrap();
        chain(&data["tls.crt"].0)
    }

    fn router_files(&self) -> String {
        std::fs::read_to_string(self.world.fleet.dir().join("router-state").join("identity.pem")).unwrap()
    }
}

fn chain(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem).map(Result::unwrap).collect()
}

/// Asks by a connection of its own each time, by the door of the moment, and counts what is not as it should be.
fn probe(doors: watch::Receiver<Door>, stop: Arc<AtomicBool>, asked: Arc<AtomicUsize>) -> JoinSet<Vec<String>> {
    let mut probe = JoinSet::new();
    probe.spawn(async move {
        let mut wrong = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let door = doors.borrow().clone();
            match door.get(PATH, &[]).await {
                Ok(answer) if answer.status == 200 => {}
                Ok(answer) => wrong.push(format!("{} {}", answer.status, answer.message())),
                Err(error) => wrong.push(format!("{error:#}")),
            }
            asked.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(PROBE_EVERY).await;
        }
        wrong
    });
    probe
}

/// Both are trusted. A second router, away while this step is taken, is waited for by name; then the hub restarts, the router
/// is back, and the step is run again.
async fn begins(ground: &Ground) -> (String, Daemon) {
    let world = &ground.world;
    let old = ground.bundle().await;
    let hub_address = routers::hub_of(world).unwrap();
    let mut second = routers::start(world, "second", &hub_address, &[]).await.unwrap();
    second.ready().await;
    second.stop().await.unwrap();
    let early = ground.ca(&["rotate", "--issue"]).await.unwrap_err();
    assert!(early.contains("there is no new CA yet"), "{early}");
    let waits = ground.ca(&["rotate", "--timeout", "5s"]).await.unwrap_err();
    assert!(waits.contains("router second (is not connected)"), "{waits}");
    let early = ground.ca(&["rotate", "--issue", "--timeout", "1s"]).await.unwrap_err();
    assert!(early.contains("router second"), "{early}");
    let both = ground.bundle().await;
    assert!(both != old && chain(both.as_bytes()).len() == 2);

    let hub = world.fleet.take_over("hub").await.unwrap();
    hub.ready().await;
    assert_eq!(ground.bundle().await, both, "no third CA");
    second.start_again().await.unwrap();
    let words = ground.ca(&["rotate"]).await.unwrap();
    assert!(words.contains("--issue"), "{words}");
    let shown = ground.ca(&["show"]).await.unwrap();
    assert!(
        shown.contains("new, trusted by the hub") && !shown.contains("waits for"),
        "{shown}"
    );
    // It served nobody, and is not needed any more.
    ground.forget("second").await;
    drop(second);
    (both, hub)
}

/// Agents and routers have certificates of the new CA, which is returned; the hub restarts once more.
async fn issues(ground: &Ground, old: &str, both: &str, hub: &mut Daemon) -> Arc<TrustStore> {
    ground.ca(&["rotate", "--issue"]).await.unwrap();
    hub.kill().await.unwrap();
    hub.start_again().await.unwrap();
    hub.ready().await;
    let new = TrustStore::from_pem(&without(both, old)).unwrap();
    assert!(
        new.verifies_client(&ground.agent_chain().await),
        "the agent has renewed"
    );
    let router = ground.router_files();
    assert!(new.verifies_client(&chain(router.as_bytes())), "and the router");
    new
}

#[tokio::test]
async fn the_ca_is_replaced_under_load_and_what_the_old_one_signed_is_worth_nothing() {
    let ground = Ground::new().await;
    let world = &ground.world;
    let old = ground.bundle().await;
    let thief = hub_cluster::ca(&world.cluster(HUB).client().await.unwrap())
        .await
        .unwrap();
    let stolen_files = ground.router_files();
    let forged = thief.issue_client("portolan:dev", None, TTL).unwrap();
    let explicit = world.explicit_door("east").await.unwrap();
    let as_person = |ca_pem: &str| {
        let key = forged.key_pem.expose();
        explicit.with_certificate(ca_pem, &forged.cert_pem, key).unwrap()
    };
    assert_eq!(as_person(&old).get("/version", &[]).await.unwrap().status, 200);
    let (doors, first) = watch::channel(ground.door(&old).await);
    let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut probes = probe(first, stop.clone(), asked.clone());
    let mut open = Watch::open(&ground.door(&old).await, &format!("{PATH}?{WATCH_LIST}"))
        .await
        .unwrap();
    open.begun().await.unwrap();

    let (both, mut hub) = begins(&ground).await;
    // Operators and people get both before the second step.
    doors.send_replace(ground.door(&both).await);
    let new = issues(&ground, &old, &both, &mut hub).await;
    let by_new = ground.door(&new.pem()).await;
    assert_eq!(
        by_new.get(PATH, &[]).await.unwrap().status,
        200,
        "which the router shows"
    );
    assert_eq!(
        as_person(&both).get("/version", &[]).await.unwrap().status,
        200,
        "people keep theirs"
    );
    let done = ground.ca(&["rotate", "--finish"]).await.unwrap();
    assert!(done.contains("trusted no more"), "{done}");
    let left = TrustStore::from_pem(&ground.bundle().await).unwrap();
    assert_eq!(left.fingerprint(), new.fingerprint());
    doors.send_replace(by_new);
    refused_since(&ground, &stolen_files, &both, &as_person(&both)).await;

    // The API server trusts the hub's answers.
    let clusters = json!([{"name": "east", "namespaces": ["h-east", "h-more"]}]);
    world.own("alpha", clusters).await.unwrap();
    let made = ["create", "configmap", "after", "-n", "h-east"];
    world.direct("east").ok(&made).await.unwrap();
    assert_eq!(open.sees("h-east/after").await.unwrap(), "ADDED", "the watch goes on");
    stop.store(true, Ordering::Relaxed);
    let wrong = probes.join_next().await.unwrap().unwrap();
    let asked = asked.load(Ordering::Relaxed);
    assert!(asked > 50, "{asked}");
    assert_eq!(wrong, Vec::<String>::new(), "of {asked}");
}

/// Nobody takes what the old CA signed: neither the hub a router's certificate, nor the router a person's.
async fn refused_since(ground: &Ground, files: &str, both: &str, person: &Door) {
    let identity = TlsIdentity::from_pem(files, &Secret::new(files.to_owned())).unwrap();
    let hub = routers::hub_of(&ground.world).unwrap();
    let link = HubLink::new(&hub, TrustStore::from_pem(both).unwrap(), IdentityStore::new(identity)).unwrap();
    let csr = pki::signing_request(&pki::new_private_key().unwrap()).unwrap();
    let renewed = EnrollmentClient::new(link.channel())
        .renew(v1::RenewRequest { csr })
        .await;
    assert!(renewed.is_err(), "the hub takes a certificate of the old CA");
    eventually("the router refuses a person's certificate of the old CA", || async {
        match person.get("/version", &[]).await {
            Ok(answer) if answer.status == 200 => Err("200".to_owned()),
            _ => Ok(()),
        }
    })
    .await;
}

/// The certificates of one text that the other does not have.
fn without(all: &str, some: &str) -> String {
    let end = "-----END CERTIFICATE-----";
    let blocks = all
        .split_inclusive(end)
        .map(str::trim)
        .filter(|block| block.ends_with(end));
    blocks.filter(|block| !some.contains(block)).collect()
}
