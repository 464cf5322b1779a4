//! The hub and the router end and begin again, and a broken document is written before, meanwhile and after: what was good
//! stays in force until something good takes its place.

use kube::Api;
use kube::api::{DeleteParams, DynamicObject};
use portolan_testbed::eventually;
use portolan_tests::door::Door;
use portolan_tests::programs::admin_get;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use crate::promise::Promise;
use crate::{Ground, Kind, LASTING, NAMESPACE, alone, apply, documents};

/// Promises that broken documents are written over, and one that is always good: what it says has come is newer than
/// they are.
struct Lasting {
    held: [Promise; 2],
    marker: Promise,
    door: Door,
    rng: StdRng,
}

async fn objects(ground: &Ground, promise: &Promise) -> Api<DynamicObject> {
    ground.objects(promise.kind, NAMESPACE).await
}

impl Lasting {
    async fn new(ground: &Ground) -> Self {
        let path = format!("/api/v1/namespaces/{}/configmaps", LASTING[0]);
        let promise = |kind: Kind, index: usize| Promise::new(kind, "lasting", LASTING[index]);
        Self {
            held: [promise(Kind::CircuitBreaker, 0), promise(Kind::FaultInjection, 1)],
            marker: promise(Kind::CircuitBreaker, 2),
            door: ground.world.listed_door("lasting", &path).await.unwrap(),
            rng: StdRng::seed_from_u64(1),
        }
    }

    async fn write_good(&self, ground: &Ground) {
        for promise in &self.held {
            let objects = objects(ground, promise).await;
            apply(&objects, promise.kind, promise.namespace, &promise.next())
                .await
                .unwrap();
        }
    }

    async fn write_broken(&mut self, ground: &Ground) {
        for promise in &self.held {
            let spec = documents::broken_within(promise.kind, &promise.void(), &mut self.rng);
            let objects = objects(ground, promise).await;
            apply(&objects, promise.kind, promise.namespace, &spec).await.unwrap();
        }
    }

    /// Waits until the router has what the hub tells now.
    async fn until_told(&self, ground: &Ground) {
        let objects = objects(ground, &self.marker).await;
        apply(&objects, self.marker.kind, self.marker.namespace, &self.marker.next())
            .await
            .unwrap();
        self.until_held_to(&self.marker).await;
    }

    async fn until_held_to(&self, promise: &Promise) {
        eventually("the newest good version is in force", || async {
            let line = self.door.open().await.map_err(|error| error.to_string())?;
            let version = promise.asked(&line).await.map_err(|error| error.to_string())??;
            (version == promise.good()).then_some(()).ok_or(version.to_string())
        })
        .await;
    }

    /// At once, and of each.
    async fn assert_held(&self, when: &str) {
        let line = self.door.open().await.unwrap();
        for promise in &self.held {
            assert_eq!(promise.asked(&line).await.unwrap(), Ok(promise.good()), "{when}");
        }
    }
}

async fn until_connected(ground: &Ground, connected: bool) {
    eventually("the router knows whether there is a hub", || async {
        let page = admin_get(ground.router.admin(), "/configz").await.unwrap();
        let page: Value = serde_json::from_str(&page).unwrap();
        page["hubConnected"] == json!(connected)
    })
    .await;
}

#[tokio::test]
async fn what_was_good_outlives_restarts_whatever_is_written_meanwhile() {
    let mut ground = alone().await;
    let ground = &mut *ground;
    let mut lasting = Lasting::new(ground).await;
    lasting.write_good(ground).await;
    for promise in &lasting.held {
        lasting.until_held_to(promise).await;
    }
    lasting.write_broken(ground).await;
    lasting.until_told(ground).await;
    lasting.assert_held("broken by an edit").await;

    assert_eq!(ground.hub.stop().await.unwrap(), 0);
    ground.hub.start_again().await.unwrap();
    lasting.until_told(ground).await;
    lasting.assert_held("the hub has never seen a good one").await;

    assert_eq!(ground.router.stop().await.unwrap(), 0);
    ground.router.start_again().await.unwrap();
    ground.router.ready().await;
    lasting.until_told(ground).await;
    lasting.assert_held("the router knows it of its file alone").await;

    ground.hub.kill().await.unwrap();
    lasting.write_broken(ground).await;
    ground.router.kill().await.unwrap();
    ground.router.start_again().await.unwrap();
    ground.router.ready().await;
    until_connected(ground, false).await;
    lasting.assert_held("the router is alone").await;
    ground.hub.start_again().await.unwrap();
    lasting.until_told(ground).await;
    lasting.assert_held("the hub is back").await;

    lasting.write_good(ground).await;
    for promise in &lasting.held {
        lasting.until_held_to(promise).await;
    }
    are_gone(ground, &lasting).await;
    ground.assert_sound().await;
}

/// What is deleted while the hub is away is taken from routers when it is back, broken or not.
async fn are_gone(ground: &mut Ground, lasting: &Lasting) {
    ground.hub.kill().await.unwrap();
    for promise in lasting.held.iter().chain([&lasting.marker]) {
        let objects = objects(ground, promise).await;
        let deleted = objects.delete(promise.namespace, &DeleteParams::default()).await;
        deleted.unwrap();
    }
    lasting.assert_held("nobody has told the router").await;
    ground.hub.start_again().await.unwrap();
    for promise in lasting.held.iter().chain([&lasting.marker]) {
        eventually("the router has it no more", || async {
            ground
                .served(promise.kind, NAMESPACE, promise.namespace)
                .await
                .is_none()
        })
        .await;
    }
    let line = lasting.door.open().await.unwrap();
    for promise in &lasting.held {
        let passed = promise.asked(&line).await.unwrap().unwrap_err();
        assert!(passed.contains(": 404 \"\""), "{passed}");
    }
}
