//! Routers: the key that is pinned, who is forgotten, whose Pod it is.

use super::*;

async fn renew_by(hub: &TestHub, issued: &v1::Issued, key: &Secret) -> Result<(v1::Issued, Secret), Status> {
    let (fresh, csr) = key_and_csr();
    let mut client = EnrollmentClient::new(hub.channel_as(issued, key));
    let answer = client.renew(v1::RenewRequest { csr }).await?.into_inner();
    Ok((self::issued(answer.outcome.unwrap()), fresh))
}

fn keys_of(hub: &TestHub, router: &str) -> usize {
    let object = hub.router_object(router).unwrap();
    object["spec"]["keyHashes"].as_array().unwrap().len()
}

#[tokio::test]
async fn a_routers_key_is_pinned_and_moves_when_it_renews() {
    let hub = TestHub::start().await;
    let (key, csr) = key_and_csr();
    let request = enroll_request(hub.good_token("router", "fresh"), &csr, None);
    let first = issued(hub.enroll(request).await.unwrap());
    assert_eq!(
        hub.router_object("fresh").unwrap()["spec"]["subscription"][0],
        "everything"
    );

    let (second, second_key) = renew_by(&hub, &first, &key).await.unwrap();
    assert_eq!(keys_of(&hub, "fresh"), 2, "its answer may be lost");
    let (third, third_key) = renew_by(&hub, &first, &key).await.unwrap();
    let status = renew_by(&hub, &second, &second_key).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(
        status.message().contains("enrolled or renewed with last"),
        "{}",
        status.message()
    );

    // Once the router comes with the last one, a copy of the one before is good for nothing.
    let _open = hub
        .router_over(hub.channel_as(&third, &third_key), hello())
        .await
        .unwrap();
    hub.until("the key before is dropped", |hub| {
        (keys_of(hub, "fresh") == 1).then_some(())
    })
    .await;
    hub.until("the index knows", |hub| {
        hub.index
            .read(|facts| (facts.routers["fresh"].key_hashes.len() == 1).then_some(()))
    })
    .await;
    assert!(renew_by(&hub, &first, &key).await.is_err());
    renew_by(&hub, &third, &third_key).await.unwrap();
}

#[tokio::test]
async fn a_router_that_was_forgotten_does_not_come_back() {
    let hub = TestHub::start().await;
    let (key, csr) = key_and_csr();
    let token = hub.good_token("router", "fresh");
    let request = enroll_request(token.clone(), &csr, None);
    let certified = issued(hub.enroll(request.clone()).await.unwrap());
    // A lost answer may be asked for again, and is no second router.
    let uid = hub.router_object("fresh").unwrap()["metadata"]["uid"].clone();
    issued(hub.enroll(request.clone()).await.unwrap());
    assert_eq!(hub.router_object("fresh").unwrap()["metadata"]["uid"], uid);

    let mut open = hub
        .router_over(hub.channel_as(&certified, &key), hello())
        .await
        .unwrap();
    hub.forget_router("fresh");
    let ended = loop {
        if let Err(status) = open.hear().await {
            break status;
        }
    };
    assert_eq!(ended.code(), Code::PermissionDenied);
    assert!(
        ended.message().contains("router fresh was forgotten"),
        "{}",
        ended.message()
    );
    let reopened = hub.router_over(hub.channel_as(&certified, &key), hello()).await;
    let renewed = renew_by(&hub, &certified, &key).await.map(drop);
    for refusal in [reopened.map(drop), renewed] {
        let status = refusal.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied);
        assert!(status.message().contains("was forgotten"), "{}", status.message());
    }
    let status = hub.enroll(request).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "its token makes no other");
    assert!(status.message().contains("forgotten since"), "{}", status.message());
    assert!(hub.router_object("fresh").is_none());

    // By a new token it is another router, and the old certificate is not its.
    let again = enroll_request(hub.good_token("router", "fresh"), &key_and_csr().1, None);
    issued(hub.enroll(again).await.unwrap());
    assert_ne!(hub.router_object("fresh").unwrap()["metadata"]["uid"], uid);
    assert!(renew_by(&hub, &certified, &key).await.is_err());
}

#[tokio::test]
async fn a_name_that_enrols_anew_ends_the_stream_of_the_one_before() {
    let hub = TestHub::start().await;
    let (key, csr) = key_and_csr();
    let first = enroll_request(hub.good_token("router", "fresh"), &csr, None);
    let certified = issued(hub.enroll(first).await.unwrap());
    let mut open = hub
        .router_over(hub.channel_as(&certified, &key), hello())
        .await
        .unwrap();
    let second = enroll_request(hub.good_token("router", "fresh"), &key_and_csr().1, None);
    issued(hub.enroll(second).await.unwrap());
    while open.hear().await.is_ok() {}
}

#[tokio::test]
async fn a_router_is_of_its_pod_if_that_is_the_hubs() {
    let hub = TestHub::start().await;
    let pod = serde_json::json!({"metadata": {"name": "router-0", "namespace": "portolan-system", "uid": "u"}});
    let path = "/api/v1/namespaces/portolan-system/pods/router-0".to_owned();
    hub.objects.lock().insert(path, pod);
    for (name, pod, uid, owners) in [
        ("mine", "router-0", "u", 1),
        ("other", "router-0", "v", 0),
        ("none", "router-1", "u", 0),
    ] {
        let mut request = enroll_request(hub.good_token("router", name), &key_and_csr().1, None);
        request.pod = Some(v1::RouterPod {
            name: pod.to_owned(),
            uid: uid.to_owned(),
        });
        issued(hub.enroll(request).await.unwrap());
        let object = hub.router_object(name).unwrap();
        let found = object["metadata"]["ownerReferences"].as_array().map_or(0, Vec::len);
        assert_eq!(found, owners, "{object}");
        assert_eq!(object["spec"]["pod"]["uid"] == "u", owners == 1, "{object}");
    }
}

fn hello() -> v1::RouterHello {
    v1::RouterHello {
        protocol: portolan_wire::protocol::PROTOCOL,
        capabilities: vec![portolan_wire::protocol::OPERATORS.to_owned()],
        ..v1::RouterHello::default()
    }
}
