//! `portolanctl dev up`: from kubeconfigs to a running fleet, step by step, each recorded before the next.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::future::try_join_all;
use kube::api::DynamicObject;
use portolan_crds::labels;
use portolan_runtime::files;
use portolan_wire::subscription::Subscription;
use serde_json::json;

use crate::admission;
use crate::apply;
use crate::bootstrap::{self, Subject};
use crate::cli::{DevUpArgs, GrantArgs, WEBHOOK_PATH};
use crate::connect::{Cluster, connect};
use crate::dev::callers::{Placeholder, objects};
use crate::dev::fleet::{DEV_USER, FAILURE, Fleet, FleetMember, taken};
use crate::dev::programs::text;
use crate::dev::token::TokenSource;
use crate::dev::{check, ready, summary, supervise};
use crate::grant::Grants;
use crate::hub_ca;
use crate::injection;
use crate::install;
use crate::join::{Join, member_rbac};
use crate::kubeconfig::{self, ExplicitViews, TokenConfig};
use crate::label_kinds::{self, LabelKinds};
use crate::person;

use crate::strict;

const DEV_TTL: Duration = Duration::from_hours(7 * 24);
const TOKEN_TTL: Duration = Duration::from_mins(10);
const HUB_SERVICE_ACCOUNT: &str = "portolan-hub";
const ROUTER: &str = "gateway";
/// What clients in Pods may call their API server, whatever address they have of it.
const IN_CLUSTER: [&str; 3] = ["kubernetes.default.svc", "kubernetes.default", "kubernetes"];

pub(crate) async fn run(args: &DevUpArgs) -> anyhow::Result<()> {
    let mut up = Up::prepare(args).await?;
    match up.start().await {
        Ok(()) => {
            println!("{}", summary::of(&up.fleet, &up.args));
            Ok(())
        }
        Err(error) => {
            // Beside the programs' logs, which `down` then keeps.
            let _ = files::write_private(up.fleet.path(FAILURE), format!("dev up failed: {error:#}\n"));
            eprintln!(
                "what was started is recorded: stop it with `portolanctl dev down --dir {}`",
                args.dir.display()
            );
            Err(error)
        }
    }
}

struct Up {
    fleet: Fleet,
    /// Held until the supervisor takes over.
    lock: Option<File>,
    hub: Cluster,
    members: BTreeMap<String, Cluster>,
    manifests: Vec<DynamicObject>,
    placeholders: Vec<Placeholder>,
    label_kinds: LabelKinds,
    deadline: Instant,
    args: DevUpArgs,
}

impl Up {
    /// Reads and checks everything that can be checked before anything is changed.
    async fn prepare(args: &DevUpArgs) -> anyhow::Result<Self> {
        if Fleet::exists(&args.dir) {
            bail!("{}", taken(&args.dir));
        }
        let names = check::member_names(&args.members)?;
        let mut manifests = Vec::new();
        for file in &args.files {
            let yaml = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
            manifests.extend(apply::parse(&file.display().to_string(), &yaml)?);
        }
        strict::check(&manifests)?;
        let configs = check::sharding_configs(&manifests)?;
        let placeholders = check::placeholders(&configs, &names)?;
        let hub = connect("the hub", Some(&args.hub)).await?;
        let connected = try_join_all(args.members.iter().map(|(name, file)| async move {
            connect(&format!("member cluster {name}"), Some(file))
                .await
                .map(|cluster| (name.clone(), cluster))
        }));
        let members = connected.await?.into_iter().collect();
        check::distinct(&members).await?;
        check::unattended(&hub.client, &names).await?;
        check::clusters_named(&hub.client, &configs, &names).await?;
        check::kinds_served(&hub.client, &manifests).await?;
        let (label_kinds, stars) = LabelKinds::of_limits(&configs);
        for star in stars {
            println!(
                "- limits on {star}: the agents label the usual kinds, others only when named by portolanctl join --label-kind"
            );
        }
        let fleet = Self::begin(args)?;
        Ok(Self {
            lock: Fleet::lock(&fleet.dir)?,
            fleet,
            hub,
            members,
            manifests,
            placeholders,
            label_kinds,
            deadline: Instant::now() + args.timeout,
            args: args.clone(),
        })
    }

    /// The folder and its record: the first things that are made.
    fn begin(args: &DevUpArgs) -> anyhow::Result<Fleet> {
        let member = |(name, file): &(String, PathBuf)| {
            Ok(FleetMember {
                name: name.clone(),
                kubeconfig: absolute(file)?,
            })
        };
        let members = args.members.iter().map(member).collect::<anyhow::Result<_>>()?;
        let hub_kubeconfig = absolute(&args.hub)?;
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&args.dir)
            .with_context(|| format!("cannot make the fleet's folder {}", args.dir.display()))?;
        let fleet = Fleet {
            dir: args.dir.canonicalize().context("cannot find the fleet's folder")?,
            hub_kubeconfig,
            members,
            otlp: args.otlp.clone(),
            ..Default::default()
        };
        fleet.create()?;
        // Of a fleet before this one, of which only logs are left.
        let _ = std::fs::remove_file(fleet.path(FAILURE));
        Ok(fleet)
    }

    async fn start(&mut self) -> anyhow::Result<()> {
        step("hub: installing kinds and RBAC");
        self.install_hub().await?;
        self.start_hub().await?;
        for (name, member) in self.members.clone() {
            step(&format!("member {name}: joining"));
            self.join(&name, &member).await?;
            self.start_agent(&name, &member).await?;
        }
        step("router: starting");
        self.start_router().await?;
        if !self.manifests.is_empty() {
            step("applying manifests to the hub");
            self.apply_manifests().await?;
        }
        self.write_kubeconfigs().await?;
        step("waiting until members are labelled and shards are served");
        self.start_supervisor().await?;
        self.deadline = ready::wait(&self.hub.client, &self.fleet, self.deadline, self.args.timeout).await?;
        self.fleet.wait_ready(self.deadline).await?;
        self.probe().await
    }

    async fn install_hub(&mut self) -> anyhow::Result<()> {
        let hub = self.hub.client.clone();
        for crd in portolan_crds::definitions::definitions() {
            let mut object: DynamicObject = serde_json::from_value(serde_json::to_value(&crd)?)?;
            object.types = Some(kube::core::TypeMeta::resource::<
                k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
            >());
            self.fleet.record(None, &hub, &object).await?;
        }
        for object in install::rbac()?.iter().chain(&dev_user_on_hub()?) {
            self.fleet.record(None, &hub, object).await?;
        }
        install::install(&hub).await?;
        apply::apply(&hub, &dev_user_on_hub()?).await
    }

    async fn start_hub(&mut self) -> anyhow::Result<()> {
        let hub = self.hub.clone();
        let kubeconfig = self
            .program_kubeconfig("hub", &hub, &self.fleet.hub_kubeconfig.clone(), HUB_SERVICE_ACCOUNT)
            .await?;
        // The first is the one that agents and routers are told.
        let (webhook_bind, advertise) = match &self.args.webhook_host {
            None => ("127.0.0.1:0", "127.0.0.1:0,localhost:0".to_owned()),
            Some(host) => ("0.0.0.0:0", format!("127.0.0.1:0,localhost:0,{host}:0")),
        };
        let flags = [
            ("kubeconfig", kubeconfig.as_str()),
            ("bind", "127.0.0.1:0"),
            ("webhook-bind", webhook_bind),
            ("advertise", advertise.as_str()),
        ];
        let addresses = self.fleet.start("hub", "portolan-hub", &flags, self.deadline).await?;
        self.fleet.hub_address = addresses.bind;
        self.fleet.write()?;
        let ca = hub_ca::awaited(&hub.client).await?;
        files::write_private(self.fleet.path("hub-ca.crt"), &ca)?;
        let mut at = addresses.webhook;
        if let (Some(host), Some((_, port))) = (&self.args.webhook_host, at.rsplit_once(':')) {
            at = format!("{host}:{port}");
        }
        let webhook = format!("https://{at}{WEBHOOK_PATH}");
        let authors = install::authors(Some(&webhook), Some(&ca))?;
        self.fleet.apply(None, &hub.client, &authors).await?;
        self.fleet.wait_ready(self.deadline).await
    }

    async fn join(&mut self, name: &str, member: &Cluster) -> anyhow::Result<()> {
        let mut wanted = member_rbac()?;
        for placeholder in &self.placeholders {
            wanted.extend(placeholder.member_objects(&self.args.caller_role)?);
        }
        wanted.extend(dev_user_in_member(&self.args.user_role)?);
        self.fleet.apply(Some(name), &member.client, &wanted).await?;
        for object in self.grant_objects(name)? {
            let (cluster, client) = if object.types.as_ref().is_some_and(|types| types.kind == "MemberCluster") {
                (None, &self.hub.client)
            } else {
                (Some(name), &member.client)
            };
            self.fleet.record(cluster, client, &object).await?;
        }
        let grants = Grants::parse(&GrantArgs {
            service_accounts: self.placeholders.iter().map(Placeholder::service_account).collect(),
            users: vec![DEV_USER.into()],
        })?;
        let address = self.fleet.hub_address.clone();
        let join = Join {
            name,
            hub_address: &address,
            // The fleet runs where its kubeconfigs do.
            endpoint: Some(&member.url),
            accept: true,
            labels: &[],
            token_ttl: TOKEN_TTL,
            grants: &grants,
            label_kinds: &self.label_kinds,
            label_prefix: self.args.label_prefix.as_deref(),
            gateway: self.args.gateway.as_ref(),
        };
        join.run(&self.hub, member).await
    }

    /// What join writes beside the RBAC of `member_rbac`, for the record.
    fn grant_objects(&self, name: &str) -> anyhow::Result<Vec<DynamicObject>> {
        let rbac = |kind: &str, name: &str, namespace: Option<&str>| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}});
        let mut manifests = vec![
            json!({"apiVersion": format!("{}/{}", labels::GROUP, labels::VERSION), "kind": "MemberCluster", "metadata": {"name": name}}),
            rbac("ClusterRole", labels::ROLE_IMPERSONATE_USERS, None),
            rbac("ClusterRoleBinding", labels::ROLE_IMPERSONATE_USERS, None),
            rbac("ClusterRole", label_kinds::ROLE, None),
            rbac("ClusterRoleBinding", label_kinds::ROLE, None),
        ];
        manifests.extend(admission::references());
        manifests.extend(injection::references()?);
        for placeholder in &self.placeholders {
            manifests.push(rbac("Role", labels::ROLE_IMPERSONATE, Some(&placeholder.namespace)));
            manifests.push(rbac(
                "RoleBinding",
                labels::ROLE_IMPERSONATE,
                Some(&placeholder.namespace),
            ));
        }
        objects(manifests)
    }

    async fn start_agent(&mut self, name: &str, member: &Cluster) -> anyhow::Result<()> {
        let source = self.fleet.member(name)?.kubeconfig.clone();
        let program = format!("agent-{name}");
        let kubeconfig = self
            .program_kubeconfig(&program, member, &source, labels::SERVICE_ACCOUNT_AGENT)
            .await?;
        let flags = [("kubeconfig", kubeconfig.as_str())];
        let started = self
            .fleet
            .start(&program, "portolan-agent", &flags, self.deadline)
            .await;
        started.map(drop)
    }

    async fn start_router(&mut self) -> anyhow::Result<()> {
        let mut sans = vec!["localhost".to_owned(), self.args.router_bind.ip().to_string()];
        if let Some(gateway) = &self.args.gateway {
            sans.push(gateway.host().to_owned());
            sans.extend(IN_CLUSTER.map(str::to_owned));
        }
        sans.extend(self.args.explicit_host.iter().map(|suffix| format!("*.{suffix}")));
        let token = bootstrap::create(
            &self.hub.client,
            &Subject::Router {
                name: ROUTER,
                sans: &sans,
                subscription: &Subscription::Everything,
            },
            TOKEN_TTL,
        )
        .await?;
        let token_file = self.fleet.path("router.bootstrap");
        files::write_private(&token_file, token)?;
        let (bind, hub) = (self.args.router_bind.to_string(), self.fleet.hub_address.clone());
        let [ca, state] = ["hub-ca.crt", "router-state"].map(|name| text(&self.fleet.path(name)));
        let token_file = text(&token_file);
        let mut flags = vec![
            ("bind", bind.as_str()),
            ("hub", &hub),
            ("hub-ca", &ca),
            ("bootstrap-token-file", &token_file),
            ("state-dir", &state),
        ];
        flags.extend(
            self.args
                .explicit_host
                .iter()
                .map(|suffix| ("explicit-host", suffix.as_str())),
        );
        let addresses = self
            .fleet
            .start("router", "portolan-router", &flags, self.deadline)
            .await?;
        self.fleet.router_url = format!("https://{}", addresses.bind);
        self.fleet.router_admin = addresses.admin;
        self.fleet.write()
    }

    async fn apply_manifests(&mut self) -> anyhow::Result<()> {
        let hub = self.hub.client.clone();
        let namespaces = self.placeholders.iter().map(
            |placeholder| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": placeholder.namespace}}),
        );
        let namespaces = objects(namespaces.collect())?;
        self.fleet.apply(None, &hub, &namespaces).await?;
        let manifests = self.manifests.clone();
        self.fleet.apply(None, &hub, &manifests).await
    }

    async fn write_kubeconfigs(&mut self) -> anyhow::Result<()> {
        let person = person::certify(&self.hub.client, DEV_USER, DEV_TTL).await?;
        let names: Vec<String> = self.members.keys().cloned().collect();
        let views = ExplicitViews {
            router: &self.fleet.router_url,
            host: self.args.explicit_host.as_deref(),
            clusters: &names,
        };
        kubeconfig::explicit(&person, views, DEV_USER, &self.fleet.path("explicit.kubeconfig"))?;
        let ca = hub_ca::awaited(&self.hub.client).await?;
        for placeholder in &self.placeholders {
            for home in &placeholder.homes {
                let cluster = self.members.get(home).context("home is a member")?;
                self.fleet.place(placeholder, (home, cluster), &ca).await?;
            }
        }
        Ok(())
    }

    /// From here on it writes the record.
    async fn start_supervisor(&mut self) -> anyhow::Result<()> {
        self.lock = None;
        supervise::start(&self.fleet.dir).await?;
        self.fleet = Fleet::read(&self.fleet.dir)?;
        Ok(())
    }

    /// Sends one request through the router by each kubeconfig: a fleet is ready once they work.
    async fn probe(&self) -> anyhow::Result<()> {
        let files = self
            .fleet
            .shards
            .iter()
            .flat_map(|shard| shard.callers.iter().map(|caller| caller.kubeconfig.clone()))
            .chain([self.fleet.path("explicit.kubeconfig")]);
        for file in files {
            loop {
                match connect("the router", Some(&file)).await {
                    Ok(_) => break,
                    Err(error) if Instant::now() > self.deadline => return Err(error),
                    Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
                }
            }
        }
        Ok(())
    }

    /// A kubeconfig that is a program's own ServiceAccount and nothing more, its token in a renewed file.
    async fn program_kubeconfig(
        &mut self,
        program: &str,
        cluster: &Cluster,
        source: &std::path::Path,
        service_account: &str,
    ) -> anyhow::Result<String> {
        let token = TokenSource {
            file: self.fleet.path(&format!("{program}.token")),
            kubeconfig: source.to_path_buf(),
            namespace: labels::SYSTEM_NAMESPACE.into(),
            service_account: service_account.into(),
            audiences: Vec::new(),
            pod: None,
        };
        token.mint(&cluster.client).await?;
        let file = self.fleet.path(&format!("{program}.kubeconfig"));
        TokenConfig {
            name: program,
            server: &cluster.url,
            ca_pem: &cluster.ca_pem,
            tls_server_name: cluster.tls_server_name.as_deref(),
            token_file: &token.file,
            namespace: labels::SYSTEM_NAMESPACE,
        }
        .write(&file)?;
        self.fleet.tokens.push(token);
        self.fleet.write()?;
        Ok(text(&file))
    }
}

/// The dev user may use the explicit view of every member.
fn dev_user_on_hub() -> anyhow::Result<Vec<DynamicObject>> {
    let group = "rbac.authorization.k8s.io";
    objects(vec![
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRole", "metadata": {"name": "portolan-dev-on-hub"},
            "rules": [{"apiGroups": [labels::GROUP], "resources": ["memberclusters"], "verbs": ["proxy"]}],
        }),
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "portolan-dev-on-hub"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "portolan-dev-on-hub"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": DEV_USER}],
        }),
    ])
}

/// The dev user's role in a member: by default its administrator, as whoever ran `dev up` with its kubeconfig is.
fn dev_user_in_member(role: &str) -> anyhow::Result<Vec<DynamicObject>> {
    let group = "rbac.authorization.k8s.io";
    objects(vec![json!({
        "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "portolan-dev"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": DEV_USER}],
    })])
}

fn absolute(file: &std::path::Path) -> anyhow::Result<PathBuf> {
    file.canonicalize()
        .with_context(|| format!("cannot find {}", file.display()))
}

fn step(text: &str) {
    println!("- {text}");
}
