//! The fleet under test: two members in which the same namespaces are worked on by three operators, each sharded in two by a root; two
//! routers behind one address. Routers and hub are this process's own, so that they can be killed. Members write an audit log of
//! what operators write, and member and hub cluster forget nothing of what was written to them, and keep it as JSON.

use std::path::PathBuf;

use anyhow::Context as _;
use kube::Api;
use portolan_crds::ShardingConfig;
use portolan_testbed::{Bundle, eventually};
use portolan_tests::balancer::Balancer;
use portolan_tests::ctl;
use portolan_tests::daemon::Daemon;
use portolan_tests::programs::argument;
use portolan_tests::routers;
use portolan_tests::world::{HUB, Plan, PodSpec, World};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::operators::{OPERATORS, Operator};
use crate::places::{HOME, MEMBERS, NAMESPACES, member_of};

/// Label of these namespaces.
const SHOPS: (&str, &str) = ("together", "shop");
const GREETING_CRD: &str = include_str!("../../../examples/greeting-crd.yaml");
/// Writes of whoever acts by a router, once each, when they are answered.
const AUDIT: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
  users: [\"system:serviceaccount:portolan-routers:portolan-router\"]
";

/// A mutex around each program: one crash at a time has it.
pub(crate) struct Ground {
    pub(crate) hub: Mutex<Daemon>,
    pub(crate) routers: [Mutex<Daemon>; 2],
    /// Address of both routers.
    balancer: Balancer,
    pub(crate) world: World,
    _audit: tempfile::NamedTempFile,
}

impl Ground {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let audit = tempfile::NamedTempFile::new()?;
        std::fs::write(audit.path(), AUDIT)?;
        let world = world(&argument(audit.path())).await?;
        for member in MEMBERS {
            prepare(&world, member).await?;
        }
        let hub = world.fleet.take_over("hub").await?;
        let routers = [
            world.fleet.take_over("router").await?,
            routers::start(&world, "second", &routers::hub_of(&world)?, &[]).await?,
        ];
        for router in &routers {
            router.ready().await;
        }
        let balancer = Balancer::start(routers.iter().map(|router| router.bind().to_owned()).collect()).await?;
        let roots: String = OPERATORS.iter().map(root).collect();
        let home = format!("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {HOME}\n---\n");
        world
            .direct(HUB)
            .ok_with(&["apply", "-f", "-"], &(home + &roots))
            .await?;
        let ground = Self {
            hub: Mutex::new(hub),
            routers: routers.map(Mutex::new),
            balancer,
            world,
            _audit: audit,
        };
        ground.fenced().await?;
        Ok(ground)
    }

    /// Waits until members refuse what is of a former owner.
    async fn fenced(&self) -> anyhow::Result<()> {
        let shards: Api<ShardingConfig> = Api::namespaced(self.world.cluster(HUB).client().await?, HOME);
        let children = OPERATORS.iter().flat_map(Operator::shards);
        for name in children {
            eventually(&format!("handovers of {name} are fenced"), || async {
                let status = shards.get(&name).await?.status.unwrap_or_default();
                let holds = status
                    .conditions
                    .iter()
                    .any(|found| found.type_ == "HandoverFenced" && found.status == "True");
                anyhow::ensure!(holds, "{:?}", status.conditions);
                anyhow::Ok(())
            })
            .await;
        }
        Ok(())
    }

    /// A Pod of the operator, of this ordinal, as a replica of its StatefulSet would be.
    pub(crate) async fn caller(&'static self, operator: &Operator, ordinal: usize) -> anyhow::Result<Caller> {
        let name = format!("{}-{ordinal}", operator.name);
        let caller = Caller {
            ground: self,
            account: operator.name,
            uid: self.world.pod("east", pod(operator.name, &name)).await?,
            name,
        };
        caller.renew().await?;
        let cluster = json!({
            "server": format!("https://{}", self.balancer.address),
            "certificate-authority": self.world.fleet.dir().join("hub-ca.crt"),
        });
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "portolan",
            "clusters": [{"name": "portolan", "cluster": cluster}],
            "users": [{"name": "operator", "user": {"tokenFile": caller.file("token")}}],
            "contexts": [{"name": "portolan", "context": {"cluster": "portolan", "user": "operator", "namespace": HOME}}],
        });
        std::fs::write(caller.file("kubeconfig"), config.to_string())?;
        Ok(caller)
    }

    /// The audit log of a member.
    pub(crate) fn audit(&self, member: &str) -> PathBuf {
        self.world.cluster(member).dir().join("audit.log")
    }
}

/// Who a replica is to the routers.
pub(crate) struct Caller {
    ground: &'static Ground,
    account: &'static str,
    /// Of its Pod.
    name: String,
    uid: String,
}

impl Caller {
    /// One of its files: `kubeconfig`, `token`, `log`.
    pub(crate) fn file(&self, end: &str) -> PathBuf {
        self.ground
            .world
            .fleet
            .dir()
            .join(format!("together-{}.{end}", self.name))
    }

    /// Another token, good for an hour.
    pub(crate) async fn renew(&self) -> anyhow::Result<()> {
        let pod = pod(self.account, &self.name);
        let token = self.ground.world.token("east", &pod, &self.uid).await?;
        Ok(std::fs::write(self.file("token"), token)?)
    }
}

fn pod<'a>(account: &'a str, name: &'a str) -> PodSpec<'a> {
    PodSpec {
        namespace: HOME,
        name,
        service_account: account,
        labels: json!({"app": account, "statefulset.kubernetes.io/pod-name": name}),
    }
}

async fn world(audit: &str) -> anyhow::Result<World> {
    let namespaces: Vec<_> = NAMESPACES
        .iter()
        .map(|name| format!("{}/{name}", member_of(name)))
        .collect();
    let namespaces: Vec<_> = namespaces.iter().map(String::as_str).collect();
    let plan = Plan {
        members: &MEMBERS,
        namespaces: &namespaces,
        pods: true,
        apiserver_args: vec![
            "--storage-media-type=application/json".to_owned(),
            "--etcd-compaction-interval=0".to_owned(),
            format!("--audit-policy-file={audit}"),
            "--audit-log-path={folder}/audit.log".to_owned(),
        ],
        ..Plan::default()
    };
    World::start(plan).await
}

/// What stands in a member before operators come: their kinds, their accounts, and whom routers may act as.
async fn prepare(world: &World, member: &str) -> anyhow::Result<()> {
    let kubectl = world.direct(member);
    for bundle in Bundle::OPERATORS {
        let extras = bundle.built()?.context("it is built")?.join("extras");
        // Too large for the annotation of a client-side apply.
        kubectl
            .ok(&["apply", "--server-side", "-f", &argument(&extras)])
            .await?;
    }
    kubectl.ok_with(&["apply", "-f", "-"], GREETING_CRD).await?;
    let (key, value) = SHOPS;
    for name in NAMESPACES.iter().filter(|name| member_of(name) == member) {
        kubectl
            .ok(&["label", "namespace", name, &format!("{key}={value}")])
            .await?;
    }
    let mut objects = vec![json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})];
    objects.extend(OPERATORS.iter().flat_map(account));
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    kubectl.ok_with(&["apply", "-f", "-"], &list.to_string()).await?;
    let file = argument(world.cluster(member).direct_kubeconfig_path());
    for operator in &OPERATORS {
        let account = format!("{HOME}/{}", operator.name);
        ctl::ok(&["allow", "--member-kubeconfig", &file, &account]).await?;
    }
    Ok(())
}

fn account(operator: &Operator) -> [Value; 2] {
    let name = operator.name;
    [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": HOME}}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": format!("together-{name}")},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": HOME}],
        }),
    ]
}

/// What the canary of a root takes: these namespaces alone.
pub(crate) fn canary(operator: &Operator, namespaces: &[&str]) -> Value {
    json!({"replicas": operator.replicas, "percent": 0, "inNamespaces": namespaces})
}

/// An operator's root: its canary and the one shard beside it share out the namespaces.
fn root(operator: &Operator) -> String {
    let name = operator.name;
    let (key, value) = SHOPS;
    let controller = match operator.lock {
        Some(lock) => json!({"leaderElectionName": lock}),
        None => json!({"leaderElection": "Disabled"}),
    };
    let chosen = json!({"matchLabels": {key: value}});
    let root = json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1", "kind": "ShardingConfig",
        "metadata": {"name": name, "namespace": HOME},
        "spec": {
            "operator": name,
            "selector": {"matchLabels": {"app": name}},
            "controller": controller,
            "callerClusters": ["east"],
            "primaryCluster": "east",
            "clusters": MEMBERS.map(|member| json!({"name": member, "namespaceSelector": chosen})),
            "root": {
                "prefix": name,
                "targetStatefulSet": name,
                "canary": canary(operator, &operator.first()),
                "auto": {"shardingSize": 1, "everyShardReplicas": operator.replicas},
            },
        },
    });
    format!("{root}\n---\n")
}
