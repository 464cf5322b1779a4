//! Routers of a release that knows one owner of a namespace.

use std::sync::Arc;

use portolan_crds::Contention;
use portolan_wire::v1::KnownResource;

use super::*;
use crate::compile::{Ledger, World};
use crate::distribute::Published;

fn of_before(known: Vec<KnownResource>) -> v1::RouterHello {
    v1::RouterHello {
        protocol: portolan_wire::protocol::PROTOCOL,
        capabilities: vec![portolan_wire::protocol::CURSOR_FORMAT_2.to_owned()],
        known,
        ..v1::RouterHello::default()
    }
}

fn is_refused(status: &Status) -> bool {
    let told = status.message();
    let words = ["router gateway ", "capability operators", "upgrade this router"];
    status.code() == Code::PermissionDenied && words.iter().all(|word| told.contains(word))
}

#[tokio::test]
async fn a_router_that_knows_one_owner_of_a_namespace_is_refused_by_name() {
    let hub = TestHub::start().await;
    let identity = Identity::Router("gateway".to_owned());
    let status = hub.router_as(&identity, of_before(Vec::new())).await.err().unwrap();
    assert!(is_refused(&status), "{status:?}");
    let noted = |hub: &TestHub| hub.index.read(|facts| facts.router_refusals.get("gateway").cloned());
    assert_eq!(noted(&hub).as_deref(), Some(status.message()), "for its status");
    assert!(
        hub.acks.read(std::collections::BTreeMap::is_empty),
        "it holds nothing up"
    );

    let known = KnownResource {
        r#ref: Some(Ref::Target("east".to_owned()).to_wire()),
        version: "1".to_owned(),
    };
    // One that holds something, and its next try: it counts as one that has left, from the first on.
    hub.index.write(|facts| facts.note_router_refusal("gateway", None));
    let mut lefts = Vec::new();
    for _ in 0..2 {
        let status = hub.router_as(&identity, of_before(vec![known.clone()])).await;
        assert!(is_refused(&status.err().unwrap()));
        lefts.push(hub.acks.read(|routers| routers["gateway"].left.unwrap()));
    }
    assert_eq!(lefts[0], lefts[1], "handovers do not wait for as long as it tries");

    let _upgraded = hub.router("gateway", Vec::new()).await;
    assert_eq!(noted(&hub), None);
}

#[tokio::test]
async fn a_router_that_came_before_a_ledger_was_switched_is_told_nothing_after() {
    let hub = TestHub::start().await;
    let mut world = World::default();
    world.state.ledger = Arc::new(Ledger::restore(Contention::Fleet, [], 0, false));
    let fleet = Published {
        world: Arc::new(world),
        ..Published::default()
    };
    let identity = Identity::Router("gateway".to_owned());
    let mut router = loop {
        // What was compiled for the router may come this late, and is of a new ledger.
        hub.worlds.send_replace(Some(fleet.clone()));
        if let Ok(router) = hub.router_as(&identity, of_before(Vec::new())).await {
            break router;
        }
    };
    let mut switched = World::default();
    switched.state.ledger = Arc::new(Ledger::restore(Contention::Operator, [], 0, false));
    hub.worlds.send_replace(Some(Published {
        world: Arc::new(switched),
        ..fleet
    }));
    let status = loop {
        match router.hear().await {
            Ok(RouterTold::Commit(commit)) => router.ack(commit.nonce).await,
            Ok(_) => {}
            Err(status) => break status,
        }
    };
    assert!(is_refused(&status), "{status:?}");
}
