//! CustomResourceDefinitions, which every member of a shard has alike.

use std::pin::pin;
use std::time::Duration;

use http::Method;
use portolan_testbed::{Cluster, Fault, eventually};
use portolan_tests::door::{Answer, Door, json as json_request, request};
use portolan_tests::watch::Watch;
use serde_json::{Value, json};

use crate::{MEMBERS, delete, direct, door, merge_patch, put, world};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Of a namespaced kind of group `alike.test`, with one label.
fn definition(plural: &str) -> Value {
    let kind = format!("{}{}", plural[..1].to_uppercase(), &plural[1..]);
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.alike.test"), "labels": {"made": "by-a-test"}},
        "spec": {
            "group": "alike.test", "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}

fn path(plural: &str) -> String {
    format!("{DEFINITIONS}/{plural}.alike.test")
}

async fn in_member(member: &str, plural: &str) -> Answer {
    direct(member).await.get(&path(plural), &[]).await.unwrap()
}

/// Gone as a whole: a definition is cleaned up after its deletion was answered.
async fn is_gone(member: &str, plural: &str) {
    eventually(&format!("{plural} is gone from {member}"), || async {
        (in_member(member, plural).await.status == 404).then_some(())
    })
    .await;
}

fn is_established(definition: &Value) -> bool {
    let conditions = definition["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Established" && condition["status"] == "True")
}

/// By field manager `test`.
async fn apply(door: &Door, path: &str, object: &Value) -> Answer {
    let headers = [("content-type", "application/apply-patch+yaml")];
    let path = format!("{path}?fieldManager=test");
    let asked = request(Method::PATCH, &path, &headers, object.to_string().as_bytes());
    door.ask(asked.unwrap()).await.unwrap()
}

fn succeeded(answer: &Answer, status: u16) {
    assert_eq!(
        (answer.status, answer.header("warning")),
        (status, ""),
        "{}",
        answer.message()
    );
}

#[tokio::test]
async fn a_definition_is_made_changed_and_deleted_in_every_member() {
    let _calm = MEMBERS.read().await;
    let door = door("alike").await;
    let dry = door
        .post(&format!("{DEFINITIONS}?dryRun=All"), &definition("cogs"))
        .await;
    succeeded(&dry.unwrap(), 201);
    assert_eq!(in_member("west", "cogs").await.status, 404, "a dry run makes nothing");
    succeeded(&door.post(DEFINITIONS, &definition("cogs")).await.unwrap(), 201);
    let there = in_member("west", "cogs").await.json();
    assert!(is_established(&there), "{there}");
    assert_eq!(there["metadata"]["labels"], json!({"made": "by-a-test"}));
    // Each member's namespaces have objects of it at once.
    for namespace in ["ca-e", "ca-w"] {
        let cog = json!({"apiVersion": "alike.test/v1", "kind": "Cogs", "metadata": {"name": "one"}});
        let objects = format!("/apis/alike.test/v1/namespaces/{namespace}/cogs");
        eventually("a young kind's storage is there", || async {
            let made = door.post(&objects, &cog).await.unwrap();
            if matches!(made.status, 201 | 409) {
                Ok(())
            } else {
                Err(made.message())
            }
        })
        .await;
    }
    let list = door.get("/apis/alike.test/v1/cogs", &[]).await.unwrap().json();
    assert_eq!(list["items"].as_array().map(Vec::len), Some(2), "{list}");
    let again = door.post(DEFINITIONS, &definition("cogs")).await.unwrap();
    again.expect_status(409, &["already exists"]).unwrap();

    let uids = changed_everywhere(&door, "cogs").await;
    deleted_everywhere(&door, "cogs", &uids).await;
}

/// Patched and put. Returns the uids of primary and copy.
async fn changed_everywhere(door: &Door, plural: &str) -> [Value; 2] {
    let short = json!({"spec": {"names": {"shortNames": ["cg"]}}, "metadata": {"labels": {"more": "yes"}}});
    succeeded(&merge_patch(door, &path(plural), &short).await, 200);
    let there = in_member("west", plural).await.json();
    assert_eq!(there["spec"]["names"]["shortNames"], json!(["cg"]));
    assert_eq!(there["metadata"]["labels"]["more"], "yes");
    // Its own controllers write its status meanwhile.
    let object = eventually("it is put", || async {
        let mut object = door.get(&path(plural), &[]).await.unwrap().json();
        object["spec"]["names"]["shortNames"] = json!(["co"]);
        object["metadata"]["labels"] = json!({"put": "yes"});
        let put = put(door, &path(plural), &object).await;
        if put.status == 409 {
            return Err(put.message());
        }
        succeeded(&put, 200);
        Ok(object)
    })
    .await;
    let there = in_member("west", plural).await.json();
    assert_eq!(there["spec"]["names"]["shortNames"], json!(["co"]));
    assert_eq!(
        there["metadata"]["labels"],
        json!({"put": "yes"}),
        "what the primary lost is lost"
    );
    // What is the primary's own stays there.
    assert_ne!(there["metadata"]["uid"], object["metadata"]["uid"]);
    [&object, &there].map(|one| one["metadata"]["uid"].clone())
}

async fn deleted_everywhere(door: &Door, plural: &str, [primary, copy]: &[Value; 2]) {
    // The uid is the primary's; each copy goes by its own.
    let wrong = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": copy}});
    let refused = door
        .ask(json_request(Method::DELETE, &path(plural), &wrong).unwrap())
        .await;
    assert_eq!(refused.unwrap().status, 409);
    let dry = json!({"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]});
    let dry = door
        .ask(json_request(Method::DELETE, &path(plural), &dry).unwrap())
        .await;
    succeeded(&dry.unwrap(), 200);
    for member in ["east", "west"] {
        let kept = in_member(member, plural).await.json();
        assert_eq!(kept["metadata"].get("deletionTimestamp"), None, "{member}");
    }
    let right = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": primary}});
    let deleted = door
        .ask(json_request(Method::DELETE, &path(plural), &right).unwrap())
        .await;
    succeeded(&deleted.unwrap(), 200);
    for member in ["east", "west"] {
        is_gone(member, plural).await;
    }
}

#[tokio::test]
async fn a_version_that_is_stored_no_more_is_forgotten_in_every_member() {
    let _calm = MEMBERS.read().await;
    let door = door("alike").await;
    let mut object = definition("pins");
    let v1 = object["spec"]["versions"][0].take();
    let mut versions = vec![v1.clone(), v1];
    versions[0]["name"] = json!("v1alpha1");
    versions[1]["storage"] = json!(false);
    object["spec"]["versions"] = json!(versions);
    succeeded(&door.post(DEFINITIONS, &object).await.unwrap(), 201);
    versions[0]["storage"] = json!(false);
    versions[1]["storage"] = json!(true);
    let moved = json!({"spec": {"versions": versions}});
    succeeded(&merge_patch(&door, &path("pins"), &moved).await, 200);
    for (member, stored) in [("east", json!(["v1alpha1", "v1"])), ("west", json!(["v1alpha1", "v1"]))] {
        let there = in_member(member, "pins").await.json();
        assert_eq!(there["status"]["storedVersions"], stored, "{member}");
    }
    let migrated = json!({"status": {"storedVersions": ["v1"]}});
    succeeded(
        &merge_patch(&door, &format!("{}/status", path("pins")), &migrated).await,
        200,
    );
    for member in ["east", "west"] {
        let there = in_member(member, "pins").await.json();
        assert_eq!(there["status"]["storedVersions"], json!(["v1"]), "{member}");
    }
    // Without it in the way the version goes, everywhere.
    let gone = json!({"spec": {"versions": [versions[1]]}});
    succeeded(&merge_patch(&door, &path("pins"), &gone).await, 200);
    let there = in_member("west", "pins").await.json();
    assert_eq!(there["spec"]["versions"].as_array().map(Vec::len), Some(1));
    succeeded(&delete(&door, &path("pins")).await, 200);
}

#[tokio::test]
async fn a_new_kind_is_watched_from_its_first_objects_version() {
    let _calm = MEMBERS.read().await;
    let (door, west) = (door("alike").await, direct("west").await);
    let mut wide = definition("hubs");
    wide["spec"]["scope"] = json!("Cluster");
    succeeded(&door.post(DEFINITIONS, &wide).await.unwrap(), 201);
    let objects = "/apis/alike.test/v1/hubs";
    let hub = |name: &str| json!({"apiVersion": "alike.test/v1", "kind": "Hubs", "metadata": {"name": name}});
    // As with any API server: what was made before its watch cache was there is too old for it.
    let (asked, mut watch) = eventually("a watch from an object's version sees it go", || async {
        let made = door.post(objects, &hub("first")).await.unwrap();
        if made.status != 201 {
            return Err(made.message());
        }
        let made = made.json();
        let version = made["metadata"]["resourceVersion"].as_str().unwrap();
        let asked = format!("{objects}?watch=true&timeoutSeconds=120&resourceVersion={version}");
        let mut watch = Watch::open(&door, &asked).await.unwrap();
        assert_eq!(delete(&door, &format!("{objects}/first")).await.status, 200);
        let event = watch.next().await.unwrap().expect("it goes on");
        if event["type"] == "DELETED" {
            Ok((asked, watch))
        } else {
            Err(event.to_string())
        }
    })
    .await;
    // The other member's are in it too.
    succeeded(&west.post(objects, &hub("wests")).await.unwrap(), 201);
    assert_eq!(watch.sees("wests").await.unwrap(), "ADDED", "{:?}", watch.seen);
    // From now on a version may be another's.
    let mut unsure = Watch::open(&door, &asked).await.unwrap();
    let told = unsure.next().await.unwrap().unwrap();
    assert_eq!(told["object"]["code"], 410, "{told}");
    succeeded(&delete(&door, &path("hubs")).await, 200);
}

#[tokio::test]
async fn a_copy_that_is_alike_is_adopted_and_anothers_stays() {
    let _calm = MEMBERS.read().await;
    let (door, west) = (door("alike").await, direct("west").await);
    for plural in ["pegs", "nuts"] {
        let mut native = definition(plural);
        if plural == "nuts" {
            native["spec"]["names"]["shortNames"] = json!(["theirs"]);
        }
        succeeded(&apply(&west, &path(plural), &native).await, 201);
    }
    succeeded(&apply(&door, &path("pegs"), &definition("pegs")).await, 201);
    let mut nuts = definition("nuts");
    nuts["spec"]["names"]["shortNames"] = json!(["ours"]);
    let made = door.post(DEFINITIONS, &nuts).await.unwrap();
    assert_eq!(made.status, 201, "{}", made.message());
    let warning = made.header("warning");
    for word in [
        "nuts.alike.test",
        "member cluster west",
        "test",
        "spec.names.shortNames",
    ] {
        assert!(warning.contains(word), "{word}: {warning}");
    }
    let kept = in_member("west", "nuts").await.json();
    assert_eq!(kept["spec"]["names"]["shortNames"], json!(["theirs"]));
    let shown = door.get(&path("nuts"), &[]).await.unwrap().json();
    assert_eq!(shown["spec"]["names"]["shortNames"], json!(["ours"]), "the primary's");
    the_conflict_is_told_until_the_other_lets_go(&door, &west, "nuts").await;
    for plural in ["pegs", "nuts"] {
        succeeded(&delete(&door, &path(plural)).await, 200);
        for member in ["east", "west"] {
            is_gone(member, plural).await;
        }
    }
}

/// Reason and message of condition `Replicated` of shard `alike`, if it is there.
async fn replicated() -> Option<(String, String)> {
    let shard = ["get", "shardingconfig", "alike", "-n", "operators", "-o", "json"];
    let shard: Value = serde_json::from_str(&world().await.direct("hub").ok(&shard).await.unwrap()).unwrap();
    let conditions = shard["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let condition = conditions.find(|condition| condition["type"] == "Replicated")?;
    assert_eq!(condition["status"], "False", "{condition}");
    let text = |key: &str| condition[key].as_str().unwrap().to_owned();
    Some((text("reason"), text("message")))
}

/// Where the author looks.
async fn the_conflict_is_told_until_the_other_lets_go(door: &Door, west: &Door, plural: &str) {
    let name = format!("{plural}.alike.test");
    let words = [
        &*name,
        "member cluster west",
        "\"test\"",
        "spec.names.shortNames",
        "nothing is forced",
    ];
    eventually("the shard says that another manager owns a field", || async {
        let told = replicated().await;
        let is_told = |(reason, message): &(String, String)| {
            reason == "Conflict" && words.iter().all(|word| message.contains(word))
        };
        if told.as_ref().is_some_and(is_told) {
            Ok(())
        } else {
            Err(format!("{told:?}"))
        }
    })
    .await;
    // The same manager, without the field.
    succeeded(&apply(west, &path(plural), &definition(plural)).await, 200);
    eventually(
        "the copy is what the primary has, and nothing of it is told",
        || async {
            door.get(&path(plural), &[]).await.unwrap();
            let names = in_member("west", plural).await.json()["spec"]["names"]["shortNames"].clone();
            let told = replicated().await;
            if names == json!(["ours"]) && !told.iter().any(|(_, message)| message.contains(&name)) {
                Ok(())
            } else {
                Err(format!("{names}, {told:?}"))
            }
        },
    )
    .await;
}

/// A client that asks for the kind while the one that makes it waits for a slow member.
#[tokio::test]
async fn who_asks_for_a_kind_on_its_way_gets_all_of_it() {
    let _alone = MEMBERS.write().await;
    let (first, second) = (door("alike").await, door("alike").await);
    let west = world().await.cluster("west");
    west.fault(Fault::Delay(Duration::from_millis(150))).await.unwrap();
    let made = async { first.post(DEFINITIONS, &definition("jigs")).await.unwrap() };
    let asked = async {
        eventually("the primary serves it", || async {
            let there = in_member("east", "jigs").await;
            (there.status == 200 && is_established(&there.json())).then_some(())
        })
        .await;
        second.get("/apis/alike.test/v1/jigs", &[]).await.unwrap()
    };
    let (mut made, mut asked) = (pin!(made), pin!(asked));
    let made = tokio::select! {
        biased;
        made = &mut made => made,
        list = &mut asked => panic!("west has nothing yet: {} {}", list.status, list.message()),
    };
    succeeded(&made, 201);
    let list = asked.await;
    // A young kind's storage is there a moment later, as with any API server: 429.
    assert!(matches!(list.status, 200 | 429), "{}", list.message());
    let there = in_member("west", "jigs").await;
    assert!(
        there.status == 200 && is_established(&there.json()),
        "{}",
        there.message()
    );
    west.fault(Fault::None).await.unwrap();
    succeeded(&delete(&first, &path("jigs")).await, 200);
}

#[tokio::test]
async fn nothing_is_made_anew_while_a_copy_is_being_cleaned_up() {
    let _calm = MEMBERS.read().await;
    let (door, west) = (door("alike").await, direct("west").await);
    succeeded(&door.post(DEFINITIONS, &definition("rods")).await.unwrap(), 201);
    let hold = |finalizers: Value| json!({"metadata": {"finalizers": finalizers}});
    let held = merge_patch(&west, &path("rods"), &hold(json!(["test.example/holds"]))).await;
    assert_eq!(held.status, 200, "{}", held.message());
    succeeded(&delete(&door, &path("rods")).await, 200);
    is_gone("east", "rods").await;
    let shown = door.get(&path("rods"), &[]).await.unwrap().json();
    assert!(shown["metadata"]["deletionTimestamp"].is_string(), "{shown}");
    let refused = door.post(DEFINITIONS, &definition("rods")).await.unwrap();
    refused
        .expect_status(409, &["rods.alike.test", "member cluster west"])
        .unwrap();
    assert_eq!(in_member("east", "rods").await.status, 404, "nothing was sent");
    let freed = merge_patch(&west, &path("rods"), &hold(json!([]))).await;
    assert_eq!(freed.status, 200, "{}", freed.message());
    is_gone("west", "rods").await;
    succeeded(&door.post(DEFINITIONS, &definition("rods")).await.unwrap(), 201);
    succeeded(&delete(&door, &path("rods")).await, 200);
}

/// While the primary has the write and the other member does not: that has it later all the same.
async fn its_client_goes_away(door: &Door, west: &Cluster) {
    west.fault(Fault::Blackhole).await.unwrap();
    let (label, cams) = (json!({"metadata": {"labels": {"lost": "client"}}}), path("cams"));
    let written = eventually("the primary has it", || async {
        let there = in_member("east", "cams").await.json();
        (there["metadata"]["labels"]["lost"] == "client").then_some(())
    });
    tokio::select! {
        answer = merge_patch(door, &cams, &label) => panic!("without the other: {}", answer.message()),
        () = written => {}
    }
    west.fault(Fault::None).await.unwrap();
    eventually("the other has it", || async {
        door.get(&path("cams"), &[]).await.unwrap();
        let there = in_member("west", "cams").await;
        (there.status == 200 && there.json()["metadata"]["labels"]["lost"] == "client").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_member_that_is_away_is_told_and_nothing_is_deleted_without_it() {
    let _alone = MEMBERS.write().await;
    let door = door("alike").await;
    succeeded(&door.post(DEFINITIONS, &definition("cams")).await.unwrap(), 201);
    let west = world().await.cluster("west");
    its_client_goes_away(&door, west).await;
    west.fault(Fault::Reset).await.unwrap();
    let label = json!({"metadata": {"labels": {"made": "meanwhile"}}});
    for written in [
        merge_patch(&door, &path("cams"), &label).await,
        door.post(DEFINITIONS, &definition("keys")).await.unwrap(),
    ] {
        assert!(matches!(written.status, 200 | 201), "{}", written.message());
        let warning = written.header("warning");
        assert!(warning.contains("member cluster west"), "{warning}");
    }
    delete(&door, &path("cams"))
        .await
        .expect_status(503, &["nothing is deleted", "member cluster west"])
        .unwrap();
    let kept = in_member("east", "cams").await.json();
    assert_eq!(kept["metadata"].get("deletionTimestamp"), None);
    west.fault(Fault::None).await.unwrap();
    // Whatever a caller of the account asks for next: the copies are brought.
    eventually("west has what was written meanwhile", || async {
        door.get(&path("cams"), &[]).await.unwrap();
        let (cams, keys) = (in_member("west", "cams").await, in_member("west", "keys").await);
        let there = cams.json()["metadata"]["labels"]["made"] == "meanwhile" && keys.status == 200;
        if there { Ok(()) } else { Err(cams.message()) }
    })
    .await;
    eventually("west is back", || async {
        let deleted = delete(&door, &path("cams")).await;
        if deleted.status == 200 {
            Ok(())
        } else {
            Err(deleted.message())
        }
    })
    .await;
    for member in ["east", "west"] {
        is_gone(member, "cams").await;
    }
    succeeded(&delete(&door, &path("keys")).await, 200);
}
