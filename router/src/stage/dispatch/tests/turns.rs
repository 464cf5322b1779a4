//! Whoever waits for a turn at the member: who need not, what it is told, and that an open breaker is told of at once.

use super::*;
use crate::resource::breaker::{Outcome, Probe};
use crate::resource::upstream::{First, Upstream};

const PODS: &str = "/api/v1/namespaces/ns/pods";

fn east(world: &World) -> Arc<Upstream> {
    world.routing.upstreams.get("east").unwrap().clone()
}

fn list(world: &World) -> Forward {
    Forward {
        traffic: Traffic {
            class: TrafficClass::List,
            effect: Effect::Collection,
            ..Traffic::QUESTION
        },
        ..world.forward()
    }
}

fn opens(upstream: &Upstream, class: TrafficClass) {
    let breaker = upstream.breaker(class);
    breaker.configure(breaker::Settings {
        consecutive_failures: 1,
        ..breaker::Settings::default()
    });
    breaker.admit(None, Probe::Telling).unwrap().record(Outcome::Failure);
}

#[tokio::test]
async fn an_open_breaker_refuses_at_once_who_would_have_to_wait_first() {
    let world = world(|_, _| pod("foo")).await;
    let upstream = east(&world);
    let seats = upstream.queues.fill(Class::Single);
    let mut waits = Box::pin(world.dispatch(world.forward(), Method::POST, PODS, pod("foo")));
    assert!(futures::poll!(&mut waits).is_pending());
    opens(&upstream, TrafficClass::Unary);
    let told = waits.await.unwrap_err();
    assert!(told.to_string().contains("breaker is open"), "{told}");
    let comes = world.dispatch(world.forward(), Method::POST, PODS, pod("foo"));
    let told = tokio::time::timeout(Duration::from_secs(5), comes)
        .await
        .expect("at once");
    assert!(matches!(told, Err(Fault::Unavailable { sent: false, .. })), "{told:?}");
    let own = OwnRequests {
        routing: world.now.clone(),
    };
    let review = own.post("east", REVIEWS, Turn::InOrder(Flow::numbered(7, 1)), Vec::new());
    let told = tokio::time::timeout(Duration::from_secs(5), review)
        .await
        .expect("at once");
    assert!(told.is_err());
    drop(seats);

    let mut places = Vec::new();
    for _ in 0..7 {
        places.push(upstream.places.list(&world.person(), false).await.unwrap());
    }
    opens(&upstream, TrafficClass::List);
    let comes = world.dispatch(list(&world), Method::GET, PODS, Value::Null);
    let told = tokio::time::timeout(Duration::from_secs(3), comes)
        .await
        .expect("at once");
    assert!(told.unwrap_err().to_string().contains("breaker is open"));
    drop(places);
    let legs = &world.dispatcher.metrics;
    assert_eq!(legs.count("east", "unary", "create", "refused"), 2);
    assert_eq!(legs.count("east", "list", "list", "refused"), 1);
    assert_eq!(world.backend.seen.requests(), 0);
}

#[tokio::test]
async fn a_list_that_waited_in_vain_may_come_again() {
    let world = world(|_, _| pod("foo")).await;
    let seats = east(&world).queues.fill(Class::List);
    let request = Request::get(PODS).body(()).unwrap();
    let (head, ()) = request.into_parts();
    let leg = Leg {
        deadline: Some(Instant::now() + Duration::from_millis(20)),
        ..world.leg(list(&world), &head)
    };
    let Err(told) = world.dispatcher.dispatch(leg, head, Body::Empty).await else {
        panic!("there is no seat")
    };
    assert!(matches!(told, Fault::TooManyRequests { .. }), "{told:?}");
    assert_eq!(told.retry_after_seconds(), Some(1), "nothing was sent");
    assert_eq!(world.dispatcher.waits.count("east", Class::List, "time"), 1);
    drop(seats);
}

#[tokio::test(start_paused = true)]
async fn a_watch_waits_for_all_its_turns_no_longer_than_its_head_may_take() {
    let world = world(|_, _| pod("foo")).await;
    let upstream = east(&world);
    let mut places = Vec::new();
    for _ in 0..7 {
        places.push(
            upstream
                .places
                .start(&world.person(), false, First::State)
                .await
                .unwrap(),
        );
    }
    let seats = upstream.queues.fill(Class::List);
    let watch = format!("{PODS}?watch=true");
    let request = Request::get(&watch).body(()).unwrap();
    let (head, ()) = request.into_parts();
    let traffic = Traffic {
        class: TrafficClass::Watch,
        long: true,
        effect: Effect::Collection,
    };
    let forward = Forward {
        traffic,
        ..world.forward()
    };
    let leg = Leg {
        deadline: None,
        ..world.leg(forward, &head)
    };
    let begun = Instant::now();
    assert!(world.dispatcher.dispatch(leg, head, Body::Empty).await.is_err());
    // The places are over after five seconds, the seats never.
    assert_eq!(begun.elapsed().as_secs(), LONG_HEAD_TIMEOUT.as_secs());
    assert_eq!(world.dispatcher.waits.count("east", Class::List, "time"), 1);
    drop((places, seats));
}

#[tokio::test]
async fn any_lease_passes_a_full_member() {
    let world = world(|_, _| lease("other")).await;
    let seats = east(&world).queues.fill(Class::Single);
    let path = format!("{LEASES}/other");
    let renewal = world.dispatch(world.forward(), Method::PUT, &path, lease("other"));
    let renewal = tokio::time::timeout(Duration::from_secs(5), renewal).await;
    renewal.expect("whatever the router knows of the election").unwrap();
    let path = format!("{PODS}/a");
    let write = world.dispatch(world.forward(), Method::PUT, &path, pod("foo"));
    let mut write = Box::pin(write);
    assert!(futures::poll!(&mut write).is_pending());
    drop((write, seats));
}
