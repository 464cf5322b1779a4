//! A router whose files were copied: forgotten, it is refused by the hub and by the members, and the others serve on.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::Method;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams};
use portolan_crds::labels::SYSTEM_NAMESPACE;
use portolan_runtime::tls::{Identity as TlsIdentity, IdentityStore, TrustStore};
use portolan_runtime::{Secret, pki};
use portolan_testbed::eventually;
use portolan_tests::daemon::Daemon;
use portolan_tests::door::{Door, json as json_request};
use portolan_tests::programs::{admin_get, argument};
use portolan_tests::shard::federated;
use portolan_tests::world::{HUB, Plan, PodSpec, World};
use portolan_tests::{ctl, routers};
use portolan_wire::client::HubLink;
use portolan_wire::protocol::{OPERATORS, PROTOCOL};
use portolan_wire::v1;
use portolan_wire::v1::enrollment_client::EnrollmentClient;
use portolan_wire::v1::router_control_client::RouterControlClient;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tonic::{Code, Status};

const PATH: &str = "/api/v1/namespaces/h-east/configmaps";
/// Who am I?
const REVIEW: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
/// What is promised.
const REVOKED_WITHIN: Duration = Duration::from_secs(15);
const ENDED_WITHIN: Duration = Duration::from_secs(3);

async fn start() -> World {
    let plan = Plan {
        members: &["east"],
        namespaces: &["east/h-east"],
        manifests: &federated("alpha", "east", &[("east", &["h-east"])]),
        ..Plan::default()
    };
    World::start(plan).await.unwrap()
}

/// What a thief finds in a router's state folder.
struct Stolen {
    link: HubLink,
    member_token: String,
}

impl Stolen {
    async fn copy(world: &World, name: &str) -> Self {
        let dir = routers::state_dir(world, name);
        let both = std::fs::read_to_string(dir.join("identity.pem")).unwrap();
        let identity = TlsIdentity::from_pem(&both, &Secret::new(both.clone())).unwrap();
        let trust = TrustStore::from_pem(&world.fleet.ca_pem().unwrap()).unwrap();
        let hub = routers::hub_of(world).unwrap();
        let link = HubLink::new(&hub, trust, IdentityStore::new(identity)).unwrap();
        let member_token = eventually("the router has kept its token", || async { token_in(&dir) }).await;
        Self { link, member_token }
    }

    async fn renews(&self) -> Result<(), Status> {
        let csr = pki::signing_request(&pki::new_private_key().unwrap()).unwrap();
        let mut client = EnrollmentClient::new(self.link.channel());
        client.renew(v1::RenewRequest { csr }).await.map(drop)
    }

    async fn opens_a_stream(&self) -> Result<(), Status> {
        let hello = v1::RouterHello {
            protocol: PROTOCOL,
            capabilities: vec![OPERATORS.to_owned()],
            ..v1::RouterHello::default()
        };
        let kind = Some(v1::router_message::Kind::Hello(hello));
        let messages = tokio_stream::iter([v1::RouterMessage { kind }]);
        let mut client = RouterControlClient::new(self.link.channel());
        client.connect(messages).await.map(drop)
    }

    /// HTTP status of a question to the member itself, and who the member says that one is.
    async fn asks_member(&self, direct: &Door) -> (u16, String) {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let request = json_request(Method::POST, REVIEW, &review).unwrap();
        let answer = direct.ask(request).await.unwrap();
        let user = answer.json()["status"]["userInfo"]["username"].clone();
        (answer.status, user.as_str().unwrap_or_default().to_owned())
    }
}

/// The first JSON Web Token in a router's state.
fn token_in(dir: &Path) -> Option<String> {
    let state = std::fs::read(dir.join("state.bin")).ok()?;
    let text = String::from_utf8_lossy(&state);
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && !"-_.".contains(letter));
    let tokens = words.filter_map(|word| Some(&word[word.find("eyJ")?..]));
    let mut whole = tokens.filter(|token| token.matches('.').count() == 2);
    whole.next().map(str::to_owned)
}

/// Asks the world's own router again and again, and counts what is not as it should be.
fn probe(door: Door, stop: Arc<AtomicBool>, asked: Arc<AtomicUsize>) -> JoinSet<Vec<String>> {
    let mut probe = JoinSet::new();
    probe.spawn(async move {
        let mut wrong = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            match door.get(PATH, &[]).await {
                Ok(answer) if answer.status == 200 => {}
                Ok(answer) => wrong.push(format!("{} {}", answer.status, answer.message())),
                Err(error) => wrong.push(format!("{error:#}")),
            }
            asked.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        wrong
    });
    probe
}

async fn is_connected(world: &World, router: &str) -> Option<bool> {
    let hub = world.fleet.process("hub").unwrap();
    let configz: Value = serde_json::from_str(&admin_get(&hub.admin, "/configz").await.ok()?).ok()?;
    configz["routers"][router]["connected"].as_bool()
}

fn is_refused(what: &str, outcome: Result<(), Status>) {
    let status = outcome.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{what}: {status:?}");
    assert!(
        status.message().contains("was forgotten"),
        "{what}: {}",
        status.message()
    );
}

/// Starts a second router; returns when its caller is served there.
#[expect(clippy::print_stdout, reason = "figures of docs/security.md")]
async fn second_router(world: &World, door: &Door, env: &[(&str, &str)]) -> Daemon {
    let started = Instant::now();
    let hub = routers::hub_of(world).unwrap();
    let second = routers::start(world, "second", &hub, env).await.unwrap();
    second.ready().await;
    let mut other = door.clone();
    second.bind().clone_into(&mut other.address);
    eventually("the second router serves", || async {
        let answer = other.get(PATH, &[]).await.ok()?;
        (answer.status == 200).then_some(())
    })
    .await;
    println!("a new router serves {:?} after its start", started.elapsed());
    second
}

/// Forgets the second router, and waits until nobody takes it any more.
#[expect(clippy::print_stdout, reason = "figures of docs/security.md")]
async fn forget(world: &World, stolen: &Stolen, east: &Door) {
    let kubeconfig = argument(world.cluster(HUB).direct_kubeconfig_path());
    let listed = ctl::ok(&["get", "routers", "--hub-kubeconfig", &kubeconfig])
        .await
        .unwrap();
    assert!(listed.contains("second") && listed.contains("everything"), "{listed}");
    let forgotten = Instant::now();
    let words = ctl::ok(&["router", "forget", "second", "--hub-kubeconfig", &kubeconfig]).await;
    assert!(words.unwrap().contains("within 15 seconds"));
    eventually("its stream ends", || async {
        (is_connected(world, "second").await == Some(false)).then_some(())
    })
    .await;
    let ended = forgotten.elapsed();
    is_refused("a renewal", stolen.renews().await);
    is_refused("a stream", stolen.opens_a_stream().await);
    eventually("the member does not know the token any more", || async {
        (stolen.asks_member(east).await.0 == 401).then_some(())
    })
    .await;
    let revoked = forgotten.elapsed();
    println!("of a forgotten router the stream ended within {ended:?}, its token in a member within {revoked:?}");
    assert!(ended < ENDED_WITHIN, "{ended:?}");
    assert!(revoked < REVOKED_WITHIN, "{revoked:?}");
}

#[tokio::test]
async fn a_stolen_router_is_shut_out_within_seconds_and_the_other_serves_on() {
    let world = start().await;
    let door = world.listed_door("alpha", PATH).await.unwrap();
    let second = second_router(&world, &door, &[]).await;
    let stolen = Stolen::copy(&world, "second").await;
    let direct = world.direct_door("east").await.unwrap();
    let token = Some(stolen.member_token.as_str());
    let east = direct.with_token(world.cluster("east").ca_pem(), token).unwrap();
    let router = "system:serviceaccount:portolan-routers:portolan-router";
    assert_eq!(stolen.asks_member(&east).await, (201, router.to_owned()));

    let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut probe = probe(door.clone(), stop.clone(), asked.clone());
    forget(&world, &stolen, &east).await;
    stop.store(true, Ordering::Relaxed);
    let wrong = probe.join_next().await.unwrap().unwrap();
    let asked = asked.load(Ordering::Relaxed);
    assert!(asked > 10, "{asked}");
    assert_eq!(wrong, Vec::<String>::new(), "of {asked}");
    let log = second.log().unwrap();
    assert!(log.contains("router second was forgotten"), "it is told why: {log}");
    let ready = admin_get(second.admin(), "/readyz").await.unwrap_err().to_string();
    assert!(
        ready.contains("503") && ready.contains("refuses this router"),
        "{ready}"
    );
    drop(second);

    // The name may serve again, by a new token and an empty folder; the copy stays what it is.
    std::fs::remove_dir_all(routers::state_dir(&world, "second")).unwrap();
    let (pod, uid) = ("router-0", pod_of_hub(&world, "router-0").await);
    let _again = second_router(&world, &door, &[("POD_NAME", pod), ("POD_UID", &uid)]).await;
    assert!(stolen.renews().await.is_err() && stolen.opens_a_stream().await.is_err());
    assert_eq!(stolen.asks_member(&east).await.0, 401);

    // Kubernetes deletes with the Pod what it owns.
    let pods = Api::<Pod>::namespaced(world.cluster(HUB).client().await.unwrap(), SYSTEM_NAMESPACE);
    pods.delete(pod, &DeleteParams::default()).await.unwrap();
    eventually("it is forgotten with its Pod", || async {
        (is_connected(&world, "second").await == Some(false)).then_some(())
    })
    .await;
}

/// A Pod in the hub's own namespace, as a router's would be; returns its uid.
async fn pod_of_hub(world: &World, name: &str) -> String {
    let pod = PodSpec {
        namespace: SYSTEM_NAMESPACE,
        name,
        service_account: "router",
        labels: json!({}),
    };
    world.pod(HUB, pod).await.unwrap()
}
