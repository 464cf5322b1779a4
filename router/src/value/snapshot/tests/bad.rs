//! Entries that are refused: each keeps its own last good, and the rest comes in.

use super::*;

/// A change for the worse, and the field that the refusal names.
type Case<T> = (fn(&mut T), &'static str);

/// The one entry that was refused of a transaction with a good one beside it: name and reason. The good one came in.
fn refused(previous: &Snapshot, bad: Body) -> (String, String, Snapshot) {
    let applied = upsert(previous, "2", [bad, caller("beside")]);
    let [rejected] = applied.rejected.as_slice() else {
        panic!("{:?}", applied.rejected)
    };
    assert_eq!(rejected.version, "2");
    let beside = applied
        .snapshot
        .callers
        .values()
        .any(|view| &*view.key.pod_uid == "beside");
    assert!(beside, "the rest comes in");
    let name = rejected.r#ref.as_ref().unwrap().name.clone();
    (name, rejected.reason.clone(), applied.snapshot)
}

#[test]
fn a_bad_member_keeps_its_last_good() {
    let bad_url = |url: &str| {
        let endpoints = vec![v1::Endpoint {
            url: url.into(),
            tls_server_name: String::new(),
        }];
        Body::Target(v1::Target {
            endpoints,
            ..way("east")
        })
    };
    let ratio = v1::Breaker {
        failure_ratio: f64::NAN,
        ..v1::Breaker::default()
    };
    let keys = v1::MemberIdentity {
        cluster: "east".into(),
        signing_keys: vec!["not a key".into()],
        ..v1::MemberIdentity::default()
    };
    let nameless = v1::Credential {
        identity: String::new(),
        ..told::credential("east", "t")
    };
    let previous = good();
    for (bad, field) in [
        (
            Body::Target(v1::Target {
                endpoints: vec![],
                ..way("east")
            }),
            "endpoints",
        ),
        (Body::Target(way("East")), "cluster"),
        (
            Body::Target(v1::Target {
                breaker: Some(ratio),
                ..way("east")
            }),
            "failure_ratio",
        ),
        (bad_url("http://a:1"), "url"),
        (bad_url("https://"), "url"),
        (bad_url("https://a:1/path"), "url"),
        (bad_url("https://u:p@a:1"), "url"),
        (bad_url(""), "url"),
        (Body::MemberIdentity(keys), "signing_keys"),
        (Body::Credential(told::credential("east", "")), "token"),
        (Body::Credential(told::credential("east", "a\r\nb")), "token"),
        (Body::Credential(nameless), "identity"),
    ] {
        let (_, reason, snapshot) = refused(&previous, bad);
        assert!(reason.contains(field), "{field}: {reason}");
        assert!(!reason.contains("u:p"));
        assert!(Arc::ptr_eq(&snapshot.targets["east"], &previous.targets["east"]));
        assert!(Arc::ptr_eq(&snapshot.identities["east"], &previous.identities["east"]));
        let credential = snapshot.gateway_credential("east").unwrap();
        assert_eq!(credential.bearer, "Bearer canary-token");
    }
}

#[test]
fn a_bad_view_keeps_the_last_good_one() {
    let bad = |change: fn(&mut told::CallerView)| {
        let mut told = told::CallerView {
            shard: None,
            ..view("u1", PREFIX)
        };
        change(&mut told);
        told.bodies().remove(0)
    };
    let previous = good();
    let cases: [Case<told::CallerView>; 6] = [
        (|view| view.pod_uid.clear(), "pod_uid"),
        (|view| view.pod_uid = "a/b".into(), "pod_uid"),
        (|view| view.home_cluster = "a/b".into(), "home_cluster"),
        (|view| view.namespace = "A".into(), "namespace"),
        (|view| view.service_account = "a:b".into(), "service_account"),
        (|view| view.shards = vec!["blue".into()], "shards"),
    ];
    for (change, field) in cases {
        let (_, reason, snapshot) = refused(&previous, bad(change));
        assert!(reason.contains(field), "{field}: {reason}");
        assert!(Arc::ptr_eq(&snapshot.callers[&key()], &previous.callers[&key()]));
    }
}

/// Callers go on by what was good, and by what they own as of now.
#[test]
fn bad_rules_keep_the_last_good_ones() {
    let cases: [Case<v1::Shard>; 7] = [
        (|rules| rules.label_prefix = "no slash".into(), "label_prefix"),
        (|rules| rules.name = "blue".into(), "name"),
        (|rules| rules.primary_cluster = "a/b".into(), "primary_cluster"),
        (
            |rules| rules.leader_election_name = "Not a name".into(),
            "leader_election_name",
        ),
        (|rules| rules.lock_resource = "secrets".into(), "lock_resource"),
        (|rules| rules.members.push(rules.members[0].clone()), "cluster"),
        (
            |rules| {
                rules.limits.push(v1::Limit {
                    selector: "a in".into(),
                    resources: vec![],
                });
            },
            "limits",
        ),
    ];
    let previous = good();
    for (change, field) in cases {
        let mut bad = rules(PREFIX);
        change(&mut bad);
        let name = bad.name.clone();
        let (refused, reason, snapshot) = refused(&previous, Body::Shard(bad));
        assert!(refused == name && reason.contains(field), "{refused} {reason}");
        assert!(Arc::ptr_eq(
            &shard_of_caller(&snapshot, &key()),
            &shard_of_caller(&previous, &key())
        ));
        let snapshot = upsert(&snapshot, "3", [owned(&["ns-b"])]).snapshot;
        let shard = shard_of_caller(&snapshot, &key());
        assert!(shard.owner("ns-a").is_none() && shard.owner("ns-b").is_some());
    }
    let mut bad = rules(PREFIX);
    bad.label_prefix.clear();
    let never_good = upsert(&Snapshot::default(), "1", [Body::Shard(bad), owned(&[]), caller("u1")]);
    assert_eq!(never_good.rejected.len(), 1);
    assert!(missing(&never_good.snapshot, "u1").contains("ops/blue"));
}

/// The hub counts no release that was refused, so the old owner is served on.
#[test]
fn bad_ownership_keeps_the_last_good_one() {
    let previous = good();
    for (bad, field) in [
        (owned(&["a b"]), "namespaces"),
        (
            Body::Ownership(v1::Ownership {
                cluster: "east".into(),
                shard: "ops/blue".into(),
                departed: vec![v1::DepartedNamespace::default()],
                ..v1::Ownership::default()
            }),
            "departed",
        ),
    ] {
        let (name, reason, snapshot) = refused(&previous, bad);
        assert!(name == "east/ops/blue" && reason.contains(field), "{name} {reason}");
        assert!(shard_of_caller(&snapshot, &key()).owner("ns-a").is_some());
    }
}
