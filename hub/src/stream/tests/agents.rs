//! Which agent is a member's: its key, its keys for tokens, and what happens to a second one.

use super::*;

#[tokio::test]
async fn a_second_agent_replaces_the_first() {
    let hub = TestHub::start().await;
    let mut first = hub.join("east").await;
    let _second = hub.agent("east", hello_of("east")).await.unwrap();
    let ended = loop {
        if let Err(status) = first.hear().await {
            break status;
        }
    };
    assert_eq!(ended.code(), Code::Aborted);
    assert!(hub.index.read(|facts| facts.agents["east"].connected));
}

#[tokio::test]
async fn an_agent_that_is_let_in_before_the_world_knows_it_stays() {
    let hub = TestHub::start().await;
    let before = hub.worlds.borrow().clone();
    hub.member("mars", true);
    let mut agent = hub.join("mars").await;
    let AgentTold::Welcome(_) = agent.hear().await.unwrap() else {
        panic!("the revision first")
    };
    let AgentTold::KeyChallenge(_) = agent.hear().await.unwrap() else {
        panic!("then a nonce")
    };
    let AgentTold::Config(_) = agent.hear().await.unwrap() else {
        panic!("then the config")
    };
    let after = hub.worlds.borrow().clone();
    // Again and again: what the hub goes on compiling replaces it.
    for _ in 0..20 {
        hub.worlds.send_replace(before.clone());
        let said = tokio::time::timeout(std::time::Duration::from_millis(10), agent.hear()).await;
        assert!(!matches!(said, Ok(Err(_))), "{said:?}");
    }
    // From here on as the hub knows it, or the next world would be no news.
    hub.worlds.send_replace(after);
    hub.member("mars", false);
    let ended = agent.hear().await.unwrap_err();
    assert!(ended.message().contains("no longer accepted"), "{ended:?}");
}

/// Renews the identity that the channel is opened with.
async fn renew(channel: Channel) -> Result<(v1::Issued, Secret), Status> {
    let (key, csr) = key_and_csr();
    let answer = EnrollmentClient::new(channel).renew(v1::RenewRequest { csr }).await?;
    match answer.into_inner().outcome {
        Some(v1::enroll_response::Outcome::Issued(issued)) => Ok((issued, key)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_agent_is_its_key_and_not_its_name() {
    let hub = TestHub::start().await;
    let (first, first_key) = hub.enroll_agent("east").await;
    let as_first = || hub.channel_as(&first, &first_key);
    let connect = async |channel: Channel| hub.agent_over(channel, hello_of("east")).await.map(drop);
    connect(as_first()).await.unwrap();

    // Of the hub's CA and of the right name, but not what was issued to the agent.
    let by_name = || hub.channel(Some(&Identity::Agent("east".into())));
    let refused = [
        connect(by_name()).await.unwrap_err(),
        renew(by_name()).await.map(drop).unwrap_err(),
    ];
    for status in refused {
        assert_eq!(status.code(), Code::PermissionDenied);
        assert!(
            status.message().contains("run portolanctl join"),
            "{}",
            status.message()
        );
    }
    assert!(
        hub.index.read(|facts| facts.join_refusals.is_empty()),
        "a stranger says nothing about the member"
    );

    let (second, second_key) = renew(as_first()).await.unwrap();
    let as_second = || hub.channel_as(&second, &second_key);
    connect(as_second()).await.unwrap();
    connect(as_first()).await.expect("the answer to a renewal may be lost");
    let _third = renew(as_second()).await.unwrap();
    connect(as_second()).await.unwrap();
    assert!(connect(as_first()).await.is_err() && renew(as_first()).await.is_err());

    // Joined anew, the agents before are nobody.
    let (anew, anew_key) = hub.enroll_agent("east").await;
    assert!(connect(as_second()).await.is_err() && renew(as_second()).await.is_err());
    connect(hub.channel_as(&anew, &anew_key)).await.unwrap();
}

#[tokio::test]
async fn of_a_pin_without_a_key_the_first_agent_seen_is_the_one() {
    let hub = TestHub::start().await;
    let (issued, key) = hub.enroll_agent("east").await;
    let mut pins = hub.index.read(|facts| (*facts.pins).clone());
    pins.get_mut("east").unwrap().agent_keys.clear();
    let path = "/api/v1/namespaces/portolan-system/configmaps/portolan-pins";
    hub.objects.lock().get_mut(path).unwrap()["data"]["east"] = json!(serde_json::to_string(&pins["east"]).unwrap());
    hub.index.write(|facts| facts.set_pins(pins));
    hub.agent_over(hub.channel_as(&issued, &key), hello_of("east"))
        .await
        .map(drop)
        .unwrap();
    let status = hub.agent("east", hello_of("east")).await.err().unwrap();
    assert_eq!(status.code(), Code::PermissionDenied);
}

/// Of an agent's stream.
async fn nonce_of(agent: &mut TestAgent) -> String {
    loop {
        if let AgentTold::KeyChallenge(challenge) = agent.hear().await.unwrap() {
            return challenge.nonce;
        }
    }
}

async fn show(agent: &TestAgent, published: &[&Signer], proof: String) {
    let keys: Vec<_> = published.iter().map(|signer| signer.jwk()).collect();
    let jwks = format!(r#"{{"keys":[{}]}}"#, keys.join(","));
    agent.say(AgentSaid::SigningKeys(v1::SigningKeys { jwks, proof })).await;
}

async fn has_keys(hub: &TestHub, cluster: &str, keys: &[&Signer]) {
    let prints = |texts: &[String]| -> std::collections::BTreeSet<_> {
        texts.iter().filter_map(|key| crate::jwks::thumbprint_of(key)).collect()
    };
    let wanted = prints(&keys.iter().map(|signer| signer.jwk()).collect::<Vec<_>>());
    hub.until("the keys are pinned", |hub| {
        let pinned = hub.index.read(|facts| prints(&facts.pins[cluster].signing_keys));
        (pinned == wanted).then_some(())
    })
    .await;
}

async fn key_is_refused(hub: &TestHub, cluster: &str, why: &str) {
    hub.until("the key is refused", |hub| {
        let refused = hub.index.read(|facts| facts.agents[cluster].refused_key.clone());
        refused.is_some_and(|refused| refused.contains(why)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_key_is_whose_that_signs_by_it_and_not_whose_that_publishes_it_first() {
    let hub = TestHub::start().await;
    let (key, next) = (Signer::new("a"), Signer::new("next"));
    let (mut east, mut west) = (hub.join("east").await, hub.join("west").await);
    let (of_east, of_west) = (nonce_of(&mut east).await, nonce_of(&mut west).await);
    show(&east, &[&key, &next], key.proof(&of_east)).await;
    has_keys(&hub, "east", &[&key]).await;

    // West publishes what east will sign by, and has nothing that this key has signed for its own stream.
    show(&west, &[&next], next.proof(&of_east)).await;
    key_is_refused(&hub, "west", "not a token of ServiceAccount").await;
    has_keys(&hub, "west", &[]).await;
    report(&west, &["pod-of-west"]).await;
    hub.until("west is heard all the same", |hub| {
        let heard = hub.index.read(|facts| facts.agents["west"].callers.is_some());
        heard.then_some(())
    })
    .await;

    tokio::time::sleep(std::time::Duration::from_millis(550)).await;
    show(&east, &[&key, &next], next.proof(&of_east)).await;
    has_keys(&hub, "east", &[&key, &next]).await;
    // A clone of east really signs by it: that key alone is dropped.
    show(&west, &[&next], next.proof(&of_west)).await;
    key_is_refused(&hub, "west", "member east signs by the same").await;
    tokio::time::sleep(std::time::Duration::from_millis(550)).await;
    let own = Signer::new("own");
    show(&west, &[&next, &own], own.proof(&of_west)).await;
    has_keys(&hub, "west", &[&own]).await;
}

#[tokio::test]
async fn a_key_that_is_published_no_longer_is_forgotten_with_the_next_stream() {
    let hub = TestHub::start().await;
    let (old, new) = (Signer::new("old"), Signer::new("new"));
    let mut east = hub.join("east").await;
    let nonce = nonce_of(&mut east).await;
    show(&east, &[&old], old.proof(&nonce)).await;
    has_keys(&hub, "east", &[&old]).await;
    let hello = |keys: &[&Signer]| v1::AgentHello {
        jwks: format!(
            r#"{{"keys":[{}]}}"#,
            keys.iter().map(|key| key.jwk()).collect::<Vec<_>>().join(",")
        ),
        ..hello_of("east")
    };
    let _both = hub.agent("east", hello(&[&old, &new])).await.unwrap();
    has_keys(&hub, "east", &[&old]).await;
    let _one = hub.agent("east", hello(&[&new])).await.unwrap();
    has_keys(&hub, "east", &[]).await;
}

fn beat(resource_version: u64) -> AgentSaid {
    AgentSaid::Heartbeat(v1::Heartbeat {
        api_ready: true,
        resource_version,
        ..v1::Heartbeat::default()
    })
}

async fn read_at(hub: &TestHub, version: u64) {
    hub.until("the version is read", |hub| {
        let read = hub.index.read(|facts| facts.agents["east"].version_read);
        (read == version).then_some(())
    })
    .await;
}

async fn restored(hub: &TestHub, times: u64) {
    let what = format!("restored {times} times");
    hub.until(&what, |hub| {
        let history = hub.index.read(|facts| facts.pins["east"].history);
        (history.restores == times).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_member_that_goes_back_is_another_incarnation() {
    let hub = TestHub::start().await;
    let agent = hub.join("east").await;
    // What was not read says nothing.
    for version in [100, 160, 0, 160] {
        agent.say(beat(version)).await;
    }
    read_at(&hub, 160).await;
    agent.say(beat(150)).await;
    restored(&hub, 1).await;
    agent.say(beat(151)).await;
    hub.until("routers are told", |hub| {
        let worlds = hub.worlds.borrow();
        let target = worlds.as_ref()?.world.resources.get(&Ref::Target("east".to_owned()))?;
        let Some(v1::resource::Body::Target(target)) = &target.resource.body else {
            return None;
        };
        (target.cluster_uid == "uid-east#1").then_some(())
    })
    .await;
}

/// A hub that was away meanwhile wrote down less than the member had come to.
#[tokio::test]
async fn a_hub_that_was_away_when_a_member_went_back_is_told() {
    let hub = TestHub::start().await;
    let agent = hub.join("east").await;
    let fell = |version| {
        AgentSaid::Heartbeat(v1::Heartbeat {
            api_ready: true,
            resource_version: version,
            fell_from: 160,
            ..v1::Heartbeat::default()
        })
    };
    agent.say(fell(100)).await;
    restored(&hub, 1).await;
    // The same fall, told again.
    for version in [101, 102] {
        agent.say(fell(version)).await;
    }
    read_at(&hub, 102).await;
    assert_eq!(hub.index.read(|facts| facts.pins["east"].history.restores), 1);
}

#[tokio::test]
async fn a_restore_soon_after_another_is_counted_later() {
    let hub = TestHub::start().await;
    let agent = hub.join("east").await;
    for version in [100, 90] {
        agent.say(beat(version)).await;
    }
    restored(&hub, 1).await;
    // Its agent is another by now, and it is beyond what was known.
    agent.say(beat(80)).await;
    read_at(&hub, 80).await;
    let anew = hub.join("east").await;
    anew.say(beat(200)).await;
    read_at(&hub, 200).await;
    let later = |facts: &mut crate::facts::Facts| {
        let agent = facts.agents.get_mut("east").unwrap();
        assert!(agent.owes_restore);
        agent.restored = agent
            .restored
            .and_then(|at| at.checked_sub(std::time::Duration::from_mins(5)));
        crate::index::Change::Nothing
    };
    assert_eq!(hub.index.read(|facts| facts.pins["east"].history.restores), 1);
    hub.index.write(later);
    anew.say(beat(201)).await;
    restored(&hub, 2).await;
    assert!(!hub.index.read(|facts| facts.agents["east"].owes_restore));
}

#[tokio::test]
async fn agents_that_come_and_go_write_nothing() {
    let hub = TestHub::start().await;
    let mut agent = hub.join("east").await;
    let pins = || hub.objects.lock()["/api/v1/namespaces/portolan-system/configmaps/portolan-pins"].clone();
    let before = pins();
    for version in 100..105 {
        agent.say(beat(version)).await;
        read_at(&hub, version).await;
        agent = hub.agent("east", hello_of("east")).await.unwrap();
    }
    assert_eq!(pins(), before);
}
