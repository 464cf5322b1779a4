//! One real control plane, through everything a testbed can do to it.
#![allow(clippy::unwrap_used, reason = "also in functions that only tests call")]

use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use portolan_testbed::{Cluster, Fault, Options, Testbed, eventually};

/// A client through the fault stage, as the programs under test have it.
async fn staged_client(testbed: &Testbed) -> Client {
    let kubeconfig = Kubeconfig::read_from(testbed.cluster("hub").kubeconfig_path()).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    Client::try_from(config).unwrap()
}

async fn answers(client: &Client) -> Result<(), String> {
    let version = tokio::time::timeout(Duration::from_millis(500), client.apiserver_version()).await;
    version
        .map_err(|_| "no answer".to_owned())?
        .map(drop)
        .map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_control_plane_is_killed_frozen_cut_off_and_comes_back() {
    let testbed = Testbed::start(&["hub"]).await.unwrap();
    let hub = testbed.cluster("hub");
    let maps = Api::<ConfigMap>::namespaced(hub.client().await.unwrap(), "default");
    let name = Some("kept".to_owned());
    let map = ConfigMap {
        metadata: ObjectMeta {
            name,
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    };
    maps.create(&PostParams::default(), &map).await.unwrap();

    let staged = staged_client(&testbed).await;
    eventually("the API server answers", || answers(&staged)).await;
    for fault in [Fault::Reset, Fault::Blackhole] {
        hub.fault(fault).await.unwrap();
        assert!(answers(&staged).await.is_err(), "{fault:?} lets requests pass");
        hub.fault(Fault::None).await.unwrap();
        eventually("the stage works again", || answers(&staged)).await;
    }
    hub.fault(Fault::Delay(Duration::from_millis(50))).await.unwrap();
    let start = Instant::now();
    staged.apiserver_version().await.unwrap();
    assert!(
        start.elapsed() >= Duration::from_millis(100),
        "question and answer must each be late"
    );
    hub.fault(Fault::None).await.unwrap();

    hub.freeze().await.unwrap();
    assert_eq!(answers(&staged).await, Err("no answer".to_owned()));
    hub.thaw().await.unwrap();
    eventually("the API server is thawed", || answers(&staged)).await;

    let (url, direct_url) = (hub.url(), hub.direct_url());
    hub.kill().await.unwrap();
    assert!(hub.kill().await.is_err());
    assert!(answers(&hub.client().await.unwrap()).await.is_err());
    hub.restart().await.unwrap();
    assert_eq!((hub.url(), hub.direct_url()), (url, direct_url));
    assert!(maps.get("kept").await.is_ok());
    eventually("the stage leads to the new API server", || answers(&staged)).await;
}

#[tokio::test]
async fn clusters_are_foreign_to_each_other() {
    let testbed = Testbed::start(&["east", "west"]).await.unwrap();
    let (east, west) = (testbed.cluster("east"), testbed.cluster("west"));
    assert_ne!(east.ca_pem(), west.ca_pem());
    let token = east
        .issue_token("default", "default", &["portolan"], None)
        .await
        .unwrap();
    let at_home = review(east, &token).await;
    let user = at_home.user.and_then(|user| user.username);
    assert_eq!(user.as_deref(), Some("system:serviceaccount:default:default"));
    assert_eq!(at_home.audiences, Some(vec!["portolan".to_owned()]));
    assert_ne!(review(west, &token).await.authenticated, Some(true));
}

async fn review(cluster: &Cluster, token: &str) -> TokenReviewStatus {
    let spec = TokenReviewSpec {
        token: token.to_owned(),
        audiences: Some(vec!["portolan".to_owned()]),
    };
    let review = TokenReview {
        spec,
        ..TokenReview::default()
    };
    let reviews = Api::<TokenReview>::all(cluster.client().await.unwrap());
    reviews
        .create(&PostParams::default(), &review)
        .await
        .unwrap()
        .status
        .unwrap()
}

#[tokio::test]
async fn a_folder_is_started_again_with_its_data_ports_and_flags() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        clusters: vec!["hub".to_owned()],
        dir: Some(dir.path().to_owned()),
        apiserver_args: vec!["--goaway-chance=0.01".to_owned()],
        ..Options::default()
    };
    let first = Testbed::start_with(options.clone()).await.unwrap();
    let (url, direct_url) = (first.cluster("hub").url(), first.cluster("hub").direct_url());
    let name = Some("kept".to_owned());
    let kept = Namespace {
        metadata: ObjectMeta {
            name,
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    let namespaces = Api::<Namespace>::all(first.cluster("hub").client().await.unwrap());
    namespaces.create(&PostParams::default(), &kept).await.unwrap();
    drop(first);
    let second = Testbed::start_with(options).await.unwrap();
    let hub = second.cluster("hub");
    assert_eq!((hub.url(), hub.direct_url()), (url, direct_url));
    assert!(namespaces.get("kept").await.is_ok(), "the old client must work, too");
}

#[tokio::test]
async fn a_start_that_fails_shows_the_log() {
    let options = Options {
        clusters: vec!["hub".to_owned()],
        apiserver_args: vec!["--no-such-flag".to_owned()],
        ..Options::default()
    };
    let error = format!("{:#}", Testbed::start_with(options).await.unwrap_err());
    assert!(
        error.contains("starting cluster hub") && error.contains("unknown flag: --no-such-flag"),
        "{error}"
    );
}
