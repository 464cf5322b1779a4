//! A member's 404 for a collection: nothing is there, or nobody knows (`docs/semantics.md#lists`).

use super::*;
use crate::value::kinds::{Kind, MemberKinds, Scope};

fn serving(resources: &[&str]) -> Arc<MemberKinds> {
    let mut served = MemberKinds::default();
    for resource in resources {
        let kind = Kind {
            scope: Scope::Namespaced,
            kind: "Pod".to_owned(),
            versions: vec!["v1".to_owned()],
            verbs: ["list".to_owned()].into(),
        };
        served.add("", resource, kind);
    }
    Arc::new(served)
}

impl World {
    fn says(&self, cluster: &str, resources: &[&str]) {
        let store = &self.fanouts.routing;
        store.set_kinds(&cluster.into(), &format!("uid-{cluster}"), &serving(resources));
    }
}

async fn west_serves_none() -> World {
    two(|_, _| list(7, &["a"], ""), |_, _| refusal(404, "no such kind")).await
}

#[tokio::test]
async fn who_is_known_to_serve_the_kind_is_away() {
    let world = west_serves_none().await;
    world.says("west", &["pods"]);
    for query in ["", "?limit=5"] {
        let fault = world.get(query).await.map(|answer| answer.code).unwrap_err();
        assert!(matches!(fault, Fault::TooManyRequests { .. }), "{fault:?}");
        assert!(fault.to_string().contains("west"), "{fault}");
    }
}

#[tokio::test]
async fn where_the_clients_cursor_has_a_place_absence_is_waited_for() {
    let world = west_serves_none().await;
    let mut cursor = Cursor::new(&world.universe);
    for cluster in ["east", "west"] {
        cursor.set(world.leg(cluster).slot, Slot::At(5));
    }
    let query = format!("?resourceVersion={}", cursor.encode().unwrap());
    let fault = world.get(&query).await.map(|answer| answer.code).unwrap_err();
    assert!(matches!(fault, Fault::TooManyRequests { .. }), "{fault:?}");
    // Discovery was woken, and says that there is none.
    let missed = world.fanouts.routing.missed();
    tokio::time::timeout(Duration::from_secs(5), missed).await.unwrap();
    world.says("west", &[]);
    for query in [&*query, ""] {
        let answer = world.get(query).await.unwrap();
        assert_eq!(answer.names(), ["a"]);
        let warning = answer.headers["warning"].to_str().unwrap();
        assert!(
            warning.contains("member cluster west does not serve pods as v1"),
            "{warning}"
        );
    }
}

#[tokio::test]
async fn a_member_that_is_asked_alone_is_believed() {
    let mut world = west_serves_none().await;
    world.says("west", &["pods"]);
    world.members.remove(0);
    assert_eq!(world.get("").await.unwrap().code, 404);
}
