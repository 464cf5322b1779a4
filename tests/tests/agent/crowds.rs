//! One namespace's Pods and selectors, made to crowd out what is told of others.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use portolan_testbed::eventually;
use portolan_wire::v1 as wire;
use serde_json::json;

use crate::scene::Scene;

/// Six of them are more than what gRPC takes as one message unless it is told otherwise.
const FAT_PODS: usize = 6;

/// Its Pods have a megabyte of labels each, and a selector of another namespace fits into no URL. The hub starts anew.
pub(crate) async fn nobody_elses_callers_are_held_back(scene: &mut Scene) {
    scene.namespace("evil").await.unwrap();
    let account = ["get", "serviceaccount", "-n", "evil", "default"];
    eventually("evil has its ServiceAccount", || scene.kubectl(&account)).await;
    let mut labels: BTreeMap<_, _> = (0..14_000).map(|at| (format!("k{at:05}"), "v".repeat(63))).collect();
    labels.insert("app".to_owned(), "evil".to_owned());
    for at in 0..FAT_PODS {
        pod(scene, "evil", &format!("fat-{at}"), &labels).await;
    }
    let values: Vec<_> = (0..2_000).map(|value| format!("{value:040}")).collect();
    let select = |(namespace, selector): (&str, String)| wire::CallerSelector {
        namespace: namespace.to_owned(),
        selector,
    };
    let selectors = [
        ("evil", "app=evil".to_owned()),
        ("long", format!("x in ({})", values.join(","))),
        ("ns-a", "app=operator".to_owned()),
    ];
    let selectors: Vec<_> = selectors.into_iter().map(select).collect();
    scene.hub.configure(|config| config.caller_selectors = selectors);
    everybody_is_told(scene, 1).await;
    let told = &scene.hub.told;
    eventually("why the long one is not listed is told", || async {
        told.read(|told| {
            let long = told.excess.iter().find(|cut| cut.namespace == "long")?;
            (!long.fault.is_empty() && long.digest.len() == 32 && long.selector.is_empty()).then_some(())
        })
    })
    .await;

    scene.hub.told.with(|told| {
        told.callers.clear();
        told.pending.clear();
        told.largest = 0;
    });
    scene.hub.restart().await.unwrap();
    everybody_is_told(scene, 1).await;
    let labels = [("app".to_owned(), "operator".to_owned())].into();
    pod(scene, "ns-a", "operator-1", &labels).await;
    everybody_is_told(scene, 2).await;
    let largest = scene.hub.told.read(|told| told.largest);
    assert!(largest < 1 << 20, "{largest}");
}

async fn pod(scene: &Scene, namespace: &str, name: &str, labels: &BTreeMap<String, String>) {
    let pod = json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "example.com/i"}]},
    });
    let pods = Api::<Pod>::namespaced(scene.client.clone(), namespace);
    let pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
}

/// The fat Pods by their names, so many others whole, and of which namespace not all is known.
async fn everybody_is_told(scene: &Scene, operators: usize) {
    eventually("all are told", || async {
        scene.hub.told.read(|told| {
            let callers = told.callers.values();
            let whole = callers.clone().filter(|fact| {
                let labels = fact.labels.get("app").map(String::as_str);
                fact.namespace == "ns-a" && labels == Some("operator") && fact.labels_cut == 0
            });
            let cut =
                callers.filter(|fact| fact.namespace == "evil" && fact.labels.is_empty() && fact.labels_cut > 900_000);
            let told = (whole.count(), cut.count(), told.pending.clone());
            (told == (operators, FAT_PODS, vec!["long".to_owned()]))
                .then_some(())
                .ok_or(told)
        })
    })
    .await;
}
