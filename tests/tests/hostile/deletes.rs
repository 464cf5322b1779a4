//! A collection is deleted in all members or in none: one that answers, and not with what was asked for, is away.

use http::{Method, Response};
use portolan_testbed::eventually;
use serde_json::json;

use crate::front::Told;
use crate::world;

const CLASSES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";

#[tokio::test]
async fn nothing_is_deleted_anywhere_while_a_member_answers_503_or_404() {
    let (world, front) = world().await;
    let east = world.direct_door("east").await.unwrap();
    let door = world.listed_door("alpha", "/api/v1/configmaps").await.unwrap();
    let named = |name: &str| {
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 7,
            "metadata": {"name": name, "labels": {"hostile": "yes"}},
        })
    };
    let made = east.post(CLASSES, &named("kept")).await.unwrap();
    assert_eq!(made.status, 201, "{}", made.message());
    // Only the question before.
    let asked = |uri: &http::Uri| uri.path() == CLASSES && uri.query().is_some_and(|query| query.contains("limit=1"));
    let status = std::sync::Arc::new(std::sync::atomic::AtomicU16::new(503));
    let told = status.clone();
    front.lies_about("priorityclasses", move |uri| {
        let status = told.load(std::sync::atomic::Ordering::Relaxed);
        (asked(uri) && status != 200).then(|| Told::Head(Response::builder().status(status)))
    });
    let path = format!("{CLASSES}?labelSelector=hostile%3Dyes");
    for code in [503, 429, 404] {
        status.store(code, std::sync::atomic::Ordering::Relaxed);
        let answer = door.call(Method::DELETE, &path, &[], b"").await.unwrap();
        assert_eq!(answer.status, 503, "{code}: {}", answer.message());
        assert!(answer.message().contains("nothing is deleted"), "{}", answer.message());
        assert_eq!(east.get(&format!("{CLASSES}/kept"), &[]).await.unwrap().status, 200);
    }
    status.store(200, std::sync::atomic::Ordering::Relaxed);
    // What was told before may have opened a breaker.
    eventually("east is asked again", || async {
        let answer = door.call(Method::DELETE, &path, &[], b"").await?;
        anyhow::ensure!(answer.status == 200, "{}: {}", answer.status, answer.message());
        Ok(())
    })
    .await;
    assert_eq!(east.get(&format!("{CLASSES}/kept"), &[]).await.unwrap().status, 404);
}
