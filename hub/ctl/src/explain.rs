//! `portolanctl explain`: asks a router for the plan of a request, because the router is who decides it.

use serde_json::Value;

use crate::cli::ExplainArgs;
use crate::router::{ask, encode};

pub(crate) async fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    let question = format!(
        "/explain?verb={}&path={}&as={}",
        encode(&args.verb),
        encode(&args.path),
        encode(&args.caller)
    );
    let answer = ask(&args.router, &question).await?;
    if args.output.is_json() {
        println!("{}", serde_json::to_string_pretty(&answer)?);
    } else {
        print_plan(&answer);
    }
    Ok(())
}

fn print_plan(answer: &Value) {
    let (caller, request) = (&answer["caller"], &answer["request"]);
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    if caller["pod"].is_string() {
        let pod = [&caller["homeCluster"], &caller["namespace"], &caller["pod"]]
            .map(text)
            .join("/");
        println!(
            "caller   {pod}, ServiceAccount {}, shard {}",
            text(&caller["serviceAccount"]),
            text(&caller["binding"])
        );
    } else {
        println!("caller   {}", compact(caller));
    }
    println!(
        "request  {} {} ({} view)",
        text(&request["verb"]),
        text(&request["path"]),
        text(&request["view"])
    );
    println!("plan     {}", plan_line(&answer["plan"]));
    println!("why");
    for reason in answer["why"].as_array().into_iter().flatten() {
        println!("  - {}", text(reason));
    }
}

fn plan_line(plan: &Value) -> String {
    let forward = &plan["forward"];
    match (forward["cluster"].as_str(), forward["actAs"].as_str()) {
        (Some(cluster), Some(user)) => {
            let selector = forward["selector"]
                .as_str()
                .map(|selector| format!(", only {selector}"));
            format!("forward to {cluster} as {user}{}", selector.unwrap_or_default())
        }
        _ => compact(plan),
    }
}

/// JSON on one line, without what is absent or empty.
fn compact(value: &Value) -> String {
    fn strip(value: &Value) -> Value {
        match value {
            Value::Object(entries) => {
                let empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
                let kept = entries.iter().filter(|(_, value)| !empty(value));
                Value::Object(kept.map(|(key, value)| (key.clone(), strip(value))).collect())
            }
            other => other.clone(),
        }
    }
    strip(value).to_string()
}
