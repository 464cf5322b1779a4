//! What is written to the members, and what they hold: the only judge of what a client holds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use http::Method;
use portolan_tests::door::{Line, json, request};
use portolan_tests::watcher::Objects;
use portolan_tests::world::World;
use serde_json::json;

use crate::{FOREIGN, OWNED};

/// A writer of ConfigMaps, past the router.
#[derive(Default)]
pub(crate) struct Truth {
    made: usize,
    alive: BTreeMap<String, VecDeque<String>>,
    /// Keys of what was really deleted; no name is used twice.
    pub(crate) deleted: BTreeSet<String>,
}

impl Truth {
    /// Creates, changes and deletes in a member, and changes what is none of the shard's business.
    pub(crate) async fn work(&mut self, world: &World, member: &str) {
        let namespace = namespace_of(member);
        let line = world.direct_door(member).await.unwrap().open().await.unwrap();
        for _ in 0..2 {
            self.make(&line, member).await;
        }
        let alive = self.alive.get_mut(member).unwrap();
        let oldest = format!("{}/{}", maps(namespace), alive[0]);
        let text = format!("as of {}", self.made);
        send(&line, Method::PATCH, &oldest, &json!({"data": {"text": text}})).await;
        if alive.len() > 4 {
            let name = alive.remove(1).unwrap();
            let path = format!("{}/{name}", maps(namespace));
            // Before it is: a client is quick.
            self.deleted.insert(format!("{namespace}/{name}"));
            send(&line, Method::DELETE, &path, &json!({})).await;
        }
        let foreign = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "none-"}});
        send(&line, Method::POST, &maps(FOREIGN), &foreign).await;
    }

    /// One new object; returns its key.
    pub(crate) async fn mark(&mut self, world: &World, member: &str) -> String {
        let line = world.direct_door(member).await.unwrap().open().await.unwrap();
        let name = self.make(&line, member).await;
        format!("{}/{name}", namespace_of(member))
    }

    async fn make(&mut self, line: &Line, member: &str) -> String {
        self.made += 1;
        let name = format!("map-{}", self.made);
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        send(line, Method::POST, &maps(namespace_of(member)), &object).await;
        self.alive.entry(member.to_owned()).or_default().push_back(name.clone());
        name
    }

    /// What the members hold in the shard's namespaces.
    pub(crate) async fn objects(&self, world: &World) -> Objects {
        let mut objects = Objects::new();
        for (member, namespace) in OWNED {
            let door = world.direct_door(member).await.unwrap();
            let list = door.get(&maps(namespace), &[]).await.unwrap().json();
            for item in list["items"].as_array().unwrap() {
                let text = |key: &str| item["metadata"][key].as_str().unwrap().to_owned();
                objects.insert(format!("{namespace}/{}", text("name")), text("resourceVersion"));
            }
        }
        objects
    }
}

fn namespace_of(member: &str) -> &'static str {
    let found = OWNED.iter().find(|(owner, _)| *owner == member);
    found.map(|(_, namespace)| *namespace).unwrap()
}

fn maps(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

async fn send(line: &Line, method: Method, path: &str, body: &serde_json::Value) {
    let asked = if method == Method::PATCH {
        let headers = [("content-type", "application/merge-patch+json")];
        request(method, path, &headers, body.to_string().as_bytes())
    } else {
        json(method, path, body)
    };
    let answer = line.ask(asked.unwrap()).await.unwrap();
    assert!(answer.status < 300, "{path}: {} {}", answer.status, answer.message());
}
