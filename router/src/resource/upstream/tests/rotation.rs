//! A member's CA changes under load.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::task::JoinSet;

use super::super::scripted::Certified;
use super::endpoints::bound;
use super::*;

/// Asks all the time, sends again what the member vouches for not to have run, and counts.
async fn load(east: Arc<Upstream>, stop: Arc<AtomicBool>, answered: Arc<AtomicUsize>) {
    while !stop.load(Ordering::Relaxed) {
        match east.send(false, false, get("/version")).await {
            Ok(response) => {
                all_of(response.into_body()).await.unwrap();
                answered.fetch_add(1, Ordering::Relaxed);
            }
            Err(UpstreamError::Refused { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_ca_is_replaced_in_two_steps_and_no_request_fails() {
    let (old, new) = (Certified::new(), Certified::new());
    let (listener, address) = bound().await;
    let backend = Backend::start_on(listener, old.clone(), 100, plain());
    let trusting = |bundle: &str| target("east", &[address], bundle);
    let connector = connector();
    let mut all = first(&connector, [trusting(&old.ca_pem())]);
    let east = all.get("east").unwrap().clone();
    let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut asking = JoinSet::new();
    for _ in 0..4 {
        asking.spawn(load(east.clone(), stop.clone(), answered.clone()));
    }
    let more = || {
        let before = answered.load(Ordering::Relaxed);
        let answered = answered.clone();
        async move { eventually("requests go on", || answered.load(Ordering::Relaxed) > before + 20).await }
    };
    let mut watch = east.send(true, false, get("/watch")).await.unwrap();
    first_frame(watch.body_mut()).await;
    more().await;
    let connections = backend.seen.connections();

    let both = format!("{}{}", old.ca_pem(), new.ca_pem());
    all = connector.follow(&all, &snapshot([trusting(&both)]).targets);
    more().await;
    assert!(
        Arc::ptr_eq(&east, all.get("east").unwrap()),
        "breakers and connections stay"
    );
    assert_eq!(backend.seen.connections(), connections, "nothing is dialled anew");

    old.adopt(&new);
    all = connector.follow(&all, &snapshot([trusting(&new.ca_pem())]).targets);
    more().await;
    assert!(Arc::ptr_eq(&east, all.get("east").unwrap()));
    assert!(
        backend.seen.connections() > connections,
        "the new bundle does not vouch for the old connections"
    );
    let silent = tokio::time::timeout(Duration::from_millis(20), watch.body_mut().frame()).await;
    assert!(silent.is_err(), "the watch runs on: {silent:?}");
    let mut next = east.send(true, false, get("/watch")).await.unwrap();
    first_frame(next.body_mut()).await;

    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = asking.join_next().await {
        ended.unwrap();
    }
    assert!(all.breakers().iter().all(|status| status.report.transitions.is_empty()));
}

#[tokio::test]
async fn a_bundle_that_vouches_for_nobody_there_stops_new_requests() {
    let backend = Backend::start(100, plain()).await;
    let connector = connector();
    let all = first(&connector, [backend.target("east")]);
    let east = all.get("east").unwrap().clone();
    east.send(false, false, get("/version")).await.unwrap();
    let other = target("east", &[backend.address], &Certified::new().ca_pem());
    let all = connector.follow(&all, &snapshot([other]).targets);
    let error = all.get("east").unwrap().send(false, false, get("/version")).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("spec.caBundle"), "{error}");
    let unreadable = target("east", &[backend.address], "none");
    let all = connector.follow(&all, &snapshot([unreadable]).targets);
    let error = all.get("east").unwrap().send(false, false, get("/version")).await;
    assert!(error.unwrap_err().to_string().contains("certificate"));
    assert_eq!(backend.seen.requests(), 1);
}
