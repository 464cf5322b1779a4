//! What happens to a member's API server and to the way to it.

use std::time::Duration;

use portolan_testbed::Fault;
use portolan_tests::etcd;
use rand::rngs::StdRng;
use rand::seq::IteratorRandom as _;
use tokio::time::sleep;

use crate::ground::Ground;

/// How a member goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// SIGKILL, and started again.
    Kill,
    /// Connections are cut and new ones refused.
    Reset,
    /// Bytes vanish.
    Blackhole,
    /// SIGSTOP.
    Freeze,
    /// Cut off while its etcd forgets all but the present, and its API server with it.
    Compact,
    /// It goes back to what it held a while ago, its versions with it. Drawn where `PORTOLAN_SOAK_RESTORE` is set.
    Restore,
}

impl Way {
    const ALL: [Self; 5] = [Self::Kill, Self::Reset, Self::Blackhole, Self::Freeze, Self::Compact];

    pub(super) fn draw(rng: &mut StdRng) -> Self {
        let restore = std::env::var_os("PORTOLAN_SOAK_RESTORE").map(|_| Self::Restore);
        let drawn = Self::ALL.into_iter().chain(restore).choose(rng);
        drawn.unwrap_or(Self::Kill)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kill => "member killed",
            Self::Reset => "member cut off",
            Self::Blackhole => "member blackholed",
            Self::Freeze => "member frozen",
            Self::Compact => "member compacted",
            Self::Restore => "member restored",
        }
    }

    pub(super) async fn run(self, ground: &Ground, member: &str, lasts: Duration) {
        let cluster = ground.world.cluster(member);
        let fault = async |fault| {
            cluster.fault(fault).await.unwrap();
            sleep(lasts).await;
        };
        match self {
            Self::Kill => {
                cluster.kill().await.unwrap();
                sleep(lasts).await;
                cluster.restart().await.unwrap();
            }
            Self::Reset => fault(Fault::Reset).await,
            Self::Blackhole => fault(Fault::Blackhole).await,
            Self::Freeze => {
                cluster.freeze().await.unwrap();
                sleep(lasts).await;
                cluster.thaw().await.unwrap();
            }
            Self::Compact => {
                fault(Fault::Reset).await;
                etcd::compact(cluster).await.unwrap();
                // Its watch cache remembers longer than etcd.
                cluster.restart().await.unwrap();
            }
            Self::Restore => {
                let backup = cluster.back_up().await.unwrap();
                sleep(lasts).await;
                for namespace in &ground.share.owned().await[member] {
                    ground.ledger.leaving(member, namespace);
                }
                cluster.restore(&backup).await.unwrap();
            }
        }
        cluster.fault(Fault::None).await.unwrap();
    }
}
