//! Ordered faults of merged watches: of one leg, which the merge core mends, and of what the client sees, which it resumes.

use super::*;
use crate::decision::policy;
use crate::resource::injected::{InjectedFaults, Kind};
use crate::resource::upstream::{BodyError, Ended};
use crate::stage::inject::{Injector, WatchInjection};
use crate::value::classify::ApiRequest;
use crate::value::snapshot::told;

impl World {
    /// What edge draws for a watch of a caller that is held.
    pub(super) fn injection(&self, asked: &ApiRequest) -> Option<Arc<WatchInjection>> {
        let Caller::Pod(view) = &self.caller else { return None };
        let clusters: Vec<&str> = self.plan.clusters().map(|cluster| &**cluster).collect();
        let faults = view
            .policies
            .as_ref()?
            .watch_faults(&policy::asked(asked, &clusters, false));
        let faults: Vec<_> = faults.into_iter().cloned().collect();
        let injector = Injector {
            routing: self.fanouts.routing.clone(),
            injected: self.injected(),
            tasks: Tasks::new(),
        };
        (!faults.is_empty())
            .then(|| WatchInjection::new(injector, view, asked, faults))
            .flatten()
    }

    fn injected(&self) -> Arc<InjectedFaults> {
        self.fanouts.routing.load().policies.injected.clone()
    }

    /// The caller is held by a FaultInjection of this fault; none: by no policy any more.
    fn order(&mut self, fault: Option<&Value>) {
        let policies = fault.map(|_| told::FAULT_INJECTION.to_owned());
        let view = told::CallerView {
            home_cluster: "east".to_owned(),
            pod_uid: "a".to_owned(),
            namespace: "ops".to_owned(),
            pod: "operator-a".to_owned(),
            service_account: "operator".to_owned(),
            policies: policies.into_iter().collect(),
            ..told::CallerView::default()
        };
        let mut bodies = view.bodies();
        bodies.extend(fault.map(|fault| told::fault_injection(&json!({ "watchFault": [fault] }))));
        let routing = &self.fanouts.routing;
        let applied = told::upsert(&routing.load().snapshot, "2", bodies);
        assert!(applied.rejected.is_empty(), "{:?}", applied.rejected);
        if let Some(view) = applied.snapshot.callers.values().next() {
            self.caller = Caller::Pod(view.clone());
        }
        routing.swap(applied.snapshot);
    }

    async fn ordered(names: &[&'static str], fault: &Value) -> Self {
        let mut world = Self::new(names).await;
        world.order(Some(fault));
        world
    }
}

impl Watch {
    /// The rest of it up to a break.
    async fn breaks(&mut self) -> Vec<u8> {
        loop {
            match tokio::time::timeout(PATIENCE, self.body.frame()).await.unwrap() {
                Some(Ok(frame)) => self.rest.extend_from_slice(&frame.into_data().unwrap()),
                Some(Err(BodyError::Injected(name))) => {
                    assert_eq!(name, "ops/fj/it");
                    return std::mem::take(&mut self.rest);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Nothing comes for a moment.
    async fn is_still(&mut self) {
        let next = tokio::time::timeout(Duration::from_millis(150), self.body.frame()).await;
        assert!(next.is_err(), "{next:?}");
    }
}

fn of_east(action: &str, more: &Value) -> Value {
    let mut fault = json!({
        "name": "it", "action": action, "part": "Leg",
        "match": {"resources": [{"clusters": ["east"]}]},
    });
    fault.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    fault
}

fn together<const N: usize>(events: [Bytes; N]) -> Bytes {
    events.concat().into()
}

#[tokio::test]
async fn a_leg_that_is_cut_is_mended_and_its_client_notices_nothing() {
    for after in [json!({"events": 1}), json!({"bytes": 200})] {
        let mut world = World::ordered(&["east", "west"], &of_east("Drop", &json!({ "after": after }))).await;
        let query = format!("resourceVersion={}&allowWatchBookmarks=true", world.cursor(&[10, 20]));
        let (mut watch, mut streams) = world.open(&query).await;
        let two = together([event("ADDED", "a", 11), event("ADDED", "b", 12)]);
        streams[0].1.send_data(two.clone(), false).unwrap();
        watch.expect("ADDED", "a").await;
        assert_eq!(watch.bookmark().await, world.cursor(&[11, 20]));
        streams[1].1.send_data(event("ADDED", "w", 21), false).unwrap();
        watch.expect("ADDED", "w").await;
        watch.bookmark().await;
        let back = async {
            let (path, mut east) = world.members[0].opens().await;
            assert!(path.contains("resourceVersion=11&"), "{path}");
            east.send_data(event("ADDED", "b", 12), false).unwrap();
            east
        };
        let (_east, next) = tokio::join!(back, watch.next());
        assert_eq!(
            next.unwrap()["object"]["metadata"]["name"],
            "b",
            "{after}: nothing is lost"
        );
        assert_eq!(watch.bookmark().await, world.cursor(&[12, 21]));
        assert_eq!(world.leg(0).0, "live", "and it happens once");
        assert_eq!(world.injected().count(Kind::Drop), 1);
    }
}

#[tokio::test]
async fn a_leg_that_stalls_is_silent_by_order_and_holds_up_nobody() {
    let mut world = World::ordered(&["east", "west"], &of_east("Stall", &json!({}))).await;
    let query = format!("resourceVersion={}&allowWatchBookmarks=true", world.cursor(&[10, 20]));
    let (mut watch, mut streams) = world.open(&query).await;
    streams[0].1.send_data(event("ADDED", "a", 11), false).unwrap();
    streams[1].1.send_data(event("ADDED", "w", 21), false).unwrap();
    watch.expect("ADDED", "w").await;
    assert_eq!(watch.bookmark().await, world.cursor(&[10, 21]), "others go on");
    watch.is_still().await;
    let lag = |world: &World, name: &str| {
        let counted = world.fanouts.open.count();
        counted.legs[&(Arc::from(name), open::LegState::Live)].lag
    };
    assert_eq!(lag(&world, "east"), Duration::ZERO, "no member's silence");
    assert!(lag(&world, "west") > Duration::ZERO);
    let described = world.fanouts.open.describe();
    assert_eq!(described["watches"][0]["legs"][0]["faults"], json!(["ops/fj/it"]));
    world.order(None);
    watch.expect("ADDED", "a").await;
    assert_eq!(watch.bookmark().await, world.cursor(&[11, 21]));
}

/// A watch of a client that names itself so; its leg of east expires behind two objects, `a` and `b`.
async fn expiring(agent: &'static str) -> (World, Watch, Vec<(String, SendStream<Bytes>)>) {
    let fault = of_east("Expire", &json!({"after": {"events": 2}}));
    let mut world = World::ordered(&["east", "west"], &fault).await;
    world.agent = agent;
    let (watch, mut streams) = world.open("allowWatchBookmarks=true").await;
    let initial = [event("ADDED", "a", 3), event("ADDED", "b", 4), bookmark(5, true)];
    streams[0].1.send_data(together(initial), false).unwrap();
    streams[1].1.send_data(bookmark(9, true), false).unwrap();
    (world, watch, streams)
}

#[tokio::test]
async fn a_leg_that_expires_is_listed_anew_by_the_router_and_not_by_the_client() {
    let (mut world, mut watch, _streams) = expiring(KUBECTL).await;
    let mending = async {
        let (path, mut east) = world.members[0].opens().await;
        assert!(path.contains("sendInitialEvents=true"), "{path}");
        let now = [event("ADDED", "b", 7), bookmark(8, true)];
        east.send_data(together(now), false).unwrap();
        east
    };
    let reading = async {
        let mut seen = Vec::new();
        loop {
            let event = watch.next().await.unwrap();
            let name = event["object"]["metadata"]["name"].as_str();
            seen.extend(name.map(|name| format!("{} {name}", event["type"].as_str().unwrap())));
            if seen.len() == 4 {
                return seen;
            }
        }
    };
    let (_east, seen) = tokio::join!(mending, reading);
    assert_eq!(seen, ["ADDED a", "ADDED b", "MODIFIED b", "DELETED a"]);
    assert_eq!(world.injected().count(Kind::Expire), 1);
}

#[tokio::test]
async fn who_does_not_say_that_it_reads_metadata_alone_lists_again_for_what_has_left() {
    let (mut world, mut watch, _streams) = expiring("operator/v1").await;
    let mending = async {
        let (_, mut east) = world.members[0].opens().await;
        east.send_data(together([event("ADDED", "b", 4), bookmark(8, true)]), false)
            .unwrap();
        east
    };
    let reading = async {
        loop {
            let event = watch.next().await.unwrap();
            assert_ne!(event["type"], "DELETED");
            if event["type"] == "ERROR" {
                return event["object"]["code"].clone();
            }
        }
    };
    let (_east, code) = tokio::join!(mending, reading);
    assert_eq!(code, 410);
}

#[tokio::test]
async fn what_cannot_be_mended_of_an_ordered_expiry_is_no_members_fault() {
    let mut world = World::ordered(&["east"], &of_east("Expire", &json!({}))).await;
    let started = world.start(&format!("resourceVersion={}", world.cursor(&[10])));
    let (_, _east) = world.members[0].opens().await;
    let mut watch = started.await.unwrap().unwrap();
    let (_, last) = tokio::join!(world.members[0].refuses(410), watch.next());
    assert_eq!(last.unwrap()["object"]["code"], 410);
    let expired = |reason| world.fanouts.open.metrics.expirations(reason);
    assert_eq!((expired("injected"), expired("compacted")), (1, 0));
}

#[tokio::test]
async fn a_legs_events_come_later_in_their_order() {
    let mut world = World::ordered(&["east", "west"], &of_east("Delay", &json!({"duration": "200ms"}))).await;
    let query = format!("resourceVersion={}&allowWatchBookmarks=true", world.cursor(&[10, 20]));
    let (mut watch, mut streams) = world.open(&query).await;
    let before = tokio::time::Instant::now();
    let two = together([event("ADDED", "a", 11), event("ADDED", "b", 12)]);
    streams[0].1.send_data(two, false).unwrap();
    streams[1].1.send_data(event("ADDED", "w", 21), false).unwrap();
    watch.expect("ADDED", "w").await;
    watch.bookmark().await;
    watch.expect("ADDED", "a").await;
    watch.expect("ADDED", "b").await;
    assert!(before.elapsed() >= Duration::from_millis(200));
    assert_eq!(watch.bookmark().await, world.cursor(&[12, 21]));
}

/// Cut between events, cut within one, and cut with events of which the client has seen a part: it asks again from what it has.
#[tokio::test]
async fn a_watch_that_is_cut_is_resumed_without_a_loss() {
    let within_the_third = 2 * event("ADDED", "a", 11).len() + 30;
    for (after, has) in [
        (json!({"events": 2}), "b"),
        (json!({"bytes": within_the_third}), "b"),
        (json!({"events": 1}), "a"),
    ] {
        let fault = json!({"name": "it", "action": "Drop", "after": after});
        let mut world = World::ordered(&["east", "west"], &fault).await;
        let query = format!("resourceVersion={}", world.cursor(&[10, 20]));
        let (mut watch, mut streams) = world.open(&query).await;
        let three = [
            event("ADDED", "a", 11),
            event("ADDED", "b", 12),
            event("ADDED", "c", 13),
        ];
        streams[0].1.send_data(together(three), false).unwrap();
        let seen = String::from_utf8(watch.breaks().await).unwrap();
        let mut whole = seen.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let last: Value = serde_json::from_str(whole.next_back().unwrap()).unwrap();
        assert_eq!(last["object"]["metadata"]["name"], has, "{after}: {seen}");
        assert!(watch.next().await.is_none());
        assert_eq!(watch.body.ended(), Ended::Injected);
        drop(watch);
        let version = last["object"]["metadata"]["resourceVersion"].as_str().unwrap();
        world.order(None);
        let (_watch, streams) = world.open(&format!("resourceVersion={version}")).await;
        assert!(
            streams[0].0.contains(&format!("resourceVersion={version}&")),
            "{}",
            streams[0].0
        );
        assert!(streams[1].0.contains("resourceVersion=20&"), "{}", streams[1].0);
    }
}

#[tokio::test]
async fn a_watch_that_is_told_it_has_expired_ends_after_that() {
    let fault = json!({"name": "it", "action": "Expire", "after": {"events": 1}});
    let mut world = World::ordered(&["east", "west"], &fault).await;
    let query = format!("resourceVersion={}", world.cursor(&[10, 20]));
    let (mut watch, mut streams) = world.open(&query).await;
    let two = together([event("ADDED", "a", 11), event("ADDED", "b", 12)]);
    streams[0].1.send_data(two, false).unwrap();
    watch.expect("ADDED", "a").await;
    let last = watch.next().await.unwrap();
    assert_eq!((&last["type"], &last["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert!(watch.next().await.is_none());
    let expired = world.fanouts.open.metrics.expirations("compacted");
    assert_eq!(expired, 0);
}

#[tokio::test]
async fn a_stalled_watch_goes_on_with_all_it_missed_and_its_members_are_not_late() {
    let fault = json!({"name": "it", "action": "Stall", "after": {"events": 1}});
    let mut world = World::ordered(&["east", "west"], &fault).await;
    let query = format!("resourceVersion={}", world.cursor(&[10, 20]));
    let (mut watch, mut streams) = world.open(&query).await;
    streams[0].1.send_data(event("ADDED", "a", 11), false).unwrap();
    watch.expect("ADDED", "a").await;
    watch.is_still().await;
    streams[0].1.send_data(event("ADDED", "b", 12), false).unwrap();
    streams[1].1.send_data(event("ADDED", "w", 21), false).unwrap();
    watch.is_still().await;
    let counted = world.fanouts.open.count();
    assert!(counted.legs.values().all(|legs| legs.lag.is_zero()), "{counted:?}");
    world.order(None);
    watch.expect("ADDED", "b").await;
    watch.expect("ADDED", "w").await;
    drop(watch);
    let (_watch, streams) = world.open("resourceVersion=21").await;
    assert!(streams[0].0.contains("resourceVersion=12&"), "{}", streams[0].0);
}

#[tokio::test]
async fn a_stall_to_the_end_ends_with_the_watch_and_its_client_resumes() {
    let fault = json!({"name": "it", "action": "Stall", "after": {"events": 1}});
    let mut world = World::ordered(&["east", "west"], &fault).await;
    let query = format!("resourceVersion={}&timeoutSeconds=1", world.cursor(&[10, 20]));
    let (mut watch, mut streams) = world.open(&query).await;
    let two = together([event("ADDED", "a", 11), event("ADDED", "b", 12)]);
    streams[0].1.send_data(two, false).unwrap();
    watch.expect("ADDED", "a").await;
    assert!(watch.next().await.is_none(), "a clean end");
    drop(watch);
    world.order(None);
    let (_watch, streams) = world.open("resourceVersion=11").await;
    assert!(streams[0].0.contains("resourceVersion=11&"), "{}", streams[0].0);
}

#[tokio::test]
async fn a_bookmark_that_comes_again_is_a_place_to_resume_from() {
    let fault = json!({"name": "it", "action": "RepeatBookmark", "after": {"events": 2}});
    let mut world = World::ordered(&["east", "west"], &fault).await;
    let query = format!("resourceVersion={}&allowWatchBookmarks=true", world.cursor(&[10, 20]));
    let (mut watch, mut streams) = world.open(&query).await;
    streams[0].1.send_data(event("ADDED", "a", 11), false).unwrap();
    watch.expect("ADDED", "a").await;
    let first = watch.bookmark().await;
    streams[1].1.send_data(event("ADDED", "w", 21), false).unwrap();
    watch.expect("ADDED", "w").await;
    let again = watch.bookmark().await;
    assert_eq!(again, first);
    drop(watch);
    let (_watch, streams) = world.open(&format!("resourceVersion={again}")).await;
    assert!(
        streams[1].0.contains("resourceVersion=20&"),
        "what came after it is sent again: {}",
        streams[1].0
    );
}

#[tokio::test]
async fn a_leg_that_joins_later_has_its_faults_too() {
    let mut world = World::ordered(&["east", "west"], &of_east("Drop", &json!({"after": {"events": 1}}))).await;
    // East does not answer at first: its leg is connected while the watch runs.
    let started = world.start(&format!("resourceVersion={}", world.cursor(&[10, 20])));
    let east = world.members[0].asked().await;
    let (_, _west) = world.members[1].opens().await;
    let mut watch = started.await.unwrap().unwrap();
    let mut respond = east.respond;
    let mut east = respond.send_response(head(200), false).unwrap();
    let two = together([event("ADDED", "a", 11), event("ADDED", "b", 12)]);
    east.send_data(two, false).unwrap();
    watch.expect("ADDED", "a").await;
    let back = async {
        let (path, mut east) = world.members[0].opens().await;
        assert!(path.contains("resourceVersion=11&"), "{path}");
        east.send_data(event("ADDED", "b", 12), false).unwrap();
        east
    };
    let (_east, next) = tokio::join!(back, watch.next());
    assert_eq!(next.unwrap()["object"]["metadata"]["name"], "b");
}
