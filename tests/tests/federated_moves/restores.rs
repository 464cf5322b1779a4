//! A member is restored from a backup: its resourceVersions go back and are given out once more.

use portolan_testbed::eventually;
use portolan_tests::go_client::{Dump, GoClient};
use portolan_tests::programs::admin_get;
use portolan_tests::watch::{Held, Watch};

use crate::{MAPS, MEMBERS, door, map, truth, world};

/// The agent's own count of its looks at the member.
const LOOKS: &str = "portolan_agent_member_probe_seconds_count";
const CONFIG_MAPS: (&str, &str) = ("/api/v1", "configmaps");
const PLACES: [(&str, &str); 2] = [("east", "fr-e"), ("north", "fr-n")];

fn cache(dump: Dump) -> Held {
    dump.items
        .into_iter()
        .map(|item| (item.key, (item.uid, item.rv)))
        .collect()
}

/// Once the informer holds what the members do.
async fn holds(informer: &mut GoClient) {
    // Asked again by hand: who asks has the informer for itself.
    let started = std::time::Instant::now();
    loop {
        let (held, truth) = (cache(informer.dump().await.unwrap()), truth(CONFIG_MAPS, &PLACES).await);
        if held == truth {
            return;
        }
        assert!(
            started.elapsed() < portolan_testbed::patience(),
            "{held:?} is not {truth:?}"
        );
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}

/// North's agent reads the member's version every few seconds, on a busy machine not each time: what was written since its
/// last look is not known to be lost.
async fn agent_has_looked() {
    let agent = world().await.fleet.process("agent-north").unwrap();
    let looks = async || {
        let metrics = admin_get(&agent.admin, "/metrics").await.unwrap();
        let count = metrics.lines().find_map(|line| line.strip_prefix(LOOKS));
        count.unwrap().trim().parse::<u64>().unwrap()
    };
    let before = looks().await;
    eventually("the agent has looked at the member", || async {
        looks().await >= before + 3
    })
    .await;
}

#[tokio::test]
async fn caches_hold_what_a_restored_member_has() {
    let _alone = MEMBERS.write().await;
    let world = world().await;
    let north = world.cluster("north");
    map("east", "fr-e", "here").await;
    map("north", "fr-n", "kept").await;
    let door = door("restored").await;
    let backup = north.back_up().await.unwrap();
    // More than is written after the restore before the agent reads the member: one that took back less is not seen.
    for round in 0..200 {
        map("north", "fr-n", &format!("lost-{round}")).await;
    }
    let kubeconfig = world.fleet.merged_kubeconfig("restored");
    let mut informers = Vec::new();
    for arguments in [&["informer"][..], &["informer", "--watch-list=false"]] {
        let mut informer = GoClient::synced(&kubeconfig, arguments).await.unwrap();
        holds(&mut informer).await;
        informers.push(informer);
    }
    let list = door.get(MAPS, &[]).await.unwrap().json();
    let position = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    agent_has_looked().await;
    north.restore(&backup).await.unwrap();
    // The numbers of then mean other events from now on.
    for round in 0..20 {
        map("north", "fr-n", &format!("after-{round}")).await;
    }
    for informer in &mut informers {
        holds(informer).await;
    }
    for round in 0..200 {
        map("north", "fr-n", &format!("more-{round}")).await;
    }
    for informer in &mut informers {
        holds(informer).await;
    }
    let path = format!("{MAPS}?resourceVersion={position}");
    eventually("a position in the member's earlier life is refused", || async {
        let mut watch = Watch::open(&door, &path).await.unwrap();
        watch
            .next()
            .await
            .unwrap()
            .is_some_and(|event| event["object"]["code"] == 410)
    })
    .await;
    // It goes on as ever.
    map("north", "fr-n", "later").await;
    for informer in &mut informers {
        holds(informer).await;
    }
}
