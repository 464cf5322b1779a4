//! `make demo CANARY=1`: an operator is upgraded by its canary. A bad version is seen by its errors and taken back, the
//! right one is promoted shard by shard, and the other shards notice nothing.
//!
//! Its Pods run on a real Node in a network of its own, so all of it runs inside one.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use portolan_testbed::{Lan, enter, node_lacks};
use portolan_tests::canary::{BAD, CANARY, NEW, OLD, Owners, ROOT, Version, Work, World};

use crate::account::{head, quote};
use crate::wait::wait_for;

const MANIFEST: &str = include_str!("../../../../examples/canary-root.yaml");
/// Errors of the canary that are no accident.
const MANY: u64 = 3;
/// What the canary is given of all buckets before the others follow.
const PERCENT: &str = "30";

/// What runs, and how often Pods 1 and 2, which are not the canary's, were started.
struct Upgrade {
    world: World,
    work: Work,
    others: Vec<(String, i32)>,
}

/// Goes on inside a network that Pods can join, as the same program run again. Returns there.
///
/// # Errors
///
/// This machine lacks what a Node needs; the error names each thing.
pub(crate) fn go_inside() -> anyhow::Result<()> {
    if Lan::here().is_some() {
        return Ok(());
    }
    let lacks = node_lacks();
    ensure!(
        lacks.is_empty(),
        "Pods run on a real Node here, and this machine lacks what one needs:\n   {}",
        lacks.join("\n   ")
    );
    let program = std::env::current_exe()?.to_string_lossy().into_owned();
    let again: Vec<String> = std::iter::once(program).chain(std::env::args().skip(1)).collect();
    Err(enter(&again))
}

pub(crate) async fn run() -> anyhow::Result<()> {
    let mut upgrade = Upgrade::begin().await?;
    upgrade.try_a_bad_version().await?;
    upgrade.try_the_right_one().await?;
    upgrade.let_the_others_follow().await?;
    upgrade.give_back().await?;
    head("Summary");
    println!(
        "   the bad version met the canary's namespaces alone and was seen by its errors; the right one was tried there,"
    );
    println!("   then in 30 % of all, then everywhere, shard by shard; each namespace had one writer all the while.");
    Ok(())
}

impl Upgrade {
    async fn begin() -> anyhow::Result<Self> {
        head("Starting real control planes, hub, east and west, a router, and a node of east that runs Pods");
        let started = Instant::now();
        let world = World::start().await?;
        println!("   ready in {} ms; the root on the hub:", started.elapsed().as_millis());
        quote(MANIFEST.split_once("---\n").map_or(MANIFEST, |(_, root)| root));
        head("The operator, a StatefulSet of three Pods in version 1.0, works in thirteen namespaces of two clusters");
        let work = Work::start(&world).await?;
        let mut upgrade = Self {
            world,
            work,
            others: Vec::new(),
        };
        upgrade.all_work().await?;
        upgrade.others = upgrade.others_now().await?;
        upgrade.show_pods().await?;
        upgrade.show_shards().await?;
        Ok(upgrade)
    }

    async fn try_a_bad_version(&self) -> anyhow::Result<()> {
        head("Version 1.1 is bad: the canary's Pod gets it first");
        let world = &self.world;
        let [canary, normal] = [world.errors("canary").await?, world.errors("normal").await?];
        let before = self.owners().await?;
        self.work.begin();
        self.release(BAD).await?;
        let errors = wait_for("errors of the canary", || async {
            let errors = world.errors("canary").await?;
            ensure!(errors > canary + MANY, "{errors} after {canary}");
            Ok(errors)
        })
        .await?;
        println!("   requests_by_child_total{{verb=\"patch\"}} of the router, those that were answered by an error:");
        println!("   canary  {canary:>3} -> {errors}");
        let beside = world.errors("normal").await?;
        println!("   normal  {normal:>3} -> {beside}");
        ensure!(beside == normal, "a version that only the canary runs has met others");
        let place = before.iter().find(|(_, (owner, _))| owner == CANARY);
        let (place, _) = place.context("the canary has nothing")?;
        let complaint = wait_for("what the canary complains of", || async {
            let complaint = world.complaint(place).await?;
            ensure!(complaint.contains("cannot apply"), "{complaint}");
            Ok(complaint)
        })
        .await?;
        println!("   its Greeting in {}: {complaint}", place.1);
        println!("   $ kubectl rollout undo -n operators statefulset/greeting-operator");
        world.undo().await?;
        self.renew_canary(OLD).await?;
        self.all_work().await?;
        self.others_unnoticed(&before).await
    }

    async fn try_the_right_one(&self) -> anyhow::Result<()> {
        head("Version 1.2 is right: on the canary, then in 30 % of all namespaces");
        let before = self.owners().await?;
        self.work.begin();
        self.release(NEW).await?;
        self.is_of(NEW, |owner| owner == CANARY).await?;
        self.others_unnoticed(&before).await?;
        self.promote(&["--percent", PERCENT]).await?;
        self.is_of(NEW, |owner| owner == CANARY).await?;
        self.show_shards().await
    }

    async fn let_the_others_follow(&mut self) -> anyhow::Result<()> {
        head("The others follow, from the last shard to the first, by the StatefulSet's partition");
        for ordinal in [2, 1] {
            println!("   updateStrategy: {{type: RollingUpdate, rollingUpdate: {{partition: {ordinal}}}}}");
            self.world.partition(ordinal).await?;
            self.runs_as(ordinal, NEW).await?;
            self.is_of(NEW, |owner| owner.ends_with(&format!("-{ordinal}-normal")))
                .await?;
        }
        self.show_pods().await?;
        self.others = self.others_now().await?;
        Ok(())
    }

    async fn give_back(&self) -> anyhow::Result<()> {
        head("The canary gives back what it has, and waits for the next upgrade");
        self.promote(&[]).await?;
        let owners = self.owners().await?;
        ensure!(owners.values().all(|(owner, _)| owner != CANARY), "{owners:?}");
        self.all_work().await?;
        self.show_shards().await?;
        ensure!(self.others_now().await? == self.others, "a Pod was started again");
        Ok(())
    }

    /// Shows a promotion, makes it, and waits until all is handed over.
    async fn promote(&self, how: &[&str]) -> anyhow::Result<()> {
        let command = [&["promote", ROOT], how].concat();
        println!("   $ portolanctl shards {}", command.join(" "));
        quote(&self.world.shards(&command).await?);
        println!("   $ portolanctl shards {} --yes", command.join(" "));
        let started = Instant::now();
        let generation = self.world.shards(&[&command[..], &["--yes"]].concat()).await?;
        quote(generation.lines().last().unwrap_or_default());
        let part: usize = how.last().map_or(Ok(0), |percent| percent.parse())?;
        let owners = wait_for("everything to be handed over", || async {
            let owners = self.owners().await?;
            let canary = owners.values().filter(|(owner, _)| owner == CANARY).count();
            let is_done = if part > 0 { canary > 1 } else { canary == 0 };
            ensure!(is_done, "the canary has {canary} namespaces");
            Ok(owners)
        })
        .await?;
        let canary = owners.values().filter(|(owner, _)| owner == CANARY).count();
        println!(
            "   handed over after {} ms: the canary has {canary} of {} namespaces",
            started.elapsed().as_millis(),
            owners.len()
        );
        Ok(())
    }

    /// All pairs, each granted to somebody.
    async fn owners(&self) -> anyhow::Result<Owners> {
        wait_for("each namespace has its owner", || self.world.owners()).await
    }

    async fn release(&self, version: Version) -> anyhow::Result<()> {
        println!("   the template has {}", version.image);
        self.world.release(version).await?;
        self.renew_canary(version).await
    }

    async fn renew_canary(&self, version: Version) -> anyhow::Result<()> {
        println!("   $ kubectl delete pod -n operators greeting-operator-0");
        self.world.renew(0).await?;
        self.runs_as(0, version).await
    }

    async fn runs_as(&self, ordinal: u32, version: Version) -> anyhow::Result<()> {
        let what = format!("Pod {ordinal} to be of {}", version.image);
        wait_for(&what, || self.world.is_running(ordinal, version)).await
    }

    /// Waits until all that shards of these names have was worked on by a version.
    async fn is_of(&self, version: Version, shards: impl Fn(&str) -> bool) -> anyhow::Result<()> {
        let owners = self.owners().await?;
        for (place, _) in owners.iter().filter(|(_, (owner, _))| shards(owner)) {
            let what = format!("{} of {} to be of {}", place.1, place.0, version.greeter);
            wait_for(&what, || async {
                let image = self.world.image(place).await?;
                ensure!(image == version.greeter, "{image}");
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Waits until each Greeting was done twice from now on.
    async fn all_work(&self) -> anyhow::Result<()> {
        self.work.begin();
        wait_for("all Greetings to be worked on", || async {
            let seen = self.work.seen();
            let idle = seen.values().filter(|(_, done)| *done < 2).count();
            ensure!(seen.len() == self.world.places.len() && idle == 0, "{idle} are not");
            Ok(())
        })
        .await
    }

    async fn others_now(&self) -> anyhow::Result<Vec<(String, i32)>> {
        let runs = self.world.runs().await?;
        Ok(runs.get(1..).context("three Pods")?.to_vec())
    }

    /// No other Pod was started again, nothing has moved, and says how long a change took at the most elsewhere.
    async fn others_unnoticed(&self, before: &Owners) -> anyhow::Result<()> {
        ensure!(
            self.others_now().await? == self.others,
            "a Pod beside the canary was started again"
        );
        ensure!(self.owners().await? == *before, "a namespace has moved");
        let seen = self.work.seen();
        let kept = before.iter().filter(|(_, (owner, _))| owner != CANARY);
        let longest = kept
            .filter_map(|(place, _)| seen.get(place))
            .map(|(longest, _)| *longest);
        let longest = longest.max().context("there are others")?;
        println!(
            "   the other shards: no Pod was started again, nothing has moved, no change took longer than {} ms",
            longest.as_millis()
        );
        Ok(())
    }

    async fn show_pods(&self) -> anyhow::Result<()> {
        println!("   $ kubectl get pods -n operators");
        let columns = "custom-columns=NAME:.metadata.name,IMAGE:.spec.containers[0].image,PHASE:.status.phase";
        let pods = ["get", "pods", "-n", "operators", "-o", columns];
        quote(&self.world.kubectl("east").ok(&pods).await?);
        Ok(())
    }

    async fn show_shards(&self) -> anyhow::Result<()> {
        println!("   $ portolanctl shards status");
        quote(&self.world.shards(&["status"]).await?);
        Ok(())
    }
}
