//! Bootstrap tokens as agents bring them: garbage, expired, used already, of another cluster. The agent says why it is
//! not let in, MemberCluster says it where a person looks, and a good token is all that is needed then.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use portolan_testbed::eventually;
use portolan_tests::ctl;
use portolan_tests::daemon::{Daemon, Launch};
use portolan_tests::programs::argument;
use portolan_tests::world::create_namespace;

use crate::{Ground, SYSTEM, ground, words};

/// An agent on a cluster, in a namespace of its own so that it has no identity of another, with a token in a file.
/// It is an administrator there: what is tested is what the hub says.
async fn agent(ground: &Ground, cluster: &str, name: &str, token: &str) -> Daemon {
    let on = ground.testbed.cluster(cluster);
    create_namespace(on, name).await.unwrap();
    std::fs::write(ground.file(&format!("{name}.token")), token).unwrap();
    let secrets: Api<Secret> = Api::namespaced(ground.testbed.cluster("hub").client().await.unwrap(), SYSTEM);
    let ca = secrets.get("portolan-ca").await.unwrap().data.unwrap()["tls.crt"]
        .0
        .clone();
    let ca_file = ground.file(&format!("{name}.ca"));
    std::fs::write(&ca_file, ca).unwrap();
    let flags = [
        "--hub",
        ground.hub.bind(),
        "--hub-ca",
        &argument(&ca_file),
        "--bootstrap-token-file",
        &argument(&ground.file(&format!("{name}.token"))),
        "--namespace",
        name,
        "--kubeconfig",
        &ground.kubeconfig(cluster),
    ];
    Daemon::start(Launch {
        name: name.to_owned(),
        program: "portolan-agent".to_owned(),
        arguments: flags.map(str::to_owned).to_vec(),
        env: Vec::new(),
        dir: ground.dir.clone(),
    })
    .await
    .unwrap()
}

/// Waits until the agent's log says why it is not let in; no part of the token is in it.
async fn refused(agent: &Daemon, token: &str, words: &[&str]) {
    eventually(&format!("the agent is told {words:?}"), || async {
        let log = agent.log().unwrap();
        if words.iter().all(|word| log.contains(word)) {
            Ok(())
        } else {
            Err(log)
        }
    })
    .await;
    let secret_half = token.split('.').next_back().unwrap();
    assert!(!agent.log().unwrap().contains(secret_half), "the token is in the log");
}

/// The token that `portolanctl join` left in a cluster.
async fn left_in(ground: &Ground, cluster: &str) -> String {
    let secrets: Api<Secret> = Api::namespaced(ground.testbed.cluster(cluster).client().await.unwrap(), SYSTEM);
    let secret = secrets.get("portolan-agent-bootstrap").await.unwrap();
    String::from_utf8(secret.data.unwrap()["token"].0.clone()).unwrap()
}

/// All on the hub's own cluster, which may be a member as any other.
#[tokio::test]
async fn bad_tokens() {
    let ground = ground().await;
    let garbage = "abc123.0123456789abcdefghijklmnopqrstuv";
    let mut stranger = agent(ground, "hub", "stranger", garbage).await;
    refused(&stranger, garbage, &["unknown bootstrap token", "portolanctl join"]).await;

    ctl::ok(&words(&ground.join(
        "center",
        "hub",
        &["--accept", "--token-ttl", "1s"],
    )))
    .await
    .unwrap();
    let expired = left_in(ground, "hub").await;
    let made = Instant::now();
    eventually("it is over", || async { made.elapsed() > Duration::from_millis(1500) }).await;
    std::fs::write(ground.file("stranger.token"), &expired).unwrap();
    refused(&stranger, &expired, &["expired at", "portolanctl join"]).await;

    // No restart: the next try is with what the file says then.
    ctl::ok(&words(&ground.join("center", "hub", &["--accept"])))
        .await
        .unwrap();
    let good = left_in(ground, "hub").await;
    std::fs::write(ground.file("stranger.token"), &good).unwrap();
    ground.until("center", "Joined", "True", &[]).await;

    let mut thief = agent(ground, "hub", "thief", &good).await;
    refused(&thief, &good, &["used with another key already", "portolanctl join"]).await;
    thief.kill().await.unwrap();
    ground.until("center", "Joined", "True", &[]).await;
    stranger.kill().await.unwrap();
    other_clusters(ground).await;
}

/// Tokens of one name brought by another cluster: a cluster is a member once, and a name stays with its cluster.
async fn other_clusters(ground: &Ground) {
    let told = ctl::refused(&words(&ground.join("double", "hub", &["--accept"])))
        .await
        .unwrap();
    assert!(told.contains("is a member already, as center"), "{told}");
    // A token made for one cluster and carried to another gets past portolanctl, not past the hub.
    let mine = ground.token_in_west.lock().await;
    ctl::ok(&words(&ground.join("double", "west", &["--accept"])))
        .await
        .unwrap();
    let double = left_in(ground, "west").await;
    drop(mine);
    let mut second = agent(ground, "hub", "second", &double).await;
    refused(&second, &double, &["center"]).await;
    let said = ground
        .until("double", "Joined", "False", &["DuplicateCluster", "center"])
        .await;
    assert!(said.contains("delete MemberCluster center"), "{said}");
    second.kill().await.unwrap();

    ctl::ok(&words(&ground.join("center", "hub", &["--accept"])))
        .await
        .unwrap();
    let of_center = left_in(ground, "hub").await;
    let mut foreign = agent(ground, "west", "foreign", &of_center).await;
    refused(&foreign, &of_center, &["MemberCluster center is pinned"]).await;
    let said = ground.until("center", "Joined", "False", &["ClusterUidChanged"]).await;
    assert!(said.contains("delete the MemberCluster"), "{said}");
    foreign.kill().await.unwrap();
}
