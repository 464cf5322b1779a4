//! `portolanctl register` and `unregister` against real clusters: a hub with one router, members whose agents are started beside
//! the command, as whoever installs them by a chart would. The agent as a Pod is in `node_register`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

#[path = "registering/by_helm.rs"]
mod by_helm;
#[path = "registering/checked.rs"]
mod checked;
#[path = "registering/hub_goes.rs"]
mod hub_goes;

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use portolan_crds::{MemberCluster, ShardingConfig};
use portolan_testbed::{Cluster, Testbed, eventually};
use portolan_tests::daemon::{Daemon, Launch};
use portolan_tests::hub_cluster::{put_member, put_shard};
use portolan_tests::kubectl::Ended;
use portolan_tests::programs::argument;
use portolan_tests::{accounts, ctl};
use serde_json::{Value, json};

const SYSTEM: &str = "portolan-system";

/// A hub, and a router that is connected to it.
struct Ground {
    testbed: Testbed,
    dir: PathBuf,
    hub: Daemon,
    _router: Daemon,
}

impl Ground {
    async fn start(members: &[&str]) -> Self {
        portolan_runtime::tls::install_crypto_provider();
        let clusters: Vec<_> = ["hub"].into_iter().chain(members.iter().copied()).collect();
        let testbed = Testbed::start(&clusters).await.unwrap();
        let dir = testbed.dir().join("programs");
        std::fs::create_dir(&dir).unwrap();
        let kubeconfig = argument(testbed.cluster("hub").kubeconfig_path());
        ctl::ok(&["install", "--hub-kubeconfig", &kubeconfig]).await.unwrap();
        let own = dir.join("hub.kubeconfig");
        let account = (SYSTEM, "portolan-hub");
        accounts::kubeconfig(testbed.cluster("hub"), account, &own)
            .await
            .unwrap();
        let own = argument(&own);
        let flags = [
            ("--kubeconfig", own.as_str()),
            ("--bind", "127.0.0.1:0"),
            ("--webhook-bind", "127.0.0.1:0"),
        ];
        let arguments: Vec<_> = flags.into_iter().flat_map(|(flag, value)| [flag, value]).collect();
        let hub = daemon(&dir, "hub", "portolan-hub", &arguments).await;
        hub.ready().await;
        // Once more: the hub has made a CA by now, and has a webhook.
        let webhook = hub.webhook_url();
        let install = ["install", "--hub-kubeconfig", &kubeconfig, "--webhook-url", &webhook];
        ctl::ok(&install).await.unwrap();
        let router = router(&dir, &hub, &kubeconfig).await;
        Self {
            testbed,
            dir,
            hub,
            _router: router,
        }
    }

    fn cluster(&self, name: &str) -> &Cluster {
        self.testbed.cluster(name)
    }

    async fn members(&self) -> Api<MemberCluster> {
        Api::all(self.cluster("hub").client().await.unwrap())
    }

    /// `portolanctl register` or `unregister` of a member by its own kubeconfig.
    async fn run(&self, command: &str, name: &str, more: &[&str]) -> Ended {
        let kubeconfig = argument(self.cluster(name).kubeconfig_path());
        self.run_with(command, name, &kubeconfig, more).await
    }

    async fn run_with(&self, command: &str, name: &str, kubeconfig: &str, more: &[&str]) -> Ended {
        let hub = argument(self.cluster("hub").kubeconfig_path());
        let mut arguments = vec![command, name, "--hub-kubeconfig", &hub, "--kubeconfig", kubeconfig];
        if command == "register" {
            arguments.extend(["--hub-address", self.hub.bind(), "--without-agent", "--timeout", "2m"]);
        }
        arguments.extend(more);
        ctl::portolanctl(&arguments).await.unwrap()
    }

    /// Starts the agent of a member once it is invited.
    async fn agent(&self, name: &str) -> Daemon {
        let cluster = self.cluster(name);
        let secrets = Api::<Secret>::namespaced(cluster.client().await.unwrap(), SYSTEM);
        eventually("the agent is invited", || async {
            secrets
                .get("portolan-agent-bootstrap")
                .await
                .map(drop)
                .map_err(|error| error.to_string())
        })
        .await;
        let kubeconfig = self.dir.join(format!("agent-{name}.kubeconfig"));
        accounts::kubeconfig(cluster, (SYSTEM, "portolan-agent"), &kubeconfig)
            .await
            .unwrap();
        let kubeconfig = argument(&kubeconfig);
        daemon(
            &self.dir,
            &format!("agent-{name}"),
            "portolan-agent",
            &["--kubeconfig", &kubeconfig],
        )
        .await
    }

    async fn has_namespace(&self, cluster: &str, name: &str) -> bool {
        let namespaces = Api::<Namespace>::all(self.cluster(cluster).client().await.unwrap());
        let found = namespaces.get_opt(name).await.unwrap();
        found.is_some_and(|found| found.metadata.deletion_timestamp.is_none())
    }
}

async fn daemon(dir: &std::path::Path, name: &str, program: &str, arguments: &[&str]) -> Daemon {
    let launch = Launch {
        name: name.to_owned(),
        program: program.to_owned(),
        arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
        env: Vec::new(),
        dir: dir.to_path_buf(),
    };
    Daemon::start(launch).await.unwrap()
}

async fn router(dir: &std::path::Path, hub: &Daemon, kubeconfig: &str) -> Daemon {
    let token = ctl::ok(&[
        "router-token",
        "gateway",
        "--san",
        "localhost",
        "--hub-kubeconfig",
        kubeconfig,
    ])
    .await;
    let (token_file, ca_file, state) = (dir.join("token"), dir.join("hub-ca.crt"), dir.join("gateway-state"));
    std::fs::write(&token_file, token.unwrap()).unwrap();
    let client = kube::Client::try_from(
        kube::Config::from_custom_kubeconfig(
            kube::config::Kubeconfig::read_from(kubeconfig).unwrap(),
            &kube::config::KubeConfigOptions::default(),
        )
        .await
        .unwrap(),
    );
    let maps = Api::<k8s_openapi::api::core::v1::ConfigMap>::namespaced(client.unwrap(), SYSTEM);
    let ca = maps.get("portolan-ca").await.unwrap().data.unwrap()["ca.crt"].clone();
    std::fs::write(&ca_file, ca).unwrap();
    let (token_file, ca_file, state) = (argument(&token_file), argument(&ca_file), argument(&state));
    let flags = [
        ("--bind", "127.0.0.1:0"),
        ("--hub", hub.bind()),
        ("--hub-ca", &ca_file),
        ("--bootstrap-token-file", &token_file),
        ("--state-dir", &state),
    ];
    let arguments: Vec<_> = flags.into_iter().flat_map(|(flag, value)| [flag, value]).collect();
    let router = daemon(dir, "gateway", "portolan-router", &arguments).await;
    router.ready().await;
    router
}

/// What a cluster of the testbed is called by its kubeconfig.
fn url(cluster: &Cluster) -> String {
    let text = std::fs::read_to_string(cluster.kubeconfig_path()).unwrap();
    let kubeconfig: Value = serde_yaml_ng::from_str(&text).unwrap();
    kubeconfig["clusters"][0]["cluster"]["server"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn says(ended: &Ended, ok: bool, words: &[&str]) {
    let told = format!("{}{}", ended.stdout, ended.stderr);
    assert_eq!(ended.ok, ok, "{told}");
    for word in words {
        assert!(told.contains(word), "{word}: {told}");
    }
}

#[tokio::test]
async fn a_member_comes_stays_as_it_is_and_goes_once_nothing_is_its() {
    let ground = Ground::start(&["east"]).await;
    let endpoint = url(ground.cluster("east"));
    nothing_is_written_of_what_is_refused(&ground, &endpoint).await;
    let flags = ["--endpoint", &endpoint, "--allow", "shop/operator"];
    let client = ground.cluster("east").client().await.unwrap();
    let shop = json!({"metadata": {"name": "shop"}});
    let namespaces = Api::<Namespace>::all(client);
    namespaces
        .patch("shop", &PatchParams::apply("test"), &Patch::Apply(namespace(&shop)))
        .await
        .unwrap();
    let (registered, agent) = tokio::join!(ground.run("register", "east", &flags), ground.agent("east"));
    says(
        &registered,
        true,
        &["✓", "has joined", "have their labels", "member cluster east serves"],
    );
    again_nothing_changes(&ground, &endpoint).await;
    let spec = what_a_shard_has_keeps_it(&ground).await;
    it_goes_once_it_is_released(&ground, spec).await;
    drop(agent);
}

async fn nothing_is_written_of_what_is_refused(ground: &Ground, endpoint: &str) {
    let refused = ground.run("register", "east", &[]).await;
    says(&refused, false, &["this machine", "--endpoint", "--ca-file"]);
    let tried = ground
        .run("register", "east", &["--endpoint", endpoint, "--dry-run", "server"])
        .await;
    says(
        &tried,
        true,
        &["would apply", "ClusterRole portolan-agent", "MemberCluster east"],
    );
    assert!(!ground.has_namespace("east", SYSTEM).await, "nothing is written");
    assert!(ground.members().await.get_opt("east").await.unwrap().is_none());
    let flags = ["--endpoint", endpoint, "--allow", "shop/operator"];
    says(
        &ground.run("register", "east", &flags).await,
        false,
        &["nothing was written", "has no namespace shop"],
    );
}

async fn again_nothing_changes(ground: &Ground, endpoint: &str) {
    let before = left(ground).await;
    let again = ground.run("register", "east", &["--allow", "shop/operator"]).await;
    says(&again, true, &["member cluster east serves"]);
    assert_eq!(left(ground).await, before, "nothing changes");
    let kubeconfig = argument(ground.cluster("east").kubeconfig_path());
    let as_west = ["--endpoint", endpoint];
    let doubled = ground.run_with("register", "west", &kubeconfig, &as_west).await;
    says(&doubled, false, &["a member already, as east"]);
}

/// Returns the shard's spec.
async fn what_a_shard_has_keeps_it(ground: &Ground) -> Value {
    let hub = ground.cluster("hub").client().await.unwrap();
    let spec = json!({
        "selector": {"matchLabels": {"app": "operator"}},
        "callerClusters": ["east"],
        "clusters": [{"name": "east", "namespaces": ["shop"]}],
    });
    put_shard(&hub, "a", spec.clone()).await.unwrap();
    let kubeconfig = argument(ground.cluster("east").kubeconfig_path());
    let mistyped = ground.run_with("unregister", "esat", &kubeconfig, &[]).await;
    says(&mistyped, false, &["nothing was done", "of member cluster east"]);
    eventually("the shard has it", || async {
        let ended = ground.run("unregister", "east", &[]).await;
        let named = ended.stderr.contains("shop") && ended.stderr.contains("--release");
        if !ended.ok && named {
            Ok(())
        } else {
            Err(format!("{}{}", ended.stdout, ended.stderr))
        }
    })
    .await;
    let alone = ground.run("unregister", "east", &["--release"]).await;
    says(
        &alone,
        false,
        &["the only member of ShardingConfig", "nothing was done"],
    );
    spec
}

async fn it_goes_once_it_is_released(ground: &Ground, spec: Value) {
    let hub = ground.cluster("hub").client().await.unwrap();
    let mut two = spec;
    two["callerClusters"] = json!(["west"]);
    two["clusters"] = json!([{"name": "west"}, {"name": "east", "namespaces": ["shop"]}]);
    put_shard(&hub, "a", two).await.unwrap();
    let refused = ground.run("unregister", "east", &["--release"]).await;
    says(
        &refused,
        false,
        &[
            "the hub refuses the spec",
            "no MemberCluster is named \"west\"",
            "stays a member",
        ],
    );
    put_member(&hub, "west", json!({})).await.unwrap();
    // The hub takes the spec by itself now; the command only waits for what comes of it.
    let gone = ground.run("unregister", "east", &["--release"]).await;
    let told = ["no shard has a namespace of it", "uninstall", "a member no more"];
    says(&gone, true, &told);
    assert!(ground.members().await.get_opt("east").await.unwrap().is_none());
    let shards = Api::<ShardingConfig>::all(hub)
        .list(&ListParams::default())
        .await
        .unwrap();
    let clusters: Vec<_> = shards.items[0]
        .spec
        .clusters
        .iter()
        .map(|one| one.name.as_deref())
        .collect();
    assert_eq!(clusters, [Some("west")]);
    let none = ground.run("unregister", "east", &[]).await;
    says(&none, true, &["a member no more"]);
}

fn namespace(fields: &Value) -> Value {
    let mut namespace = json!({"apiVersion": "v1", "kind": "Namespace"});
    namespace["metadata"] = fields["metadata"].clone();
    namespace
}

/// Versions of what a registration writes.
async fn left(ground: &Ground) -> Vec<Option<String>> {
    let member = ground.members().await.get("east").await.unwrap();
    let client = ground.cluster("east").client().await.unwrap();
    let secret = Api::<Secret>::namespaced(client.clone(), SYSTEM)
        .get("portolan-agent-bootstrap")
        .await
        .unwrap();
    let account = Api::<ServiceAccount>::namespaced(client, SYSTEM)
        .get("portolan-agent")
        .await
        .unwrap();
    let spec = serde_json::to_string(&member.spec).unwrap();
    vec![
        Some(spec),
        secret.metadata.resource_version,
        account.metadata.resource_version,
    ]
}

#[tokio::test]
async fn rights_and_reach_are_looked_at_and_nothing_is_left_of_what_fails() {
    let ground = Ground::start(&["east", "west"]).await;
    who_may_only_read_writes_nothing(&ground).await;

    // A port where nobody listens.
    let nobody = ["--endpoint", "https://127.0.0.1:1"];
    let (unreached, agent) = tokio::join!(ground.run("register", "west", &nobody), ground.agent("west"));
    says(
        &unreached,
        false,
        &[
            "routers do not reach west at https://127.0.0.1:1",
            "nothing is left behind",
        ],
    );
    drop(agent);
    assert!(ground.members().await.get_opt("west").await.unwrap().is_none());
    eventually("namespaces of Portolan are gone", || async {
        if ground.has_namespace("west", SYSTEM).await {
            Err("portolan-system is there")
        } else {
            Ok(())
        }
    })
    .await;
    all_contexts_are_shown(&ground).await;
}

async fn who_may_only_read_writes_nothing(ground: &Ground) {
    let client = ground.cluster("west").client().await.unwrap();
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}});
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "default");
    accounts
        .create(&PostParams::default(), &serde_json::from_value(account).unwrap())
        .await
        .unwrap();
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}],
    });
    let bindings = Api::<k8s_openapi::api::rbac::v1::ClusterRoleBinding>::all(client);
    bindings
        .create(&PostParams::default(), &serde_json::from_value(binding).unwrap())
        .await
        .unwrap();
    let reader = ground.dir.join("reader.kubeconfig");
    accounts::kubeconfig(ground.cluster("west"), ("default", "reader"), &reader)
        .await
        .unwrap();
    let endpoint = url(ground.cluster("west"));
    let refused = ground
        .run_with("register", "west", &argument(&reader), &["--endpoint", &endpoint])
        .await;
    says(
        &refused,
        false,
        &[
            "rights are missing",
            "member cluster west: create clusterroles.rbac.authorization.k8s.io",
        ],
    );
    assert!(!ground.has_namespace("west", SYSTEM).await, "{}", refused.stderr);
}

async fn all_contexts_are_shown(ground: &Ground) {
    let both = contexts(ground);
    let hub = argument(ground.cluster("hub").kubeconfig_path());
    let arguments = [
        "register",
        "--all-contexts",
        "--kubeconfig",
        &both,
        "--hub-kubeconfig",
        &hub,
    ];
    let shown = ctl::ok(&arguments).await.unwrap();
    for line in [
        "hub: left out, it is the hub",
        "east: to be registered",
        "again: left out, context",
        "--yes",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(ground.members().await.get_opt("east").await.unwrap().is_none());
}

/// One kubeconfig with a context of each cluster, and a second one of east.
fn contexts(ground: &Ground) -> String {
    let mut all = json!({"apiVersion": "v1", "kind": "Config", "clusters": [], "users": [], "contexts": []});
    for (name, of) in [("hub", "hub"), ("east", "east"), ("again", "east")] {
        let text = std::fs::read_to_string(ground.cluster(of).kubeconfig_path()).unwrap();
        let one: Value = serde_yaml_ng::from_str(&text).unwrap();
        for (list, key) in [("clusters", "cluster"), ("users", "user")] {
            let entry = json!({"name": name, key: one[list][0][key]});
            all[list].as_array_mut().unwrap().push(entry);
        }
        let context = json!({"name": name, "context": {"cluster": name, "user": name}});
        all["contexts"].as_array_mut().unwrap().push(context);
    }
    let file = ground.dir.join("all.kubeconfig");
    std::fs::write(&file, serde_yaml_ng::to_string(&all).unwrap()).unwrap();
    argument(&file)
}
