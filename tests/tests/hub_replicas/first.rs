//! Replicas that start at once, on a cluster where no hub was, and one that has other settings.

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::Api;
use portolan_crds::labels::WEBHOOK_AUTHORS;
use portolan_testbed::{Testbed, eventually};
use portolan_tests::ctl;
use portolan_tests::daemon::{Daemon, Launch};
use portolan_tests::hub_cluster::ca;
use portolan_tests::programs::{admin_get, argument};
use portolan_tests::replicas::metric;

async fn hub(testbed: &Testbed, dir: &std::path::Path, name: &str, flags: &[&str]) -> Daemon {
    let kubeconfig = argument(testbed.cluster("hub").kubeconfig_path());
    let always = ["--kubeconfig", &kubeconfig, "--bind", "127.0.0.1:0"];
    let launch = Launch {
        name: name.to_owned(),
        program: "portolan-hub".to_owned(),
        arguments: always.iter().chain(flags).map(|&word| word.to_owned()).collect(),
        env: Vec::new(),
        dir: dir.to_owned(),
    };
    Daemon::start(launch).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_that_start_at_once_make_one_ca_and_a_third_that_differs_says_so() {
    let (testbed, dir) = (Testbed::start(&["hub"]).await.unwrap(), tempfile::tempdir().unwrap());
    let kubeconfig = argument(testbed.cluster("hub").kubeconfig_path());
    let install = [
        "install",
        "--hub-kubeconfig",
        &kubeconfig,
        "--webhook-url",
        "https://127.0.0.1:1/shardingconfigs",
    ];
    ctl::ok(&install).await.unwrap();
    let (mut first, second) = tokio::join!(
        hub(&testbed, dir.path(), "first", &[]),
        hub(&testbed, dir.path(), "second", &[])
    );
    first.ready().await;
    second.ready().await;
    let leads = async |hub: &Daemon| metric(hub, "portolan_hub_leader").await.unwrap();
    assert_eq!(leads(&first).await + leads(&second).await, 1);

    let client = testbed.cluster("hub").client().await.unwrap();
    let bundle = ca(&client).await.unwrap().pem().to_owned();
    let webhooks = Api::<ValidatingWebhookConfiguration>::all(client.clone());
    eventually("the API server verifies the webhooks by the hub's CA", || async {
        let registered = webhooks.get(WEBHOOK_AUTHORS).await.ok()?;
        let told = registered.webhooks.iter().flatten();
        let told: Vec<_> = told.map(|webhook| webhook.client_config.ca_bundle.as_ref()).collect();
        let same = |told: Option<&k8s_openapi::ByteString>| told.is_some_and(|told| told.0 == bundle.as_bytes());
        (told.len() == 2 && told.into_iter().all(same)).then_some(())
    })
    .await;

    let third = hub(&testbed, dir.path(), "third", &["--longest-lease-seconds", "60"]).await;
    eventually("it says what differs", || async {
        let error = admin_get(third.admin(), "/readyz").await.err()?.to_string();
        let says = error.contains(r#"--longest-lease-seconds is "60" here and "180" there"#);
        says.then_some(()).ok_or(error).ok()
    })
    .await;
    // The one that ends by itself is followed at once, by the one that agrees with it.
    let (leader, other) = if leads(&first).await == 1 {
        (&mut first, &second)
    } else {
        (&mut { second }, &first)
    };
    assert_eq!(leader.stop().await.unwrap(), 0);
    eventually("the other one leads", || async {
        (leads(other).await == 1).then_some(())
    })
    .await;
    assert_eq!(leads(&third).await, 0);
}
