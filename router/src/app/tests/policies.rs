//! CircuitBreakers, as the hub tells them and the admin pages show them.

use super::*;

/// A CircuitBreaker that lets `limit` requests pass, and then none.
fn calm(limit: i64) -> Value {
    json!({
        "kind": "CircuitBreaker",
        "metadata": {"namespace": "ns", "name": "calm"},
        "spec": {"selector": {}, "rateLimitings": [{
            "name": "all",
            "triggerPolicy": "LimiterOnly",
            "resourceRules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"]}],
            "bucket": {"burst": limit, "interval": "1h", "limit": 0},
        }]},
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tries_a_policy_on_what_was_asked() {
    let world = World::start().await;
    let token = world.token();
    let path = "/api/v1/namespaces/ns-a/configmaps/x";
    for _ in 0..5 {
        assert_eq!(world.get(path, Some(&token)).await.0, StatusCode::OK);
    }
    let (status, tried) = world.post("/policies/try", &calm(3)).await;
    assert_eq!(status, StatusCode::OK, "{tried}");
    assert_eq!(
        (&tried["requests"], &tried["refused"]),
        (&json!(5), &json!(2)),
        "{tried}"
    );
    assert_eq!(
        (&tried["callers"][0]["pod"], tried["note"].is_string()),
        (&json!("ns/operator-0"), true)
    );
    let mut asked = calm(3);
    asked["callers"] = json!(["east/ns/nobody"]);
    assert_eq!(world.post("/policies/try", &asked).await.0, StatusCode::NOT_FOUND);
    asked["callers"] = json!(["east/u1"]);
    asked["spec"]["rateLimitings"][0]["bucket"]["burst"] = json!(0);
    let (status, why) = world.post("/policies/try", &asked).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(why["error"].as_str().unwrap().contains("burst"), "{why}");
    world.router.drain.now().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tells_how_policies_stand() {
    let mut world = World::start().await;
    let (token, path) = (world.token(), "/api/v1/namespaces/ns-a/configmaps/x");
    let name = "CircuitBreaker/ns/calm";
    let policy = v1::Policy {
        name: name.to_owned(),
        uid: "cb".to_owned(),
        generation: 1,
        spec_json: calm(3)["spec"].to_string(),
        closed: Vec::new(),
    };
    let session = &mut world.hub.as_mut().unwrap().1;
    let view = v1::CallerView {
        home_cluster: "east".to_owned(),
        pod_uid: "u1".to_owned(),
        namespace: "ns".to_owned(),
        pod: "operator-0".to_owned(),
        service_account: "operator".to_owned(),
        shards: vec!["ns/shard".to_owned()],
        created_unix_seconds: None,
        writes_closed: None,
        policies: vec![name.to_owned()],
    };
    let told = told::resources("2", [Body::Policy(policy), Body::CallerView(view)]);
    assert_eq!(session.push(9, told, Vec::new()).await, In::Ack(v1::Ack { nonce: 9 }));
    let mut codes = Vec::new();
    for _ in 0..4 {
        codes.push(world.get(path, Some(&token)).await.0.as_u16());
    }
    assert_eq!(codes, [200, 200, 200, 429]);
    let page = json_of(&world.admin("/policies").await.1);
    assert_eq!(
        (&page["policies"][0]["name"], &page["policies"][0]["callers"]),
        (&json!(name), &json!(1)),
        "{page}"
    );
    assert_eq!(
        (&page["rules"][0]["refusedTotal"], &page["rules"][0]["tokens"]),
        (&json!(1), &json!(0)),
        "{page}"
    );
    let question = format!("/explain?verb=get&path={path}&as=east/ns/operator-0");
    let said = json_of(&world.admin(&question).await.1);
    assert_eq!(said["policies"]["refusedBy"], "CircuitBreaker/ns/calm/all", "{said}");
    let metrics = world.admin("/metrics").await.1;
    for line in [
        "portolan_router_policy_refused_total{kind=\"limited\"} 1",
        "portolan_router_policy_rules{state=\"closed\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    world.router.drain.now().await;
}
