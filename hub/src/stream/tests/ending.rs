//! Routers that say that they end.

use super::*;

/// Two routers, of which the second has ended with these words.
async fn after(said: v1::Ended) -> TestHub {
    let hub = TestHub::start().await;
    let _first = hub.router("gateway", Vec::new()).await;
    let second = hub.router("part", Vec::new()).await;
    second.say(RouterSaid::Ended(said)).await;
    hub.until("it has left", |hub| {
        let left = |router: &crate::acks::RouterState| router.left.is_some();
        hub.acks.read(|routers| left(&routers["part"]).then_some(()))
    })
    .await;
    hub
}

#[tokio::test]
async fn who_asks_for_it_at_its_end_is_forgotten_and_nobody_else() {
    let gone = v1::Ended {
        gave_back_shares: true,
        forget: true,
    };
    let hub = after(gone).await;
    hub.until("its object is deleted", |hub| {
        hub.router_object("part").is_none().then_some(())
    })
    .await;
    assert!(hub.router_object("gateway").is_some());
    assert!(hub.acks.read(|routers| routers["part"].gone));
}

#[tokio::test]
async fn who_may_come_back_with_its_folder_keeps_its_name() {
    let ended = v1::Ended {
        gave_back_shares: true,
        forget: false,
    };
    let hub = after(ended).await;
    assert!(hub.router_object("part").is_some());
    let (ended, gone) = hub.acks.read(|routers| (routers["part"].ended, routers["part"].gone));
    assert!(ended && !gone);
}
