//! Joining step by step, with the programs and commands that people use and without `dev up`: the hub installed, members
//! joined and accepted, a router enrolled, a person let in; tokens that are refused, and what the RBAC of a member lets
//! agent and router do.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "also in functions that only tests call"
)]

#[path = "joining/granted.rs"]
mod granted;
#[path = "joining/steps.rs"]
mod steps;
#[path = "joining/tokens.rs"]
mod tokens;

use std::path::PathBuf;

use kube::api::Api;
use portolan_crds::MemberCluster;
use portolan_testbed::{Testbed, eventually};
use portolan_tests::daemon::{Daemon, Launch};
use portolan_tests::programs::argument;
use portolan_tests::{accounts, ctl};
use tokio::sync::{Mutex, OnceCell};

const SYSTEM: &str = "portolan-system";

static GROUND: OnceCell<Ground> = OnceCell::const_new();

/// A hub with its program, and members that have not joined. `east` is joined by the steps, `west` by the others, and
/// `north` by nobody.
struct Ground {
    testbed: Testbed,
    dir: PathBuf,
    hub: Daemon,
    /// A join leaves its token in the member, in the place of the one before: held from the join until it is read.
    token_in_west: Mutex<()>,
}

async fn ground() -> &'static Ground {
    GROUND.get_or_init(|| async { Ground::start().await.unwrap() }).await
}

impl Ground {
    async fn start() -> anyhow::Result<Self> {
        portolan_runtime::tls::install_crypto_provider();
        let testbed = Testbed::start(&["hub", "east", "west"]).await?;
        // Goes with the testbed: a static is never dropped.
        let dir = testbed.dir().join("programs");
        std::fs::create_dir(&dir)?;
        let hub = testbed.cluster("hub");
        ctl::ok(&["install", "--hub-kubeconfig", &argument(hub.kubeconfig_path())]).await?;
        let kubeconfig = dir.join("hub.kubeconfig");
        accounts::kubeconfig(hub, (SYSTEM, "portolan-hub"), &kubeconfig).await?;
        let arguments = ["--kubeconfig", &argument(&kubeconfig), "--bind", "127.0.0.1:0"];
        let hub = Daemon::start(Launch {
            name: "hub".to_owned(),
            program: "portolan-hub".to_owned(),
            arguments: arguments.map(str::to_owned).to_vec(),
            env: Vec::new(),
            dir: dir.clone(),
        })
        .await?;
        hub.ready().await;
        Ok(Self {
            testbed,
            dir,
            hub,
            token_in_west: Mutex::default(),
        })
    }

    fn kubeconfig(&self, cluster: &str) -> String {
        argument(self.testbed.cluster(cluster).kubeconfig_path())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// `portolanctl join` as `name` of a cluster, with more flags.
    fn join<'a>(&self, name: &'a str, cluster: &str, more: &[&'a str]) -> Vec<String> {
        let mut arguments = vec!["join".to_owned(), name.to_owned()];
        let flags = [
            ("--hub-kubeconfig", self.kubeconfig("hub")),
            ("--member-kubeconfig", self.kubeconfig(cluster)),
            ("--hub-address", self.hub.bind().to_owned()),
        ];
        arguments.extend(flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]));
        arguments.extend(more.iter().map(|word| (*word).to_owned()));
        arguments
    }

    /// An agent with the ServiceAccount that join made for it, and what `more` says.
    async fn agent(&self, cluster: &str, name: &str, more: &[&str]) -> Daemon {
        let kubeconfig = self.file(&format!("{name}.kubeconfig"));
        let account = (SYSTEM, "portolan-agent");
        accounts::kubeconfig(self.testbed.cluster(cluster), account, &kubeconfig)
            .await
            .unwrap();
        let mut arguments = vec!["--kubeconfig".to_owned(), argument(&kubeconfig)];
        arguments.extend(more.iter().map(|word| (*word).to_owned()));
        Daemon::start(Launch {
            name: name.to_owned(),
            program: "portolan-agent".to_owned(),
            arguments,
            env: Vec::new(),
            dir: self.dir.clone(),
        })
        .await
        .unwrap()
    }

    async fn members(&self) -> Api<MemberCluster> {
        Api::all(self.testbed.cluster("hub").client().await.unwrap())
    }

    /// Waits until a condition of a member is so and says all of `words`; returns reason and message.
    async fn until(&self, member: &str, type_: &str, status: &str, words: &[&str]) -> String {
        let members = self.members().await;
        let what = format!("{member}: {type_} is {status} and says {words:?}");
        eventually(&what, || async {
            let member = members.get(member).await.map_err(|error| error.to_string())?;
            let conditions = member.status.unwrap_or_default().conditions;
            let found = conditions.into_iter().find(|condition| condition.type_ == type_);
            let found = found.ok_or("not there yet")?;
            let said = format!("{}: {}", found.reason, found.message);
            let as_wanted = found.status == status && words.iter().all(|word| said.contains(word));
            if as_wanted {
                Ok(said)
            } else {
                Err(format!("{}, {said}", found.status))
            }
        })
        .await
    }
}

/// The arguments as the shell would pass them.
fn words(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}
