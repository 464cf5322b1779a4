//! A member is away for long: its agent does not vouch for labels any more, while namespaces of another member come and go all the
//! time. What the members that are there write must come to every client that asks for bookmarks about as soon as to a native
//! one, and none of them may list again or be told 410.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::ensure;
use http::Method;
use portolan_testbed::Fault;
use portolan_tests::door::request;
use portolan_tests::watch::Watch;
use serde_json::json;
use tokio::time::sleep;

use crate::actions::shares::Preview;
use crate::clients::Clients;
use crate::ground::Ground;
use crate::judge::Judge;
use crate::previews::{Previews, told, unchanged};

/// Who goes: it is neither the home of the callers nor the primary.
const AWAY: &str = "north";
/// What is written to meanwhile.
const THERE: [(&str, &str); 2] = [("east", "home-e"), ("west", "home-w")];
/// From one namespace that comes or goes to the next.
const CHURN: Duration = Duration::from_secs(1);
/// From one look at all clients to the next.
const LOOKS: Duration = Duration::from_secs(10);
/// A client may be behind a native one by this, and by so many times that one's lag.
const BEHIND: Duration = Duration::from_secs(5);
const TIMES: u32 = 3;

/// Until the member is back, and all clients are right again.
pub(crate) struct Outage<'a> {
    pub(crate) ground: &'a Ground,
    pub(crate) clients: &'a mut Clients,
    pub(crate) judge: &'a mut Judge,
    /// Of the short form one look.
    pub(crate) lasts: Duration,
    /// Lags are judged; a machine that does much else beside is too slow for that.
    pub(crate) judged: bool,
}

impl Outage<'_> {
    pub(crate) async fn run(&mut self) -> anyhow::Result<()> {
        let north = self.ground.world.cluster(AWAY);
        north.fault(Fault::Blackhole).await?;
        let over = Cell::new(false);
        let ground = self.ground;
        let looks = async {
            let looked = self.look_on().await;
            over.set(true);
            looked
        };
        let (looked, ()) = tokio::join!(looks, churn(ground, &over));
        north.fault(Fault::None).await?;
        println!("{looked:?}");
        looked?;
        crate::rest(self.ground, self.clients, self.judge).await
    }

    async fn look_on(&mut self) -> anyhow::Result<Worst> {
        let (begun, judged) = (Instant::now(), self.judged);
        let mut previews = Previews {
            ground: self.ground,
            clients: &mut *self.clients,
            judge: &mut *self.judge,
            lasts: Duration::ZERO,
            lists_wait: true,
        };
        let before = told(&previews.reports().await?);
        let mut worst = Worst::default();
        loop {
            let next = Instant::now() + LOOKS;
            for (member, namespace) in THERE {
                let native = native(self.ground, member, namespace).await?;
                let value = format!("{:?}", begun.elapsed());
                for delay in previews.write(member, namespace, &value).await? {
                    worst.note(native, delay);
                    ensure!(
                        !judged || delay <= BEHIND.max(TIMES * native),
                        "what was written in {member} came after {delay:?}, to a native client after {native:?}, {:?} after {AWAY} went",
                        begun.elapsed()
                    );
                }
            }
            unchanged(&before, &told(&previews.reports().await?))?;
            if begun.elapsed() >= self.lasts {
                return Ok(worst);
            }
            sleep(next.saturating_duration_since(Instant::now())).await;
        }
    }
}

/// The longest that a write took to all clients, and to a native one.
#[derive(Debug, Default)]
struct Worst {
    looks: u32,
    clients: Duration,
    native: Duration,
}

impl Worst {
    fn note(&mut self, native: Duration, delay: Duration) {
        self.looks += 1;
        self.clients = self.clients.max(delay);
        self.native = self.native.max(native);
    }
}

/// Namespaces of east come and go, one after the other.
async fn churn(ground: &Ground, over: &Cell<bool>) {
    while !over.get() {
        let preview = Preview::open(ground, &["east"]).await;
        sleep(CHURN).await;
        preview.close(ground, Duration::ZERO).await;
        sleep(CHURN).await;
    }
}

/// How long it takes from a write to its event in a watch of the member itself.
async fn native(ground: &Ground, member: &str, namespace: &str) -> anyhow::Result<Duration> {
    let door = ground.world.direct_door(member).await?;
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    let list = door.get(&path, &[]).await?.json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    let mut watch = Watch::open(&door, &format!("{path}?resourceVersion={version}")).await?;
    let begun = Instant::now();
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "native", "annotations": {"soak.test/value": format!("{begun:?}")}},
    });
    let headers = [("content-type", "application/apply-patch+yaml")];
    let one = format!("{path}/native?fieldManager=soak&force=true");
    let asked = request(Method::PATCH, &one, &headers, object.to_string().as_bytes())?;
    let answer = ground.lines.ask_until_answered(member, asked).await?;
    ensure!(answer.status < 300, "{one}: {}", answer.message());
    watch.sees(&format!("{namespace}/native")).await?;
    Ok(begun.elapsed())
}
