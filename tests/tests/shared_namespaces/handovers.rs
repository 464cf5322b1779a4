//! One operator hands over while another one writes; and while a router that has writes of both open is killed.

use kube::Client;
use portolan_crds::labels::{FENCE_EPOCH, FENCE_SHARD};
use portolan_testbed::eventually;
use portolan_tests::ctl;
use portolan_tests::door::Door;
use portolan_tests::routers;
use portolan_tests::world::World;

use crate::scene::{SHOP, Silent, Writer, all_are_fenced, map, moved, open, status, world, writes};

const MOVES: usize = 4;

/// A handover waits for the writes of its own giver: it is over while another operator's, which were admitted before it began, are not.
async fn no_slow_write_of_another_is_waited_for(world: &World, moves: &[(&str, &Door)]) {
    let mut silent = Silent::start(world).await;
    let other = world.merged_door("prometheus").await.unwrap();
    for (at, (taker, door)) in moves.iter().enumerate() {
        let mut slow = silent.hold(&other).await;
        moved(world, taker).await;
        writes(door, &format!("beside-slow-{at}")).await;
        assert!(slow.is_open(), "it was over before the other's write was");
    }
    silent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_operator_hands_over_while_another_writes() {
    let world = world().await;
    all_are_fenced(&world).await;
    let writer = Writer::start(world.merged_door("prometheus").await.unwrap()).await;
    writer.writes_on().await;
    let before = open(&world).await;
    assert_eq!(before.len(), 2, "{before:?}");
    let doors = [
        ("rollouts-b", world.merged_door("rollouts-b").await.unwrap()),
        ("rollouts-a", world.merged_door("rollouts-a").await.unwrap()),
    ];
    for at in 0..MOVES {
        let (taker, door) = &doors[at % 2];
        moved(&world, taker).await;
        let name = format!("of-{at}");
        writes(door, &name).await;
        let (_, giver) = &doors[(at + 1) % 2];
        let answer = giver.post(SHOP, &map(&name)).await.unwrap();
        assert_eq!(answer.status, 403, "{}", answer.message());
        writer.writes_on().await;
    }
    let [back, again] = &doors;
    no_slow_write_of_another_is_waited_for(&world, &[(back.0, &back.1), (again.0, &again.1)]).await;
    all_are_fenced(&world).await;
    let after = open(&world).await;
    assert_eq!(after.len(), 2, "{after:?}");
    let kept = before.iter().filter(|epoch| after.contains(epoch)).count();
    assert_eq!(
        kept, 1,
        "one of {before:?} stays, that of who handed nothing over: {after:?}"
    );
    assert_eq!(writer.end().await, [""; 0], "of who handed nothing over");
}

/// What a router would have sent for a shard in that epoch, as it arrives when it does; the status code.
async fn arrives(client: &Client, (shard, epoch): (&str, u64), name: &str) -> u16 {
    let extra = |key: &str| format!("impersonate-extra-{}", key.replace('/', "%2f"));
    let request = http::Request::post(SHOP)
        .header("content-type", "application/json")
        .header("impersonate-user", "late")
        .header("impersonate-group", "system:masters")
        .header(extra(FENCE_SHARD), format!("operators/{shard}"))
        .header(extra(FENCE_EPOCH), epoch.to_string())
        .body(map(name).to_string().into_bytes())
        .unwrap();
    match client.request_text(request).await {
        Ok(_) => 201,
        Err(kube::Error::Api(refused)) => refused.code,
        Err(error) => panic!("{error}"),
    }
}

/// What it had sent of the giver is waited for, as of nobody who cannot be asked: a minute. Of the other operator nothing is refused
/// meanwhile, by the router that is left and by the one that was killed, once it is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_router_is_killed_with_writes_of_both_open() {
    let world = world().await;
    let hub = routers::hub_of(&world).unwrap();
    let mut second = routers::start(&world, "second", &hub, &[]).await.unwrap();
    second.ready().await;
    all_are_fenced(&world).await;
    let by_second = async |shard: &str| {
        let mut door = world.merged_door(shard).await.unwrap();
        second.bind().clone_into(&mut door.address);
        eventually("it is answered by the second router, too", || async {
            let answer = door.get(SHOP, &[]).await.map_err(|error| error.to_string())?;
            (answer.status == 200).then_some(()).ok_or(answer.message())
        })
        .await;
        door
    };
    let (giver, other) = (by_second("rollouts-a").await, by_second("prometheus").await);
    let taker = world.merged_door("rollouts-b").await.unwrap();
    let before = open(&world).await;
    let writer = Writer::start(world.merged_door("prometheus").await.unwrap()).await;
    let mut silent = Silent::start(&world).await;
    let mut held = [silent.hold(&giver).await, silent.hold(&other).await];
    ctl::begin_move(world.fleet.dir(), ("east", "shop-a"), "operators/rollouts-b")
        .await
        .unwrap();
    eventually("the answer to the giver's write is waited for", || async {
        let status = status(&world, ("operators", "rollouts-a")).await;
        let waits_for = status.releases.first().map(|release| release.waits_for.clone());
        let waits_for = waits_for.unwrap_or_default();
        (waits_for.starts_with("answers to writes"))
            .then_some(())
            .ok_or(waits_for)
    })
    .await;
    assert!(held.iter_mut().all(super::scene::HeldWrite::is_open));
    second.kill().await.unwrap();
    writer.writes_on().await;
    second.start_again().await.unwrap();
    second.ready().await;
    let answer = other.post(SHOP, &map("of-the-other-again")).await.unwrap();
    assert_eq!(answer.status, 201, "{}", answer.message());
    ctl::had(world.fleet.dir(), ("east", "shop-a"), "operators/rollouts-b").await;
    writes(&taker, "of-the-taker").await;

    let names = held.map(|held| held.name);
    silent.end().await;
    let after = open(&world).await;
    let client = world.cluster("east").client().await.unwrap();
    for epoch in &before {
        let late = arrives(&client, ("rollouts-a", *epoch), &format!("late-{epoch}")).await;
        let wanted = if after.contains(epoch) { 201 } else { 403 };
        assert_eq!(late, wanted, "epoch {epoch} of {before:?}, then {after:?}");
    }
    let kept = before.iter().filter(|epoch| after.contains(epoch)).count();
    assert_eq!((before.len(), after.len(), kept), (2, 2, 1), "{before:?} {after:?}");
    let direct = world.direct_door("east").await.unwrap();
    let list = String::from_utf8_lossy(&direct.get(SHOP, &[]).await.unwrap().body).into_owned();
    assert!(!list.contains(&format!("\"{}\"", names[0])), "the giver's arrived late");
    let answer = giver.post(SHOP, &map("of-the-giver")).await.unwrap();
    assert_eq!(answer.status, 403, "{}", answer.message());
    assert_eq!(writer.end().await, [""; 0], "of who handed nothing over");
}
