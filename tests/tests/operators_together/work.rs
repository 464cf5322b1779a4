//! What operators are given to do, and whether it is done: in each namespace one object of each, which its users change at the member,
//! past the routers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use portolan_testbed::eventually;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::ground::Ground;
use crate::operators::Operator;
use crate::places::{MEMBERS, NAMESPACES, member_of};

/// Name of each object.
const NAME: &str = "shop";
/// Between two changes of users, in milliseconds.
const PAUSE: std::ops::Range<u64> = 200..1_200;
/// Of a Rollout.
const REPLICAS: u64 = 2;
/// Of a Rollout: half of its Pods, then all.
const STEPS: usize = 2;

pub(crate) struct Work {
    clients: BTreeMap<&'static str, Client>,
}

/// An operator's object in a namespace.
struct Place<'a> {
    operator: &'static str,
    namespace: &'a str,
    client: &'a Client,
}

impl Work {
    /// Makes all objects.
    pub(crate) async fn start(ground: &Ground, operators: &[Operator]) -> anyhow::Result<Self> {
        let mut clients = BTreeMap::new();
        for member in MEMBERS {
            clients.insert(member, ground.world.cluster(member).client().await?);
        }
        let work = Self { clients };
        for operator in operators {
            for namespace in NAMESPACES {
                work.place(operator.name, namespace).make().await?;
            }
        }
        Ok(work)
    }

    fn place<'a>(&'a self, operator: &'static str, namespace: &'a str) -> Place<'a> {
        Place {
            operator,
            namespace,
            client: &self.clients[member_of(namespace)],
        }
    }

    /// Changes something now and then, until it is told to stop; how often.
    pub(crate) async fn users(&self, operators: &[Operator], seed: u64, stop: &AtomicBool) -> u64 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut number = 0;
        while !stop.load(Ordering::Relaxed) {
            number += 1;
            let operator = operators.choose(&mut rng).map_or("", |operator| operator.name);
            let namespace = NAMESPACES.choose(&mut rng).copied().unwrap_or_default();
            self.place(operator, namespace).change(number).await.unwrap();
            sleep(Duration::from_millis(rng.random_range(PAUSE))).await;
        }
        number
    }

    /// Changes each object of these operators once more, and waits until all of that is done.
    pub(crate) async fn all_is_done(&self, operators: &[Operator], number: u64) {
        for operator in operators {
            for namespace in NAMESPACES {
                self.place(operator.name, namespace).change(number).await.unwrap();
            }
        }
        for operator in operators {
            for namespace in NAMESPACES {
                let place = self.place(operator.name, namespace);
                let what = format!("{} has done its work in {namespace}", operator.name);
                eventually(&what, || place.is_done(number)).await;
            }
        }
    }
}

impl Place<'_> {
    fn api(&self, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let kind = ApiResource {
            plural: if kind.kind == "Prometheus" {
                "prometheuses".to_owned()
            } else {
                kind.plural.clone()
            },
            ..kind
        };
        Api::namespaced_with(self.client.clone(), self.namespace, &kind)
    }

    fn own(&self) -> Api<DynamicObject> {
        match self.operator {
            "rollouts" => self.api("argoproj.io", "v1alpha1", "Rollout"),
            "monitoring" => self.api("monitoring.coreos.com", "v1", "Prometheus"),
            _ => self.api("example.com", "v1", "Greeting"),
        }
    }

    async fn read(&self, (group, version, kind): (&str, &str, &str), name: &str) -> anyhow::Result<Value> {
        let object = self.api(group, version, kind).get(name).await?;
        Ok(serde_json::to_value(object)?)
    }

    async fn make(&self) -> anyhow::Result<()> {
        let object = match self.operator {
            "rollouts" => json!({
                "apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "metadata": {"name": NAME},
                "spec": {
                    "replicas": REPLICAS,
                    "selector": {"matchLabels": {"app": NAME}},
                    "strategy": {"canary": {"steps": [{"setWeight": 50}, {"pause": {"duration": "1s"}}]}},
                    "template": {
                        "metadata": {"labels": {"app": NAME}},
                        "spec": {"containers": [{"name": NAME, "image": image(0)}]},
                    },
                },
            }),
            "monitoring" => json!({
                "apiVersion": "monitoring.coreos.com/v1", "kind": "Prometheus", "metadata": {"name": NAME},
                "spec": {"replicas": 1, "retention": retention(0), "serviceMonitorSelector": {}},
            }),
            _ => json!({
                "apiVersion": "example.com/v1", "kind": "Greeting", "metadata": {"name": NAME},
                "spec": {"message": "0", "replicas": 1},
            }),
        };
        let object = serde_json::from_value(object)?;
        self.own().create(&PostParams::default(), &object).await?;
        Ok(())
    }

    async fn change(&self, number: u64) -> anyhow::Result<()> {
        let spec = match self.operator {
            "rollouts" => {
                let containers = json!([{"name": NAME, "image": image(number)}]);
                json!({"template": {"spec": {"containers": containers}}})
            }
            "monitoring" => json!({"retention": retention(number)}),
            _ => json!({"message": number.to_string()}),
        };
        let patch = Patch::Merge(json!({"spec": spec}));
        self.own().patch(NAME, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    async fn is_done(&self, number: u64) -> anyhow::Result<()> {
        match self.operator {
            "rollouts" => self.is_rolled_out(number).await,
            "monitoring" => self.is_monitored(number).await,
            _ => self.is_greeted(number).await,
        }
    }

    /// The new ReplicaSet has all Pods, by way of all steps, and no other has any.
    async fn is_rolled_out(&self, number: u64) -> anyhow::Result<()> {
        let rollout = self.read(("argoproj.io", "v1alpha1", "Rollout"), NAME).await?;
        let status = &rollout["status"];
        let generation = rollout["metadata"]["generation"].to_string();
        ensure!(
            status["observedGeneration"] == generation.as_str()
                && status["phase"] == "Healthy"
                && status["currentPodHash"] == status["stableRS"]
                && status["currentStepIndex"] == STEPS
                && status["updatedReplicas"] == REPLICAS
                && status["availableReplicas"] == REPLICAS,
            "{status}"
        );
        let sets = self.api("apps", "v1", "ReplicaSet");
        let sets = sets
            .list(&ListParams::default().labels("rollouts-pod-template-hash"))
            .await?;
        let mut with_pods = sets.items.iter().filter(|set| set.data["spec"]["replicas"] != 0);
        let set = with_pods.next().context("no ReplicaSet")?;
        let container = &set.data["spec"]["template"]["spec"]["containers"][0];
        ensure!(
            container["image"] == image(number) && set.data["status"]["readyReplicas"] == REPLICAS,
            "{:?}",
            set.data
        );
        ensure!(with_pods.next().is_none(), "two ReplicaSets have Pods");
        Ok(())
    }

    /// There is a StatefulSet as the Prometheus says it, its configuration, and its Service.
    async fn is_monitored(&self, number: u64) -> anyhow::Result<()> {
        let prometheus = self.read(("monitoring.coreos.com", "v1", "Prometheus"), NAME).await?;
        let conditions = prometheus["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        for of in ["Reconciled", "Available"] {
            let holds = conditions.iter().any(|found| {
                found["type"] == of
                    && found["status"] == "True"
                    && found["observedGeneration"] == prometheus["metadata"]["generation"]
            });
            ensure!(holds, "{of}: {conditions:?}");
        }
        let name = format!("prometheus-{NAME}");
        let set = self.read(("apps", "v1", "StatefulSet"), &name).await?;
        let wanted = format!("--storage.tsdb.retention.time={}", retention(number));
        let containers = set["spec"]["template"]["spec"]["containers"].as_array();
        let mut arguments = containers
            .into_iter()
            .flatten()
            .filter_map(|container| container["args"].as_array())
            .flatten();
        ensure!(arguments.any(|argument| *argument == wanted), "no {wanted}: {set}");
        let secret = self.read(("", "v1", "Secret"), &name).await?;
        ensure!(!secret["data"]["prometheus.yaml.gz"].is_null(), "no configuration");
        self.read(("", "v1", "Service"), "prometheus-operated").await?;
        Ok(())
    }

    async fn is_greeted(&self, number: u64) -> anyhow::Result<()> {
        let greeting = self.read(("example.com", "v1", "Greeting"), NAME).await?;
        let status = &greeting["status"];
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        ensure!(
            status["observedGeneration"] == greeting["metadata"]["generation"]
                && status["readyReplicas"] == 1
                && !conditions.is_empty()
                && conditions.iter().all(|condition| condition["status"] == "True"),
            "{status}"
        );
        let child = self.read(("", "v1", "ConfigMap"), NAME).await?;
        ensure!(
            child["data"]["message"] == number.to_string().as_str(),
            "{}",
            child["data"]
        );
        self.read(("apps", "v1", "Deployment"), NAME).await?;
        Ok(())
    }
}

fn image(number: u64) -> String {
    format!("registry.example.com/shop:{number}")
}

fn retention(number: u64) -> String {
    format!("{}d", number + 1)
}
