//! What the upgrade is made on: three control planes, a fleet whose router Pods reach, a node of east that runs them, and the
//! examples as they are.

use anyhow::{Context as _, ensure};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use portolan_testbed::{Cluster, Image, Lan, Options, Testbed};
use serde_json::{Value, json};

use crate::ctl;
use crate::fleet::{Fleet, FleetOptions};
use crate::kubectl::Kubectl;
use crate::programs::{argument, program};
use crate::world::create_namespace;

const CRD: &str = include_str!("../../../examples/greeting-crd.yaml");
const RBAC: &str = include_str!("../../../examples/greeting-rbac.yaml");
const ROOT: &str = include_str!("../../../examples/canary-root.yaml");
const OPERATOR: &str = include_str!("../../../examples/canary-operator.yaml");
const MEMBERS: [&str; 2] = ["east", "west"];
/// Namespace of the operator and its root.
const HOME: &str = "operators";
/// The StatefulSet.
const NAME: &str = "greeting-operator";
/// What the canary takes by name.
pub const TRIED: &str = "try-it";
/// Namespaces of each member beside it.
const NAMESPACES: usize = 6;

/// A member cluster and a namespace of it.
pub type Place = (String, String);

/// The clusters, the fleet, and the operator in version [`OLD`].
pub struct World {
    /// Hub, agents and router.
    pub fleet: Fleet,
    /// Where there are Greetings.
    pub places: Vec<Place>,
    testbed: Testbed,
}

/// A version of the operator, as its StatefulSet names it: its image, and what it is given.
#[derive(Clone, Copy)]
pub struct Version {
    /// Image of the operator.
    pub image: &'static str,
    /// Image of the Deployments that it makes.
    pub greeter: &'static str,
}

/// What runs at first.
pub const OLD: Version = Version {
    image: "registry.example.com/greeting-operator:1.0",
    greeter: "registry.example.com/greeter:1.0",
};
/// It makes Deployments without an image, which no API server takes.
pub const BAD: Version = Version {
    image: "registry.example.com/greeting-operator:1.1",
    greeter: "",
};
/// It works, and makes other Deployments than [`OLD`].
pub const NEW: Version = Version {
    image: "registry.example.com/greeting-operator:1.2",
    greeter: "registry.example.com/greeter:1.2",
};

impl World {
    /// Everything runs, in the network that this program is [inside](portolan_testbed::inside).
    pub async fn start() -> anyhow::Result<Self> {
        let operator = Image::new(OLD.image, program(NAME)?).and(BAD.image).and(NEW.image);
        let testbed = Testbed::start_with(Options {
            clusters: ["hub"].into_iter().chain(MEMBERS).map(str::to_owned).collect(),
            nodes: [("east".to_owned(), vec![operator])].into(),
            ..Options::default()
        })
        .await?;
        let places = places();
        for member in MEMBERS {
            prepare(testbed.cluster(member), &places).await?;
        }
        let options = FleetOptions {
            hub: "hub",
            members: &MEMBERS,
            router_address: Lan::here().map(|lan| lan.address().into()),
            ..FleetOptions::default()
        };
        let fleet = Fleet::start(&testbed, options).await?;
        let world = Self { fleet, places, testbed };
        world.install().await?;
        Ok(world)
    }

    /// The root on the hub, the operator in east.
    async fn install(&self) -> anyhow::Result<()> {
        for member in MEMBERS {
            let file = argument(self.cluster(member).direct_kubeconfig_path());
            let account = format!("{HOME}/{NAME}");
            ctl::ok(&["allow", "--member-kubeconfig", &file, &account]).await?;
        }
        self.kubectl("hub").ok_with(&["apply", "-f", "-"], ROOT).await?;
        let maps = Api::<ConfigMap>::namespaced(self.cluster("east").client().await?, HOME);
        let map: ConfigMap = serde_json::from_value(self.kubeconfig()?)?;
        maps.create(&PostParams::default(), &map).await?;
        self.kubectl("east").ok_with(&["apply", "-f", "-"], OPERATOR).await?;
        Ok(())
    }

    /// As in `examples/operator-pod.yaml`.
    fn kubeconfig(&self) -> anyhow::Result<Value> {
        let cluster = json!({"server": self.fleet.router_url()?, "certificate-authority": "/etc/portolan/ca.crt"});
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "portolan",
            "clusters": [{"name": "portolan", "cluster": cluster}],
            "users": [{"name": "operator", "user": {"tokenFile": "/var/run/secrets/portolan/token"}}],
            "contexts": [{"name": "portolan", "context": {"cluster": "portolan", "user": "operator", "namespace": HOME}}],
        });
        let data = json!({"ca.crt": self.fleet.ca_pem()?, "kubeconfig": config.to_string()});
        Ok(json!({"metadata": {"name": "portolan-kubeconfig"}, "data": data}))
    }

    /// A control plane by its name.
    pub fn cluster(&self, name: &str) -> &Cluster {
        self.testbed.cluster(name)
    }

    /// As administrator, past the router.
    pub fn kubectl(&self, cluster: &str) -> Kubectl {
        Kubectl::new(self.cluster(cluster).direct_kubeconfig_path())
    }

    async fn pods(&self) -> anyhow::Result<Api<Pod>> {
        Ok(Api::namespaced(self.cluster("east").client().await?, HOME))
    }

    /// Of each Pod of the operator, by ordinal: its uid and how often it was started again.
    pub async fn runs(&self) -> anyhow::Result<Vec<(String, i32)>> {
        let ours = ListParams::default().labels("app=greeting-operator");
        let mut pods = self.pods().await?.list(&ours).await?.items;
        pods.sort_by_key(ResourceExt::name_any);
        let restarts = |pod: &Pod| {
            let containers = pod
                .status
                .iter()
                .flat_map(|status| status.container_statuses.iter().flatten());
            containers.map(|container| container.restart_count).sum()
        };
        let runs = pods.iter().map(|pod| Ok((pod.uid().context("a uid")?, restarts(pod))));
        runs.collect()
    }

    /// The StatefulSet's template is of this version; no Pod is touched.
    pub async fn release(&self, version: Version) -> anyhow::Result<()> {
        let env = json!([{"name": "GREETER_IMAGE", "value": version.greeter}]);
        let container = json!({"name": "operator", "image": version.image, "env": env});
        self.edit(json!({"template": {"spec": {"containers": [container]}}}))
            .await
    }

    /// From this ordinal upwards Pods become those of the template.
    pub async fn partition(&self, ordinal: u32) -> anyhow::Result<()> {
        let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": ordinal}});
        self.edit(json!({"updateStrategy": strategy})).await
    }

    async fn edit(&self, spec: Value) -> anyhow::Result<()> {
        let sets = Api::<StatefulSet>::namespaced(self.cluster("east").client().await?, HOME);
        let patch = Patch::Strategic(json!({"spec": spec}));
        sets.patch(NAME, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// As `kubectl rollout undo`.
    pub async fn undo(&self) -> anyhow::Result<()> {
        let undo = ["rollout", "undo", "-n", HOME, "statefulset/greeting-operator"];
        self.kubectl("east").ok(&undo).await.map(drop)
    }

    /// Deletes the Pod of this ordinal: it comes back as the template has it.
    pub async fn renew(&self, ordinal: u32) -> anyhow::Result<()> {
        let name = format!("{NAME}-{ordinal}");
        self.pods().await?.delete(&name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Fails unless the Pod of this ordinal runs and is of this version.
    pub async fn is_running(&self, ordinal: u32, version: Version) -> anyhow::Result<()> {
        let pod = self.pods().await?.get(&format!("{NAME}-{ordinal}")).await?;
        let image = pod.spec.iter().flat_map(|spec| &spec.containers).next();
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let is_new = image.and_then(|main| main.image.as_deref()) == Some(version.image);
        let is_there = phase == Some("Running") && pod.metadata.deletion_timestamp.is_none();
        ensure!(is_new && is_there, "{:?}", pod.status);
        Ok(())
    }

    /// `portolanctl shards …` of the fleet.
    pub async fn shards(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let dir = argument(self.fleet.dir());
        ctl::ok(&[&["shards"], arguments, &["--dir", &dir]].concat()).await
    }
}

/// What stands in a member before the fleet.
async fn prepare(member: &Cluster, places: &[Place]) -> anyhow::Result<()> {
    let kubectl = Kubectl::new(member.direct_kubeconfig_path());
    for manifest in [CRD, RBAC] {
        kubectl.ok_with(&["apply", "-f", "-"], manifest).await?;
    }
    for (_, namespace) in places.iter().filter(|(cluster, _)| cluster == member.name()) {
        create_namespace(member, namespace).await?;
    }
    Ok(())
}

fn places() -> Vec<Place> {
    let of = |member: &'static str| {
        let names = (0..NAMESPACES).map(move |index| format!("shop-{member}-{index}"));
        names.map(move |name| (member.to_owned(), name))
    };
    // In one member alone: a shard owns a namespace of one name once.
    let tried = [("east".to_owned(), TRIED.to_owned())];
    tried.into_iter().chain(MEMBERS.into_iter().flat_map(of)).collect()
}
