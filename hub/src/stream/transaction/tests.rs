//! What a router is sent, and what it holds after its answer.

use portolan_wire::subscription::Subscription;

use super::*;
use crate::compile::{Compiled, Credentials};

fn target(cluster: &str) -> Ref {
    Ref::Target(cluster.to_owned())
}

fn owned(cluster: &str) -> Ref {
    Ref::Ownership {
        cluster: cluster.to_owned(),
        shard: portolan_crds::ShardName::new("ops", "a").unwrap(),
    }
}

fn view(home: &str) -> Ref {
    Ref::View {
        home: home.to_owned(),
        pod_uid: "p".to_owned(),
    }
}

fn world(resources: &[(Ref, &str, bool)]) -> World {
    let compiled = |version: &str, provisional| Compiled {
        resource: Arc::new(v1::Resource {
            version: version.to_owned(),
            body: None,
        }),
        change: None,
        provisional,
    };
    let resources = resources
        .iter()
        .map(|(name, version, provisional)| (name.clone(), compiled(version, *provisional)));
    World {
        resources: resources.collect(),
        ..World::default()
    }
}

fn holding(held: &[(Ref, &str)]) -> Holding {
    let held = held.iter().map(|(name, version)| (name.clone(), (*version).to_owned()));
    Holding {
        held: held.collect(),
        ..Holding::default()
    }
}

#[test]
fn only_differences_are_sent_and_an_ack_settles_them() {
    let world = world(&[(target("east"), "2", false), (target("west"), "1", false)]);
    let mut router = holding(&[(target("east"), "1"), (target("west"), "1"), (target("gone"), "1")]);
    let transaction = Transaction::between(&router, &world, &Scope::Everything);
    assert_eq!(transaction.upserts.len(), 1);
    assert_eq!(transaction.removals, [target("gone")]);
    assert!(transaction.whole);
    let commit = v1::Commit {
        nonce: 7,
        ..v1::Commit::default()
    };
    assert!(matches!(
        transaction.messages(commit, false).last().unwrap().kind,
        Some(Kind::Commit(v1::Commit { nonce: 7, .. }))
    ));
    router.acked(&transaction);
    assert!(Transaction::between(&router, &world, &Scope::Everything).is_empty());
}

#[test]
fn missing_facts_take_nothing_away() {
    let mut world = world(&[(owned("east"), "thin", true)]);
    for (kind, cluster) in [
        (v1::ResourceKind::CallerView, "east"),
        (v1::ResourceKind::Credential, "east"),
    ] {
        world.unknown.insert((kind, cluster.to_owned()));
    }
    let router = holding(&[
        (owned("east"), "full"),
        (Ref::gateway_credential("east"), "c"),
        (view("east"), "v"),
        (view("west"), "v"),
    ]);
    let transaction = Transaction::between(&router, &world, &Scope::Everything);
    assert!(
        transaction.upserts.is_empty(),
        "a provisional entry replaces no full one"
    );
    assert_eq!(transaction.removals, [view("west")]);
    assert!(!transaction.whole, "its release of anything is not proved");
    let ownerless = holding(&[(view("east"), "v"), (Ref::gateway_credential("east"), "c")]);
    assert!(
        Transaction::between(&ownerless, &world, &Scope::Everything).whole,
        "views and credentials grant no namespace"
    );
    let fresh = Transaction::between(&Holding::default(), &world, &Scope::Everything);
    assert_eq!(fresh.upserts.len(), 1, "who has nothing gets what there is");
}

/// What a gateway named `a` holds of its own.
fn held_of(world: &World) -> Held {
    let own = world.credentials.of_router("a").unwrap();
    let held = own.offered().map(|entry| (entry.name.clone(), entry.version.clone()));
    held.collect()
}

/// It said so when it came back: which tokens are just those that it is told shows once it has answered.
#[test]
fn what_a_router_holds_already_of_its_own_is_shared_with_what_it_is_told() {
    let world = World {
        credentials: Credentials::of_member("east", &[("a", "1"), ("b", "2")]),
        ..World::default()
    };
    let mut router = Holding {
        router: "a".to_owned(),
        held: held_of(&world),
        ..Holding::default()
    };
    let own = world.credentials.of_router("a");
    assert!(!router.held.is_own(own));
    let transaction = Transaction::between(&router, &world, &Scope::Everything);
    assert!(transaction.is_empty());
    router.acked(&transaction);
    assert!(router.held.is_own(own));
    router
        .held
        .insert(Ref::gateway_credential("west"), "of before".to_owned());
    let mut unknown = world.clone();
    unknown
        .unknown
        .insert((v1::ResourceKind::Credential, "west".to_owned()));
    let transaction = Transaction::between(&router, &unknown, &Scope::Everything);
    assert!(transaction.is_empty() && transaction.own.is_none(), "nobody knows yet");
    let transaction = Transaction::between(&router, &world, &Scope::Everything);
    assert_eq!(transaction.removals, [Ref::gateway_credential("west")]);
    router.acked(&transaction);
    assert!(router.held.is_own(own));
}

#[test]
fn what_is_a_routers_own_is_looked_through_again_once_it_changes_or_was_refused() {
    let tokens = |text: &str| World {
        credentials: Credentials::of_member("east", &[("a", text)]),
        ..World::default()
    };
    let mut router = Holding {
        router: "a".to_owned(),
        ..Holding::default()
    };
    let next = |router: &Holding, world: &World| Transaction::between(router, world, &Scope::Everything);
    let first = tokens("1");
    router.acked(&next(&router, &first));
    assert!(next(&router, &first).is_empty() && router.held.is_own(first.credentials.of_router("a")));
    let second = tokens("2");
    let offered = next(&router, &second);
    let nack = v1::Nack {
        rejected: vec![v1::Rejected {
            r#ref: Some(Ref::gateway_credential("east").to_wire()),
            version: String::new(),
            reason: "no".to_owned(),
        }],
        ..v1::Nack::default()
    };
    assert!(router.nacked(&offered, &nack) && !router.held.is_own(second.credentials.of_router("a")));
    let again = next(&router, &second);
    assert!(again.is_empty() && again.own.is_none(), "it is not offered again");
    assert_eq!(router.held, held_of(&first), "its own last good stays");
    assert_eq!(next(&router, &tokens("3")).credentials.len(), 1);
    let gone = World::default();
    assert_eq!(next(&router, &gone).removals, [Ref::gateway_credential("east")]);
}

#[test]
fn what_a_router_may_not_see_is_taken_from_it_unless_nobody_knows_its_shard() {
    let mut world = world(&[(target("east"), "1", false), (owned("east"), "2", false)]);
    let held = holding(&[(target("east"), "1"), (owned("east"), "1")]);
    let subscription = Subscription::from_scopes(["caller:east/ops/p"]).unwrap();
    let transaction = Transaction::between(&held, &world, &Scope::of(&subscription, &world));
    assert_eq!(transaction.removals, [owned("east")], "the way to its home stays");
    assert!(transaction.upserts.is_empty() && transaction.whole);
    world.unknown.insert((v1::ResourceKind::CallerView, "east".to_owned()));
    let transaction = Transaction::between(&held, &world, &Scope::of(&subscription, &world));
    assert!(transaction.is_empty());
    assert!(!transaction.whole, "it is served by what it owned");
}

fn refusal(name: &Ref) -> v1::Nack {
    let rejected = v1::Rejected {
        r#ref: Some(name.to_wire()),
        version: "bad".to_owned(),
        reason: "no".to_owned(),
    };
    v1::Nack {
        nonce: 1,
        rejected: vec![rejected],
    }
}

#[test]
fn what_was_refused_is_not_offered_again_and_proves_no_release() {
    let world = world(&[(target("east"), "1", false), (owned("east"), "bad", false)]);
    let mut router = holding(&[(owned("east"), "good")]);
    let transaction = Transaction::between(&router, &world, &Scope::Everything);
    let nack = refusal(&owned("east"));
    assert!(router.nacked(&transaction, &nack));
    let held = |name: &Ref| router.held.get(name).map(String::as_str);
    assert_eq!(held(&owned("east")), Some("good"), "its own last good stays");
    assert_eq!(held(&target("east")), Some("1"), "the rest came in");
    assert!(!transaction.refused(&nack).whole);
    let again = Transaction::between(&router, &world, &Scope::Everything);
    assert!(again.is_empty() && !again.whole);
    assert_eq!(router.rejected[&owned("east")], ("bad".to_owned(), "no".to_owned()));
}

#[test]
fn what_is_withheld_is_offered_again_and_all_else_is_sent() {
    let world = world(&[(target("east"), "2", false), (owned("east"), "2", false)]);
    let mut router = holding(&[(owned("east"), "1")]);
    let mut transaction = Transaction::between(&router, &world, &Scope::Everything);
    transaction.withhold(|name| *name == owned("east"));
    router.acked(&transaction);
    assert_eq!(router.held.get(&owned("east")).map(String::as_str), Some("1"));
    assert_eq!(router.held.get(&target("east")).map(String::as_str), Some("2"));
    let again = Transaction::between(&router, &world, &Scope::Everything);
    assert_eq!(again.upserts.len(), 1);
}

#[test]
fn a_refusal_of_what_was_not_sent_is_unclear() {
    let transaction = Transaction {
        removals: vec![target("gone")],
        ..Transaction::default()
    };
    let mut router = Holding::default();
    assert!(!router.nacked(&transaction, &refusal(&target("gone"))));
    assert!(!router.nacked(&transaction, &v1::Nack::default()));
}

#[test]
fn what_no_router_could_read_is_kept_back_and_told() {
    let mut world = world(&[(target("east"), "1", false), (target("west"), "1", false)]);
    let ca_pem = "x".repeat(MAX_RESOURCE_BYTES);
    let body = v1::Target {
        ca_pem,
        ..Default::default()
    };
    let east = world.resources.get_mut(&target("east")).unwrap();
    Arc::make_mut(&mut east.resource).body = Some(v1::resource::Body::Target(body));
    let mut router = Holding::default();
    let transaction = router.next(&world, &Scope::Everything);
    let offered: Vec<_> = transaction.upserts.iter().map(|(name, _)| name).collect();
    assert_eq!(offered, [&target("west")], "the others are told all the same");
    assert!(router.rejected[&target("east")].1.contains("bytes"));
    router.acked(&transaction);
    assert!(router.next(&world, &Scope::Everything).is_empty());
}

/// A world in which shard a of east has namespaces up to this one, compiled after `last`.
fn granting(last: Option<&World>, namespaces: usize) -> World {
    let grants = (0..namespaces).map(|number| v1::NamespaceGrant {
        namespace: format!("namespace-{number}"),
        owner_count: 1,
        ..v1::NamespaceGrant::default()
    });
    let owned = v1::Ownership {
        cluster: "east".to_owned(),
        shard: "ops/a".to_owned(),
        namespaces: grants.collect(),
        ..v1::Ownership::default()
    };
    let name = self::owned("east");
    let compiled = Compiled::after_world(last, &name, v1::resource::Body::Ownership(owned));
    World {
        resources: [(name, compiled)].into(),
        ..World::default()
    }
}

#[test]
fn who_holds_the_version_before_is_sent_what_is_different_and_whoever_refuses_that_the_whole() {
    let worlds = [granting(None, 50)];
    let worlds = [granting(Some(&worlds[0]), 51), worlds.into_iter().next().unwrap()];
    let [now, before] = &worlds;
    let sent = |router: &Holding, transaction: &Transaction| {
        let first = transaction.messages(v1::Commit::default(), router.takes_changes).next();
        match first.and_then(|message| message.kind) {
            Some(Kind::Resource(resource)) => resource.body,
            other => panic!("{other:?}"),
        }
    };
    let version = |world: &World| world.resources[&owned("east")].version().clone();
    let mut router = holding(&[(owned("east"), &version(before))]);
    let transaction = Transaction::between(&router, now, &Scope::Everything);
    assert!(matches!(
        sent(&router, &transaction),
        Some(v1::resource::Body::Ownership(_))
    ));
    router.takes_changes = true;
    let Some(v1::resource::Body::OwnershipChange(change)) = sent(&router, &transaction) else {
        panic!("all of it is sent");
    };
    assert_eq!(
        (change.from, change.now.unwrap().namespaces.len()),
        (version(before), 1)
    );
    assert!(router.nacked(&transaction, &refusal(&owned("east"))));
    assert!(router.held.get(&owned("east")).is_some(), "it goes on with what it has");
    let again = Transaction::between(&router, now, &Scope::Everything);
    assert!(matches!(sent(&router, &again), Some(v1::resource::Body::Ownership(_))));
    router.acked(&again);
    assert_eq!(router.held.get(&owned("east")), Some(&version(now)));
    let mut late = holding(&[(owned("east"), "of before that")]);
    late.takes_changes = true;
    let transaction = Transaction::between(&late, now, &Scope::Everything);
    assert!(matches!(
        sent(&late, &transaction),
        Some(v1::resource::Body::Ownership(_))
    ));
}
