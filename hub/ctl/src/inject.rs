//! `portolanctl inject`: points the Pods of manifests at a gateway, as the policies of `deploy/member/injection.yaml` do at admission
//! where the API server serves them. A test of the workspace holds that both make the same of the same Pods.

mod pod;

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use serde::Deserialize as _;
use serde_json::Value;

use crate::cli::{GatewayAddress, InjectArgs};
use crate::connect::connect;
use crate::injection::{self, Gateway};

/// In place of a file: what comes in.
const STDIN: &str = "-";
/// Kinds that have a Pod as template, and where: `template` by itself stands in the Pod's own place.
const TEMPLATES: [(&str, &str, &str); 8] = [
    ("v1", "Pod", ""),
    ("v1", "ReplicationController", "/spec/template"),
    ("apps/v1", "Deployment", "/spec/template"),
    ("apps/v1", "StatefulSet", "/spec/template"),
    ("apps/v1", "DaemonSet", "/spec/template"),
    ("apps/v1", "ReplicaSet", "/spec/template"),
    ("batch/v1", "Job", "/spec/template"),
    ("batch/v1", "CronJob", "/spec/jobTemplate/spec/template"),
];

pub(crate) async fn run(args: &InjectArgs) -> anyhow::Result<()> {
    let mut documents = Vec::new();
    for file in &args.files {
        documents.extend(read(file)?);
    }
    let gateway = match &args.member_kubeconfig {
        Some(file) => injection::gateway(&connect("the member cluster", Some(file)).await?.client).await?,
        None => given(args.gateway.as_ref(), args.ca_file.as_deref())?,
    };
    let (mut pods, mut problems) = (0, Vec::new());
    for document in &mut documents {
        inject(document, &gateway, &mut pods, &mut problems);
    }
    if !problems.is_empty() {
        bail!("nothing was changed: {}", problems.join("; "));
    }
    for document in &documents {
        print!(
            "---\n{}",
            serde_yaml_ng::to_string(document).context("a document is YAML")?
        );
    }
    eprintln!(
        "{pods} of the Pods in {} documents are pointed at {}",
        documents.len(),
        gateway.address
    );
    Ok(())
}

fn given(address: Option<&GatewayAddress>, ca_file: Option<&Path>) -> anyhow::Result<Gateway> {
    let (address, ca_file) = address
        .zip(ca_file)
        .context("--gateway and --ca-file belong together")?;
    let ca = std::fs::read_to_string(ca_file).with_context(|| format!("cannot read {}", ca_file.display()))?;
    if portolan_runtime::pki::certificates(&ca).is_ok_and(|certificates| !certificates.is_empty()) {
        let address = address.clone();
        return Ok(Gateway { address, ca });
    }
    bail!("{} has no certificates in PEM", ca_file.display())
}

fn read(file: &Path) -> anyhow::Result<Vec<Value>> {
    let origin = file.display().to_string();
    let mut yaml = String::new();
    if origin == STDIN {
        std::io::stdin()
            .read_to_string(&mut yaml)
            .context("cannot read what comes in")?;
    } else {
        yaml = std::fs::read_to_string(file).with_context(|| format!("cannot read {origin}"))?;
    }
    let documents = serde_yaml_ng::Deserializer::from_str(&yaml).map(Value::deserialize);
    let documents = documents.filter(|document| !document.as_ref().is_ok_and(Value::is_null));
    documents
        .collect::<Result<_, _>>()
        .with_context(|| format!("{origin} is not YAML"))
}

/// Changes all Pods of a document. What does not fit stays as it is and is told, with the object that it is in.
fn inject(document: &mut Value, gateway: &Gateway, pods: &mut usize, problems: &mut Vec<String>) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text(&document["apiVersion"]), text(&document["kind"]));
    if (version.as_str(), kind.as_str()) == ("v1", "List") {
        for item in document["items"].as_array_mut().into_iter().flatten() {
            inject(item, gateway, pods, problems);
        }
        return;
    }
    let is_this = |(of, named, _): &&(&str, &str, &str)| (*of, *named) == (&*version, &*kind);
    let Some((_, _, place)) = TEMPLATES.iter().find(is_this) else {
        return;
    };
    let name = text(&document["metadata"]["name"]);
    let Some(pod) = document.pointer_mut(place) else {
        problems.push(format!("{kind} {name} has no Pod at {place}"));
        return;
    };
    match pod::point(pod, gateway) {
        Ok(pointed) => *pods += usize::from(pointed),
        Err(why) => problems.push(format!("{kind} {name} {why}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_are_found_where_kinds_have_them_and_nothing_else_changes() {
        let gateway = Gateway {
            address: GatewayAddress::new("gate.ops.svc", 443),
            ca: "PEM".to_owned(),
        };
        let pod = || json!({"spec": {"containers": [{"name": "main"}]}});
        let template = |version: &str, kind: &str| json!({"apiVersion": version, "kind": kind, "metadata": {"name": "a"}, "spec": {"template": pod()}});
        let mut list = json!({"apiVersion": "v1", "kind": "List", "items": [
            template("apps/v1", "Deployment"), template("apps/v1", "StatefulSet"), template("apps/v1", "DaemonSet"),
            template("apps/v1", "ReplicaSet"), template("batch/v1", "Job"),
            {"apiVersion": "batch/v1", "kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": pod()}}}},
            {"apiVersion": "v1", "kind": "Pod", "spec": pod()["spec"]},
            template("example.com/v1", "Deployment"), {"apiVersion": "v1", "kind": "ConfigMap", "data": {}},
        ]});
        let before = list.clone();
        let (mut pods, mut problems) = (0, Vec::new());
        inject(&mut list, &gateway, &mut pods, &mut problems);
        assert_eq!((pods, problems.as_slice()), (7, &[][..]));
        for (number, item) in list["items"].as_array().unwrap().iter().enumerate() {
            let pointed = item.to_string().contains("gate.ops.svc");
            assert_eq!(pointed, number < 7, "{item}");
            if !pointed {
                assert_eq!(*item, before["items"][number]);
            }
        }
        let mut bad = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": {"template": {"spec": {"hostNetwork": true, "containers": []}}}});
        inject(&mut bad, &gateway, &mut pods, &mut problems);
        assert!(
            problems[0].starts_with("Deployment a is of its Node's network"),
            "{problems:?}"
        );
    }
}
