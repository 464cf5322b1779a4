//! Random writes to the members, past stages and routers: objects of both kinds come, change and go, under names that are
//! used again, in namespaces of the shard and beside it.

use std::collections::BTreeMap;
use std::time::Duration;

use http::Method;
use portolan_tests::door::{Answer, json, request};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, IteratorRandom as _};
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

use crate::ground::{Ground, KINDS, MEMBERS, PLACES};

/// Names in a namespace: few, so that they come back as other objects.
const NAMES: u32 = 16;
const PAUSE: Duration = Duration::from_millis(25);

/// Which objects there are is asked again for each disturbance.
pub(crate) struct Writer {
    rng: StdRng,
    /// Path of each collection, its objects by name with their uid.
    alive: BTreeMap<(&'static str, String), BTreeMap<String, String>>,
}

impl Writer {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: StdRng::seed_from_u64(seed),
            alive: BTreeMap::new(),
        }
    }

    /// Until it is dropped.
    pub(crate) async fn run(&mut self, ground: &Ground) {
        for member in MEMBERS {
            // Of one that is away nothing is known, and names that are taken answer so.
            let _ = self.look(ground, member).await;
        }
        loop {
            let owned = ground.share.owned().await;
            let pairs = owned.iter().flat_map(|(member, namespaces)| {
                namespaces.iter().map(|namespace| (member.as_str(), namespace.as_str()))
            });
            let Some((member, namespace)) = pairs.chain(PLACES).choose(&mut self.rng) else {
                return;
            };
            let member = MEMBERS.into_iter().find(|name| *name == member).unwrap();
            let (root, plural) = *KINDS.choose(&mut self.rng).unwrap();
            let path = format!("{root}/namespaces/{namespace}/{plural}");
            // A member that is away takes nothing, a namespace that goes nothing new.
            let _ = self.write(ground, member, path).await;
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn look(&mut self, ground: &Ground, member: &'static str) -> anyhow::Result<()> {
        for (root, plural) in KINDS {
            let list = ground.lines.get(member, &format!("{root}/{plural}")).await?;
            for item in list["items"].as_array().into_iter().flatten() {
                let text = |key: &str| item["metadata"][key].as_str().unwrap_or_default().to_owned();
                let path = format!("{root}/namespaces/{}/{plural}", text("namespace"));
                if text("name").starts_with("o-") {
                    self.alive
                        .entry((member, path))
                        .or_default()
                        .insert(text("name"), text("uid"));
                }
            }
        }
        Ok(())
    }

    async fn write(&mut self, ground: &Ground, member: &'static str, path: String) -> anyhow::Result<()> {
        let alive = self.alive.entry((member, path.clone())).or_default();
        let known = alive
            .iter()
            .choose(&mut self.rng)
            .map(|(name, uid)| (name.clone(), uid.clone()));
        let many = u32::try_from(alive.len())? * 2 > NAMES;
        match (self.rng.random_range(0..10), known) {
            (0..4, Some((name, _))) => {
                let body = changed(self.rng.random());
                let headers = [("content-type", "application/merge-patch+json")];
                let asked = request(
                    Method::PATCH,
                    &format!("{path}/{name}"),
                    &headers,
                    body.to_string().as_bytes(),
                )?;
                let answer = ground.lines.ask(member, asked).await?;
                self.heard(ground, member, path, &answer);
            }
            (_, Some((name, uid))) if many || self.rng.random_bool(0.4) => {
                ground.ledger.deleting(&uid);
                let asked = json(
                    Method::DELETE,
                    &format!("{path}/{name}"),
                    &json!({"preconditions": {"uid": uid}}),
                )?;
                let answer = ground.lines.ask(member, asked).await?;
                if answer.status < 300 || answer.status == 404 {
                    self.alive.entry((member, path)).or_default().remove(&name);
                }
            }
            _ => {
                let name = format!("o-{}", self.rng.random_range(0..NAMES));
                let answer = ground
                    .lines
                    .ask(member, json(Method::POST, &path, &made(&path, &name))?)
                    .await?;
                self.heard(ground, member, path, &answer);
            }
        }
        Ok(())
    }

    fn heard(&mut self, ground: &Ground, member: &'static str, path: String, answer: &Answer) {
        let object = answer.json();
        let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
        if answer.status < 300 {
            ground.ledger.found(&text("uid"), member);
            self.alive
                .entry((member, path))
                .or_default()
                .insert(text("name"), text("uid"));
        }
    }
}

fn made(path: &str, name: &str) -> Value {
    if path.ends_with("/greetings") {
        json!({"apiVersion": "example.com/v1", "kind": "Greeting", "metadata": {"name": name}, "spec": {"message": "hello"}})
    } else {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
    }
}

/// Of either kind: an annotation.
fn changed(value: u32) -> Value {
    json!({"metadata": {"annotations": {"soak.test/value": value.to_string()}}})
}
