//! Random documents under load.

use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use kube::api::{DeleteParams, DynamicObject};
use portolan_testbed::eventually;
use portolan_tests::door::Door;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::load::Load;
use crate::promise::Promise;
use crate::{Ground, KEPT, Kind, NAMESPACE, STORM, alone, apply, documents};

/// Of the short form, in `make test`.
const SHORT: usize = 150;
/// Objects of each kind that anything is made of.
const OBJECTS: usize = 5;
/// Between two documents: each is to be in force for some requests.
const APART: Duration = Duration::from_millis(50);

#[expect(clippy::disallowed_methods, reason = "settings of this test alone")]
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// What became of documents.
#[derive(Debug, Default)]
struct Drawn {
    good: usize,
    broken: usize,
    not_taken: usize,
    deleted: usize,
}

/// Who writes, and what was written.
struct Writer<'g> {
    ground: &'g Ground,
    promises: Arc<[Promise]>,
    /// Objects of the promises, and those of the storm, by kind.
    kept: [Api<DynamicObject>; 2],
    storm: [Api<DynamicObject>; 2],
    rng: StdRng,
    drawn: Drawn,
}

fn named(index: usize) -> String {
    format!("any-{index}")
}

impl<'g> Writer<'g> {
    async fn new(ground: &'g Ground, seed: u64) -> Self {
        let of = async |namespace| {
            [
                ground.objects(Kind::CircuitBreaker, namespace).await,
                ground.objects(Kind::FaultInjection, namespace).await,
            ]
        };
        let promises = KEPT.iter().enumerate();
        let promises = promises.map(|(index, namespace)| Promise::new(Kind::ALL[index % 2], "kept", namespace));
        Self {
            ground,
            promises: promises.collect(),
            kept: of(NAMESPACE).await,
            storm: of(STORM).await,
            rng: StdRng::seed_from_u64(seed),
            drawn: Drawn::default(),
        }
    }

    /// The next good version of a promise. It must be taken.
    async fn keep(&mut self, index: usize) {
        let promise = &self.promises[index];
        let spec = promise.next();
        let objects = &self.kept[promise.kind as usize];
        apply(objects, promise.kind, promise.namespace, &spec).await.unwrap();
        self.drawn.good += 1;
    }

    /// A broken one in its place, which would let everything pass.
    async fn break_one(&mut self, index: usize) {
        let promise = &self.promises[index];
        let spec = documents::broken(promise.kind, &promise.void(), &mut self.rng);
        let objects = &self.kept[promise.kind as usize];
        apply(objects, promise.kind, promise.namespace, &spec).await.unwrap();
        self.drawn.broken += 1;
    }

    /// Anything, for the caller that anything may happen to.
    async fn storm(&mut self) {
        let kind = Kind::ALL[self.rng.random_range(0..2)];
        let objects = &self.storm[kind as usize];
        let name = named(self.rng.random_range(0..OBJECTS));
        if self.rng.random_bool(0.15) {
            let deleted = objects.delete(&name, &DeleteParams::default()).await;
            self.drawn.deleted += usize::from(deleted.is_ok());
            return;
        }
        let spec = documents::any(kind, &mut self.rng);
        match apply(objects, kind, &name, &spec).await {
            Ok(_) if documents::is_good(kind, &spec) => self.drawn.good += 1,
            Ok(_) => self.drawn.broken += 1,
            // What no API server stores: a null, or a name that is no text where one list was merged by names.
            Err(kube::Error::Api(_)) => self.drawn.not_taken += 1,
            Err(error) => panic!("{error}: {spec}"),
        }
    }

    async fn write(&mut self, documents: usize, load: &mut Load) {
        for _ in 0..documents {
            let index = self.rng.random_range(0..self.promises.len());
            match self.rng.random_range(0..8) {
                0..2 => self.keep(index).await,
                2..4 => self.break_one(index).await,
                _ => self.storm().await,
            }
            if load.failed() {
                break;
            }
            tokio::time::sleep(APART).await;
        }
    }

    /// The newest good version of each promise is in force.
    async fn until_kept(&self, door: &Door) {
        let line = door.open().await.unwrap();
        for promise in &*self.promises {
            let what = format!("{} is held to by its newest good version", promise.namespace);
            eventually(&what, || async {
                let version = promise.asked(&line).await.unwrap()?;
                let good = promise.good();
                (version == good).then_some(()).ok_or(format!("{version}, not {good}"))
            })
            .await;
        }
    }

    /// Of whatever was made of an object, the next good document is in force.
    async fn until_calm(&self) {
        for kind in Kind::ALL {
            for index in 0..OBJECTS {
                let (objects, name) = (&self.storm[kind as usize], named(index));
                let generation = apply(objects, kind, &name, &documents::calm(kind)).await.unwrap();
                eventually("what is good now is served", || async {
                    let served = self.ground.served(kind, STORM, &name).await.ok_or("it is not")?;
                    let held = served["generation"] == generation && served["callers"] == 1;
                    held.then_some(()).ok_or(served.to_string())
                })
                .await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_documents_under_load_panic_nothing_and_lose_no_good_one() {
    let seed = setting("PORTOLAN_SEED").unwrap_or_else(rand::random);
    let documents = setting("PORTOLAN_POLICY_DOCUMENTS").map_or(SHORT, |count| usize::try_from(count).unwrap());
    println!("PORTOLAN_SEED={seed}, {documents} documents");
    let ground = alone().await;
    let path = |namespace: &str| format!("/api/v1/namespaces/{namespace}/configmaps");
    let kept = ground.world.listed_door("kept", &path(KEPT[0])).await.unwrap();
    let storm = ground.world.listed_door(STORM, &path("s-0")).await.unwrap();
    let pids = (ground.hub.pid(), ground.router.pid());
    let mut writer = Writer::new(&ground, seed).await;
    for index in 0..writer.promises.len() {
        writer.keep(index).await;
    }
    writer.until_kept(&kept).await;

    let mut load = Load::start(&kept, &writer.promises, &storm);
    writer.write(documents, &mut load).await;
    let answered = load.end().await;
    println!("{:?}, {answered} requests answered", writer.drawn);
    writer.until_kept(&kept).await;
    writer.until_calm().await;
    let Drawn { good, broken, .. } = writer.drawn;
    assert!(good > documents / 5 && broken > documents / 5, "{:?}", writer.drawn);
    ground.assert_sound().await;
    assert_eq!(pids, (ground.hub.pid(), ground.router.pid()));
}
