//! Wire → snapshot: what is refused, what is kept, whose key it is; nothing on the wire makes it panic.

mod bad;

use portolan_wire::v1::{self, resource::Body};
use proptest::prelude::*;

use super::build::{Transaction, apply, resource_ref};
use super::keys::KeyOwner;
use super::*;

/// RFC 7638's example key, and the same number with a leading zero byte: another spelling of it.
const MODULUS: &str = "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw";

fn rsa(kid: &str, modulus: &str) -> String {
    format!(r#"{{"kty":"RSA","use":"sig","alg":"RS256","kid":"{kid}","n":"{modulus}","e":"AQAB"}}"#)
}

fn ec(kid: &str, x: &str) -> String {
    format!(r#"{{"kty":"EC","crv":"P-256","kid":"{kid}","x":"{x}","y":"AQ"}}"#)
}

fn target(cluster: &str, keys: &[String]) -> v1::Target {
    v1::Target {
        cluster: cluster.into(),
        endpoints: vec![v1::Endpoint {
            url: "https://10.0.0.1:6443".into(),
            tls_server_name: String::new(),
        }],
        signing_keys: keys.to_vec(),
        ..v1::Target::default()
    }
}

fn view(uid: &str, label_prefix: &str) -> v1::CallerView {
    v1::CallerView {
        home_cluster: "east".into(),
        pod_uid: uid.into(),
        namespace: "ops".into(),
        pod: "op-0".into(),
        service_account: "op".into(),
        shards: vec!["ops/blue".into()],
        shard: Some(v1::Shard {
            name: "blue".into(),
            primary_cluster: "east".into(),
            label_prefix: label_prefix.into(),
            members: vec![v1::MemberGrant {
                cluster: "east".into(),
                namespaces: vec![v1::NamespaceGrant {
                    namespace: "ns-a".into(),
                    ..v1::NamespaceGrant::default()
                }],
                ..v1::MemberGrant::default()
            }],
            ..v1::Shard::default()
        }),
    }
}

fn credential(token: &str) -> v1::Credential {
    v1::Credential {
        cluster: "east".into(),
        token: token.into(),
        expires_unix_seconds: 7,
    }
}

fn resource(version: &str, body: Body) -> v1::Resource {
    v1::Resource {
        version: version.into(),
        body: Some(body),
    }
}

fn upsert(resources: Vec<v1::Resource>) -> Transaction {
    Transaction {
        upserted: resources,
        removed: vec![],
    }
}

const PREFIX: &str = "ctrlmesh.kusionstack.io/";

fn good() -> Snapshot {
    let applied = apply(
        &Snapshot::default(),
        &upsert(vec![
            resource("t1", Body::Target(target("east", &[]))),
            resource("v1", Body::CallerView(view("u1", PREFIX))),
            resource("c1", Body::Credential(credential("canary-token"))),
        ]),
    );
    assert_eq!(applied.rejected, []);
    applied.snapshot
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
    assert_eq!(snapshot.versions.len(), 3);
    let Binding::One(shard) = &snapshot.callers[&key()].binding else {
        panic!("one shard")
    };
    // A state this router does not know lets no write through; an enforcement it does not know enforces.
    assert_eq!(shard.owner("ns-a").unwrap().1.state, GrantState::Releasing);
    assert_eq!(shard.enforcement, Enforcement::Enforce);
    assert_eq!(shard.owner("ns-b"), None);
}

fn shard_of(wire: v1::Shard) -> Result<Arc<Shard>, String> {
    let mut view = view("u1", PREFIX);
    let base = view.shard.take().unwrap_or_default();
    view.shard = Some(v1::Shard {
        name: base.name,
        primary_cluster: base.primary_cluster,
        label_prefix: base.label_prefix,
        ..wire
    });
    let applied = apply(
        &Snapshot::default(),
        &upsert(vec![resource("v", Body::CallerView(view))]),
    );
    match applied.snapshot.callers.get(&key()).map(|view| &view.binding) {
        Some(Binding::One(shard)) => Ok(shard.clone()),
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
        assert!(reason.contains("shard.bucketing") && reason.contains(told), "{reason}");
    }
}

#[test]
fn removals_and_changes() {
    let previous = good();
    let reference = resource_ref(&resource("", Body::CallerView(view("u1", "")))).unwrap();
    let applied = apply(
        &previous,
        &Transaction {
            upserted: vec![],
            removed: vec![reference],
        },
    );
    assert!(applied.snapshot.callers.is_empty());
    assert_eq!((applied.snapshot.versions.len(), applied.snapshot.generation), (2, 2));
    let changed = resource(
        "t2",
        Body::Target(v1::Target {
            cordoned: true,
            ..target("east", &[])
        }),
    );
    let applied = apply(&previous, &upsert(vec![changed]));
    assert!(applied.snapshot.targets["east"].cordoned && !previous.targets["east"].cordoned);
    assert!(Arc::ptr_eq(
        &applied.snapshot.callers[&key()],
        &previous.callers[&key()]
    ));
}

#[test]
fn the_first_member_in_order_owns_a_namespace() {
    let mut wire = view("u1", PREFIX);
    let shard = wire.shard.as_mut().unwrap();
    shard.members.push(v1::MemberGrant {
        cluster: "west".into(),
        all_namespaces: true,
        ..shard.members[0].clone()
    });
    let applied = apply(
        &Snapshot::default(),
        &upsert(vec![resource("1", Body::CallerView(wire))]),
    );
    let Binding::One(shard) = &applied.snapshot.callers[&key()].binding else {
        panic!("one shard")
    };
    assert_eq!(&*shard.owner("ns-a").unwrap().0.cluster, "east");
    assert_eq!(&*shard.owner("other").unwrap().0.cluster, "west");
    let (east, west) = (shard.reach(0).unwrap(), shard.reach(1).unwrap());
    assert_eq!(
        east.selector.as_ref().unwrap().to_string(),
        "ctrlmesh.kusionstack.io/namespace=ns-a"
    );
    assert_eq!(west.selector, None, "no selector says: all but ns-a");
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
    let resources = targets
        .into_iter()
        .map(|target| resource("1", Body::Target(target)))
        .collect();
    let applied = apply(&Snapshot::default(), &upsert(resources));
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

#[test]
fn the_store_wakes_its_subscribers() {
    let store = SnapshotStore::default();
    let mut generation = store.subscribe();
    assert_eq!(store.load().generation, 0);
    store.swap(good());
    assert!(generation.has_changed().unwrap());
    assert_eq!(*generation.borrow_and_update(), store.load().generation);
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
        transaction.upserted.push(resource(&text, Body::CallerView(wire)));
        transaction.upserted.push(resource(&text, Body::Target(target(&text, std::slice::from_ref(&text)))));
        transaction.upserted.push(resource(&text, Body::Credential(credential(&text))));
        transaction.removed.push(v1::ResourceRef { kind: number, name: text });
        let applied = apply(&good(), &transaction);
        let _ = applied.snapshot.configz();
        prop_assert!(applied.rest_applied || applied.snapshot.generation == 1);
    }
}
