//! Claims that a client has no business making: headers of front proxies, certificates of agents and routers, several
//! identities at once. None of it changes who a request is from.

use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use crate::{WHERE, alpha, username, who_am_i, world};

const ALPHA: &str = "system:serviceaccount:operators:portolan-dev-alpha";

#[tokio::test]
async fn headers_of_proxies_are_not_believed() {
    let door = alpha().await;
    for headers in [
        &[("x-remote-user", "testbed-admin"), ("x-remote-group", "system:masters")][..],
        &[("X-Remote-Extra-Scopes", "all"), ("x-remote-uid", "0")],
        &[
            ("x-forwarded-for", "127.0.0.1"),
            ("x-forwarded-user", "testbed-admin"),
            ("forwarded", "for=127.0.0.1"),
        ],
        &[
            ("x-forwarded-client-cert", "Subject=\"O=system:masters\""),
            ("x-forwarded-host", "kubernetes.default"),
        ],
        &[
            ("proxy-authorization", "Bearer x"),
            ("x-impersonate-user", "testbed-admin"),
        ],
        &[("via", "1.1 portolan"), ("cookie", "user=testbed-admin")],
    ] {
        let answer = who_am_i(&door, headers).await;
        assert_eq!(answer.status, 201, "{headers:?}: {:?}", answer.body);
        assert_eq!(username(&answer), ALPHA, "{headers:?}");
        let groups = answer.json()["status"]["userInfo"]["groups"].to_string();
        assert!(!groups.contains("masters"), "{headers:?}: {groups}");
    }
}

#[tokio::test]
async fn several_identities_are_none() {
    let world = world().await;
    let token = world.fleet.merged_token("alpha").unwrap();
    let beta = format!("Bearer {}", world.fleet.merged_token("beta").unwrap().trim());
    let door = alpha().await;
    let twice = door.get(WHERE, &[("authorization", &beta)]).await.unwrap();
    twice.expect_status(401, &["Authorization"]).unwrap();
    let basic = door.get(WHERE, &[("authorization", "Basic YTpi")]).await.unwrap();
    basic.expect_status(401, &[]).unwrap();
    // A person with a token besides: the certificate is who asks, as for an API server.
    let mut person = world.explicit_door("east").await.unwrap();
    person.token = Some(token.clone());
    assert_eq!(username(&who_am_i(&person, &[]).await), "portolan:dev");
    // A token in the query is a parameter like any other.
    let nobody = world.token_door(None).await.unwrap();
    let path = format!("{WHERE}?access_token={0}&token={0}", token.trim());
    nobody
        .get(&path, &[])
        .await
        .unwrap()
        .expect_status(401, &["no identity"])
        .unwrap();
}

/// An agent's and the router's own certificates are of the hub's CA, but nobody's who may ask.
#[tokio::test]
async fn programs_are_no_callers() {
    let world = world().await;
    let east = Api::<Secret>::namespaced(world.cluster("east").client().await.unwrap(), "portolan-system");
    let agent = east.get("portolan-agent-identity").await.unwrap().data.unwrap();
    let text = |key: &str| String::from_utf8(agent[key].0.clone()).unwrap();
    let ca = world.fleet.ca_pem().unwrap();
    let door = world.token_door(None).await.unwrap();
    let agent = door.with_certificate(&ca, &text("tls.crt"), &text("tls.key")).unwrap();
    let router = world.fleet.dir().join("router-state");
    let (cert, key) = pem_pair(&router);
    let router = door.with_certificate(&ca, &cert, &key).unwrap();
    for door in [agent, router] {
        for path in [WHERE, "/clusters/east/version", "/clusters/east/api/v1/secrets"] {
            let answer = door.get(path, &[]).await.unwrap();
            answer.expect_status(401, &["certificate", "no caller"]).unwrap();
        }
    }
}

/// The certificates and the key in a router's state folder.
fn pem_pair(folder: &std::path::Path) -> (String, String) {
    let pem = std::fs::read_to_string(folder.join("identity.pem")).unwrap();
    (pem.clone(), pem)
}
