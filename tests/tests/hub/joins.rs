//! Joining: by token, once, under one name; and what the MemberCluster says of it.

use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{Api, PostParams};
use portolan_crds::Router;
use portolan_crds::labels::{
    DEFAULT_AUDIENCE, HUB_CLUSTER, ROUTERS_NAMESPACE, SERVICE_ACCOUNT_ROUTER, SYSTEM_NAMESPACE,
};
use portolan_wire::v1;
use portolan_wire::v1::enroll_response::Outcome;
use portolan_wire::v1::enrollment_client::EnrollmentClient;
use serde_json::{from_value, json};
use tonic::{Code, Status};

use crate::scene::{Scene, csr, facts_of, good_member};

const NEVER: &str = "2099-01-01T00:00:00Z";

#[tokio::test]
async fn who_is_let_in() {
    let scene = Scene::start().await.unwrap();
    waits_for_the_opt_in(&scene).await;
    tokens_are_spent(&scene).await;
    clusters_join_once(&scene).await;
    scene.leaks_nothing().await;
}

/// Of whom that is: no agent is there.
#[tokio::test]
async fn a_router_of_the_hubs_own_cluster_enrols_by_its_pods_token() {
    let scene = Scene::start().await.unwrap();
    let client = scene.client().await;
    let metadata = |name: &str| json!({"metadata": {"name": name}});
    let namespaces = Api::<Namespace>::all(client.clone());
    let namespace = from_value(metadata(ROUTERS_NAMESPACE)).unwrap();
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), ROUTERS_NAMESPACE);
    for name in [SERVICE_ACCOUNT_ROUTER, "another"] {
        let account = from_value(metadata(name)).unwrap();
        accounts.create(&PostParams::default(), &account).await.unwrap();
    }
    let pods = Api::<Pod>::namespaced(client.clone(), ROUTERS_NAMESPACE);
    let made = async |name: &str, account: &str| {
        let pod = json!({
            "metadata": {"name": name},
            "spec": {"serviceAccountName": account, "containers": [{"name": "router", "image": "x:1"}]},
        });
        let pod = from_value(pod).unwrap();
        let pod: Pod = pods.create(&PostParams::default(), &pod).await.unwrap();
        pod.metadata.uid.unwrap()
    };
    let uid = made("router-0", SERVICE_ACCOUNT_ROUTER).await;
    let answer = enroll_in_pod(&scene, SERVICE_ACCOUNT_ROUTER, Some(("router-0", &uid)));
    assert!(matches!(answer.await, Ok(Outcome::Issued(_))));
    let routers = Api::<Router>::namespaced(client, SYSTEM_NAMESPACE);
    let router = routers.get("portolan-hub.router-0").await.unwrap();
    let pod = router.spec.pod.unwrap();
    let cluster = pod.cluster.unwrap();
    assert_eq!((&*cluster, &*pod.name, pod.uid), ("portolan-hub", "router-0", uid));

    let other = made("another-0", "another").await;
    for (account, pod, text) in [
        ("another", Some(("another-0", &*other)), "only system:serviceaccount:"),
        (SERVICE_ACCOUNT_ROUTER, None, "is bound to no Pod"),
    ] {
        let refused = enroll_in_pod(&scene, account, pod).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert!(refused.message().contains(text), "{}", refused.message());
    }
    scene.leaks_nothing().await;
}

/// Asks for a router's certificate with a token of the hub's cluster: of this account, bound to this Pod (name, uid).
async fn enroll_in_pod(scene: &Scene, account: &str, pod: Option<(&str, &str)>) -> Result<Outcome, Status> {
    let audiences = [DEFAULT_AUDIENCE];
    let token = scene.cluster().issue_token(ROUTERS_NAMESPACE, account, &audiences, pod);
    let bound = v1::BoundToken {
        cluster: HUB_CLUSTER.to_owned(),
        token: token.await.unwrap(),
    };
    let request = v1::EnrollRequest {
        proof: Some(v1::enroll_request::Proof::BoundToken(bound)),
        csr: csr(),
        ..v1::EnrollRequest::default()
    };
    let mut client = EnrollmentClient::new(scene.channel(None).await);
    let answer = client.enroll(request).await?;
    Ok(answer.into_inner().outcome.unwrap())
}

async fn waits_for_the_opt_in(scene: &Scene) {
    let mut closed = good_member("shy");
    closed["accept"] = json!(false);
    scene.member("shy", closed).await;
    let message = scene.member_says("shy", "Accepted", "False/NotAccepted").await;
    assert!(message.contains("spec.accept"), "{message}");
    let (token, csr) = (scene.token("agent", "shy", NEVER).await, csr());
    let Outcome::Pending(pending) = scene.enroll(&token, &csr, facts_of("shy")).await.unwrap() else {
        panic!("let in without the opt-in")
    };
    assert!(
        pending.reason.contains("spec.accept of MemberCluster shy"),
        "{}",
        pending.reason
    );
    scene.member("shy", good_member("shy")).await;
    let Outcome::Issued(_) = scene.enroll(&token, &csr, facts_of("shy")).await.unwrap() else {
        panic!("not let in")
    };
    scene.member_says("shy", "Joined", "True/Ok").await;
}

async fn tokens_are_spent(scene: &Scene) {
    scene.member("east", good_member("east")).await;
    let (token, key) = (scene.token("agent", "east", NEVER).await, csr());
    for _ in 0..2 {
        scene.enroll(&token, &key, facts_of("east")).await.unwrap();
    }
    let expired = scene.token("agent", "east", "2020-01-01T00:00:00Z").await;
    for (token, code, text) in [
        (token.as_str(), Code::PermissionDenied, "used with another key"),
        (
            expired.as_str(),
            Code::Unauthenticated,
            "expired at 2020-01-01T00:00:00Z",
        ),
        (
            "nobody.0123456789abcdef",
            Code::Unauthenticated,
            "unknown bootstrap token",
        ),
    ] {
        let status = scene.enroll(token, &csr(), facts_of("east")).await.unwrap_err();
        assert_eq!(status.code(), code, "{}", status.message());
        assert!(status.message().contains(text), "{}", status.message());
        assert!(
            status.message().contains("portolanctl join"),
            "no fix: {}",
            status.message()
        );
    }
}

async fn clusters_join_once(scene: &Scene) {
    scene.member("twin", good_member("twin")).await;
    let token = scene.token("agent", "twin", NEVER).await;
    let status = scene.enroll(&token, &csr(), facts_of("east")).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    let message = scene.member_says("twin", "Joined", "False/DuplicateCluster").await;
    assert!(message.contains("is a member already, as east"), "{message}");

    let token = scene.token("agent", "east", NEVER).await;
    let status = scene.enroll(&token, &csr(), facts_of("mars")).await.unwrap_err();
    assert!(
        status
            .message()
            .contains("is pinned to the cluster with UID uid-of-east"),
        "{}",
        status.message()
    );
}
