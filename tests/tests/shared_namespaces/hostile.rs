//! Another hub namespace that uses the same names: it moves and blocks nothing, and neither reads of the other's shards.

use http::Method;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::api::events::v1::Event as NewEvent;
use kube::Api;
use kube::api::ListParams;
use parking_lot::Mutex;
use portolan_crds::ShardingConfig;
use portolan_testbed::eventually;
use portolan_tests::ctl;
use portolan_tests::door::{Answer, Door, request};
use portolan_tests::world::{HUB, Plan, World};
use serde_json::json;

use crate::scene::{SHOP, Writer, all_are_fenced, apply, map, of, open, status, until, writes};

/// Hub namespaces, each with what begins the names of its shards and no word beside them.
const AUTHORS: [(&str, &[&str]); 3] = [
    ("operators", &["rollouts-", "prometheus"]),
    ("strangers", &["zanzibar-"]),
    ("crowd", &["many-"]),
];
/// As many names of operators as a hub namespace may have.
const OPERATORS: usize = 32;
const NAMES: usize = 40;

/// A shard of another hub namespace.
fn foreign(author: &str, shard: String) -> String {
    shard.replace("namespace: operators", &format!("namespace: {author}"))
}

async fn world() -> World {
    let manifests = [
        of(
            "rollouts",
            "rollouts-a",
            &[("east", &["shop-a", "ra-home", "twin"]), ("west", &["twin"])],
        ),
        of("rollouts", "rollouts-b", &[("east", &["rb-home"])]),
        of("prometheus", "prometheus", &[("east", &["shop-a"])]),
        foreign(
            "strangers",
            of(
                "rollouts",
                "zanzibar-a",
                &[("west", &["zw-home", "twin"]), ("east", &["shop-a", "z-home", "twin"])],
            ),
        ),
        foreign("strangers", of("rollouts", "zanzibar-b", &[("east", &["z-other"])])),
    ];
    let plan = Plan {
        members: &["east", "west"],
        namespaces: &[
            "east/shop-a",
            "east/ra-home",
            "east/rb-home",
            "east/z-home",
            "east/z-other",
            "east/twin",
            "west/twin",
            "west/zw-home",
        ],
        manifests: &manifests.concat(),
        ..Plan::default()
    };
    World::start(plan).await.unwrap()
}

/// What authors and callers of each hub namespace read.
#[derive(Default)]
struct Texts(Mutex<Vec<(&'static str, String)>>);

impl Texts {
    /// What a caller was told.
    fn told(&self, author: &'static str, answer: &Answer) {
        let mut all = self.0.lock();
        let warnings = answer.headers.get_all("warning").iter();
        all.extend(warnings.map(|warning| (author, String::from_utf8_lossy(warning.as_bytes()).into_owned())));
        if answer.status >= 300 {
            all.push((author, String::from_utf8_lossy(&answer.body).into_owned()));
        }
    }

    /// What stands in the hub and in members.
    async fn collect(&self, world: &World) {
        let hub = world.cluster(HUB).client().await.unwrap();
        for (author, _) in AUTHORS {
            let shards: Api<ShardingConfig> = Api::namespaced(hub.clone(), author);
            for shard in shards.list(&ListParams::default()).await.unwrap() {
                let status = shard.status.unwrap_or_default();
                self.0.lock().push((author, json!(status).to_string()));
            }
            let mut events = Vec::new();
            for cluster in [HUB, "east", "west"] {
                let client = world.cluster(cluster).client().await.unwrap();
                let of_old: Api<Event> = Api::namespaced(client.clone(), author);
                let of_new: Api<NewEvent> = Api::namespaced(client, author);
                let old = of_old.list(&ListParams::default()).await.unwrap();
                events.extend(old.into_iter().filter_map(|event| event.message));
                let new = of_new.list(&ListParams::default()).await.unwrap();
                events.extend(new.into_iter().filter_map(|event| event.note));
            }
            self.0.lock().extend(events.into_iter().map(|event| (author, event)));
        }
    }

    fn name_no_stranger(&self) {
        let all = self.0.lock();
        for (author, _) in AUTHORS {
            assert!(all.iter().any(|(of, _)| *of == author), "{author} reads nothing");
        }
        for (reader, text) in all.iter() {
            for (author, shards) in AUTHORS.into_iter().filter(|(author, _)| author != reader) {
                let by_author = format!("{author}/");
                let named = shards.iter().copied().chain([by_author.as_str()]);
                let named: Vec<_> = named.filter(|word| text.contains(word)).collect();
                assert!(named.is_empty(), "{reader} reads {named:?}: {text}");
            }
        }
    }
}

/// Asks for what is somebody else's in each way that there is.
async fn pries(texts: &Texts, (author, door): (&'static str, &Door), namespace: &str) {
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let one = format!("{maps}/kube-root-ca.crt");
    let patch = [("content-type", "application/merge-patch+json")];
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"namespace": namespace, "verb": "create", "resource": "configmaps"}},
    });
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let made = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    let asked = [
        request(Method::GET, &maps, &[], b""),
        request(Method::GET, &one, &[], b""),
        request(Method::PATCH, &one, &patch, b"{}"),
        request(Method::DELETE, &one, &[], b""),
        request(Method::DELETE, &maps, &[], b""),
        request(Method::GET, &format!("/api/v1/namespaces/{namespace}"), &[], b""),
        request(Method::DELETE, &format!("/api/v1/namespaces/{namespace}"), &[], b""),
        request(Method::GET, &format!("{maps}?watch=1&timeoutSeconds=1"), &[], b""),
        request(
            Method::GET,
            &format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/x"),
            &[],
            b"",
        ),
        portolan_tests::door::json(Method::POST, &maps, &map("pries")),
        portolan_tests::door::json(Method::POST, "/api/v1/namespaces", &made),
        portolan_tests::door::json(Method::POST, reviews, &review),
    ];
    let line = door.open().await.unwrap();
    for asked in asked {
        texts.told(author, &line.ask(asked.unwrap()).await.unwrap());
    }
}

/// One name of an operator, in two hub namespaces: what the one hands over is nothing to the other's writes and epochs.
async fn moves_nothing(world: &World, texts: &Texts) {
    let writer = Writer::start(world.merged_door("rollouts-a").await.unwrap()).await;
    let before = open(world).await;
    let doors = [
        ("zanzibar-b", world.merged_door("zanzibar-b").await.unwrap()),
        ("zanzibar-a", world.merged_door("zanzibar-a").await.unwrap()),
    ];
    for (at, (taker, door)) in doors.iter().enumerate() {
        let to = format!("strangers/{taker}");
        ctl::begin_move(world.fleet.dir(), ("east", "shop-a"), &to)
            .await
            .unwrap();
        texts.collect(world).await;
        ctl::had(world.fleet.dir(), ("east", "shop-a"), &to).await;
        writes(door, &format!("of-{taker}")).await;
        let refused = doors[1 - at].1.post(SHOP, &map("pries")).await.unwrap();
        assert_eq!(refused.status, 403, "{}", refused.message());
        texts.told("strangers", &refused);
        writer.writes_on().await;
    }
    let after = open(world).await;
    let kept = before.iter().filter(|epoch| after.contains(epoch)).count();
    assert_eq!((before.len(), after.len(), kept), (3, 3, 2), "{before:?} {after:?}");
    assert_eq!(writer.end().await, [""; 0], "of one name in another hub namespace");
}

/// The 33rd name is refused, and nobody else is.
async fn are_too_many(world: &World) {
    let crowd: String = (0..NAMES)
        .map(|number| {
            let shard = of(
                &format!("program-{number}"),
                &format!("many-{number:02}"),
                &[("east", &["shop-a"])],
            );
            foreign("crowd", shard)
        })
        .collect();
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: crowd}\n---\n";
    apply(world, &format!("{namespace}{crowd}")).await;
    let shards: Api<ShardingConfig> = Api::namespaced(world.cluster(HUB).client().await.unwrap(), "crowd");
    eventually("so many are taken, and the others told", || async {
        let (mut taken, mut refused) = (0, 0);
        for shard in shards.list(&ListParams::default()).await.unwrap() {
            let status = shard.status.unwrap_or_default();
            let mut conditions = status.conditions.iter();
            let accepted = conditions.find(|condition| condition.type_ == "Accepted");
            let has = status
                .clusters
                .iter()
                .any(|cluster| cluster.namespaces.contains(&"shop-a".to_owned()));
            taken += usize::from(has && accepted.is_some_and(|found| found.status == "True"));
            refused += usize::from(!has && accepted.is_some_and(|found| found.reason == "TooMuch"));
        }
        let is = (taken, refused) == (OPERATORS, NAMES - OPERATORS);
        if is { Ok(()) } else { Err((taken, refused)) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_hub_namespace_moves_nothing_and_names_are_kept_from_it() {
    let world = world().await;
    all_are_fenced(&world).await;
    let texts = Texts::default();
    moves_nothing(&world, &texts).await;
    are_too_many(&world).await;
    let own = ("operators", world.merged_door("rollouts-a").await.unwrap());
    let lost = ("operators", world.merged_door("prometheus").await.unwrap());
    let strangers = ("strangers", world.merged_door("zanzibar-b").await.unwrap());
    for (author, door) in [&own, &lost, &strangers] {
        for namespace in [
            "shop-a", "ra-home", "rb-home", "z-home", "z-other", "zw-home", "twin", "nowhere",
        ] {
            if door
                .get(&format!("/api/v1/namespaces/{namespace}"), &[])
                .await
                .unwrap()
                .status
                != 200
            {
                pries(&texts, (author, door), namespace).await;
            }
        }
    }
    for shard in ["rollouts-a", "prometheus"] {
        until(&world, shard, "Accepted", Some("True")).await;
    }
    let twin = status(&world, ("operators", "rollouts-a")).await;
    assert!(json!(twin).to_string().contains("twin"), "{twin:?}");
    texts.collect(&world).await;
    texts.name_no_stranger();
}
