//! `kubectl --as`: honoured as an API server does, which is by asking the member whether the caller may.

use http::Method;
use portolan_testbed::eventually;
use portolan_tests::door::{Answer, request};
use portolan_tests::programs::argument;
use serde_json::json;

use crate::{alpha, pod_with_token, told, username, who_am_i, world};

async fn allow(cluster: &str, what: &[&str]) {
    let world = world().await;
    let file = argument(world.cluster(cluster).direct_kubeconfig_path());
    let arguments = [&["allow", "--member-kubeconfig", &file], what].concat();
    let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    world.fleet.run(&arguments).await.unwrap();
}

#[tokio::test]
async fn with_the_right() {
    let world = world().await;
    // alpha's ServiceAccount is an administrator of the members, so RBAC lets it impersonate anybody; the router only
    // those that the member names.
    let door = alpha().await;
    assert_eq!(
        username(&who_am_i(&door, &[("impersonate-user", "portolan:dev")]).await),
        "portolan:dev"
    );
    let unknown = who_am_i(&door, &[("impersonate-user", "mallory")]).await;
    unknown
        .expect_status(403, &["mallory", "member cluster east", "portolanctl allow"])
        .unwrap();

    allow("east", &["--user", "aida"]).await;
    let kubectl = world.merged("alpha").with("--as=aida");
    let who = ["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"];
    assert_eq!(eventually("east allows her", || kubectl.ok(&who)).await, "aida");
    let refused = kubectl.refused(&["get", "configmaps", "-n", "ia-1"]).await.unwrap();
    assert!(refused.contains("User \"aida\" cannot list resource"), "{refused}");
    let people = world.explicit("east").with("--as=aida");
    assert_eq!(people.ok(&who).await.unwrap(), "aida");
    let account = "--as=system:serviceaccount:operators:portolan-dev-beta";
    let account = world.explicit("east").with(account).ok(&who).await.unwrap();
    assert_eq!(account, "system:serviceaccount:operators:portolan-dev-beta");
}

/// Each command adds to what the member has; two at a time must not lose what the other added.
#[tokio::test]
async fn allowed_at_once() {
    let world = world().await;
    let names: Vec<String> = (0..6).map(|number| format!("crowd-{number}")).collect();
    futures::future::join_all(
        names
            .iter()
            .map(|name| async move { allow("west", &["--user", name]).await }),
    )
    .await;
    let role = "clusterrole/portolan-router-impersonate-users";
    let allowed = ["get", role, "-o", "jsonpath={.rules[*].resourceNames}"];
    let allowed = world.direct("west").ok(&allowed).await.unwrap();
    for name in &names {
        assert!(allowed.contains(name), "{name} is lost: {allowed}");
    }
}

#[tokio::test]
async fn without_the_right() {
    let world = world().await;
    allow("east", &["--user", "ina", "operators/meek"]).await;
    let token = pod_with_token("east", "meek", "meek", json!({"shard": "alpha"})).await;
    let edit = "--serviceaccount=operators:meek";
    let binding = [
        "create",
        "rolebinding",
        "meek",
        "-n",
        "ia-1",
        "--clusterrole=edit",
        edit,
    ];
    world.direct("east").ok(&binding).await.unwrap();
    let door = world.token_door(Some(&token)).await.unwrap();
    let own = eventually("it is itself", || async {
        let answer = who_am_i(&door, &[]).await;
        (answer.status == 201).then_some(answer)
    })
    .await;
    assert_eq!(username(&own), "system:serviceaccount:operators:meek");
    let refused = eventually("the router knows that east allows ina", || async {
        let answer = who_am_i(&door, &[("impersonate-user", "ina")]).await;
        assert_ne!(answer.status, 201, "{:?}", answer.body);
        (!answer.message().contains("portolanctl allow")).then_some(answer)
    })
    .await;
    refused.expect_status(403, &["impersonate", "ina"]).unwrap();
    let secrets = [("impersonate-user", "system:serviceaccount:operators:portolan-dev-alpha")];
    who_am_i(&door, &secrets)
        .await
        .expect_status(403, &["impersonate"])
        .unwrap();

    // The right to one user is the right to that user only, and is soon heard.
    let rule = [
        "create",
        "clusterrole",
        "as-ina",
        "--verb=impersonate",
        "--resource=users",
        "--resource-name=ina",
    ];
    world.direct("east").ok(&rule).await.unwrap();
    let binding = ["create", "clusterrolebinding", "as-ina", "--clusterrole=as-ina", edit];
    world.direct("east").ok(&binding).await.unwrap();
    let answer = eventually("east lets it", || async {
        let answer = who_am_i(&door, &[("impersonate-user", "ina")]).await;
        (answer.status == 201).then_some(answer)
    })
    .await;
    assert_eq!(username(&answer), "ina");
    let groups = [("impersonate-user", "ina"), ("impersonate-group", "admins")];
    who_am_i(&door, &groups).await.expect_status(403, &["admins"]).unwrap();
}

#[tokio::test]
async fn nobody_becomes_the_control_plane() {
    let world = world().await;
    let door = alpha().await;
    let explicit = world.explicit_door("east").await.unwrap();
    for headers in [
        &[
            ("impersonate-user", "portolan:dev"),
            ("impersonate-group", "system:masters"),
        ][..],
        &[("impersonate-user", "system:masters")],
        &[
            ("impersonate-user", "system:node:node-1"),
            ("impersonate-group", "system:nodes"),
        ],
        &[(
            "impersonate-user",
            "system:serviceaccount:kube-system:namespace-controller",
        )],
        &[(
            "impersonate-user",
            "system:serviceaccount:portolan-system:portolan-agent",
        )],
        &[("impersonate-user", "system:kube-controller-manager")],
        &[("impersonate-user", "testbed-admin")],
    ] {
        for door in [&door, &explicit] {
            let answer: Answer = who_am_i(door, headers).await;
            assert_eq!(answer.status, 403, "{headers:?}: {:?}", answer.body);
        }
    }
}

#[tokio::test]
async fn half_an_impersonation_is_refused() {
    let door = alpha().await;
    for headers in [
        &[("impersonate-group", "admins")][..],
        &[("impersonate-uid", "1")],
        &[("impersonate-extra-scopes", "all")],
        &[
            ("impersonate-user", "portolan:dev"),
            ("impersonate-user", "testbed-admin"),
        ],
        &[("impersonate-user", "")],
    ] {
        let answer = who_am_i(&door, headers).await;
        assert!(
            answer.status == 400 || answer.status == 403,
            "{headers:?}: {:?}",
            answer.body
        );
        answer.expect_status(answer.status, &[]).unwrap();
    }
    // Groups beside a user are asked for one by one: the administrator may, but the member allows the router none.
    let groups = [("impersonate-user", "portolan:dev"), ("impersonate-group", "admins")];
    assert_eq!(who_am_i(&door, &groups).await.status, 403);
    let switch = [&groups[..], &[("connection", "upgrade"), ("upgrade", "SPDY/3.1")]].concat();
    let exec = "/api/v1/namespaces/default/pods/any/exec?command=sh&stdin=true";
    let explicit = world().await.explicit_door("east").await.unwrap();
    let line = explicit.open_http1().await.unwrap();
    let refused = line
        .ask(request(Method::GET, exec, &switch, &[]).unwrap())
        .await
        .unwrap();
    refused.expect_status(403, &["east", "--group admins"]).unwrap();
    let token = crate::pod_with_token("east", "nosy", "nosy", json!({"shard": "alpha"})).await;
    told(&token, crate::WHERE, 403, &["operators/nosy"]).await;
}
