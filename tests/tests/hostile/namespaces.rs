//! Objects of namespaces that a member was not asked for: other shards' there, or what it makes up.

use http::Uri;
use portolan_testbed::eventually;
use portolan_tests::door::Door;
use portolan_tests::programs::admin_get;
use portolan_tests::watch::Watch;
use serde_json::json;

use crate::front::Told;
use crate::world;

const MAPS: &str = "/api/v1/configmaps";
const SERVICES: &str = "/api/v1/services";

pub(crate) async fn make(direct: &Door, namespace: &str, name: &str) {
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let answer = direct.post(&path, &object).await.unwrap();
    assert_eq!(answer.status, 201, "{}", answer.message());
}

/// The whole member, whatever was asked of it.
fn all(uri: &Uri) -> Option<Told> {
    let query = uri.query().unwrap_or_default();
    let asked = query.split('&').filter(|word| !word.starts_with("labelSelector="));
    let watches = query.contains("watch=");
    watches.then(|| Told::Of(format!("{MAPS}?{}", asked.collect::<Vec<_>>().join("&"))))
}

#[tokio::test]
async fn a_watch_shows_nothing_of_namespaces_that_it_does_not_ask_for() {
    let (world, front) = world().await;
    let direct = world.direct_door("mad").await.unwrap();
    make(&direct, "h-other", "foreign-before").await;
    make(&direct, "h-mad", "own-before").await;
    front.lies_about("/configmaps", all);
    let door = world.listed_door("alpha", MAPS).await.unwrap();
    // Once the agent has labelled all of them, the router does not sort them out any more.
    eventually("the member is asked by labels", || async {
        front.forget();
        let _ = door.get(&format!("{MAPS}?watch=true&timeoutSeconds=1"), &[]).await;
        front.was_asked("labelSelector").then_some(())
    })
    .await;
    for path in [MAPS, "/api/v1/namespaces/h-mad/configmaps"] {
        let mut watch = Watch::open(&door, path).await.unwrap();
        let name = format!("own-{}", path.len());
        make(&direct, "h-other", &format!("foreign-{}", path.len())).await;
        make(&direct, "h-mad", &name).await;
        assert_eq!(watch.sees(&format!("h-mad/{name}")).await.unwrap(), "ADDED");
        let foreign = watch.seen.iter().filter(|seen| seen.contains("h-other/"));
        assert_eq!((foreign.count(), watch.count("ERROR")), (0, 0), "{:?}", watch.seen);
    }
    let router = world.fleet.process("router").unwrap();
    let metrics = admin_get(&router.admin, "/metrics").await.unwrap();
    let series = "portolan_router_fanout_foreign_objects_total{cluster=\"mad\"} ";
    let left_out = metrics.lines().find_map(|line| line.strip_prefix(series));
    assert!(
        left_out.is_some_and(|count| count != "0"),
        "they came, and were left out"
    );
}

/// As `all`, of Services, also of lists.
#[expect(clippy::unnecessary_wraps, reason = "what a lie is made of")]
fn all_services(uri: &Uri) -> Option<Told> {
    let query = uri.query().unwrap_or_default();
    let asked = query.split('&').filter(|word| !word.starts_with("labelSelector="));
    Some(Told::Of(format!("{SERVICES}?{}", asked.collect::<Vec<_>>().join("&"))))
}

#[tokio::test]
async fn a_list_shows_nothing_of_namespaces_that_it_does_not_ask_for() {
    let (world, front) = world().await;
    let direct = world.direct_door("mad").await.unwrap();
    for namespace in ["h-other", "h-mad"] {
        let object = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": format!("of-{namespace}")},
            "spec": {"ports": [{"port": 80}]},
        });
        let path = format!("/api/v1/namespaces/{namespace}/services");
        assert_eq!(direct.post(&path, &object).await.unwrap().status, 201);
    }
    front.lies_about("/services", all_services);
    let door = world.listed_door("alpha", SERVICES).await.unwrap();
    eventually("the member is asked by labels", || async {
        front.forget();
        let _ = door.get(SERVICES, &[]).await;
        front.was_asked("services?labelSelector").then_some(())
    })
    .await;
    let protobuf = "application/vnd.kubernetes.protobuf";
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    for path in [SERVICES, "/api/v1/namespaces/h-mad/services"] {
        for (accept, query) in [
            ("application/json", ""),
            (protobuf, ""),
            (table, ""),
            (table, "?includeObject=None"),
        ] {
            let answer = door
                .get(&format!("{path}{query}"), &[("accept", accept)])
                .await
                .unwrap();
            assert_eq!(answer.status, 200, "{path} {accept}: {}", answer.message());
            let body = String::from_utf8_lossy(&answer.body);
            assert!(body.contains("of-h-mad"), "{path} {accept} {query}");
            assert!(!body.contains("of-h-other"), "{path} {accept} {query}: {body}");
        }
    }
}
