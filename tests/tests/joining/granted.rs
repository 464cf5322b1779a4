//! What a member grants by being joined, and what it never does.

use k8s_openapi::api::rbac::v1::{ClusterRole, Role};
use kube::api::Api;
use portolan_testbed::eventually;
use portolan_tests::ctl;
use portolan_tests::kubectl::Kubectl;
use portolan_tests::world::create_namespace;

use crate::{Ground, ground, words};

const AGENT: &str = "--as=system:serviceaccount:portolan-system:portolan-agent";
const ROUTER: &str = "--as=system:serviceaccount:portolan-routers:portolan-router";

async fn may(kubectl: &Kubectl, who: &str, what: &str) -> bool {
    let mut arguments = vec!["auth", "can-i", who];
    arguments.extend(what.split(' '));
    // It says yes or no, and warns of resources that have no namespace.
    kubectl
        .run(&arguments, "")
        .await
        .unwrap()
        .stdout
        .trim_end()
        .ends_with("yes")
}

async fn joined_west(ground: &Ground) -> Kubectl {
    let _mine = ground.token_in_west.lock().await;
    ctl::ok(&words(&ground.join("west", "west", &["--accept"])))
        .await
        .unwrap();
    Kubectl::new(ground.testbed.cluster("west").kubeconfig_path())
}

/// It labels; it neither becomes anybody nor reads what it need not.
#[tokio::test]
async fn the_agent_cannot_escalate() {
    let west = joined_west(ground().await).await;
    for allowed in [
        "list pods -A",
        "patch deployments.apps -A",
        "patch namespaces",
        "watch configmaps -A",
        "create tokenreviews.authentication.k8s.io",
        "create serviceaccounts/portolan-router --subresource=token -n portolan-routers",
        "create secrets -n portolan-routers",
        "delete secrets -n portolan-routers",
        "update secrets/portolan-agent-identity -n portolan-system",
        "get --subresource= namespaces/kube-system",
    ] {
        // An API server reads its own RBAC a moment late.
        eventually(allowed, || may(&west, AGENT, allowed)).await;
    }
    for refused in [
        "create pods -A",
        "delete pods -A",
        "create pods --subresource=exec -A",
        "get pods --subresource=exec -A",
        "patch pods --subresource=ephemeralcontainers -A",
        "get pods --subresource=log -A",
        "get nodes --subresource=proxy",
        "get pods --subresource=portforward -A",
        "get secrets -A",
        "list secrets -A",
        "get secrets/portolan-ca -n portolan-system",
        "delete secrets -n portolan-system",
        "patch secrets -n portolan-routers",
        "create secrets -n default",
        "create serviceaccounts/default --subresource=token -n portolan-routers",
        "create serviceaccounts/portolan-agent --subresource=token -n portolan-system",
        "create serviceaccounts/default --subresource=token -n kube-system",
        "impersonate users",
        "impersonate serviceaccounts -A",
        "impersonate groups",
        "create clusterrolebindings.rbac.authorization.k8s.io",
        "patch clusterroles.rbac.authorization.k8s.io",
        "patch clusterrolebindings.rbac.authorization.k8s.io",
        "patch rolebindings.rbac.authorization.k8s.io -A",
        "escalate clusterroles.rbac.authorization.k8s.io",
        "bind clusterroles.rbac.authorization.k8s.io",
        "patch nodes",
        "patch customresourcedefinitions.apiextensions.k8s.io",
        "delete namespaces",
        "patch validatingadmissionpolicies.admissionregistration.k8s.io/somebody-elses",
        "delete mutatingadmissionpolicies.admissionregistration.k8s.io/somebody-elses",
        "patch mutatingwebhookconfigurations.admissionregistration.k8s.io",
        "create certificatesigningrequests.certificates.k8s.io",
    ] {
        assert!(!may(&west, AGENT, refused).await, "{refused}");
    }
}

/// `--allow` names, one by one, whom the router may be; everything else stays refused.
#[tokio::test]
async fn the_router_is_whom_it_is_allowed_to_be() {
    let ground = ground().await;
    let west = joined_west(ground).await;
    let member = ground.testbed.cluster("west");
    create_namespace(member, "team-w").await.unwrap();
    let file = ground.kubeconfig("west");
    let kinds = "serviceaccounts";
    assert!(!may(&west, ROUTER, &format!("impersonate {kinds}/first -n team-w")).await);
    let mine = ground.token_in_west.lock().await;
    ctl::ok(&words(&ground.join("west", "west", &["--allow", "team-w/first"])))
        .await
        .unwrap();
    ctl::ok(&["allow", "--member-kubeconfig", &file, "team-w/second", "--user", "bob"])
        .await
        .unwrap();
    // Joined again, with nothing named: what was allowed stays.
    ctl::ok(&words(&ground.join("west", "west", &[]))).await.unwrap();
    drop(mine);
    for allowed in [
        "serviceaccounts/first -n team-w",
        "serviceaccounts/second -n team-w",
        "users/bob",
    ] {
        let allowed = format!("impersonate {allowed}");
        eventually(&allowed, || may(&west, ROUTER, &allowed)).await;
    }
    for refused in [
        "impersonate serviceaccounts/third -n team-w",
        "impersonate serviceaccounts/first -n default",
        "impersonate users/alice",
        "impersonate groups/system:masters",
        "impersonate users/system:admin",
        "get pods -A",
        "get secrets -A",
        "create pods -A",
        "list namespaces",
    ] {
        assert!(!may(&west, ROUTER, refused).await, "{refused}");
    }
    let client = member.client().await.unwrap();
    let role = Api::<Role>::namespaced(client, "team-w")
        .get("portolan-router-impersonate")
        .await
        .unwrap();
    let rules = role.rules.unwrap();
    assert_eq!(rules.len(), 1);
    assert_eq!(rules[0].resource_names.as_ref().unwrap(), &["first", "second"]);
    assert_eq!(rules[0].verbs, ["impersonate"]);
}

/// Nobody of the control plane is ever allowed, and of a list with one such name nothing is.
#[tokio::test]
async fn the_control_plane_is_never_allowed() {
    let ground = ground().await;
    let _joined = joined_west(ground).await;
    let file = ground.kubeconfig("west");
    let mine = ground.token_in_west.lock().await;
    ctl::ok(&["allow", "--member-kubeconfig", &file, "--user", "bob"])
        .await
        .unwrap();
    drop(mine);
    let client = ground.testbed.cluster("west").client().await.unwrap();
    let people = Api::<ClusterRole>::all(client);
    let before = people.get("portolan-router-impersonate-users").await.unwrap().rules;
    for (never, word) in [
        (["team-w/first", "--user", "system:masters"], "system:"),
        (["kube-system/default", "--user", "carol"], "kube-system"),
        (["portolan-system/portolan-agent", "--user", "carol"], "portolan-system"),
        (["team-w/*", "--user", "carol"], "wildcards"),
        (["first", "--user", "carol"], "NAMESPACE/SERVICEACCOUNT"),
    ] {
        let command = [&["allow", "--member-kubeconfig", &file][..], &never].concat();
        let told = ctl::refused(&command).await.unwrap();
        assert!(told.contains(word), "{told}");
    }
    // A list with one bad name in it allows none of the good ones.
    assert_eq!(
        people.get("portolan-router-impersonate-users").await.unwrap().rules,
        before
    );
    let never = ground.join("other", "west", &["--allow", "kube-system/default"]);
    assert!(ctl::refused(&words(&never)).await.unwrap().contains("kube-system"));
    assert!(
        ground.members().await.get_opt("other").await.unwrap().is_none(),
        "refused before anything was done"
    );
}
