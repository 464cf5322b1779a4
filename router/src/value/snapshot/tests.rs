//! Wire → snapshot: what is refused, what is kept, whose key it is; nothing on the wire makes it panic.

mod bad;
mod policies;

use portolan_wire::v1::{self, resource::Body};
use proptest::prelude::*;

use super::build::{Transaction, apply};
use super::keys::KeyOwner;
use super::told::upsert;
use super::*;

/// RFC 7638's example key, and the same number with a leading zero byte: another spelling of it.
const MODULUS: &str = "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw";

fn rsa(kid: &str, modulus: &str) -> String {
    format!(r#"{{"kty":"RSA","use":"sig","alg":"RS256","kid":"{kid}","n":"{modulus}","e":"AQAB"}}"#)
}

fn ec(kid: &str, x: &str) -> String {
    format!(r#"{{"kty":"EC","crv":"P-256","kid":"{kid}","x":"{x}","y":"AQ"}}"#)
}

fn target(cluster: &str, keys: &[String]) -> told::Target {
    told::Target {
        cluster: cluster.into(),
        endpoints: vec![v1::Endpoint {
            url: "https://10.0.0.1:6443".into(),
            tls_server_name: String::new(),
        }],
        signing_keys: keys.to_vec(),
        ..told::Target::default()
    }
}

/// The way to a member alone.
fn way(cluster: &str) -> v1::Target {
    match target(cluster, &[]).bodies().remove(0) {
        Body::Target(way) => way,
        other => panic!("{other:?}"),
    }
}

fn view(uid: &str, label_prefix: &str) -> told::CallerView {
    told::CallerView {
        created_unix_seconds: None,
        writes_closed: None,
        policies: Vec::new(),
        home_cluster: "east".into(),
        pod_uid: uid.into(),
        namespace: "ops".into(),
        pod: "op-0".into(),
        service_account: "op".into(),
        shards: vec!["ops/blue".into()],
        shard: Some(told::Shard {
            rules: v1::Shard {
                primary_cluster: "east".into(),
                label_prefix: label_prefix.into(),
                ..v1::Shard::default()
            },
            members: vec![told::MemberGrant {
                cluster: "east".into(),
                namespaces: vec![v1::NamespaceGrant {
                    namespace: "ns-a".into(),
                    view_revision: 3,
                    ..v1::NamespaceGrant::default()
                }],
                ..told::MemberGrant::default()
            }],
        }),
    }
}

/// The caller of a view without its shard.
fn caller(uid: &str) -> Body {
    view(uid, PREFIX).bodies().remove(2)
}

/// The rules of the shard.
fn rules(label_prefix: &str) -> v1::Shard {
    match view("u1", label_prefix).bodies().remove(0) {
        Body::Shard(rules) => rules,
        other => panic!("{other:?}"),
    }
}

fn owned(namespaces: &[&str]) -> Body {
    let grant = |namespace: &&str| v1::NamespaceGrant {
        namespace: (*namespace).to_owned(),
        ..v1::NamespaceGrant::default()
    };
    Body::Ownership(v1::Ownership {
        cluster: "east".into(),
        shard: "ops/blue".into(),
        namespaces: namespaces.iter().map(grant).collect(),
        ..v1::Ownership::default()
    })
}

fn removed(kind: v1::ResourceKind, name: &str) -> Transaction {
    let reference = v1::ResourceRef {
        kind: kind.into(),
        name: name.to_owned(),
    };
    Transaction {
        upserted: Vec::new(),
        removed: vec![reference],
    }
}

const PREFIX: &str = "ctrlmesh.kusionstack.io/";

fn good() -> Snapshot {
    let mut bodies = target("east", &[]).bodies();
    bodies.extend(view("u1", PREFIX).bodies());
    bodies.push(Body::Credential(told::credential("east", "canary-token")));
    let applied = upsert(&Snapshot::default(), "1", bodies);
    assert_eq!(applied.rejected, []);
    applied.snapshot
}

fn shard_of_caller(snapshot: &Snapshot, key: &CallerKey) -> Arc<Shard> {
    match &snapshot.callers[key].binding {
        Binding::One(shard) => shard.clone(),
        other => panic!("{other:?}"),
    }
}

fn missing(snapshot: &Snapshot, uid: &str) -> String {
    let key = CallerKey {
        pod_uid: uid.into(),
        ..key()
    };
    match &snapshot.callers[&key].binding {
        Binding::Unknown { missing, .. } => missing.clone(),
        other => panic!("{other:?}"),
    }
}

fn key() -> CallerKey {
    CallerKey {
        home_cluster: "east".into(),
        pod_uid: "u1".into(),
    }
}

#[test]
fn a_transaction_is_served() {
    let snapshot = good();
    assert_eq!(snapshot.generation, 1);
    let shard = shard_of_caller(&snapshot, &key());
    // A state this router does not know lets no write through; an enforcement it does not know enforces.
    let pair = shard.owner("ns-a").unwrap().1.pair;
    assert_eq!((pair.state, pair.view_revision), (GrantState::Releasing, 3));
    assert_eq!(
        snapshot.contender(shard.operator(), "east", "ns-a"),
        Some(&shard.config)
    );
    assert_eq!(shard.enforcement, Enforcement::Enforce);
    assert_eq!(shard.owner("ns-b"), None);
}

fn shard_of(wire: v1::Shard) -> Result<Arc<Shard>, String> {
    let told = rules(PREFIX);
    let wire = v1::Shard {
        name: told.name,
        primary_cluster: told.primary_cluster,
        label_prefix: told.label_prefix,
        members: told.members,
        ..wire
    };
    let applied = upsert(
        &Snapshot::default(),
        "1",
        [Body::Shard(wire), owned(&["ns-a"]), caller("u1")],
    );
    match &applied.snapshot.callers[&key()].binding {
        Binding::One(shard) => Ok(shard.clone()),
        _ => Err(applied.rejected[0].reason.clone()),
    }
}

#[test]
fn a_hub_that_says_nothing_of_an_option_means_its_default() {
    let shard = shard_of(v1::Shard::default()).unwrap();
    assert_eq!(
        (shard.unavailable, shard.write_fence, shard.bucketing),
        (Unavailable::Hold, true, Bucketing::default())
    );
    let legacy = v1::Bucketing {
        algorithm: v1::BucketAlgorithm::Legacy.into(),
        buckets: 32,
    };
    let shard = shard_of(v1::Shard {
        bucketing: Some(legacy),
        unavailable: v1::Unavailable::PartialStart.into(),
        write_fence: v1::WriteFence::Disabled.into(),
        ..v1::Shard::default()
    });
    let shard = shard.unwrap();
    assert_eq!(
        (shard.unavailable, shard.write_fence, shard.bucketing),
        (Unavailable::PartialStart, false, Bucketing::legacy())
    );
}

#[test]
fn buckets_that_this_router_cannot_count_are_refused() {
    for (algorithm, buckets, told) in [
        (9, 32, "algorithm 9"),
        (1, 0, "0 buckets"),
        (2, 31, "legacy"),
        (1, 70_000, "buckets"),
    ] {
        let bucketing = Some(v1::Bucketing { algorithm, buckets });
        let refused = shard_of(v1::Shard {
            bucketing,
            ..v1::Shard::default()
        });
        let reason = refused.unwrap_err();
        assert!(reason.contains("bucketing") && reason.contains(told), "{reason}");
    }
}

#[test]
fn removals_and_changes() {
    let previous = good();
    let applied = apply(&previous, &removed(v1::ResourceKind::CallerView, "east/u1"));
    assert!(applied.snapshot.callers.is_empty());
    assert_eq!(applied.snapshot.generation, 2);
    let cordoned = v1::Target {
        cordoned: true,
        ..way("east")
    };
    let applied = upsert(&previous, "2", [Body::Target(cordoned)]);
    assert!(applied.snapshot.targets["east"].cordoned && !previous.targets["east"].cordoned);
    assert!(Arc::ptr_eq(
        &applied.snapshot.callers[&key()],
        &previous.callers[&key()]
    ));
}

#[test]
fn callers_of_a_shard_share_it_and_what_did_not_change_stays() {
    let callers = |snapshot: &Snapshot| -> Vec<_> {
        let callers = snapshot.callers.values();
        callers.map(|view| shard_of_caller(snapshot, &view.key)).collect()
    };
    let previous = good();
    let more = upsert(&previous, "1", (2..50).map(|number| caller(&format!("u{number}")))).snapshot;
    let shard = shard_of_caller(&previous, &key());
    assert_eq!(callers(&more).len(), 49);
    assert!(callers(&more).iter().all(|other| Arc::ptr_eq(other, &shard)));
    assert!(Arc::ptr_eq(&more.callers[&key()], &previous.callers[&key()]));
    let grown = upsert(&more, "2", [owned(&["ns-a", "ns-b"])]).snapshot;
    let shard = shard_of_caller(&grown, &key());
    assert!(shard.owner("ns-b").is_some());
    assert!(callers(&grown).iter().all(|other| Arc::ptr_eq(other, &shard)));
    assert!(Arc::ptr_eq(&grown.targets, &more.targets) && Arc::ptr_eq(&grown.keys, &more.keys));
    // A report of coverage.
    let coverage = Body::Coverage(v1::Coverage {
        cluster: "east".into(),
        ..v1::Coverage::default()
    });
    let next = upsert(&grown, "3", [coverage]).snapshot;
    assert!(Arc::ptr_eq(&next.callers, &grown.callers) && Arc::ptr_eq(&next.targets, &grown.targets));
    assert!(!Arc::ptr_eq(&next.coverage, &grown.coverage));
}

#[test]
fn the_home_cluster_is_that_of_each_caller() {
    let rules = v1::Shard {
        primary_cluster: String::new(),
        members: vec![v1::ShardMember {
            cluster: String::new(),
            all_namespaces: true,
            ..v1::ShardMember::default()
        }],
        ..rules(PREFIX)
    };
    let Body::CallerView(east) = caller("u1") else { panic!() };
    let west = v1::CallerView {
        home_cluster: "west".into(),
        ..east.clone()
    };
    let bodies = [Body::Shard(rules), Body::CallerView(east), Body::CallerView(west)];
    let snapshot = upsert(&Snapshot::default(), "1", bodies).snapshot;
    for home in ["east", "west"] {
        let key = CallerKey {
            home_cluster: home.into(),
            ..key()
        };
        let shard = shard_of_caller(&snapshot, &key);
        assert_eq!((&*shard.primary_cluster, shard.members.len()), (home, 1));
        assert_eq!(&*shard.owner("any").unwrap().0.cluster, home);
    }
}

#[test]
fn a_caller_is_not_served_before_all_of_its_shard_is_told() {
    let nothing = upsert(&Snapshot::default(), "1", [caller("u1")]);
    assert_eq!(nothing.rejected, [], "it is not the caller that is bad");
    assert!(missing(&nothing.snapshot, "u1").contains("rules of shard ops/blue"));
    let unowned = upsert(&nothing.snapshot, "1", [Body::Shard(rules(PREFIX))]).snapshot;
    let why = missing(&unowned, "u1");
    assert!(why.contains("owns in member cluster east"), "{why}");
    let whole = upsert(&unowned, "1", [owned(&["ns-a"])]).snapshot;
    assert!(shard_of_caller(&whole, &key()).owner("ns-a").is_some());
    for (kind, name) in [
        (v1::ResourceKind::Ownership, "east/ops/blue"),
        (v1::ResourceKind::Shard, "ops/blue"),
    ] {
        let without = apply(&whole, &removed(kind, name)).snapshot;
        assert!(!missing(&without, "u1").is_empty(), "{name}");
    }
}

#[test]
fn what_is_unknown_is_ignored() {
    let mut transaction = Transaction {
        upserted: Vec::new(),
        removed: vec![v1::ResourceRef {
            kind: 99,
            name: "of a later release".into(),
        }],
    };
    transaction.upserted.push(v1::Resource {
        version: "1".into(),
        body: None,
    });
    let applied = apply(&good(), &transaction);
    assert_eq!(applied.rejected, []);
    assert_eq!(applied.snapshot.callers.len(), 1);
}

#[test]
fn the_first_member_in_order_owns_a_namespace() {
    let mut told = view("u1", PREFIX);
    let shard = told.shard.as_mut().unwrap();
    shard.members.push(told::MemberGrant {
        cluster: "west".into(),
        all_namespaces: true,
        ..shard.members[0].clone()
    });
    let snapshot = upsert(&Snapshot::default(), "1", told.bodies()).snapshot;
    let shard = shard_of_caller(&snapshot, &key());
    assert_eq!(&*shard.owner("ns-a").unwrap().0.cluster, "east");
    assert_eq!(&*shard.owner("other").unwrap().0.cluster, "west");
    let (east, west) = (shard.reach(0).unwrap(), shard.reach(1).unwrap());
    assert_eq!(
        east.selector.as_ref().unwrap().to_string(),
        "ctrlmesh.kusionstack.io/namespace=ns-a"
    );
    assert_eq!(
        west.selector,
        Err(Unlabelled::Unsayable),
        "no selector says: all but ns-a"
    );
    assert!(east.filter.admits("ns-a") && !west.filter.admits("ns-a") && west.filter.admits("other"));
}

#[test]
fn keys_tell_the_cluster_and_shared_keys_nobody() {
    let leading_zero = {
        use base64::Engine as _;
        let engine = base64::engine::general_purpose::URL_SAFE_NO_PAD;
        let number = engine.decode(MODULUS).unwrap();
        engine.encode([&[0][..], &number].concat())
    };
    let targets = [
        target("east", &[rsa("a", MODULUS), ec("e", "AQ")]),
        target("west", &[ec("w", "Ag"), ec("e", "Aw")]),
        target(
            "evil",
            &[
                rsa("b", &leading_zero),
                r#"{"kty":"oct","k":"c2VjcmV0","kid":"e"}"#.into(),
            ],
        ),
    ];
    let bodies = targets.iter().flat_map(told::Target::bodies);
    let applied = upsert(&Snapshot::default(), "1", bodies);
    assert_eq!(applied.rejected, []);
    let owners = |kid| {
        let mut owners: Vec<_> = applied
            .snapshot
            .keys
            .candidates(kid)
            .iter()
            .map(|key| key.owner.clone())
            .collect();
        owners.sort_by_key(|owner| format!("{owner:?}"));
        owners
    };
    let both = KeyOwner::Conflict(vec!["east".into(), "evil".into()]);
    assert_eq!(owners(Some("a")), std::slice::from_ref(&both));
    assert_eq!(owners(Some("b")), std::slice::from_ref(&both));
    assert_eq!(owners(Some("w")), [KeyOwner::Cluster("west".into())]);
    // The same kid in two clusters is two keys: the one that verifies decides.
    assert_eq!(
        owners(Some("e")),
        [KeyOwner::Cluster("east".into()), KeyOwner::Cluster("west".into())]
    );
    assert_eq!(owners(Some("none")), []);
    assert_eq!(owners(None).len(), 5);
}

#[test]
fn configz_has_no_secret() {
    let snapshot = good();
    let text = snapshot.configz().to_string();
    assert!(!text.contains("canary"), "{text}");
    assert!(text.contains("ns-a") && text.contains("expiresUnixSeconds"), "{text}");
    assert!(!format!("{snapshot:?}").contains("canary"));
}

proptest! {
    #[test]
    fn arbitrary_wire_breaks_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..200), text in "\\PC{0,12}", number: i32) {
        use prost::Message as _;
        let mut transaction = Transaction::default();
        transaction.upserted.extend(v1::Resource::decode(bytes.as_slice()));
        let mut wire = view(&text, &text);
        if let Some(shard) = &mut wire.shard {
            shard.enforcement = number;
            shard.leader_election_name.clone_from(&text);
            shard.members[0].namespaces[0].state = number;
            shard.limits.push(v1::Limit { selector: text.clone(), resources: vec![] });
        }
        let spec = serde_json::json!({"rateLimitings": [{"name": text, "bucket": {"burst": number, "interval": text}}]});
        let policies = [("CircuitBreaker/a/b", spec.to_string()), (&*text, text.clone()), ("FaultInjection/a/b", spec.to_string())];
        let policies = policies.map(|(name, spec_json)| v1::Policy { name: name.into(), uid: text.clone(), spec_json, ..v1::Policy::default() });
        transaction.upserted.extend(told::resources(&text, policies.map(Body::Policy)));
        let credential = Body::Credential(told::credential(&text, &text));
        let bodies = wire.bodies().into_iter().chain(target(&text, std::slice::from_ref(&text)).bodies()).chain([credential]);
        transaction.upserted.extend(told::resources(&text, bodies));
        transaction.removed.push(v1::ResourceRef { kind: number, name: text });
        let applied = apply(&good(), &transaction);
        let _ = applied.snapshot.configz();
        prop_assert_eq!(applied.snapshot.generation, 2);
    }
}
