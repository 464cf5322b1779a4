//! The quick start of the README, step by step, by somebody who is asked for one more thing at each.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use portolan_testbed::eventually;
use portolan_tests::ctl;
use portolan_tests::daemon::{Daemon, Launch};
use portolan_tests::kubectl::Kubectl;
use portolan_tests::programs::admin_get;
use portolan_tests::programs::argument;
use serde_json::json;

use crate::{Ground, SYSTEM, ground, words};

#[tokio::test]
async fn from_nothing_to_an_answer() {
    let ground = ground().await;
    let agent = join_and_accept(ground).await;
    let agent = restart_with_identity_only(ground, agent).await;
    let router = enrol_router(ground).await;
    let_ada_in(ground, &router).await;
    agent.log().unwrap();
}

/// The token is good, and still nothing happens before the hub's half.
async fn join_and_accept(ground: &Ground) -> Daemon {
    let told = ctl::ok(&words(&ground.join("east", "east", &["--label", "region=eu"])))
        .await
        .unwrap();
    for word in ["portolan-agent-bootstrap", "portolanctl allow", "spec", "accept"] {
        assert!(told.contains(word), "{word}: {told}");
    }
    let agent = ground.agent("east", "agent-east", &[]).await;
    ground
        .until("east", "Accepted", "False", &["NotAccepted", "spec.accept"])
        .await;
    eventually("the agent says what it waits for", || async {
        let unready = admin_get(agent.admin(), "/readyz?verbose").await;
        unready.is_err_and(|error| format!("{error:#}").contains("503")) && agent.log().unwrap().contains("spec.accept")
    })
    .await;
    ground.until("east", "Joined", "False", &["WaitingForAgent"]).await;

    let members = ground.members().await;
    let accept = Patch::Merge(json!({"spec": {"accept": true}}));
    members.patch("east", &PatchParams::default(), &accept).await.unwrap();
    ground.until("east", "Accepted", "True", &[]).await;
    ground
        .until("east", "Joined", "True", &["pinned to the cluster with UID"])
        .await;
    for condition in ["Available", "CredentialsReady", "LabelsSynced"] {
        ground.until("east", condition, "True", &[]).await;
    }
    ground
        .until(
            "east",
            "CredentialsReady",
            "True",
            &["NothingAllowed", "portolanctl allow"],
        )
        .await;
    agent.ready().await;
    let east = members.get("east").await.unwrap();
    assert_eq!(east.metadata.labels.unwrap()["region"], "eu");
    let status = east.status.unwrap();
    assert!(
        status.cluster_uid.is_some()
            && status
                .kubernetes_version
                .is_some_and(|version| version.starts_with("v1."))
    );
    agent
}

/// What it was bootstrapped from is gone from both clusters.
async fn restart_with_identity_only(ground: &Ground, mut agent: Daemon) -> Daemon {
    assert_eq!(agent.stop().await.unwrap(), 0);
    let secrets = |cluster| async move {
        Api::<Secret>::namespaced(ground.testbed.cluster(cluster).client().await.unwrap(), SYSTEM)
    };
    let in_member = secrets("east").await;
    in_member
        .delete("portolan-agent-bootstrap", &DeleteParams::default())
        .await
        .unwrap();
    let on_hub = secrets("hub").await;
    for secret in on_hub.list(&ListParams::default()).await.unwrap() {
        let name = secret.metadata.name.unwrap();
        let names = secret
            .data
            .as_ref()
            .and_then(|data| data.get("name"))
            .map(|name| name.0.clone());
        if name.starts_with("portolan-bootstrap-") && names.as_deref() == Some(b"east") {
            on_hub.delete(&name, &DeleteParams::default()).await.unwrap();
        }
    }
    let before = ground
        .members()
        .await
        .get("east")
        .await
        .unwrap()
        .status
        .unwrap()
        .last_heartbeat
        .unwrap();
    agent.start_again().await.unwrap();
    agent.ready().await;
    eventually("it is heard again", || async {
        let status = ground.members().await.get("east").await.unwrap().status.unwrap();
        status.last_heartbeat.unwrap().0 > before.0
    })
    .await;
    ground.until("east", "Available", "True", &[]).await;
    agent
}

fn router(ground: &Ground, name: &str, token_file: &str) -> Launch {
    let arguments = [
        "--bind",
        "127.0.0.1:0",
        "--hub",
        ground.hub.bind(),
        "--hub-ca",
        &argument(&ground.file("hub-ca.crt")),
        "--bootstrap-token-file",
        token_file,
        "--state-dir",
        &argument(&ground.file(&format!("{name}-state"))),
    ];
    Launch {
        name: name.to_owned(),
        program: "portolan-router".to_owned(),
        arguments: arguments.map(str::to_owned).to_vec(),
        env: Vec::new(),
        dir: ground.dir.clone(),
    }
}

/// One token is one router: a second one that comes with it is refused, and the first goes on.
async fn enrol_router(ground: &Ground) -> Daemon {
    let hub = ground.kubeconfig("hub");
    let token = ctl::ok(&[
        "router-token",
        "gateway",
        "--san",
        "127.0.0.1",
        "--hub-kubeconfig",
        &hub,
    ])
    .await
    .unwrap();
    let token_file = argument(&ground.file("router.token"));
    std::fs::write(&token_file, &token).unwrap();
    let secrets: Api<Secret> = Api::namespaced(ground.testbed.cluster("hub").client().await.unwrap(), SYSTEM);
    let ca = secrets.get("portolan-ca").await.unwrap().data.unwrap()["tls.crt"]
        .0
        .clone();
    std::fs::write(ground.file("hub-ca.crt"), ca).unwrap();
    let first = Daemon::start(router(ground, "router", &token_file)).await.unwrap();
    first.ready().await;

    let mut second = Daemon::start(router(ground, "impostor", &token_file)).await.unwrap();
    eventually("the second is told why not", || async {
        let unready = admin_get(second.admin(), "/readyz?verbose").await;
        unready.is_err_and(|error| format!("{error:#}").contains("used with another key already"))
    })
    .await;
    assert!(!second.log().unwrap().contains(token.trim()));
    second.kill().await.unwrap();
    admin_get(first.admin(), "/readyz").await.unwrap();
    first
}

/// The hub's RBAC and the member's: each says no by itself.
async fn let_ada_in(ground: &Ground, router: &Daemon) {
    let file = certificate_of_ada(ground, router).await;
    let ada = Kubectl::new(&file);
    let list = ["get", "namespaces", "-o", "name"];
    let no = ada.refused(&list).await.unwrap();
    let words = ["ada", "east", "portolanctl allow"];
    assert!(words.iter().all(|word| no.contains(word)), "{no}");

    let east = ground.kubeconfig("east");
    ctl::ok(&["allow", "--member-kubeconfig", &east, "--user", "ada"])
        .await
        .unwrap();
    let no = refused_without(&ada, "portolanctl").await;
    let words = ["ada", "proxy", "memberclusters"];
    assert!(words.iter().all(|word| no.contains(word)), "{no}");

    let on_hub = Kubectl::new(ground.testbed.cluster("hub").kubeconfig_path());
    let resource = "--resource=memberclusters.ctrlmesh.kusionstack.io";
    let role = [
        "create",
        "clusterrole",
        "proxy-east",
        "--verb=proxy",
        resource,
        "--resource-name=east",
    ];
    on_hub.ok(&role).await.unwrap();
    let binding = ["create", "clusterrolebinding", "ada", "--user=ada"];
    on_hub
        .ok(&[&binding[..], &["--clusterrole=proxy-east"]].concat())
        .await
        .unwrap();
    // Acting as her is all that was allowed: she may do there what she may.
    let no = refused_without(&ada, "proxy").await;
    assert!(no.contains("User \"ada\" cannot list"), "{no}");

    let in_east = Kubectl::new(ground.testbed.cluster("east").kubeconfig_path());
    in_east
        .ok(&[&binding[..], &["--clusterrole=view"]].concat())
        .await
        .unwrap();
    let names = eventually("she is answered", || ada.ok(&list)).await;
    assert!(names.contains("namespace/kube-system"), "{names}");
}

/// What she is told once `word` is not the reason any more.
async fn refused_without(ada: &Kubectl, word: &str) -> String {
    let what = format!("{word} is not the reason any more");
    eventually(&what, || async {
        let no = ada.refused(&["get", "namespaces", "-o", "name"]).await.ok();
        no.filter(|no| !no.contains(word))
    })
    .await
}

async fn certificate_of_ada(ground: &Ground, router: &Daemon) -> PathBuf {
    let hub = ground.kubeconfig("hub");
    let file = ground.file("ada.kubeconfig");
    let (url, output) = (format!("https://{}", router.bind()), argument(&file));
    let flags = [
        "--router",
        &url,
        "--cluster",
        "east",
        "-o",
        &output,
        "--hub-kubeconfig",
        &hub,
    ];
    for nobody in ["system:admin", "portolan:agent:east", ""] {
        let told = ctl::refused(&[&["kubeconfig", nobody][..], &flags].concat())
            .await
            .unwrap();
        assert!(told.contains("cannot be a person's name") && !file.exists(), "{told}");
    }
    let told = ctl::ok(&[&["kubeconfig", "ada"][..], &flags].concat()).await.unwrap();
    assert!(
        told.contains("proxy") && told.contains("portolanctl allow --user ada"),
        "{told}"
    );
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    file
}
