//! Everything of a fleet that people and machines read.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams};
use portolan_crds::{MemberCluster, ShardingConfig};
use portolan_tests::programs::admin_get;
use portolan_tests::programs::argument;
use portolan_tests::{ctl, kubectl};
use serde_json::Value;

use crate::Ground;
use crate::requests::Places;

pub(crate) async fn all(ground: &Ground) -> Places {
    let mut places = logs(ground);
    for service in ["portolan-router", "portolan-hub", "portolan-agent"] {
        let traces = ground.jaeger.traces(service).await.unwrap();
        assert_ne!(
            traces["data"].as_array().map(Vec::len),
            Some(0),
            "{service} has no traces"
        );
        places.push((format!("traces of {service}"), traces.to_string()));
    }
    places.extend(pages(ground).await);
    places.extend(objects(ground).await);
    places
}

fn logs(ground: &Ground) -> Places {
    let (mut places, mut logs) = (Places::new(), 0);
    for entry in std::fs::read_dir(ground.world.fleet.dir()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let log = path.extension().is_some_and(|end| end == "log");
        logs += usize::from(log);
        let shown = log || name == "fleet.json" || name.ends_with(".addresses.json");
        if shown {
            places.push((name, std::fs::read_to_string(&path).unwrap()));
        }
    }
    assert!(logs >= 5, "{logs} logs only");
    places
}

/// Admin pages and command lines of what runs now.
pub(crate) async fn pages(ground: &Ground) -> Places {
    let record = ground.world.fleet.record().unwrap();
    let mut places = Places::new();
    for process in record["processes"].as_array().unwrap() {
        let (name, admin) = (process["name"].as_str().unwrap(), process["admin"].as_str().unwrap());
        let words = std::fs::read(format!("/proc/{}/cmdline", process["pid"])).unwrap_or_default();
        places.push((
            format!("command line of {name}"),
            String::from_utf8_lossy(&words).into_owned(),
        ));
        if admin.is_empty() || admin_get(admin, "/livez").await.is_err() {
            continue;
        }
        let own: &[&str] = if name == "router" {
            &[
                "/breakers",
                "/explain?verb=get&path=/api/v1/namespaces/team-b/secrets/s&as=east/operators/portolan-dev-alpha",
            ]
        } else {
            &[]
        };
        for page in ["/configz", "/metrics", "/readyz", "/loglevel"].iter().chain(own) {
            let text = admin_get(admin, page).await.unwrap();
            places.push((format!("{page} of {name}"), text));
        }
    }
    places
}

async fn objects(ground: &Ground) -> Places {
    let hub = ground.world.cluster("hub");
    let client = hub.client().await.unwrap();
    let all = ListParams::default();
    let text = |value: Value| value.to_string();
    let members = Api::<MemberCluster>::all(client.clone())
        .list(&all)
        .await
        .unwrap()
        .items;
    let shards = Api::<ShardingConfig>::all(client.clone())
        .list(&all)
        .await
        .unwrap()
        .items;
    let maps = Api::<ConfigMap>::all(client).list(&all).await.unwrap().items;
    let mut places = vec![
        (
            "MemberClusters".to_owned(),
            text(serde_json::to_value(members).unwrap()),
        ),
        (
            "ShardingConfigs".to_owned(),
            text(serde_json::to_value(shards).unwrap()),
        ),
        (
            "ConfigMaps of the hub".to_owned(),
            text(serde_json::to_value(maps).unwrap()),
        ),
    ];
    for cluster in ["hub", "east", "west"] {
        let cluster = ground.world.cluster(cluster);
        let kubectl = kubectl::Kubectl::new(cluster.direct_kubeconfig_path());
        for kinds in [
            "events",
            "namespaces",
            "pods",
            "validatingadmissionpolicies,mutatingadmissionpolicies",
        ] {
            let listed = kubectl.ok(&["get", kinds, "-A", "-o", "json"]).await.unwrap();
            places.push((format!("{kinds} of {}", cluster.name()), listed));
        }
    }
    let kubeconfig = argument(hub.direct_kubeconfig_path());
    for what in ["clusters", "shards", "callers"] {
        let told = ctl::ok(&["get", what, "-o", "json", "--hub-kubeconfig", &kubeconfig])
            .await
            .unwrap();
        places.push((format!("portolanctl get {what}"), told));
    }
    places
}
