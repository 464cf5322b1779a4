//! Pins of members: whose keys count, in which ConfigMap each lies, and what is noted of a member.

use super::*;

fn pin(cluster_uid: &str, key: &str) -> Pin {
    Pin {
        member_uid: format!("object-of-{cluster_uid}"),
        cluster_uid: cluster_uid.to_owned(),
        signing_keys: vec![format!(r#"{{"kty":"RSA","n":"{key}","e":"AQAB"}}"#)],
        agent_keys: Vec::new(),
        history: MemberHistory::default(),
    }
}

/// Keys before, what is shown, and keys after.
type Case<'a> = (&'a [&'a str], AgentKey<'a>, Option<&'a [&'a str]>);

#[test]
fn an_agent_has_the_key_that_was_certified_last_and_the_one_before() {
    let with = |keys: &[&str]| Pin {
        agent_keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        ..pin("uid", "k")
    };
    let renewed = AgentKey::Renewed {
        presented: "a",
        issued: "b",
    };
    let cases: [Case<'_>; 9] = [
        (&[], AgentKey::Presented("a"), Some(&["a"])),
        (&["a"], AgentKey::Presented("a"), Some(&["a"])),
        (&["b", "a"], AgentKey::Presented("a"), Some(&["b", "a"])),
        (&["b", "c"], AgentKey::Presented("a"), None),
        (&["b", "a"], AgentKey::Enrolled("c"), Some(&["c"])),
        (&[], renewed, Some(&["b", "a"])),
        (&["a"], renewed, Some(&["b", "a"])),
        (&["c", "a"], renewed, Some(&["b", "a"])),
        (&["b"], renewed, None),
    ];
    for (before, key, after) in cases {
        let keys = agent_keys("east", Some(&with(before)), key);
        assert_eq!(
            keys.ok(),
            after.map(|after| with(after).agent_keys),
            "{before:?} {key:?}"
        );
    }
    assert!(agent_keys("east", None, AgentKey::Presented("a")).is_err());
}

/// A ConfigMap that is stored at once and answers its first write late.
fn slow_first_answer() -> Client {
    let state = Arc::new(parking_lot::Mutex::new((0, None::<serde_json::Value>)));
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let state = state.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
            let (answer, late) = {
                let mut state = state.lock();
                if head.method != http::Method::GET {
                    state.0 += 1;
                    let mut map: serde_json::Value = serde_json::from_slice(&body).unwrap();
                    map["metadata"]["resourceVersion"] = state.0.to_string().into();
                    state.1 = Some(map);
                }
                (state.1.clone(), head.method != http::Method::GET && state.0 == 1)
            };
            if late {
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            }
            let is_list = head.method == http::Method::GET && head.uri.path().ends_with("/configmaps");
            let list = |map: Option<serde_json::Value>| serde_json::json!({"metadata": {}, "items": map.into_iter().collect::<Vec<_>>()});
            let answer = if is_list { Some(list(answer)) } else { answer };
            let code = if answer.is_some() { 200 } else { 404 };
            let status = serde_json::json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"});
            let body = kube::client::Body::from(answer.unwrap_or(status).to_string().into_bytes());
            Ok::<_, std::convert::Infallible>(http::Response::builder().status(code).body(body).unwrap())
        }
    });
    Client::new(service, "default")
}

fn index_of(members: &[(&str, &Pin)]) -> Arc<Index> {
    let index = Arc::<Index>::default();
    for (cluster, pin) in members {
        let kind = kube::api::ApiResource::erase::<portolan_crds::MemberCluster>(&());
        let spec = serde_json::json!({"spec": {"accept": true}});
        let mut object = kube::api::DynamicObject::new(cluster, &kind).data(spec);
        object.metadata.uid = Some(pin.member_uid.clone());
        index.write(|facts| facts.apply_member(&object));
    }
    index
}

#[tokio::test]
async fn a_pin_that_cannot_be_read_is_not_lost_by_another() {
    const PATH: &str = "/api/v1/namespaces/system/configmaps/portolan-pins";
    let objects = crate::testing::Objects::default();
    let data = serde_json::json!({"west": "of a later release", "gone": "of nobody"});
    let map = serde_json::json!({"metadata": {"name": CONFIG_MAP_PINS, "resourceVersion": "1"}, "data": data});
    objects.lock().insert(PATH.to_owned(), map);
    let (east, west) = (pin("uid-e", "ke"), pin("uid-w", "kw"));
    let index = index_of(&[("east", &east), ("west", &west)]);
    let pins = Pins::new(crate::testing::scripted_api(objects.clone()), "system", index);
    pins.pin("east", &east, AgentKey::Enrolled("e")).await.unwrap();
    let data = objects.lock()[PATH]["data"].clone();
    assert_eq!(data["west"], "of a later release");
    assert_eq!(data["gone"], serde_json::Value::Null);
    assert!(data["east"].as_str().unwrap().contains("uid-e"));
    let long = pin(&"u".repeat(1000), "k");
    assert!(pins.pin("north", &long, AgentKey::Enrolled("n")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_overwrites_no_later_pin() {
    let (east, west) = (pin("uid-e", "ke"), pin("uid-w", "kw"));
    let index = index_of(&[("east", &east), ("west", &west)]);
    let pins = Pins::new(slow_first_answer(), "system", index.clone());
    let later = async {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        pins.pin("west", &west, AgentKey::Enrolled("w")).await
    };
    let (first, second) = tokio::join!(pins.pin("east", &east, AgentKey::Enrolled("e")), later);
    assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
    let known: Vec<_> = index.read(|facts| facts.pins.keys().cloned().collect());
    assert_eq!(known, ["east", "west"]);
}

#[test]
fn a_cluster_joins_once_and_a_name_stays_with_its_cluster() {
    let pins = BTreeMap::from([
        ("east".to_owned(), pin("uid-e", "ke")),
        ("west".to_owned(), pin("uid-w", "kw")),
    ]);
    assert_eq!(check("east", &pin("uid-e", "ke"), &pins), Ok(()));
    assert_eq!(
        check("east", &pin("uid-e", "rotated"), &pins),
        Ok(()),
        "a member may rotate its keys"
    );
    assert_eq!(check("north", &pin("uid-n", "kn"), &pins), Ok(()));
    let cases = [
        ("east", pin("uid-x", "kx"), "pinned to the cluster with UID uid-e"),
        ("north", pin("uid-w", "kn"), "as west"),
        ("north", pin("uid-n", "kw"), "member west signs by the same"),
        ("east", pin("uid-e", "kw"), "member west signs by the same"),
    ];
    for (cluster, wanted, text) in cases {
        let refusal = check(cluster, &wanted, &pins).unwrap_err();
        assert!(refusal.contains(text), "{refusal}");
    }
}

const FOLDER: &str = "/api/v1/namespaces/system/configmaps/";

/// Of a member that publishes as much as it may.
fn large(number: usize) -> Pin {
    pin(&format!("uid-{number}"), &format!("{number:x<16000}"))
}

/// Members by name, with pins as large as may be.
fn fleet(size: usize) -> Vec<(String, Pin)> {
    (0..size)
        .map(|number| (format!("member-{number:03}"), large(number)))
        .collect()
}

fn index_of_fleet(fleet: &[(String, Pin)]) -> Arc<Index> {
    let members: Vec<_> = fleet.iter().map(|(cluster, pin)| (cluster.as_str(), pin)).collect();
    index_of(&members)
}

fn names(index: &Index) -> Vec<String> {
    index.read(|facts| facts.pins.keys().cloned().collect())
}

#[tokio::test]
async fn a_fleet_has_more_pins_than_one_object_has_room_for() {
    let fleet = fleet(70);
    let all: Vec<_> = fleet.iter().map(|(cluster, _)| cluster.clone()).collect();
    let objects = crate::testing::Objects::default();
    let api = crate::testing::scripted_api(objects.clone());
    let index = index_of_fleet(&fleet);
    let pins = Pins::new(api.clone(), "system", index.clone());
    for (cluster, pin) in &fleet {
        let key = format!("{cluster}-a");
        pins.pin(cluster, pin, AgentKey::Enrolled(&key)).await.unwrap();
        pins.prove(cluster, &pin.signing_keys[0], &pin.signing_keys)
            .await
            .unwrap();
    }
    assert_eq!(names(&index), all);
    for (cluster, _) in &fleet {
        let (presented, issued) = (format!("{cluster}-a"), format!("{cluster}-b"));
        pins.renew(cluster, &presented, &issued).await.unwrap();
    }
    pins.note_history("", 0).await.unwrap();
    // A hub that starts anew finds all of it.
    let index = index_of_fleet(&fleet);
    let pins = Pins::new(api.clone(), "system", index.clone());
    pins.load().await.unwrap();
    assert_eq!(names(&index), all);
    for (cluster, pin) in &fleet {
        let kept = index.read(|facts| facts.pins[cluster].clone());
        assert_eq!(kept.agent_keys, [format!("{cluster}-b"), format!("{cluster}-a")]);
        assert_eq!(kept.signing_keys, pin.signing_keys);
    }
    assert_eq!(count(&api, "system").await.unwrap(), 70);
    let twin = pin("uid-7", "k");
    let refused = pins
        .pin(
            "member-100",
            &Pin {
                cluster_uid: "uid-7".into(),
                ..twin
            },
            AgentKey::Enrolled("x"),
        )
        .await;
    assert!(matches!(refused, Err(PinError::Refused(_))), "{refused:?}");
}

#[tokio::test]
async fn pins_of_an_earlier_release_are_found_and_go_into_pages() {
    let fleet = fleet(60);
    let objects = crate::testing::Objects::default();
    let data: BTreeMap<_, _> = fleet.iter().map(|(cluster, pin)| (cluster, encode(pin))).collect();
    let map = serde_json::json!({"metadata": {"name": CONFIG_MAP_PINS, "resourceVersion": "1"}, "data": data});
    objects.lock().insert(format!("{FOLDER}{CONFIG_MAP_PINS}"), map);
    let index = index_of_fleet(&fleet);
    let pins = Pins::new(crate::testing::scripted_api(objects.clone()), "system", index.clone());
    pins.load().await.unwrap();
    assert_eq!(names(&index).len(), 60);
    pins.pin("member-000", &fleet[0].1, AgentKey::Enrolled("e"))
        .await
        .unwrap();
    pins.load().await.unwrap();
    assert_eq!(names(&index).len(), 60);
    let head = objects.lock()[&format!("{FOLDER}{CONFIG_MAP_PINS}")]["data"].clone();
    assert_eq!(head.as_object().unwrap().keys().collect::<Vec<_>>(), ["member-000"]);
}

/// Two hubs at once, both with heads to empty: none loses what the other wrote, and one cluster has one name.
#[tokio::test]
async fn of_two_hubs_neither_overwrites_the_other() {
    let fleet = fleet(80);
    let objects = crate::testing::Objects::default();
    let api = crate::testing::scripted_api(objects.clone());
    let hub = || Pins::new(api.clone(), "system", index_of_fleet(&fleet));
    let (one, other) = (hub(), hub());
    let join = async |pins: &Pins, odd: usize| {
        let mut refused = Vec::new();
        for (number, (cluster, pin)) in fleet.iter().enumerate().filter(|(number, _)| number % 2 == odd) {
            // Each pair of members is one cluster.
            let wanted = Pin {
                cluster_uid: format!("uid-{}", number / 2),
                ..pin.clone()
            };
            loop {
                match pins.pin(cluster, &wanted, AgentKey::Enrolled(cluster)).await {
                    Ok(()) => break,
                    Err(PinError::Refused(_)) => {
                        refused.push(number);
                        break;
                    }
                    Err(PinError::Contended) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
        refused.len()
    };
    let (first, second) = tokio::join!(join(&one, 0), join(&other, 1));
    assert_eq!(first + second, 40);
    let index = index_of_fleet(&fleet);
    Pins::new(api.clone(), "system", index.clone()).load().await.unwrap();
    let mut uids: Vec<_> = index.read(|facts| facts.pins.values().map(|pin| pin.cluster_uid.clone()).collect());
    uids.sort();
    let before = uids.len();
    uids.dedup();
    assert_eq!((before, uids.len()), (40, 40));
}

#[test]
fn members_take_turns_in_what_is_noted() {
    let pins: BTreeMap<_, _> = fleet(40).into_iter().collect();
    let (mut last, mut noted) = (String::new(), std::collections::BTreeSet::new());
    for _ in 0..4 {
        let turn = turn(&pins, &last);
        let bytes: usize = turn.iter().map(|cluster| encode(&pins[cluster]).len()).sum();
        assert!(!turn.is_empty() && bytes <= HISTORY_MAX_BYTES);
        last = turn.last().unwrap().clone();
        noted.extend(turn);
    }
    assert_eq!(noted.len(), 40);
    let few: BTreeMap<_, _> = fleet(2).into_iter().collect();
    assert_eq!(turn(&few, "member-000"), ["member-001", "member-000"]);
}

#[test]
fn when_a_member_was_not_heard_is_written_down() {
    let mut pins = BTreeMap::from([("east".to_owned(), pin("uid", "k"))]);
    let mut facts = Facts::default();
    let noted = |facts: &Facts, pins: &mut BTreeMap<String, Pin>, now| {
        note(facts, pins.iter_mut(), now);
        pins["east"].history.silent_at
    };
    assert_eq!(noted(&facts, &mut pins, 100), 0);
    facts.silent.insert("east".to_owned());
    assert_eq!(noted(&facts, &mut pins, 160), 160);
    facts.silent.clear();
    facts
        .spoke_again
        .insert("east".to_owned(), Timestamp::from_second(190).unwrap());
    assert_eq!(noted(&facts, &mut pins, 220), 190);
    let [since, before] = [190, 189].map(|at| Timestamp::from_second(at).unwrap());
    let restarted = Facts {
        pins: pins.clone().into(),
        ..Facts::default()
    };
    assert!(restarted.is_heard_since("east", since) && !restarted.is_heard_since("east", before));
    assert_eq!(
        noted(&Facts::default(), &mut pins, 300),
        190,
        "a hub that starts anew knows it"
    );
    let stored = serde_json::to_value(&pins["east"]).unwrap();
    assert_eq!(stored["history"]["silentAt"], 190);
}
