//! One request as a trace: sent with the caller's own token and a trace context, as an instrumented operator would.

use std::path::Path;

use anyhow::ensure;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use portolan_testbed::Jaeger;
use portolan_tests::trace;
use rand::RngExt as _;

use crate::account::quote;
use crate::wait::wait_for;

const ATTRIBUTES: [&str; 8] = [
    "caller",
    "shard",
    "verb",
    "resource",
    "plan",
    "clusters",
    "cluster",
    "http.response.status_code",
];

/// Sends a GET of `path` and prints its trace.
pub(crate) async fn show(jaeger: &Jaeger, kubeconfig: &Path, path: &str) -> anyhow::Result<()> {
    let id = format!("{:032x}", rand::rng().random::<u128>().max(1));
    let traceparent = format!("00-{id}-{:016x}-01", rand::rng().random::<u64>().max(1));
    get(kubeconfig, path, &traceparent).await?;
    let roots = wait_for("the trace in Jaeger", || async {
        let roots = trace::roots(&jaeger.trace(&id).await?);
        let mut spans = roots.iter().flat_map(trace::Span::walk);
        ensure!(
            spans.any(|span| span.tag("span.kind") == Some("client")),
            "no client span yet"
        );
        Ok(roots)
    })
    .await?;
    for root in &roots {
        quote(&root.render(&ATTRIBUTES));
    }
    println!("   in Jaeger: {}/trace/{id}", jaeger.query_url);
    Ok(())
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
