//! Replicas on one scripted API server.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::testing::{Objects, SharedFaults, faulty_api, scripted_api};

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/n/leases/portolan-hub";

fn this(name: &str, buckets: &str) -> Leader {
    Leader {
        identity: name.to_owned(),
        address: Some(format!("{name}:7443")),
        pod: None,
        settings: BTreeMap::from([("--buckets".to_owned(), buckets.to_owned())]),
    }
}

fn replica(client: &Client, name: &str, buckets: &str) -> Election {
    election(client.clone(), "n", this(name, buckets), Default::default())
}

/// One that runs until it is dropped, as one that is killed.
struct Running {
    role: watch::Receiver<Role>,
    pulse: Pulse,
    stop: CancellationToken,
    runs: JoinSet<anyhow::Result<()>>,
}

impl Running {
    fn start(election: Election) -> Self {
        let (role, pulse, stop) = (election.role(), election.pulse(), CancellationToken::new());
        let mut runs = JoinSet::new();
        runs.spawn(election.run(stop.clone()));
        Self {
            role,
            pulse,
            stop,
            runs,
        }
    }

    /// How long it takes until it leads.
    async fn leads(&mut self) -> Duration {
        let begun = Instant::now();
        self.role.wait_for(|role| *role == Role::Leads).await.unwrap();
        begun.elapsed()
    }

    async fn follows(&mut self) -> Leader {
        let role = self
            .role
            .wait_for(|role| matches!(role, Role::Follows(_)))
            .await
            .unwrap();
        let Role::Follows(leader) = role.clone() else {
            unreachable!()
        };
        leader
    }

    async fn ended(&mut self) -> anyhow::Result<()> {
        self.runs.join_next().await.unwrap().unwrap()
    }
}

fn holder(objects: &Objects) -> Value {
    objects.lock()[PATH]["spec"]["holderIdentity"].clone()
}

#[tokio::test(start_paused = true)]
async fn one_leads_and_the_next_one_only_once_its_lease_was_seen_to_run_out() {
    let client = scripted_api(Objects::default());
    let mut first = Running::start(replica(&client, "a", "32"));
    first.leads().await;
    let mut second = Running::start(replica(&client, "b", "32"));
    assert_eq!(second.follows().await.address.as_deref(), Some("a:7443"));
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(first.pulse.is_fresh() && !second.pulse.is_fresh());
    assert!(!matches!(&*second.role.borrow(), Role::Leads));
    drop(first);
    let took = second.leads().await;
    let least = RUNS_OUT_AFTER.checked_sub(TERMS.renew_every).unwrap();
    assert!(
        took >= least && took <= RUNS_OUT_AFTER + 2 * TERMS.look_every,
        "{took:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn who_follows_is_told_for_how_long_all_routers_are_known_by_a_lease_that_is_renewed() {
    tokio::time::advance(Duration::from_hours(2)).await;
    let client = scripted_api(Objects::default());
    let acks = Arc::<Acks>::default();
    acks.begin(true);
    let knows = (acks, Arc::default());
    let mut first = Running::start(election(client.clone(), "n", this("a", "32"), knows));
    first.leads().await;
    let acks = Arc::<Acks>::default();
    let knows = (acks.clone(), Arc::default());
    let mut second = Running::start(election(client, "n", this("b", "32"), knows));
    second.follows().await;
    assert_eq!(acks.inherited(), None, "what a Lease says may be of long ago");
    tokio::time::sleep(2 * TERMS.renew_every).await;
    assert_eq!(acks.inherited(), Some(Duration::from_hours(1)));
    drop(first);
    second.leads().await;
    assert!(acks.inherited().is_some(), "until it is taken");
}

#[tokio::test(start_paused = true)]
async fn who_is_started_anew_at_its_address_does_not_follow_itself() {
    let client = scripted_api(Objects::default());
    let mut before = Running::start(replica(&client, "a", "32"));
    before.leads().await;
    drop(before);
    let anew = Leader {
        identity: "another".to_owned(),
        ..this("a", "32")
    };
    let mut anew = Running::start(election(client.clone(), "n", anew, Default::default()));
    tokio::time::sleep(RUNS_OUT_AFTER / 2).await;
    let role = anew.role.borrow_and_update().clone();
    assert!(matches!(&role, Role::Unknown(why) if !why.is_empty()), "{role:?}");
    anew.leads().await;
}

#[tokio::test(start_paused = true)]
async fn who_ends_by_itself_gives_it_back_at_once() {
    let objects = Objects::default();
    let client = scripted_api(objects.clone());
    let mut first = Running::start(replica(&client, "a", "32"));
    first.leads().await;
    let mut second = Running::start(replica(&client, "b", "32"));
    second.follows().await;
    first.stop.cancel();
    first.ended().await.unwrap();
    assert_eq!(holder(&objects), Value::Null);
    assert!(second.leads().await <= 2 * TERMS.look_every);
}

#[tokio::test(start_paused = true)]
async fn who_finds_another_in_its_lease_ends() {
    let objects = Objects::default();
    let client = scripted_api(objects.clone());
    let mut first = Running::start(replica(&client, "a", "32"));
    first.leads().await;
    // What it was asleep for.
    let changed = |lease: &mut Value| {
        lease["spec"]["holderIdentity"] = json!("b");
        lease["metadata"]["resourceVersion"] = json!("77");
    };
    changed(objects.lock().get_mut(PATH).unwrap());
    let error = first.ended().await.unwrap_err().to_string();
    assert!(error.contains("another replica leads: b"), "{error}");
    assert_eq!(holder(&objects), "b");
}

#[tokio::test(start_paused = true)]
async fn while_nobody_can_look_nobody_takes_it_and_who_led_goes_on() {
    let (objects, faults) = (Objects::default(), SharedFaults::default());
    let client = faulty_api(objects.clone(), faults.clone());
    let mut first = Running::start(replica(&client, "a", "32"));
    first.leads().await;
    let mut second = Running::start(replica(&client, "b", "32"));
    second.follows().await;
    faults.lock().away = true;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(first.pulse.is_fresh(), "it was awake");
    faults.lock().away = false;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(*first.role.borrow(), Role::Leads);
    assert_eq!(holder(&objects), "a");
}

#[tokio::test(start_paused = true)]
async fn who_has_other_settings_comes_after_those_that_agree() {
    let client = scripted_api(Objects::default());
    let mut first = Running::start(replica(&client, "a", "32"));
    first.leads().await;
    let mut other = Running::start(replica(&client, "b", "64"));
    assert!(
        other
            .follows()
            .await
            .differs(&[("--buckets".to_owned(), "64".to_owned())].into())
            .is_some()
    );
    let mut third = Running::start(replica(&client, "c", "32"));
    third.follows().await;
    drop(first);
    third.leads().await;
    drop(third);
    // But somebody has to.
    assert!(other.leads().await + TERMS.renew_every >= 2 * RUNS_OUT_AFTER);
}

#[test]
fn it_is_said_which_settings_differ() {
    let ours = |buckets: &str| BTreeMap::from([("--buckets".to_owned(), buckets.to_owned())]);
    let leader = || this("a", "32");
    assert_eq!(leader().differs(&ours("32")), None);
    let said = leader().differs(&ours("64")).unwrap();
    assert_eq!(said, r#"--buckets is "64" here and "32" there"#);
    // Of a release that has one more.
    let more = BTreeMap::from([("--later".to_owned(), "x".to_owned())]);
    assert_eq!(leader().differs(&ours("32").into_iter().chain(more).collect()), None);
}

#[test]
fn what_its_lease_says_of_a_leader_is_read_back() {
    let leader = this("a", "32");
    let annotations = leader.annotations(Duration::ZERO);
    assert_eq!(Leader::read("a".to_owned(), &annotations), leader);
}

/// The Pods `old` and `new` of a Deployment's first and second template, of which it is to run this one.
fn deployment(objects: &Objects, present: &str) {
    let metadata = |revision: &str, owner: Value| json!({"name": "x", "annotations": {"deployment.kubernetes.io/revision": revision}, "ownerReferences": [owner]});
    let owner = |kind: &str, name: &str| json!({"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "u", "controller": true});
    let mut objects = objects.lock();
    let mut put = |path: &str, metadata: Value| drop(objects.insert(path.to_owned(), json!({"metadata": metadata})));
    put(
        "/apis/apps/v1/namespaces/n/deployments/hub",
        metadata(
            present,
            json!({"apiVersion": "v1", "kind": "Other", "name": "x", "uid": "u"}),
        ),
    );
    for (pod, revision) in [("old", "1"), ("new", "2")] {
        put(
            &format!("/api/v1/namespaces/n/pods/{pod}"),
            json!({"name": pod, "ownerReferences": [owner("ReplicaSet", pod)]}),
        );
        put(
            &format!("/apis/apps/v1/namespaces/n/replicasets/{pod}"),
            metadata(revision, owner("Deployment", "hub")),
        );
    }
}

fn in_pod(client: &Client, pod: &str, buckets: &str) -> Running {
    let this = Leader {
        pod: Some(pod.to_owned()),
        ..this(pod, buckets)
    };
    Running::start(election(client.clone(), "n", this, Default::default()))
}

#[tokio::test(start_paused = true)]
async fn one_that_a_deployment_is_to_run_with_other_settings_leads_in_place_of_one_of_before() {
    let objects = Objects::default();
    deployment(&objects, "1");
    let client = scripted_api(objects.clone());
    let mut old = in_pod(&client, "old", "32");
    old.leads().await;
    let mut new = in_pod(&client, "new", "64");
    assert_eq!(new.follows().await.identity, "old");
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(holder(&objects), "old", "the Deployment is not to run the new one");
    deployment(&objects, "2");
    new.leads().await;
    let ended = old.ended().await.unwrap_err().to_string();
    assert!(ended.contains("another replica leads: new"), "{ended}");
    // Started anew it follows, for as long as it is one of before.
    let mut again = in_pod(&client, "old", "32");
    assert_eq!(again.follows().await.identity, "new");
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(holder(&objects), "new");
}

#[tokio::test(start_paused = true)]
async fn one_of_the_same_settings_follows_whatever_its_deployment_is_to_run() {
    let objects = Objects::default();
    deployment(&objects, "2");
    let client = scripted_api(objects.clone());
    let mut old = in_pod(&client, "old", "32");
    old.leads().await;
    let mut new = in_pod(&client, "new", "32");
    new.follows().await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(holder(&objects), "old");
}
