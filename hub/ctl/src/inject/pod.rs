//! What it is to point a Pod at a gateway. Pure; called by `inject`. The same stands in CEL in `deploy/member/injection.yaml`.

use portolan_crds::labels::{
    ANNOTATION_GATEWAY_CA, ANNOTATION_KEEP_TOKEN, DEFAULT_AUDIENCE, LABEL_ENABLE_PROXY, VOLUME_ACCOUNT,
};
use serde_json::{Value, json};

use crate::injection::Gateway;

/// Where clients in Pods look for the token of their account, and what else is with it.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Names of volumes that an API server mounts there begin so.
const AUTOMATIC: &str = "kube-api-access-";
/// Life of a token; the kubelet renews it.
const TOKEN_SECONDS: u32 = 3_600;
const DEFAULT_MODE: u32 = 0o644;
const LISTS: [&str; 2] = ["containers", "initContainers"];

/// Points a Pod at a gateway as a whole, or says why it cannot be, and changes nothing. `false`: by its label it is to stay as it is.
pub(super) fn point(pod: &mut Value, gateway: &Gateway) -> Result<bool, String> {
    match pod["metadata"]["labels"][LABEL_ENABLE_PROXY].as_str() {
        Some("false") => return Ok(false),
        None | Some("true") => {}
        Some(other) => {
            return Err(format!(
                "has label {LABEL_ENABLE_PROXY} of {other}: it says true or false"
            ));
        }
    }
    let kept: Vec<String> = pod["metadata"]["annotations"][ANNOTATION_KEEP_TOKEN]
        .as_str()
        .map(|names| names.split(',').map(|name| name.trim().to_owned()).collect())
        .unwrap_or_default();
    let spec = &pod["spec"];
    if let Some(why) = hindrance(spec, &kept) {
        return Err(why);
    }
    let automatic = automatic(spec);
    pod["metadata"]["labels"][LABEL_ENABLE_PROXY] = json!("true");
    pod["metadata"]["annotations"][ANNOTATION_GATEWAY_CA] = json!(gateway.ca);
    let spec = &mut pod["spec"];
    for list in LISTS {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for container in containers.filter(|container| !is_kept(container, &kept)) {
            point_container(container, gateway);
        }
    }
    let unused = |volume: &Value| {
        automatic.iter().any(|name| volume["name"] == **name)
            && !containers(spec)
                .any(|container| items(&container["volumeMounts"]).any(|mount| mount["name"] == volume["name"]))
    };
    let mut volumes: Vec<_> = items(&spec["volumes"])
        .filter(|volume| volume["name"] != VOLUME_ACCOUNT && !unused(volume))
        .cloned()
        .collect();
    volumes.push(volume());
    spec["volumes"] = json!(volumes);
    Ok(true)
}

fn point_container(container: &mut Value, gateway: &Gateway) {
    let names = ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"];
    let values = [gateway.address.host().to_owned(), gateway.address.port()];
    // Those that come later may refer to these.
    let ours = names
        .iter()
        .zip(values)
        .map(|(name, value)| json!({"name": name, "value": value}));
    let others = items(&container["env"]).filter(|variable| !names.iter().any(|name| variable["name"] == *name));
    let env: Vec<_> = ours.chain(others.cloned()).collect();
    let mount = json!({"name": VOLUME_ACCOUNT, "mountPath": ACCOUNT, "readOnly": true});
    let mut mounts: Vec<_> = items(&container["volumeMounts"]).cloned().collect();
    match mounts.iter_mut().find(|mount| mount["mountPath"] == ACCOUNT) {
        Some(present) => *present = mount,
        None => mounts.push(mount),
    }
    container["env"] = json!(env);
    container["volumeMounts"] = json!(mounts);
}

/// What clients find in place of what the API server mounts.
fn volume() -> Value {
    let field = |path: &str, field: &str| json!({"path": path, "fieldRef": {"apiVersion": "v1", "fieldPath": field}});
    let token = json!({"audience": DEFAULT_AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": "token"});
    let ca = field("ca.crt", &format!("metadata.annotations['{ANNOTATION_GATEWAY_CA}']"));
    let about = json!({"items": [ca, field("namespace", "metadata.namespace")]});
    let sources = json!([{"serviceAccountToken": token}, {"downwardAPI": about}]);
    json!({"name": VOLUME_ACCOUNT, "projected": {"defaultMode": DEFAULT_MODE, "sources": sources}})
}

/// Why a Pod cannot be pointed at a gateway, in words that follow its name.
fn hindrance(spec: &Value, kept: &[String]) -> Option<String> {
    if spec["hostNetwork"] == true {
        return Some(
            "is of its Node's network (spec.hostNetwork), where a gateway is not found by the name of its Service"
                .to_owned(),
        );
    }
    if spec["os"]["name"] == "windows" || spec["nodeSelector"]["kubernetes.io/os"] == "windows" {
        return Some("is for Windows, which is not supported".to_owned());
    }
    let is_named = |name: &&String| containers(spec).any(|container| container["name"] == **name);
    let unknown: Vec<_> = kept.iter().filter(|name| !is_named(name)).map(String::as_str).collect();
    if !unknown.is_empty() {
        return Some(format!(
            "has no container {}, which annotation {ANNOTATION_KEEP_TOKEN} names",
            unknown.join(", ")
        ));
    }
    if items(&spec["containers"]).all(|container| is_kept(container, kept)) {
        return Some(format!(
            "keeps the account's token in all its containers (annotation {ANNOTATION_KEEP_TOKEN})"
        ));
    }
    let pointed = || containers(spec).filter(|container| !is_kept(container, kept));
    let automatic = automatic(spec);
    let is_foreign = |mount: &Value| {
        let (path, name) = (mount["mountPath"].as_str().unwrap_or_default(), &mount["name"]);
        let is_within = format!("{path}/")
            .replace("//", "/")
            .starts_with(&format!("{ACCOUNT}/"));
        let is_ours = *name == VOLUME_ACCOUNT || automatic.iter().any(|automatic| *name == **automatic);
        is_within && !(path == ACCOUNT && is_ours)
    };
    let occupied: Vec<_> = pointed()
        .filter(|container| items(&container["volumeMounts"]).any(is_foreign))
        .filter_map(|container| container["name"].as_str())
        .collect();
    if !occupied.is_empty() {
        return Some(format!(
            "has a volume of its own at {ACCOUNT} in {}: mount it elsewhere, or name the containers in annotation {ANNOTATION_KEEP_TOKEN}",
            occupied.join(", ")
        ));
    }
    (spec["automountServiceAccountToken"] == false).then(|| {
        "has spec.automountServiceAccountToken: false, so that clients in it find no token: leave that out".to_owned()
    })
}

/// Names of the volumes that an API server added for the account's token.
fn automatic(spec: &Value) -> Vec<String> {
    let volumes = items(&spec["volumes"]).filter(|volume| !volume["projected"].is_null());
    let names = volumes.filter_map(|volume| volume["name"].as_str());
    names
        .filter(|name| name.starts_with(AUTOMATIC))
        .map(str::to_owned)
        .collect()
}

fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    LISTS.into_iter().flat_map(|list| items(&spec[list]))
}

fn is_kept(container: &Value, kept: &[String]) -> bool {
    kept.iter().any(|name| container["name"] == **name)
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}
