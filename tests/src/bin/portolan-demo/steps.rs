//! The demo's steps, in order. Each prints what it did and fails when it is not so.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::ensure;
use kube::Client;
use portolan_testbed::{Jaeger, Options, Pods, Testbed, tool};
use portolan_tests::programs::{argument, program};
use portolan_tests::{Fleet, FleetOptions, shard};

use crate::account::{head, quote, where_requests_went};
use crate::args::Args;
use crate::operator::{Kind, Operator};
use crate::view::{View, Watch};
use crate::wait::wait_for;
use crate::{traced, workload};

const SHARD: &str = "demo";
pub(crate) const EAST: [&str; 2] = ["shop-a", "shop-b"];
pub(crate) const WEST: [&str; 1] = ["shop-c"];
const FIRST: &str = "good morning";
const SECOND: &str = "good afternoon";

pub(crate) struct Demo {
    pub(crate) testbed: Testbed,
    pub(crate) fleet: Fleet,
    pub(crate) east: Client,
    pub(crate) west: Client,
    pub(crate) jaeger: Jaeger,
    pub(crate) hub: PathBuf,
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
    let mut operator = demo.run_operator(args.operator)?;
    let view = View::new(&demo.fleet.merged_kubeconfig(SHARD));
    demo.show_view(&view).await?;
    let mut watch = demo.show_watch(&view).await?;
    demo.show_requests().await?;
    demo.cut_and_heal(&mut operator, &mut watch).await?;
    drop(watch);
    demo.show_policies(&mut operator, args).await?;
    head("One merged list as a trace");
    let merged = demo.fleet.merged_kubeconfig(SHARD);
    traced::show_list(&demo.jaeger, &merged, "/apis/example.com/v1/greetings").await?;
    head("One reconcile as a trace: operator, router, members, etcd");
    traced::show_reconcile(&demo.jaeger, args.operator.reconcile(), "west").await?;
    head("Who calls whom, by these traces");
    traced::show_graph(&demo.jaeger).await?;
    traced::say_where(&demo.jaeger, args);
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
    let jaeger = Jaeger::start_with(args.jaeger_bin.clone()).await?;
    let options = Options {
        clusters: ["hub", "east", "west"].map(ToOwned::to_owned).to_vec(),
        pods: Pods::Pretended,
        otlp: Some(jaeger.otlp_grpc_url.clone()),
        ..Options::default()
    };
    let testbed = Testbed::start_with(options).await?;
    for cluster in testbed.clusters() {
        println!("   {:<5} {}", cluster.name(), cluster.url());
    }
    println!("   ready in {} ms", started.elapsed().as_millis());
    let east = testbed.cluster("east").client().await?;
    let west = testbed.cluster("west").client().await?;
    for (client, namespaces) in [(&east, &EAST[..]), (&west, &WEST[..])] {
        workload::install_crd(client).await?;
        for namespace in namespaces {
            workload::namespace(client, namespace).await?;
        }
    }
    println!(
        "   namespaces in east: {}   in west: {}",
        EAST.join(", "),
        WEST.join(", ")
    );
    let fleet = start_fleet(&testbed, &jaeger).await?;
    Ok(Demo {
        hub: testbed.cluster("hub").kubeconfig_path().to_path_buf(),
        testbed,
        fleet,
        east,
        west,
        jaeger,
    })
}

async fn start_fleet(testbed: &Testbed, jaeger: &Jaeger) -> anyhow::Result<Fleet> {
    head("portolanctl dev up: joining both members, applying a federated ShardingConfig");
    let manifests = shard::federated(SHARD, "east", &[("east", &EAST), ("west", &WEST)]);
    quote(manifests.trim_end_matches("---\n"));
    let started = Instant::now();
    let options = FleetOptions {
        hub: "hub",
        members: &["east", "west"],
        manifests: &manifests,
        otlp: Some(&jaeger.otlp_grpc_url),
        ..FleetOptions::default()
    };
    let fleet = Fleet::start(testbed, options).await?;
    println!(
        "   hub, two agents and a router are ready in {} ms: {}",
        started.elapsed().as_millis(),
        fleet.router_url()?
    );
    Ok(fleet)
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

    fn run_operator(&self, kind: Kind) -> anyhow::Result<Operator> {
        head("Running an operator that knows nothing of Portolan: cluster-wide informers, one kubeconfig");
        let operator = Operator::start(
            kind,
            &self.fleet.merged_kubeconfig(SHARD),
            &self.fleet.dir().join("operator.log"),
            &self.jaeger.otlp_grpc_url,
        )?;
        println!("   made with {}; its log: {}", kind.made_with(), operator.log.display());
        Ok(operator)
    }

    /// The operator's work in both clusters, as kubectl sees it through the same endpoint.
    async fn show_view(&self, view: &View) -> anyhow::Result<()> {
        head("kubectl on the merged view: two clusters as one");
        let namespaces: Vec<&str> = EAST.into_iter().chain(WEST).collect();
        view.show_with(&["apply", "-f", "-"], &workload::greetings(&namespaces, FIRST))
            .await?;
        view.show(&[
            "wait",
            "greetings",
            "--all",
            "-A",
            "--for=condition=Ready",
            "--timeout=60s",
        ])
        .await?;
        self.wait_said(FIRST, &EAST).await?;
        self.wait_said(FIRST, &WEST).await?;
        for kind in ["greetings", "pods"] {
            let printed = view.show(&["get", kind, "-A", "-o", "wide"]).await?;
            let head = printed.lines().next().unwrap_or_default();
            ensure!(head.contains("CLUSTER"), "no column CLUSTER: {head}");
            ensure!(
                ["shop-a", "shop-b", "shop-c", "east", "west"]
                    .iter()
                    .all(|word| printed.contains(word)),
                "something is missing"
            );
        }
        view.show_from(&["describe", "greeting", "hello", "-n", WEST[0]], "Events:")
            .await?;
        view.show(&["logs", "deployment/hello", "-n", WEST[0], "--tail=2"])
            .await?;
        Ok(())
    }

    async fn show_watch(&self, view: &View) -> anyhow::Result<Watch> {
        head("One watch over both");
        let arguments = ["get", "greetings", "-A", "-w", "--output-watch-events"];
        let mut watch = view.watch(&arguments, &self.fleet.dir().join("watch.txt"))?;
        for namespace in EAST.iter().chain(&WEST) {
            watch.sees(&["ADDED", namespace]).await?;
        }
        workload::greet(&self.east, EAST[0], SECOND).await?;
        workload::greet(&self.west, WEST[0], SECOND).await?;
        println!("   its users change two Greetings, each straight at its own cluster:");
        for namespace in [EAST[0], WEST[0]] {
            quote(&watch.sees(&["MODIFIED", namespace, SECOND]).await?);
        }
        self.wait_said(SECOND, &[EAST[0], WEST[0]]).await?;
        watch.check()?;
        self.show_open_watches().await?;
        Ok(watch)
    }

    async fn show_requests(&self) -> anyhow::Result<()> {
        head("Where each request went");
        let went = where_requests_went(&self.fleet.process("router")?.log)?;
        ensure!(
            ["east", "west"]
                .iter()
                .all(|end| went.iter().any(|line| line.contains(end))),
            "requests went to {went:?}"
        );
        quote(&went.join("\n"));
        head("And why: portolanctl explain");
        let caller = format!("east/operators/portolan-dev-{SHARD}");
        let dir = argument(self.fleet.dir());
        for (verb, path) in [
            ("list", "/apis/example.com/v1/greetings".to_owned()),
            ("update", format!("/api/v1/namespaces/{}/configmaps/hello", WEST[0])),
        ] {
            let arguments = ["explain", verb, &path, "--as", &caller, "--dir", &dir].map(ToOwned::to_owned);
            let printed = self.fleet.run(&arguments).await?;
            quote(printed.trim_end());
        }
        Ok(())
    }

    /// The merged watches that are open on the router, as `portolanctl` shows them.
    pub(crate) async fn show_open_watches(&self) -> anyhow::Result<String> {
        println!("   $ portolanctl watch-state --dir {}", self.fleet.dir().display());
        let arguments = ["watch-state", "--dir", &argument(self.fleet.dir())].map(ToOwned::to_owned);
        let printed = self.fleet.run(&arguments).await?;
        quote(&printed);
        Ok(printed)
    }

    pub(crate) async fn wait_said(&self, message: &str, namespaces: &[&str]) -> anyhow::Result<()> {
        for namespace in namespaces {
            let client = if WEST.contains(namespace) {
                &self.west
            } else {
                &self.east
            };
            let what = format!("a ConfigMap in {namespace} that says {message:?}");
            wait_for(&what, || workload::is_said(client, namespace, message)).await?;
        }
        Ok(())
    }

    fn print_hints(&self, operator: &Operator) -> anyhow::Result<()> {
        let merged = argument(&self.fleet.merged_kubeconfig(SHARD));
        let kubectl = argument(&tool("kubectl"));
        let (dir, hub) = (self.fleet.dir().display(), argument(&self.hub));
        head("Left running until Ctrl-C; five commands to try");
        println!("   {kubectl} --kubeconfig {merged} get greetings,deployments,pods -A -o wide");
        println!("   {kubectl} --kubeconfig {merged} get pods -A -w --output-watch-events");
        println!(
            "   {kubectl} --kubeconfig {merged} patch greeting hello -n {} --type merge -p '{{\"spec\":{{\"replicas\":3}}}}'",
            WEST[0]
        );
        println!("   {kubectl} --kubeconfig {hub} get memberclusters,shardingconfigs -A");
        println!("   {} dev status --dir {dir}", argument(&program("portolanctl")?));
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
        "   two members joined; one ShardingConfig owns namespaces in both; one unmodified operator with cluster-wide"
    );
    println!(
        "   informers, and kubectl, worked on both through one endpoint; with west cut its breaker opened, east went on,"
    );
    println!(
        "   nobody was told of a deletion, and the watches that were open went on with west when it came back; run wild it"
    );
    println!("   was held by a CircuitBreaker, and it came through the faults that a FaultInjection ordered.");
}
