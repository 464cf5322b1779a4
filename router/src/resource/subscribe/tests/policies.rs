//! Policies between hub and router: what is told, refused, reported, and kept over a restart.

use serde_json::json;

use super::*;

const BREAKER: &str = "CircuitBreaker/ns/calm";

fn policy(version: &str, limit: i64) -> v1::Resource {
    let spec = json!({"selector": {}, "rateLimitings": [{
        "name": "all",
        "scope": "Shared",
        "triggerPolicy": "LimiterOnly",
        "resourceRules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"]}],
        "bucket": {"burst": limit, "interval": "1s", "limit": limit},
    }]});
    let policy = v1::Policy {
        name: BREAKER.to_owned(),
        uid: "p1".to_owned(),
        generation: 1,
        spec_json: spec.to_string(),
        closed: Vec::new(),
    };
    resource(version, Body::Policy(policy))
}

fn shares(revision: u64, millionths: u32) -> Out {
    Out::Shares(v1::Shares {
        revision,
        shares: vec![v1::RuleShare {
            policy: BREAKER.to_owned(),
            uid: "p1".to_owned(),
            rule: "all".to_owned(),
            millionths,
            fresh: false,
        }],
    })
}

fn demand(client: &Client) -> v1::SharedDemand {
    let routing = client.routing.load();
    routing.policies.report(&routing.snapshot).demands.remove(0)
}

#[tokio::test]
async fn a_bad_policy_is_refused_by_name_and_its_last_good_stays_in_force() {
    let (mut hub, client, _folder) = connected().await;
    let mut session = hub.session().await;
    assert!(session.hello.capabilities.iter().any(|one| one == "policies"));
    assert_eq!(
        session.push(1, vec![policy("good", 5)], Vec::new()).await,
        In::Ack(v1::Ack { nonce: 1 })
    );
    let before = client.routing.load().snapshot.policies[BREAKER].clone();
    let In::Nack(nack) = session.push(2, vec![policy("bad", 0)], Vec::new()).await else {
        panic!("not a NACK")
    };
    let refused = &nack.rejected[0];
    assert_eq!(
        (refused.r#ref.as_ref().unwrap().name.as_str(), refused.version.as_str()),
        (BREAKER, "bad")
    );
    assert!(refused.reason.contains("rateLimitings[0].bucket"), "{}", refused.reason);
    assert!(std::sync::Arc::ptr_eq(
        &before,
        &client.routing.load().snapshot.policies[BREAKER]
    ));
    client.stop().await;
}

#[tokio::test]
async fn the_hub_hears_how_policies_stand_after_hello_and_of_the_shares_that_are_kept_to() {
    let (mut hub, client, _folder) = connected().await;
    let mut session = hub.session().await;
    let first = loop {
        if let In::Policies(report) = session.any().await {
            break report;
        }
    };
    assert_eq!(first, v1::PolicyReport::default());
    session.push(1, vec![policy("1", 5)], Vec::new()).await;
    session.send(shares(3, 250_000)).await;
    let told = loop {
        if let In::Policies(report) = session.any().await
            && report.demands.first().is_some_and(|demand| demand.revision == 3)
        {
            break report;
        }
    };
    assert_eq!((told.demands[0].share_millionths, told.shares_revision), (250_000, 3));
    let reference = policy("1", 5).reference().unwrap();
    session.push(2, Vec::new(), vec![reference]).await;
    session
        .send(Out::Shares(v1::Shares {
            revision: 4,
            shares: Vec::new(),
        }))
        .await;
    let let_go = loop {
        if let In::Policies(report) = session.any().await
            && report.shares_revision == 4
        {
            break report;
        }
    };
    assert_eq!(
        let_go.demands,
        [],
        "it has no such rule any more, and says so all the same"
    );
    client.stop().await;
}

#[tokio::test]
async fn a_restart_without_the_hub_keeps_to_the_last_share() {
    let (mut hub, client, folder) = connected().await;
    let mut session = hub.session().await;
    session
        .push(1, [everything(), vec![policy("1", 5)]].concat(), Vec::new())
        .await;
    session.send(shares(3, 250_000)).await;
    while demand(&client).revision != 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(session);
    client.stop().await;
    let address = hub.address;
    let authority = hub.stop().await;

    let client = Client::new().enrolled(&authority);
    client.subscribe(client.link(&authority, address), folder.path());
    let kept = demand(&client);
    assert_eq!(
        (kept.policy.as_str(), kept.revision, kept.share_millionths),
        (BREAKER, 3, 250_000)
    );
    client.stop().await;
}

#[tokio::test]
async fn a_share_that_cannot_be_written_is_not_told_to_be_kept_to() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let routing = RoutingStore::new(Duration::from_secs(1), portolan_runtime::Tasks::new());
    let mut state = HubState::new(routing.clone(), &missing);
    state.apply(Transaction {
        upserted: vec![policy("1", 5)],
        removed: Vec::new(),
    });
    let Out::Shares(told) = shares(3, 250_000) else {
        panic!()
    };
    state.reshare(crate::resource::policies::ToldShares::of(&told)).await;
    let demand = || {
        let routing = routing.load();
        routing.policies.report(&routing.snapshot).demands.remove(0)
    };
    assert_eq!((demand().revision, demand().share_millionths), (0, 0));
    std::fs::create_dir(&missing).unwrap();
    state.secure_shares().await;
    assert_eq!((demand().revision, demand().share_millionths), (3, 250_000));
}

/// A write that failed by its rename may have left the larger share, and a new stream is told of the smaller one: another router
/// may get the rest, which a restart must not find here.
#[tokio::test]
async fn what_a_failed_write_may_have_left_is_told_and_not_used_until_it_is_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shares.bin");
    let routing = RoutingStore::new(Duration::from_secs(1), portolan_runtime::Tasks::new());
    let mut state = HubState::new(routing.clone(), folder.path());
    state.apply(Transaction {
        upserted: vec![policy("1", 5)],
        removed: Vec::new(),
    });
    let told = |revision, share| {
        let Out::Shares(told) = shares(revision, share) else {
            panic!()
        };
        crate::resource::policies::ToldShares::of(&told)
    };
    let said = || {
        let routing = routing.load();
        let said = routing.policies.report(&routing.snapshot).demands.remove(0);
        (said.revision, said.share_millionths)
    };
    state.reshare(told(1, 25_000)).await;
    assert_eq!(said(), (1, 25_000));
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    state.reshare(told(2, 500_000)).await;
    assert_eq!(said(), (1, 500_000));
    routing.load().policies.forget_unsecured();
    state.secure_shares().await;
    assert_eq!(said(), (1, 500_000));
    std::fs::remove_dir(&path).unwrap();
    state.secure_shares().await;
    assert_eq!(said(), (1, 25_000));
    assert!(path.is_file(), "a restart finds no more than that");
}
