//! The demo's steps, in order. Each prints what it did and fails when it is not so.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use kube::Client;
use portolan_testbed::{Fault, Jaeger, Options, Testbed, tool};
use portolan_tests::programs::{argument, program};
use portolan_tests::{Fleet, FleetOptions, shard, trace};
use rand::RngExt as _;

use crate::Args;
use crate::account::{head, quote, where_requests_went};
use crate::operator::Operator;
use crate::workload;

const SHARD: &str = "demo";
const EAST: [&str; 2] = ["shop-a", "shop-b"];
const WEST: [&str; 1] = ["shop-c"];
const PATIENCE: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(200);

struct Demo {
    testbed: Testbed,
    jaeger: Jaeger,
    fleet: Fleet,
    hub: PathBuf,
    east: Client,
    west: Client,
}

/// Everything the demo started, running until dropped.
pub(crate) struct Kept {
    _operator: Operator,
    _demo: Demo,
}

/// Runs all steps; what it returns keeps everything running, for `--keep`.
pub(crate) async fn run(args: &Args) -> anyhow::Result<Option<Kept>> {
    let started = Instant::now();
    let demo = start(args).await?;
    demo.show_ownership().await?;
    let mut operator = demo.run_operator().await?;
    demo.show_requests().await?;
    demo.cut_and_heal(&mut operator).await?;
    demo.show_trace().await?;
    summary();
    println!("\nThe demo did what it promised, in {} s.", started.elapsed().as_secs());
    if !args.keep {
        return Ok(None);
    }
    demo.print_hints(&operator)?;
    Ok(Some(Kept {
        _demo: demo,
        _operator: operator,
    }))
}

async fn start(args: &Args) -> anyhow::Result<Demo> {
    head("Starting real control planes: hub, east, west, and a Jaeger");
    let started = Instant::now();
    let clusters = ["hub", "east", "west"].map(ToOwned::to_owned).to_vec();
    let (testbed, jaeger) = tokio::try_join!(
        Testbed::start_with(Options {
            clusters,
            ..Default::default()
        }),
        Jaeger::start_with(args.jaeger_bin.clone())
    )?;
    for cluster in testbed.clusters() {
        println!("   {:<5} {}", cluster.name(), cluster.url());
    }
    println!("   ready in {} ms", started.elapsed().as_millis());

    head("Making namespaces and workloads in the members");
    let (east, west) = (
        testbed.cluster("east").client().await?,
        testbed.cluster("west").client().await?,
    );
    for (client, namespaces) in [(&east, &EAST[..]), (&west, &WEST[..])] {
        workload::install_crd(client).await?;
        for namespace in namespaces {
            workload::namespace(client, namespace).await?;
        }
    }
    println!("   east: {}   west: {}", EAST.join(", "), WEST.join(", "));

    head("portolanctl dev up: joining both members, applying a federated ShardingConfig");
    let manifests = shard::federated(SHARD, "east", &[("east", &EAST), ("west", &WEST)]);
    quote(manifests.trim_end_matches("---\n"));
    let started = Instant::now();
    let options = FleetOptions {
        hub: "hub",
        members: &["east", "west"],
        manifests: &manifests,
        otlp: Some(&jaeger.otlp_grpc_url),
        ..Default::default()
    };
    let fleet = Fleet::start(&testbed, options).await?;
    println!(
        "   hub, two agents and a router are ready in {} ms: {}",
        started.elapsed().as_millis(),
        fleet.router_url()?
    );
    let hub = testbed.cluster("hub").kubeconfig_path().to_path_buf();
    Ok(Demo {
        testbed,
        jaeger,
        fleet,
        hub,
        east,
        west,
    })
}

impl Demo {
    async fn show_ownership(&self) -> anyhow::Result<()> {
        head("Who is a member, who owns which namespace, who is calling");
        for what in ["clusters", "shards", "callers"] {
            let arguments = ["get", what, "--hub-kubeconfig", &argument(&self.hub)].map(ToOwned::to_owned);
            quote(&self.fleet.run(&arguments).await?);
        }
        Ok(())
    }

    async fn run_operator(&self) -> anyhow::Result<Operator> {
        head("Running an operator that knows nothing of Portolan, on one kubeconfig");
        let namespaces: Vec<&str> = EAST.into_iter().chain(WEST).collect();
        let log = self.fleet.dir().join("operator.log");
        let operator = Operator::start(&self.fleet.merged_kubeconfig(SHARD), &namespaces, &log)?;
        for namespace in namespaces {
            workload::greet(self.client_of(namespace), namespace, "good morning").await?;
        }
        self.wait_said("good morning", &EAST).await?;
        self.wait_said("good morning", &WEST).await?;
        println!("   it made a ConfigMap for each Greeting, in the namespaces of both clusters");
        Ok(operator)
    }

    async fn show_requests(&self) -> anyhow::Result<()> {
        head("Where each of its requests went");
        let went = where_requests_went(&self.fleet.process("router")?.log)?;
        ensure!(
            ["-> east", "-> west"]
                .iter()
                .all(|end| went.iter().any(|line| line.contains(end))),
            "requests went to {went:?}"
        );
        quote(&went.join("\n"));
        head("And why: portolanctl explain");
        let caller = format!("east/operators/portolan-dev-{SHARD}");
        let path = format!("/api/v1/namespaces/{}/configmaps/hello", WEST[0]);
        let arguments = [
            "explain",
            "update",
            &path,
            "--as",
            &caller,
            "--dir",
            &argument(self.fleet.dir()),
        ]
        .map(ToOwned::to_owned);
        quote(&self.fleet.run(&arguments).await?);
        Ok(())
    }

    async fn cut_and_heal(&self, operator: &mut Operator) -> anyhow::Result<()> {
        head("Cutting west: its port resets every connection");
        let west = self.testbed.cluster("west");
        west.fault(Fault::Reset).await?;
        workload::greet(&self.east, EAST[0], "good afternoon").await?;
        workload::greet(&self.west, WEST[0], "good afternoon").await?;
        self.wait_said("good afternoon", &EAST[..1]).await?;
        println!("   east goes on: {} was reconciled while west is cut", EAST[0]);
        let open = self.wait_breaker("west", "open").await?;
        println!("   {open}");
        operator.check()?;
        self.not_said("good afternoon").await?;
        println!(
            "   west waits: {} was not reconciled, and nothing of it was deleted",
            WEST[0]
        );

        head("Healing west");
        west.fault(Fault::None).await?;
        let started = Instant::now();
        self.wait_said("good afternoon", &WEST).await?;
        println!(
            "   {} was reconciled {} ms after the port came back",
            WEST[0],
            started.elapsed().as_millis()
        );
        println!("   {}", self.wait_breaker("west", "closed").await?);
        operator.check()
    }

    async fn show_trace(&self) -> anyhow::Result<()> {
        head("One request as a trace");
        let id = format!("{:032x}", rand::rng().random::<u128>().max(1));
        let traceparent = format!("00-{id}-{:016x}-01", rand::rng().random::<u64>().max(1));
        self.traced_request(&traceparent).await?;
        let roots = wait_for("the trace in Jaeger", || async {
            let roots = trace::roots(&self.jaeger.trace(&id).await?);
            ensure!(
                roots
                    .iter()
                    .flat_map(trace::Span::walk)
                    .any(|span| span.tag("span.kind") == Some("client")),
                "no client span yet"
            );
            Ok(roots)
        })
        .await?;
        for root in &roots {
            quote(&root.render(&[
                "caller",
                "shard",
                "verb",
                "resource",
                "plan",
                "clusters",
                "cluster",
                "http.response.status_code",
            ]));
        }
        println!("   in Jaeger: {}/trace/{id}", self.jaeger.query_url);
        Ok(())
    }

    /// A GET by the caller's own token, with a trace context as an instrumented operator would send it.
    async fn traced_request(&self, traceparent: &str) -> anyhow::Result<()> {
        let kubeconfig = kube::config::Kubeconfig::read_from(self.fleet.merged_kubeconfig(SHARD))?;
        let config =
            kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default()).await?;
        let request = http::Request::builder()
            .uri(format!("/api/v1/namespaces/{}/configmaps/hello", WEST[0]))
            .header("traceparent", traceparent)
            .body(Vec::new())?;
        let child: serde_json::Value = Client::try_from(config)?.request(request).await?;
        ensure!(
            child["data"]["message"] == "good afternoon",
            "the router answered {child}"
        );
        Ok(())
    }

    fn client_of(&self, namespace: &str) -> &Client {
        if WEST.contains(&namespace) {
            &self.west
        } else {
            &self.east
        }
    }

    async fn wait_said(&self, message: &str, namespaces: &[&str]) -> anyhow::Result<()> {
        for namespace in namespaces {
            let what = format!("a ConfigMap in {namespace} that says {message:?}");
            wait_for(&what, || {
                workload::is_said(self.client_of(namespace), namespace, message)
            })
            .await?;
        }
        Ok(())
    }

    async fn not_said(&self, message: &str) -> anyhow::Result<()> {
        match workload::is_said(&self.west, WEST[0], message).await {
            Ok(()) => bail!("{} was reconciled although west is cut", WEST[0]),
            Err(error) if error.to_string().contains("no ConfigMap") => Err(error),
            Err(_) => Ok(()),
        }
    }

    /// Waits until the router's breakers for a member are all closed, or one of them is open.
    async fn wait_breaker(&self, member: &str, state: &str) -> anyhow::Result<String> {
        let admin = self.fleet.process("router")?.admin;
        wait_for(&format!("a breaker of {member} that is {state}"), || async {
            let all: serde_json::Value =
                serde_json::from_str(&portolan_tests::fleet::admin_get(&admin, "/breakers").await?)?;
            let of_member: Vec<_> = all
                .as_array()
                .into_iter()
                .flatten()
                .filter(|breaker| breaker["cluster"] == member)
                .collect();
            let line = |breaker: &serde_json::Value| {
                format!(
                    "breaker of {member} for {}: {} ({})",
                    breaker["class"], breaker["state"], breaker["reason"]
                )
                .replace('"', "")
            };
            let found = match state {
                "closed" => of_member
                    .iter()
                    .all(|breaker| breaker["state"] == "closed")
                    .then(|| format!("breakers of {member}: closed")),
                _ => of_member
                    .iter()
                    .find(|breaker| breaker["state"] == state)
                    .map(|breaker| line(breaker)),
            };
            found.with_context(|| format!("breakers are {of_member:?}"))
        })
        .await
    }

    fn print_hints(&self, operator: &Operator) -> anyhow::Result<()> {
        let (explicit, merged) = (
            argument(&self.fleet.explicit_kubeconfig()),
            argument(&self.fleet.merged_kubeconfig(SHARD)),
        );
        let kubectl = argument(&tool("kubectl"));
        head("Left running until Ctrl-C; five commands to try");
        println!("   {kubectl} --kubeconfig {explicit} --context east get deployments -A");
        println!("   {kubectl} --kubeconfig {merged} get configmaps -n {}", WEST[0]);
        println!(
            "   {kubectl} --kubeconfig {merged} get pods -n kube-system     # outside the shard: refused, with the reason"
        );
        println!(
            "   {kubectl} --kubeconfig {} get memberclusters,shardingconfigs -A",
            argument(&self.hub)
        );
        println!(
            "   {} dev status --dir {}",
            argument(&program("portolanctl")?),
            self.fleet.dir().display()
        );
        println!(
            "   operator log: {}   Jaeger: {}",
            operator.log.display(),
            self.jaeger.query_url
        );
        Ok(())
    }
}

fn summary() {
    head("Summary");
    println!(
        "   two members joined; one ShardingConfig owns namespaces in both; one unmodified operator reconciled both"
    );
    println!("   through one endpoint; with west cut its breaker opened, east went on, and west recovered by itself.");
}

async fn wait_for<T, F, Fut>(what: &str, mut probe: F) -> anyhow::Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = anyhow::Result<T>>,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        match probe().await {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context(format!("waited {} s for {what}", PATIENCE.as_secs())));
            }
            Err(_) => tokio::time::sleep(POLL).await,
        }
    }
}
