//! What happens to the fleet, in this order; each step leaves all as it was.

use portolan_testbed::Fault;
use portolan_tests::etcd;

use crate::{Ground, Relists};

pub(crate) async fn steady(ground: &mut Ground) {
    ground
        .step("steady", Relists::Nobody, async |ground| {
            for _ in 0..5 {
                ground.work(&["east", "west"]).await;
            }
            ground.mark("steady", "west").await;
        })
        .await;
}

pub(crate) async fn members_go_and_come_back(ground: &mut Ground) {
    // First: an API server that was restarted knows nothing of before, so a position must be its last word then.
    ground
        .step("killed", Relists::Nobody, async |ground| {
            ground.world.cluster("west").kill().await.unwrap();
            let back = async |ground: &mut Ground| ground.world.cluster("west").restart().await.unwrap();
            ground.away("killed", back).await;
        })
        .await;
    // Soon, as a client's own timeout makes it go on from a position some day, and then it is like one that listed.
    // The legs' positions are gone when they come back: the member says 410, and the router mends it where it knows what
    // the client holds, which is where the stream began with initial events.
    ground
        .step("compacted", Relists::WhoListed, async |ground| {
            ground.fault(Fault::Reset).await;
            let back = async |ground: &mut Ground| {
                ground.work(&["west", "west", "west"]).await;
                etcd::compact(ground.world.cluster("west")).await.unwrap();
                // Its watch cache goes with it, which remembers longer than etcd.
                ground.world.cluster("west").restart().await.unwrap();
                ground.fault(Fault::None).await;
            };
            ground.away("compacted", back).await;
        })
        .await;
    ground
        .step("blackholed", Relists::Nobody, async |ground| {
            ground.fault(Fault::Blackhole).await;
            // Not seen through the router before it is healed.
            ground.work(&["west"]).await;
            let back = async |ground: &mut Ground| ground.fault(Fault::None).await;
            ground.away("blackholed", back).await;
        })
        .await;
    ground
        .step("frozen", Relists::Nobody, async |ground| {
            ground.world.cluster("west").freeze().await.unwrap();
            let back = async |ground: &mut Ground| ground.world.cluster("west").thaw().await.unwrap();
            ground.away("frozen", back).await;
        })
        .await;
}

pub(crate) async fn ours_go_and_come_back(ground: &mut Ground) {
    ground
        .step("hub away", Relists::Nobody, async |ground| {
            assert_eq!(ground.hub.stop().await.unwrap(), 0);
            ground.work(&["east", "west"]).await;
            ground.mark("hub away", "west").await;
            ground.hub.start_again().await.unwrap();
            ground.hub.ready().await;
        })
        .await;
    // More than once: a client may ask again while the old router is still about to go, and must not list for it.
    for _ in 0..2 {
        let name = "router drained";
        ground
            .step(name, Relists::ByHand, async |ground| roll(ground, name).await)
            .await;
    }
    ground
        .step("router killed", Relists::Everybody, async |ground| {
            ground.router.kill().await.unwrap();
            ground.work(&["east", "west"]).await;
            ground.router.start_again().await.unwrap();
            ground.router.ready().await;
            ground.again("router killed").await;
        })
        .await;
}

/// SIGTERM and a new router on the same address, under writes.
async fn roll(ground: &mut Ground, name: &str) {
    let Ground {
        router, truth, world, ..
    } = ground;
    let busy = async {
        for _ in 0..10 {
            for member in ["east", "west"] {
                truth.work(world, member).await;
            }
        }
    };
    let rolled = async {
        assert_eq!(router.stop().await.unwrap(), 0);
        router.start_again().await.unwrap();
        router.ready().await;
    };
    tokio::join!(busy, rolled);
    ground.again(name).await;
}
