//! Transactions that are refused, in part or whole.

use super::*;

#[test]
fn a_bad_view_keeps_the_last_good_one() {
    let previous = good();
    let applied = apply(
        &previous,
        &upsert(vec![
            resource("v2", Body::CallerView(view("u1", "no slash"))),
            resource("v1", Body::CallerView(view("u2", PREFIX))),
        ]),
    );
    assert!(applied.rest_applied);
    assert_eq!(applied.snapshot.callers.len(), 2);
    assert!(Arc::ptr_eq(
        &applied.snapshot.callers[&key()],
        &previous.callers[&key()]
    ));
    let [rejected] = applied.rejected.as_slice() else {
        panic!("{:?}", applied.rejected)
    };
    assert_eq!(
        (
            rejected.version.as_str(),
            rejected.r#ref.as_ref().unwrap().name.as_str()
        ),
        ("v2", "east/u1")
    );
    assert!(rejected.reason.contains("label_prefix"), "{}", rejected.reason);
    let reference = rejected.r#ref.as_ref().unwrap();
    assert_eq!(applied.snapshot.versions[reference], "v1");
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn a_bad_target_or_credential_rejects_all() {
    let bad_url = |url: &str| {
        let endpoints = vec![v1::Endpoint {
            url: url.into(),
            tls_server_name: String::new(),
        }];
        Body::Target(v1::Target {
            endpoints,
            ..target("west", &[])
        })
    };
    let ratio = v1::Breaker {
        failure_ratio: f64::NAN,
        ..v1::Breaker::default()
    };
    for (bad, field) in [
        (
            Body::Target(v1::Target {
                endpoints: vec![],
                ..target("west", &[])
            }),
            "endpoints",
        ),
        (Body::Target(target("West", &[])), "cluster"),
        (Body::Target(target("west", &["not a key".into()])), "signing_keys"),
        (
            Body::Target(v1::Target {
                breaker: Some(ratio),
                ..target("west", &[])
            }),
            "failure_ratio",
        ),
        (bad_url("http://a:1"), "url"),
        (bad_url("https://"), "url"),
        (bad_url("https://a:1/path"), "url"),
        (bad_url("https://u:p@a:1"), "url"),
        (bad_url(""), "url"),
        (Body::Credential(credential("")), "token"),
        (Body::Credential(credential("a\r\nb")), "token"),
    ] {
        let previous = good();
        let applied = apply(
            &previous,
            &upsert(vec![
                resource("v1", Body::CallerView(view("u2", PREFIX))),
                resource("x", bad),
            ]),
        );
        assert!(!applied.rest_applied, "{field}");
        assert_eq!((applied.snapshot.generation, applied.snapshot.callers.len()), (1, 1));
        assert!(
            applied.rejected[0].reason.contains(field),
            "{}",
            applied.rejected[0].reason
        );
        assert!(!applied.rejected[0].reason.contains("u:p"));
    }
    let applied = apply(
        &good(),
        &upsert(vec![v1::Resource {
            version: "x".into(),
            body: None,
        }]),
    );
    assert!(!applied.rest_applied);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn bad_views_say_why() {
    let shard = |change: fn(&mut v1::Shard)| {
        let mut wire = view("u2", PREFIX);
        change(wire.shard.as_mut().unwrap());
        wire
    };
    for (bad, field) in [
        (
            v1::CallerView {
                shard: None,
                ..view("u2", PREFIX)
            },
            "shard",
        ),
        (
            v1::CallerView {
                pod_uid: String::new(),
                ..view("u2", PREFIX)
            },
            "pod_uid",
        ),
        (
            v1::CallerView {
                pod_uid: "a/b".into(),
                ..view("u2", PREFIX)
            },
            "pod_uid",
        ),
        (
            v1::CallerView {
                home_cluster: "a/b".into(),
                ..view("u2", PREFIX)
            },
            "home_cluster",
        ),
        (
            v1::CallerView {
                namespace: "A".into(),
                ..view("u2", PREFIX)
            },
            "namespace",
        ),
        (
            v1::CallerView {
                service_account: "a:b".into(),
                ..view("u2", PREFIX)
            },
            "service_account",
        ),
        (
            v1::CallerView {
                shards: vec!["blue".into()],
                ..view("u2", PREFIX)
            },
            "shards",
        ),
        (
            v1::CallerView {
                shards: vec!["ops/green".into()],
                ..view("u2", PREFIX)
            },
            "shard.name",
        ),
        (shard(|shard| shard.primary_cluster.clear()), "primary_cluster"),
        (
            shard(|shard| shard.leader_election_name = "Not a name".into()),
            "leader_election_name",
        ),
        (shard(|shard| shard.members.push(shard.members[0].clone())), "cluster"),
        (
            shard(|shard| shard.members[0].namespaces[0].namespace = "a b".into()),
            "namespaces",
        ),
        (
            shard(|shard| {
                shard.limits.push(v1::Limit {
                    selector: "a in".into(),
                    resources: vec![],
                });
            }),
            "limits",
        ),
    ] {
        let applied = apply(&good(), &upsert(vec![resource("x", Body::CallerView(bad))]));
        assert!(applied.rest_applied);
        let reasons: Vec<_> = applied
            .rejected
            .iter()
            .map(|rejected| rejected.reason.as_str())
            .collect();
        assert!(
            reasons.iter().any(|reason| reason.contains(field)),
            "{field}: {reasons:?}"
        );
    }
}
