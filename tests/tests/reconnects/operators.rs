//! Operators whose clients come back: Pods that no node runs, each with a token of its own.

use std::fmt::Write as _;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use portolan_tests::door::{Answer, Door};
use portolan_tests::shard::federated;
use portolan_tests::world::{HUB, PodSpec, World};
use serde_json::json;

/// Objects made at a time.
const AT_A_TIME: usize = 16;
/// The one that the member lets routers act as.
const ACCOUNT: &str = "portolan-dev-one";

/// Operators, and the replicas of each.
pub(crate) struct Operators {
    /// A token, and what it asks for.
    tokens: Vec<(String, String)>,
    /// Replicas of one operator.
    each: usize,
    nobody: Door,
}

/// Whoever asks for one object.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) door: Door,
    pub(crate) path: String,
}

impl Client {
    pub(crate) async fn get(&self) -> anyhow::Result<Answer> {
        self.door.get(&self.path, &[]).await
    }
}

impl Operators {
    /// One operator of so many replicas.
    pub(crate) async fn of_one(world: &World, replicas: usize) -> anyhow::Result<Self> {
        let names = (0..replicas).map(|replica| ("one".to_owned(), format!("one-{replica}")));
        Self::new(world, names.collect(), replicas).await
    }

    /// So many operators of one replica, each with a namespace of its own.
    pub(crate) async fn of_many(world: &World, operators: usize) -> anyhow::Result<Self> {
        let names: Vec<_> = (0..operators).map(|operator| format!("many-{operator}")).collect();
        let made = stream::iter(&names).map(|name| async move { world.namespace("east", &format!("r-{name}")).await });
        made.buffer_unordered(AT_A_TIME).try_collect::<()>().await?;
        let mut manifests = String::new();
        for name in &names {
            write!(
                manifests,
                "{}",
                federated(name, "east", &[("east", &[&*format!("r-{name}")])])
            )?;
        }
        world.direct(HUB).ok_with(&["apply", "-f", "-"], &manifests).await?;
        let names = names.into_iter().map(|name| (name.clone(), name));
        Self::new(world, names.collect(), 1).await
    }

    /// Pods, by their shard's name and their own.
    async fn new(world: &World, pods: Vec<(String, String)>, each: usize) -> anyhow::Result<Self> {
        let tokens = stream::iter(&pods).map(|(shard, name)| async move {
            let pod = PodSpec {
                namespace: "operators",
                name,
                service_account: ACCOUNT,
                labels: json!({"shard": shard}),
            };
            let uid = world.pod("east", pod.clone()).await?;
            let path = format!("/api/v1/namespaces/r-{shard}/configmaps/kube-root-ca.crt");
            anyhow::Ok((world.token("east", &pod, &uid).await?, path))
        });
        Ok(Self {
            tokens: tokens.buffered(AT_A_TIME).try_collect().await?,
            each,
            nobody: world.token_door(None).await?,
        })
    }

    pub(crate) fn callers(&self) -> usize {
        self.tokens.len()
    }

    /// Of every caller, at a router.
    pub(crate) fn doors(&self, router: &str) -> Vec<Client> {
        let client = |(token, path): &(String, String)| {
            let mut door = self.nobody.clone();
            router.clone_into(&mut door.address);
            door.token = Some(token.clone());
            Client {
                door,
                path: path.clone(),
            }
        };
        self.tokens.iter().map(client).collect()
    }

    /// Of one replica of each operator, at a router.
    pub(crate) fn one_of_each(&self, router: &str) -> Vec<Client> {
        self.doors(router).into_iter().step_by(self.each).collect()
    }
}
