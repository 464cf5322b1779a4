//! What happens to the shard: namespaces come, go, and change hands; parts of its spec change that own nothing.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http::Method;
use portolan_testbed::eventually;
use portolan_tests::door::json;
use serde_json::json;
use tokio::time::sleep;

use crate::ground::{Ground, LENT, MEMBERS, ROAMING};
use crate::share::Owned;

/// What is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// A namespace is made, is the shard's for a while, and is deleted.
    Preview,
    /// A namespace that all members have is another member's from now on.
    Roam,
    /// A namespace is another shard's for a while.
    Lend,
    /// The write fence is off for a while.
    Edit,
}

/// Numbers previews: no name is used twice.
static PREVIEWS: AtomicU32 = AtomicU32::new(0);

impl Way {
    pub(super) const ALL: [Self; 4] = [Self::Preview, Self::Roam, Self::Lend, Self::Edit];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Preview => "preview namespace",
            Self::Roam => "namespace moved to another member",
            Self::Lend => "namespace lent to another shard",
            Self::Edit => "shard edited",
        }
    }

    pub(super) async fn run(self, ground: &Ground, lasts: Duration) {
        let Ground { share, ledger, .. } = ground;
        match self {
            Self::Preview => preview(ground, lasts).await,
            Self::Roam => {
                share.edit(ledger, roam).await;
                sleep(lasts).await;
            }
            Self::Lend => lend(ground, lasts).await,
            Self::Edit => {
                share.patch(json!({"writeFence": "Disabled"})).await;
                sleep(lasts).await;
                share.patch(json!({"writeFence": "Enabled"})).await;
            }
        }
    }
}

/// To the next member in order.
fn roam(owned: &mut Owned) {
    let now = MEMBERS
        .iter()
        .position(|member| owned[*member].contains(ROAMING))
        .unwrap();
    take(owned, MEMBERS[now], ROAMING);
    give(owned, MEMBERS[(now + 1) % MEMBERS.len()], ROAMING);
}

fn give(owned: &mut Owned, member: &str, namespace: &str) {
    owned.get_mut(member).unwrap().insert(namespace.to_owned());
}

fn take(owned: &mut Owned, member: &str, namespace: &str) {
    owned.get_mut(member).unwrap().remove(namespace);
}

async fn lend(ground: &Ground, lasts: Duration) {
    let Ground {
        share, other, ledger, ..
    } = ground;
    share.edit(ledger, |owned| take(owned, "north", LENT)).await;
    // Nobody watches as the other shard.
    other.edit(ledger, |owned| give(owned, "north", LENT)).await;
    sleep(lasts).await;
    other.edit(ledger, |owned| take(owned, "north", LENT)).await;
    share.edit(ledger, |owned| give(owned, "north", LENT)).await;
}

async fn preview(ground: &Ground, lasts: Duration) {
    let preview = Preview::open(ground, &MEMBERS).await;
    sleep(lasts).await;
    preview.close(ground, lasts / 2).await;
}

/// A namespace that was made for a while, and is the shard's.
pub(crate) struct Preview {
    number: u32,
    pub(crate) member: &'static str,
    pub(crate) name: String,
}

impl Preview {
    /// In one of these members after the other.
    pub(crate) async fn open(ground: &Ground, members: &[&'static str]) -> Self {
        let number = PREVIEWS.fetch_add(1, Ordering::Relaxed);
        let (name, member) = (format!("preview-{number}"), members[number as usize % members.len()]);
        let preview = Self { number, member, name };
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": preview.name}});
        eventually("a namespace is made", || async {
            let asked = json(Method::POST, "/api/v1/namespaces", &namespace)?;
            let answer = ground.lines.ask(member, asked).await?;
            anyhow::ensure!(answer.status < 300 || answer.status == 409, "{}", answer.message());
            anyhow::Ok(())
        })
        .await;
        preview.edit(ground, give).await;
        preview
    }

    /// It leaves its member and the shard, in either order, the shard sometimes `later`.
    pub(crate) async fn close(self, ground: &Ground, later: Duration) {
        let one = format!("/api/v1/namespaces/{}", self.name);
        if self.number.is_multiple_of(2) {
            self.edit(ground, take).await;
        }
        ground.ledger.leaving(self.member, &self.name);
        eventually("a namespace is deleted", || async {
            let asked = json(Method::DELETE, &one, &json!({}))?;
            let answer = ground.lines.ask(self.member, asked).await?;
            anyhow::ensure!(answer.status < 300 || answer.status == 404, "{}", answer.message());
            anyhow::Ok(())
        })
        .await;
        if !self.number.is_multiple_of(2) {
            sleep(later).await;
            self.edit(ground, take).await;
        }
    }

    async fn edit(&self, ground: &Ground, change: fn(&mut Owned, &str, &str)) {
        let change = |owned: &mut Owned| change(owned, self.member, &self.name);
        ground.share.edit(&ground.ledger, change).await;
    }
}
