//! What a Pod can ask about itself: the downward API's fields, for variables and for files.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::Pod;

/// What only the node knows of a Pod.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) node: String,
    pub(crate) host_ip: Ipv4Addr,
    pub(crate) pod_ip: Ipv4Addr,
}

/// The value of a field such as `metadata.name` or `metadata.labels['app']`; the error says why there is none.
pub(crate) fn field(path: &str, pod: &Pod, place: &Place) -> Result<String, String> {
    let metadata = &pod.metadata;
    let spec = pod.spec.as_ref();
    if let Some((map, key)) = subscript(path) {
        let map = match map {
            "metadata.labels" => &metadata.labels,
            "metadata.annotations" => &metadata.annotations,
            _ => return Err(format!("{path} is no field that a Pod can ask for")),
        };
        return Ok(map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default());
    }
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    Ok(match path {
        "metadata.name" => text(&metadata.name),
        "metadata.namespace" => text(&metadata.namespace),
        "metadata.uid" => text(&metadata.uid),
        "metadata.labels" => lines(metadata.labels.as_ref()),
        "metadata.annotations" => lines(metadata.annotations.as_ref()),
        "spec.nodeName" => place.node.clone(),
        "spec.serviceAccountName" => spec.map(|spec| text(&spec.service_account_name)).unwrap_or_default(),
        "status.hostIP" | "status.hostIPs" => place.host_ip.to_string(),
        "status.podIP" | "status.podIPs" => place.pod_ip.to_string(),
        _ => return Err(format!("{path} is no field that a Pod can ask for")),
    })
}

/// `metadata.labels['a']` as map and key.
fn subscript(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?.split_once("['")
}

/// A map as the downward API writes it to a file.
fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let mut lines = String::new();
    for (key, value) in map.into_iter().flatten() {
        let _ = writeln!(lines, "{key}={value:?}");
    }
    lines.pop();
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_by_their_paths() {
        let pod = json!({
            "metadata": {
                "name": "web-0", "namespace": "shop", "uid": "u", "labels": {"app": "web", "b": "say \"hi\""},
                "annotations": {"example.com/a": "x"},
            },
            "spec": {"containers": [], "serviceAccountName": "seller"},
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let place = Place {
            node: "node-1".to_owned(),
            host_ip: Ipv4Addr::new(10, 244, 0, 1),
            pod_ip: Ipv4Addr::new(10, 244, 1, 7),
        };
        for (path, value) in [
            ("metadata.name", "web-0"),
            ("metadata.namespace", "shop"),
            ("metadata.uid", "u"),
            ("metadata.labels['app']", "web"),
            ("metadata.labels['none']", ""),
            ("metadata.annotations['example.com/a']", "x"),
            ("metadata.labels", "app=\"web\"\nb=\"say \\\"hi\\\"\""),
            ("spec.nodeName", "node-1"),
            ("spec.serviceAccountName", "seller"),
            ("status.hostIP", "10.244.0.1"),
            ("status.podIP", "10.244.1.7"),
        ] {
            assert_eq!(field(path, &pod, &place).as_deref(), Ok(value), "{path}");
        }
        for bad in ["status.phase", "spec.containers['a']", ""] {
            assert!(field(bad, &pod, &place).is_err(), "{bad}");
        }
    }
}
