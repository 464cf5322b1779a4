//! A router over its memory limit: what it sheds, in which order, and what it says.

use std::time::Duration;

use http::Method;
use portolan_testbed::eventually;
use portolan_tests::daemon::Daemon;
use portolan_tests::door::{Answer, Door, request};
use portolan_tests::programs::admin_get;
use portolan_tests::routers;
use serde_json::json;

use crate::{TWO, lease, renewal, world};

/// One more router, with the door of tenant two to it.
async fn router(name: &str, env: &[(&str, &str)]) -> (Daemon, Door) {
    let (world, _) = world().await;
    let hub = routers::hub_of(world).unwrap();
    let mut door = world.listed_door("two", TWO).await.unwrap();
    let router = routers::start(world, name, &hub, env).await.unwrap();
    router.ready().await;
    router.bind().clone_into(&mut door.address);
    (router, door)
}

async fn get(door: &Door, path: &str) -> Answer {
    door.get(path, &[]).await.unwrap()
}

/// 429 with when to come again, and a Status that says why.
fn shed(answer: &Answer, words: &[&str]) {
    answer.expect_status(429, words).unwrap();
    let seconds: u32 = answer.header("retry-after").parse().unwrap();
    assert!((1..=5).contains(&seconds), "{seconds}");
    assert_eq!(answer.json()["reason"], "TooManyRequests");
    assert_eq!(answer.json()["details"]["retryAfterSeconds"], seconds);
}

/// Whether the head of a watch says that it goes on.
async fn watch(door: &Door) -> Option<Answer> {
    let line = door.open().await.unwrap();
    let watch = request(Method::GET, &format!("{TWO}?watch=true"), &[], &[]).unwrap();
    let head = tokio::time::timeout(Duration::from_secs(20), line.send(watch)).await;
    let head = head.expect("a head").unwrap();
    if head.status() == 200 {
        None
    } else {
        Some(Answer::read(head).await.unwrap())
    }
}

#[tokio::test]
async fn over_its_limit_a_router_serves_leases_alone() {
    let (world, _) = world().await;
    let other = world.merged_door("two").await.unwrap();
    let (router, door) = router("tight", &[("PORTOLAN_MEMORY_LIMIT", "1Mi")]).await;
    let line = door.open().await.unwrap();
    eventually("Leases are renewed", || async {
        let lease = lease(&other).await;
        let answer = line.ask(renewal(&lease)).await.map_err(|error| error.to_string())?;
        if answer.status == 200 {
            Ok(())
        } else {
            Err(answer.message())
        }
    })
    .await;
    let words = ["overloaded", "of its memory is in use"];
    shed(&get(&door, TWO).await, &words);
    shed(&watch(&door).await.expect("it is shed"), &words);
    shed(&get(&door, &format!("{TWO}/kube-root-ca.crt")).await, &words);
    let write = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shed"}});
    shed(&door.post(TWO, &write).await.unwrap(), &words);
    let metrics = admin_get(router.admin(), "/metrics").await.unwrap();
    for line in [
        "portolan_router_load_level 3",
        r#"portolan_router_load_shed_total{class="list",reason="memory"} 1"#,
        r#"portolan_router_load_shed_total{class="watch",reason="memory"} 1"#,
        r#"portolan_router_load_shed_total{class="single",reason="memory"} 2"#,
        r#"portolan_router_load_shed_total{class="list",reason="delay"} 0"#,
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[tokio::test]
async fn lists_are_shed_first() {
    // Some ten megabytes of 64 GiB are more than so small a part, and far from a third of it.
    let env = [("PORTOLAN_MEMORY_LIMIT", "64Gi"), ("PORTOLAN_SHED_MEMORY", "0.00001")];
    let (router, door) = router("listless", &env).await;
    eventually("single requests are served", || async {
        let answer = door.get(&format!("{TWO}/kube-root-ca.crt"), &[]).await;
        let answer = answer.map_err(|error| error.to_string())?;
        if answer.status == 200 {
            Ok(())
        } else {
            Err(answer.message())
        }
    })
    .await;
    shed(&get(&door, TWO).await, &["sheds lists for now"]);
    assert!(watch(&door).await.is_none(), "watches begin");
    let metrics = admin_get(router.admin(), "/metrics").await.unwrap();
    assert!(metrics.contains("portolan_router_load_level 1"), "{metrics}");
    let said = router.log().unwrap();
    assert!(said.contains("this router sheds requests"), "{said}");
}
