//! An operator is upgraded by its canary, as docs/operations.md has it: a StatefulSet on a node, a root, and a version that
//! is bad. It is seen by its errors in the router's metrics and taken back; the next one is promoted shard by shard. The other
//! shards work all the while and notice nothing: their Pods are not started again, their leaders stay, nothing of theirs moves
//! but what is promoted, and what they are given to do is done.
#![allow(clippy::unwrap_used, reason = "also in functions that only tests call")]

use std::collections::BTreeMap;
use std::time::Duration;

use portolan_testbed::{eventually, inside};
use portolan_tests::canary::{BAD, CANARY, NEW, OLD, Owners, Place, ROOT, TRIED, Version, Work, World};
use serde_json::Value;

/// Errors of the canary that are no accident.
const MANY: u64 = 3;
/// A change takes an operator some hundred milliseconds. One that nobody holds the Lease for takes more than this.
const UNNOTICED: Duration = Duration::from_secs(10);

/// The upgrade, as far as it is.
struct Upgrade {
    world: World,
    work: Work,
}

/// What the shards beside the canary are to keep.
struct Before {
    owners: Owners,
    /// Of Pods 1 and 2.
    runs: Vec<(String, i32)>,
    leaders: BTreeMap<String, (String, i32)>,
}

#[test]
fn an_operator_is_upgraded_by_its_canary() {
    inside(async {
        let upgrade = Upgrade::begin().await;
        upgrade.a_bad_version_is_seen_and_taken_back().await;
        upgrade.the_right_one_is_tried_in_a_larger_part().await;
        upgrade.the_others_follow_shard_by_shard().await;
        upgrade.the_canary_gives_back().await;
    });
}

impl Upgrade {
    /// The old version works in all namespaces.
    async fn begin() -> Self {
        let world = World::start().await.unwrap();
        let work = Work::start(&world).await.unwrap();
        let upgrade = Self { world, work };
        upgrade.works_everywhere().await;
        let owners = upgrade.world.owners().await.unwrap();
        for ((_, namespace), (owner, _)) in &owners {
            assert_eq!(owner == CANARY, namespace == TRIED, "{namespace} is {owner}'s");
        }
        assert_eq!(
            upgrade.images(&owners, OLD).await,
            owners.len(),
            "all are of the old version"
        );
        upgrade
    }

    /// Each Greeting is done once more.
    async fn works_everywhere(&self) {
        self.work.begin();
        eventually("all Greetings are worked on", || async {
            let seen = self.work.seen();
            let idle: Vec<_> = seen.iter().filter(|(_, (_, done))| *done < 2).collect();
            anyhow::ensure!(seen.len() == self.world.places.len() && idle.is_empty(), "{idle:?}");
            Ok(())
        })
        .await;
    }

    async fn before(&self) -> Before {
        self.work.begin();
        Before {
            owners: self.world.owners().await.unwrap(),
            runs: self.world.runs().await.unwrap()[1..].to_vec(),
            leaders: self.world.leaders().await.unwrap(),
        }
    }

    /// The shards beside the canary have worked on in all that they had and have.
    async fn unnoticed(&self, before: &Before) {
        assert_eq!(
            self.world.runs().await.unwrap()[1..],
            before.runs,
            "no Pod of theirs was started again"
        );
        let leaders = self.world.leaders().await.unwrap();
        for (lease, leader) in before.leaders.iter().filter(|(lease, _)| lease.ends_with("-normal")) {
            assert_eq!(leaders.get(lease), Some(leader), "{lease}");
        }
        let owners = self.world.owners().await.unwrap();
        let kept = before
            .owners
            .iter()
            .filter(|(place, had)| had.0 != CANARY && owners[*place] == **had);
        let kept: Vec<&Place> = kept.map(|(place, _)| place).collect();
        assert!(!kept.is_empty());
        eventually("they have worked on", || async {
            let seen = self.work.seen();
            let idle: Vec<_> = kept.iter().filter(|place| seen[**place].1 == 0).collect();
            anyhow::ensure!(idle.is_empty(), "{idle:?}");
            Ok(())
        })
        .await;
        let seen = self.work.seen();
        let late: Vec<_> = kept.iter().filter(|place| seen[**place].0 > UNNOTICED).collect();
        assert!(late.is_empty(), "{late:?} of {seen:?}");
    }

    /// How many places were worked on by a version last.
    async fn images(&self, owners: &Owners, version: Version) -> usize {
        let mut count = 0;
        for place in owners.keys() {
            count += usize::from(self.world.image(place).await.unwrap() == version.greeter);
        }
        count
    }

    /// Deletes the canary's Pod, and waits until it runs again as the template has it by then.
    async fn renew_canary(&self, version: Version) {
        self.world.renew(0).await.unwrap();
        self.runs_as(0, version).await;
    }

    async fn runs_as(&self, ordinal: u32, version: Version) {
        eventually(&format!("Pod {ordinal} is of {}", version.image), || {
            self.world.is_running(ordinal, version)
        })
        .await;
    }

    async fn a_bad_version_is_seen_and_taken_back(&self) {
        let (world, before) = (&self.world, self.before().await);
        let [canary, normal] = [
            world.errors("canary").await.unwrap(),
            world.errors("normal").await.unwrap(),
        ];
        world.release(BAD).await.unwrap();
        self.renew_canary(BAD).await;
        eventually("the canary's errors are counted", || async {
            let errors = world.errors("canary").await?;
            anyhow::ensure!(errors > canary + MANY, "{errors} after {canary}");
            Ok(())
        })
        .await;
        for (place, _) in before.owners.iter().filter(|(_, (owner, _))| owner == CANARY) {
            eventually(&format!("{place:?} complains"), || async {
                let complaint = world.complaint(place).await?;
                anyhow::ensure!(complaint.contains("cannot apply the Deployment"), "{complaint}");
                Ok(())
            })
            .await;
        }
        self.unnoticed(&before).await;
        assert_eq!(
            world.errors("normal").await.unwrap(),
            normal,
            "no error beside the canary"
        );
        assert_eq!(world.owners().await.unwrap(), before.owners, "nothing has moved");
        assert_eq!(
            self.images(&before.owners, OLD).await,
            before.owners.len(),
            "it has made nothing"
        );

        world.undo().await.unwrap();
        self.renew_canary(OLD).await;
        self.works_everywhere().await;
        let errors = world.errors("canary").await.unwrap();
        self.works_everywhere().await;
        assert_eq!(world.errors("canary").await.unwrap(), errors, "it errs no more");
    }

    async fn the_right_one_is_tried_in_a_larger_part(&self) {
        let (world, before) = (&self.world, self.before().await);
        world.release(NEW).await.unwrap();
        self.renew_canary(NEW).await;
        self.is_of(NEW, |owner| owner == CANARY).await;
        self.unnoticed(&before).await;
        assert_eq!(world.owners().await.unwrap(), before.owners, "nothing has moved");

        self.promote(&before, &["--percent", "30"]).await;
        let owners = self.is_of(NEW, |owner| owner == CANARY).await;
        let promoted = owners.values().filter(|(owner, _)| owner == CANARY).count();
        assert_eq!(
            self.images(&owners, NEW).await,
            promoted,
            "the others are of the old version still"
        );
        self.unnoticed(&before).await;
        let refused = world.shards(&["promote", ROOT, "--percent", "20"]).await.unwrap_err();
        assert!(
            format!("{refused:#}").contains("the canary has 30 % already"),
            "{refused:#}"
        );
    }

    /// Shows the promotion, which changes nothing, and makes it: what comes of it is what was shown.
    async fn promote(&self, before: &Before, how: &[&str]) {
        let arguments = [&["promote", ROOT, "-o", "json"], how].concat();
        let shown: Value = serde_json::from_str(&self.world.shards(&arguments).await.unwrap()).unwrap();
        assert_eq!(self.world.owners().await.unwrap(), before.owners, "it was only shown");
        let moves = shown["plan"]["moves"].as_array().unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut expected: BTreeMap<Place, String> = BTreeMap::new();
        expected.extend(
            before
                .owners
                .iter()
                .map(|(place, (owner, _))| (place.clone(), owner.clone())),
        );
        for one in moves {
            let place = (text(&one["cluster"]), text(&one["namespace"]));
            if let Some(owner) = expected.get_mut(&place) {
                assert_eq!(*owner, text(&one["from"]), "{one}");
                *owner = text(&one["to"]);
            }
        }
        let moved = before
            .owners
            .iter()
            .filter(|(place, (owner, _))| expected[*place] != *owner);
        assert!(moved.count() > 0, "it is about some of the Greetings: {shown}");
        self.world.shards(&[&arguments[..], &["--yes"]].concat()).await.unwrap();
        eventually("what was shown has come", || async {
            let owners = self.world.owners().await?;
            let wrong: Vec<_> = owners
                .iter()
                .filter(|(place, (owner, _))| expected[*place] != *owner)
                .collect();
            anyhow::ensure!(wrong.is_empty(), "{wrong:?}");
            let stays = |(place, had): &(&Place, &(String, u64))| expected[*place] == had.0;
            let kept = before
                .owners
                .iter()
                .filter(stays)
                .all(|(place, had)| owners[place] == *had);
            anyhow::ensure!(kept, "{owners:?} after {:?}", before.owners);
            Ok(())
        })
        .await;
    }

    /// Waits until all that shards of these names have was worked on by a version; returns who has what.
    async fn is_of(&self, version: Version, shards: impl Fn(&str) -> bool) -> Owners {
        let owners = self.world.owners().await.unwrap();
        for place in owners
            .iter()
            .filter(|(_, (owner, _))| shards(owner))
            .map(|(place, _)| place)
        {
            eventually(&format!("{place:?} is of {}", version.greeter), || async {
                let image = self.world.image(place).await?;
                anyhow::ensure!(image == version.greeter, "{image}");
                Ok(())
            })
            .await;
        }
        owners
    }

    /// From the highest ordinal down, which is the last shard first.
    async fn the_others_follow_shard_by_shard(&self) {
        let (world, before) = (&self.world, self.before().await);
        let pods = world.runs().await.unwrap();
        world.partition(2).await.unwrap();
        self.runs_as(2, NEW).await;
        self.is_of(NEW, |owner| owner.ends_with("-2-normal")).await;
        assert_eq!(
            world.runs().await.unwrap()[..2],
            pods[..2],
            "one shard alone was upgraded"
        );
        self.runs_as(1, OLD).await;

        world.partition(1).await.unwrap();
        self.runs_as(1, NEW).await;
        self.is_of(NEW, |_| true).await;
        assert_eq!(
            world.runs().await.unwrap()[0],
            pods[0],
            "the canary has this version already"
        );
        assert_eq!(world.owners().await.unwrap(), before.owners, "nothing has moved");
        self.works_everywhere().await;
    }

    async fn the_canary_gives_back(&self) {
        let (world, before) = (&self.world, self.before().await);
        self.promote(&before, &[]).await;
        let owners = world.owners().await.unwrap();
        assert!(owners.values().all(|(owner, _)| owner != CANARY), "{owners:?}");
        self.unnoticed(&before).await;
        self.works_everywhere().await;
        let refused = world.shards(&["promote", ROOT]).await.unwrap_err();
        assert!(
            format!("{refused:#}").contains("spec.root.canary: takes nothing"),
            "{refused:#}"
        );
        let served = [
            "wait",
            "--for=condition=ChildrenServed",
            "-n",
            "operators",
            "shardingconfig/greetings",
            "--timeout=60s",
        ];
        world.kubectl("hub").ok(&served).await.unwrap();
    }
}
