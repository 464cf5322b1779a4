//! A testbed with a fleet on it: what the tests of one binary share, each in namespaces of its own.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt as _};
use portolan_crds::ShardingConfig;
use portolan_testbed::{Cluster, Options, OtherApiServer, Pods, Testbed, eventually};
use serde_json::{Value, json};

use crate::door::Door;
use crate::fleet::{Fleet, FleetOptions};
use crate::kubectl::Kubectl;
use crate::watch::{Held, held};

/// Audience of tokens for routers.
pub const AUDIENCE: &str = "portolan";
/// Name of the cluster that is the hub.
pub const HUB: &str = "hub";

/// What to start.
#[derive(Debug, Default)]
pub struct Plan<'a> {
    /// Member clusters.
    pub members: &'a [&'a str],
    /// Namespaces to create before anything else, `member/namespace`.
    pub namespaces: &'a [&'a str],
    /// ShardingConfigs, as YAML.
    pub manifests: &'a str,
    /// Whether pods shall run.
    pub pods: bool,
    /// More flags for the API servers.
    pub apiserver_args: Vec<String>,
    /// Clusters that have another API server, by name.
    pub apiservers: BTreeMap<String, OtherApiServer>,
    /// Environment of the fleet's programs.
    pub env: &'a [(&'a str, &'a str)],
    /// OTLP endpoint of the fleet's programs.
    pub otlp: Option<&'a str>,
    /// Whether API servers and etcd export their spans too.
    pub members_trace: bool,
}

/// A running testbed and fleet.
#[derive(Debug)]
pub struct World {
    /// The fleet; ends first.
    pub fleet: Fleet,
    /// The control planes.
    pub testbed: Testbed,
}

/// Where the tests of one binary keep their world. What kept it from starting is kept too, so that the other tests
/// need not wait for the same failure.
pub type Shared = tokio::sync::OnceCell<Result<World, String>>;

impl World {
    /// The world in `cell`, started by the first test that asks. Panics if it did not start.
    pub async fn shared(cell: &'static Shared, plan: Plan<'_>) -> &'static Self {
        let start = || async { Self::start(plan).await.map_err(|error| format!("{error:#}")) };
        match cell.get_or_init(start).await {
            Ok(world) => world,
            #[expect(clippy::panic, reason = "no test can do anything without it")]
            Err(error) => panic!("the fleet did not start: {error}"),
        }
    }

    /// Starts all and returns when all is ready.
    pub async fn start(plan: Plan<'_>) -> anyhow::Result<Self> {
        let testbed = Testbed::start_with(Options {
            clusters: std::iter::once(&HUB)
                // The hub's cluster may be a member too.
                .chain(plan.members.iter().filter(|name| **name != HUB))
                .map(|name| (*name).to_owned())
                .collect(),
            pods: if plan.pods { Pods::Pretended } else { Pods::None },
            apiserver_args: plan.apiserver_args,
            apiservers: plan.apiservers,
            otlp: plan.otlp.filter(|_| plan.members_trace).map(ToOwned::to_owned),
            ..Options::default()
        })
        .await?;
        for pair in plan.namespaces {
            let (member, namespace) = pair.split_once('/').context("namespaces are member/namespace")?;
            create_namespace(testbed.cluster(member), namespace).await?;
        }
        let options = FleetOptions {
            hub: HUB,
            members: plan.members,
            manifests: plan.manifests,
            otlp: plan.otlp,
            env: plan.env,
            ..FleetOptions::default()
        };
        let fleet = Fleet::start(&testbed, options).await?;
        Ok(Self { fleet, testbed })
    }

    /// A cluster of the testbed.
    pub fn cluster(&self, name: &str) -> &Cluster {
        self.testbed.cluster(name)
    }

    /// Creates a namespace in a member, past the router.
    pub async fn namespace(&self, member: &str, namespace: &str) -> anyhow::Result<()> {
        create_namespace(self.cluster(member), namespace).await
    }

    /// Gives a shard other `clusters`.
    pub async fn own(&self, shard: &str, clusters: Value) -> anyhow::Result<()> {
        self.edit(shard, json!({"clusters": clusters})).await
    }

    /// Merges this into a shard's spec.
    pub async fn edit(&self, shard: &str, spec: Value) -> anyhow::Result<()> {
        let shards: Api<ShardingConfig> = Api::namespaced(self.cluster(HUB).client().await?, "operators");
        let patch = Patch::Merge(json!({"spec": spec}));
        shards.patch(shard, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// What members hold, each in one namespace, past the router; `resource` is a group-version's path and a plural name.
    pub async fn truth(&self, resource: (&str, &str), places: &[(&str, &str)]) -> anyhow::Result<Held> {
        let (root, plural) = resource;
        let mut all = Held::new();
        for (member, namespace) in places {
            let path = format!("{root}/namespaces/{namespace}/{plural}");
            all.extend(held(&self.direct_door(member).await?.get(&path, &[]).await?.json())?);
        }
        Ok(all)
    }

    /// kubectl as administrator of a cluster, past the router.
    pub fn direct(&self, cluster: &str) -> Kubectl {
        Kubectl::new(self.cluster(cluster).direct_kubeconfig_path())
    }

    /// kubectl as the person `portolan:dev` on the explicit view of a member.
    pub fn explicit(&self, member: &str) -> Kubectl {
        Kubectl::new(&self.fleet.explicit_kubeconfig()).with(&format!("--context={member}"))
    }

    /// kubectl as a shard's caller on the merged view.
    pub fn merged(&self, shard: &str) -> Kubectl {
        Kubectl::new(&self.fleet.merged_kubeconfig(shard))
    }

    /// Raw requests as administrator of a cluster, past the router.
    pub async fn direct_door(&self, cluster: &str) -> anyhow::Result<Door> {
        Door::of_kubeconfig(self.cluster(cluster).direct_kubeconfig_path(), None).await
    }

    /// Raw requests as the person `portolan:dev` on the explicit view of a member.
    pub async fn explicit_door(&self, member: &str) -> anyhow::Result<Door> {
        Door::of_kubeconfig(&self.fleet.explicit_kubeconfig(), Some(member)).await
    }

    /// Raw requests as a shard's caller on the merged view.
    pub async fn merged_door(&self, shard: &str) -> anyhow::Result<Door> {
        Door::of_kubeconfig(&self.fleet.merged_kubeconfig(shard), None).await
    }

    /// The same, once lists at `path` are answered: a router that has just heard of the shard may lack a member.
    pub async fn listed_door(&self, shard: &str, path: &str) -> anyhow::Result<Door> {
        let door = self.merged_door(shard).await?;
        eventually("lists are answered", || async {
            let answer = door.get(path, &[]).await.map_err(|error| error.to_string())?;
            if answer.status == 200 {
                Ok(())
            } else {
                Err(answer.message())
            }
        })
        .await;
        Ok(door)
    }

    /// Raw requests on the merged view with a token, or as nobody.
    pub async fn token_door(&self, token: Option<&str>) -> anyhow::Result<Door> {
        let door = Door::of_kubeconfig(&self.fleet.explicit_kubeconfig(), None).await?;
        door.with_prefix("").with_token(&self.fleet.ca_pem()?, token)
    }

    /// A kube-rs client for a kubeconfig of the fleet.
    pub async fn client(&self, kubeconfig: PathBuf, context: Option<&str>) -> anyhow::Result<Client> {
        let options = KubeConfigOptions {
            context: context.map(ToOwned::to_owned),
            ..KubeConfigOptions::default()
        };
        let config = kube::Config::from_custom_kubeconfig(Kubeconfig::read_from(kubeconfig)?, &options).await?;
        Ok(Client::try_from(config)?)
    }

    /// A Pod that no node takes, its ServiceAccount with it; returns the Pod's uid.
    pub async fn pod(&self, cluster: &str, pod: PodSpec<'_>) -> anyhow::Result<String> {
        let PodSpec {
            namespace,
            name,
            service_account,
            labels,
        } = pod;
        let client = self.cluster(cluster).client().await?;
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": service_account}});
        apply(&Api::<ServiceAccount>::namespaced(client.clone(), namespace), &account).await?;
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "serviceAccountName": service_account,
                "automountServiceAccountToken": false,
                "schedulerName": "none",
                "containers": [{"name": "main", "image": "registry.k8s.io/pause:3.10"}],
            },
        });
        let pod = apply(&Api::<Pod>::namespaced(client, namespace), &pod).await?;
        pod.uid().context("a created Pod has a uid")
    }

    /// A token for the router, bound to a Pod.
    pub async fn token(&self, cluster: &str, pod: &PodSpec<'_>, uid: &str) -> anyhow::Result<String> {
        let bound = Some((pod.name, uid));
        self.cluster(cluster)
            .issue_token(pod.namespace, pod.service_account, &[AUDIENCE], bound)
            .await
    }
}

/// See [`World::pod`].
#[derive(Clone, Debug)]
pub struct PodSpec<'a> {
    /// Where it is.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Made with it.
    pub service_account: &'a str,
    /// What ShardingConfigs select.
    pub labels: Value,
}

/// Creates a namespace in a cluster.
pub async fn create_namespace(cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    let namespaces = Api::<Namespace>::all(cluster.client().await?);
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    apply(&namespaces, &object).await.map(drop)
}

async fn apply<K>(api: &Api<K>, object: &Value) -> anyhow::Result<K>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let name = object["metadata"]["name"].as_str().context("a name")?;
    let params = PatchParams::apply("portolan-tests").force();
    api.patch(name, &params, &Patch::Apply(object))
        .await
        .with_context(|| format!("cannot apply {} {name}", object["kind"]))
}
