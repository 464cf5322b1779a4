//! What happens to programs of Portolan.

use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::time::sleep;

use crate::ground::Ground;

/// What happens to the routers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// One after the other ends as asked, and is started again.
    Roll,
    /// One is killed.
    Kill,
    /// One is frozen: its view stays behind the other's.
    Freeze,
}

impl Way {
    pub(super) const ALL: [Self; 3] = [Self::Roll, Self::Kill, Self::Freeze];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Roll => "routers rolled",
            Self::Kill => "router killed",
            Self::Freeze => "router frozen",
        }
    }

    pub(super) async fn run(self, ground: &Ground, lasts: Duration) {
        match self {
            Self::Roll => {
                for router in &ground.routers {
                    let mut router = router.lock().await;
                    assert_eq!(router.stop().await.unwrap(), 0, "a router does not end well");
                    router.start_again().await.unwrap();
                    router.ready().await;
                    sleep(lasts / 2).await;
                }
            }
            Self::Kill => {
                let mut router = ground.routers[1].lock().await;
                router.kill().await.unwrap();
                sleep(lasts).await;
                router.start_again().await.unwrap();
                router.ready().await;
            }
            Self::Freeze => {
                let router = ground.routers[0].lock().await;
                router.signal(Signal::SIGSTOP).unwrap();
                sleep(lasts).await;
                router.signal(Signal::SIGCONT).unwrap();
            }
        }
    }
}

pub(super) async fn stop_agent(ground: &Ground, member: &str, lasts: Duration) {
    let mut agent = ground.agents[member].lock().await;
    agent.kill().await.unwrap();
    sleep(lasts).await;
    agent.start_again().await.unwrap();
}

pub(super) async fn stop_hub(ground: &Ground, lasts: Duration) {
    let mut hub = ground.hub.lock().await;
    let hub = match &mut *hub {
        Some(hub) => hub,
        none => none.insert(ground.world.fleet.take_over("hub").await.unwrap()),
    };
    assert_eq!(hub.stop().await.unwrap(), 0, "the hub does not end well");
    sleep(lasts).await;
    hub.start_again().await.unwrap();
    hub.ready().await;
}
