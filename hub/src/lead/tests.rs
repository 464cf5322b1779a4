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
        settings: BTreeMap::from([("--buckets".to_owned(), buckets.to_owned())]),
    }
}

fn replica(client: &Client, name: &str, buckets: &str) -> Election {
    let this = this(name, buckets);
    election(client.clone(), "n", this)
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
async fn who_is_started_anew_at_its_address_does_not_follow_itself() {
    let client = scripted_api(Objects::default());
    let mut before = Running::start(replica(&client, "a", "32"));
    before.leads().await;
    drop(before);
    let anew = Leader {
        identity: "another".to_owned(),
        ..this("a", "32")
    };
    let mut anew = Running::start(election(client.clone(), "n", anew));
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
    assert_eq!(Leader::read("a".to_owned(), &leader.annotations()), leader);
}
