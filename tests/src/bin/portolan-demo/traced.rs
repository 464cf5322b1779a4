//! Traces as a person reads them: a request sent with the caller's own token and a trace context, and a reconcile of the
//! operator, each with what the members recorded of it.

use std::path::Path;

use anyhow::{Context as _, ensure};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use portolan_testbed::Jaeger;
use portolan_tests::trace::{self, Span};
use rand::RngExt as _;

use crate::account::quote;
use crate::args::Args;
use crate::wait::wait_for;

/// As API servers call themselves.
const MEMBERS: &str = "apiserver";
const ETCD: &str = "etcd";
/// What a reconcile asks of a member, as API servers call it.
const WRITTEN: [(&str, &str); 6] = [
    ("PATCH", "api/v1/namespaces/{:namespace}/configmaps/{:name}"),
    ("PATCH", "apis/apps/v1/namespaces/{:namespace}/deployments/{:name}"),
    ("PATCH", "apis/example.com/v1/namespaces/{:namespace}/greetings/{:name}"),
    (
        "PATCH",
        "apis/example.com/v1/namespaces/{:namespace}/greetings/{:name}/status",
    ),
    ("POST", "apis/events.k8s.io/v1/namespaces/{:namespace}/events"),
    ("GET", "api/v1/namespaces/{:namespace}/configmaps/{:name}"),
];
const ATTRIBUTES: [&str; 8] = [
    "caller",
    "plan",
    "clusters",
    "cluster",
    "http.response.status_code",
    "portolan.policy",
    "portolan.fault",
    "k8s.cluster.name",
];

/// Sends a GET of `path` and prints its trace.
pub(crate) async fn show_list(jaeger: &Jaeger, kubeconfig: &Path, path: &str) -> anyhow::Result<()> {
    let id = format!("{:032x}", rand::rng().random::<u128>().max(1));
    let traceparent = format!("00-{id}-{:016x}-01", rand::rng().random::<u64>().max(1));
    get(kubeconfig, path, &traceparent).await?;
    let operation = format!("GET {path}");
    let root = wait_for("the trace in Jaeger", || async {
        let mut roots = trace::roots(&jaeger.trace(&id).await?).into_iter();
        let mut root = roots.next().context("no span yet")?;
        ensure!(legs(&root).count() > 0, "no leg yet");
        let members = trace::trees(&jaeger.find(MEMBERS, &operation).await?);
        link(&mut root, &members);
        ensure!(legs(&root).all(is_linked), "no member has told of its part yet");
        Ok(root)
    })
    .await?;
    print(jaeger, &root);
    Ok(())
}

/// Prints one of the operator's reconciles that wrote to this member, down to its etcd.
pub(crate) async fn show_reconcile(jaeger: &Jaeger, named: &str, member: &str) -> anyhow::Result<()> {
    let root = wait_for("a reconcile in Jaeger", || async {
        let mut members = Vec::new();
        for (verb, path) in WRITTEN {
            let operation = format!("{verb} /{path}");
            members.extend(trace::trees(&jaeger.find(MEMBERS, &operation).await?));
        }
        let told = |tree: &Span| {
            legs(tree).all(|leg| leg.tag("cluster") == Some(member))
                && tree.walk().iter().any(|span| span.service == ETCD)
        };
        let trees = trace::trees(&jaeger.find("greeting-operator", named).await?).into_iter();
        let trees = trees.filter(|tree| tree.name == named && tree.named("patch configmaps").is_some());
        let linked = trees.map(|mut tree| {
            link(&mut tree, &members);
            tree
        });
        let told = linked.filter(told).min_by_key(|tree| tree.walk().len());
        told.context("none that reached it")
    })
    .await?;
    print(jaeger, &root);
    Ok(())
}

/// Prints one of the operator's reconciles of which a request has this attribute.
pub(crate) async fn show_told(jaeger: &Jaeger, named: &str, attribute: &str) -> anyhow::Result<()> {
    let root = wait_for("such a reconcile in Jaeger", || async {
        let trees = trace::trees(&jaeger.find("greeting-operator", named).await?).into_iter();
        let told = |tree: &Span| {
            tree.walk()
                .iter()
                .any(|span| span.tag(attribute).is_some_and(|tag| !tag.is_empty()))
        };
        let told = trees
            .filter(|tree| tree.name == named && told(tree))
            .min_by_key(|tree| tree.walk().len());
        told.with_context(|| format!("none with {attribute}"))
    })
    .await?;
    print(jaeger, &root);
    Ok(())
}

/// Prints who calls whom: Jaeger's own edges, and those of client spans to members, whose spans are in traces of their own.
pub(crate) async fn show_graph(jaeger: &Jaeger) -> anyhow::Result<()> {
    let mut edges = jaeger.dependencies().await?;
    for tree in trace::trees(&jaeger.traces("portolan-router").await?) {
        let peers = tree.walk().into_iter().filter(|span| span.service == "portolan-router");
        let peers = peers.filter_map(|span| Some((span.service.clone(), span.tag("peer.service")?.to_owned())));
        edges.extend(peers);
    }
    edges.sort();
    edges.dedup();
    for (parent, child) in edges {
        println!("   {parent} -> {child}");
    }
    Ok(())
}

/// How a person looks at more of them.
pub(crate) fn say_where(jaeger: &Jaeger, args: &Args) {
    if args.jaeger_bin.is_some() {
        println!("   Jaeger's pages, as long as this runs (--keep): {}", jaeger.query_url);
    } else {
        println!(
            "   Jaeger as it is built here answers queries and has no pages. For pages, take a released all-in-one Jaeger 1.x:"
        );
        println!("   JAEGER_BIN=<file> make demo KEEP=1, and open the address that it prints");
    }
}

fn print(jaeger: &Jaeger, root: &Span) {
    quote(&root.render(&ATTRIBUTES));
    println!("   in Jaeger: {}/trace/{}", jaeger.query_url, root.id.0);
}

fn legs(root: &Span) -> impl Iterator<Item = &Span> {
    root.walk().into_iter().filter(|span| span.tag("class").is_some())
}

fn is_linked(leg: &Span) -> bool {
    leg.children.iter().any(|child| child.service == MEMBERS)
}

/// Puts the members' own traces below the legs that they are linked to.
fn link(span: &mut Span, members: &[Span]) {
    for child in &mut span.children {
        link(child, members);
    }
    let linked = members.iter().filter(|member| member.links.contains(&span.id)).cloned();
    span.children.extend(linked.map(|mut member| {
        member.name = format!("{} (a trace of its own: {})", member.name, member.id.0);
        member
    }));
}

async fn get(kubeconfig: &Path, path: &str, traceparent: &str) -> anyhow::Result<()> {
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(Kubeconfig::read_from(kubeconfig)?, &options).await?;
    let request = http::Request::builder()
        .uri(path)
        .header("traceparent", traceparent)
        .body(Vec::new())?;
    let found: serde_json::Value = Client::try_from(config)?.request(request).await?;
    ensure!(
        found["metadata"]["name"].is_string() || found["items"].is_array(),
        "the router answered {found}"
    );
    Ok(())
}
