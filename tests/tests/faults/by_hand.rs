//! What people say of a member's breakers, by way of the hub.

use portolan_testbed::eventually;
use portolan_tests::ctl;
use portolan_tests::programs::argument;

use crate::{EAST, WEST, served, with_west};

const WEST_MAPS: &str = "/api/v1/namespaces/team-b/configmaps";
const WHY: &str = "etcd is repaired";

#[tokio::test]
async fn breakers_are_held_by_hand_in_routers_and_said_who_and_why() {
    let (_mine, ground) = with_west().await;
    let world = &ground.world;
    let kubeconfig = argument(world.cluster("hub").direct_kubeconfig_path());
    let hub = ["--hub-kubeconfig", &kubeconfig];
    let say = async |words: &[&str]| ctl::ok(&[words, &hub].concat()).await;
    let door = world.merged_door("alpha").await.unwrap();
    let refused = async |path: &str| {
        let answer = door.get(path, &[]).await.map_err(|error| error.to_string())?;
        let message = answer.message();
        (answer.status != 200 && message.contains(WHY))
            .then_some(())
            .ok_or(message)
    };

    let mars = [&["breaker", "open", "mars", "--reason", WHY][..], &hub].concat();
    let error = ctl::refused(&mars).await.unwrap();
    assert!(error.contains("no MemberCluster mars"), "{error}");
    let slow = ["breaker", "open", "west", "--reason", WHY, "--class", "slow"];
    let error = ctl::refused(&slow).await.unwrap();
    assert!(error.contains("WatchStart"), "{error}");

    let told = say(&[
        "breaker", "open", "west", "--class", "list", "--reason", WHY, "--for", "10m",
    ])
    .await;
    assert!(
        told.unwrap()
            .contains("west's List breaker held open in every router for 10m")
    );
    eventually("lists are refused", || refused(WEST_MAPS)).await;
    served(&door.get(WEST, &[]).await.unwrap()).unwrap();
    served(&door.get(EAST, &[]).await.unwrap()).unwrap();
    eventually("it is told", || async {
        let told = say(&["breakers"]).await.map_err(|error| error.to_string())?;
        let rows: Vec<&str> = told.lines().filter(|line| line.starts_with("west   ")).collect();
        let [router, held] = rows[..] else { return Err(told) };
        let said = router.contains("Open") && router.contains("opened by hand, by ") && held.contains("held open");
        (said && held.contains(WHY)).then_some(()).ok_or(told)
    })
    .await;
    eventually("there is an Event", || async {
        let events = [
            "get",
            "events",
            "-n",
            "default",
            "-o=custom-columns=A:.involvedObject.name,B:.reason,C:.message",
        ];
        let events = world
            .direct("hub")
            .ok(&events)
            .await
            .map_err(|error| error.to_string())?;
        let mut of_west = events
            .lines()
            .filter(|line| line.starts_with("west ") && line.contains("BreakerOpened"));
        of_west.any(|line| line.contains(WHY)).then_some(()).ok_or(events)
    })
    .await;

    say(&["breaker", "open", "west", "--reason", WHY, "--for", "10m"])
        .await
        .unwrap();
    eventually("all is refused", || refused(WEST)).await;
    say(&["breaker", "reset", "west", "--reason", "repaired"])
        .await
        .unwrap();
    for path in [WEST, WEST_MAPS] {
        eventually(path, || async { served(&door.get(path, &[]).await?) }).await;
    }

    say(&["breaker", "open", "west", "--reason", WHY, "--for", "2s"])
        .await
        .unwrap();
    eventually("it ends by itself", || async { served(&door.get(WEST, &[]).await?) }).await;
    eventually("and the table says so", || async {
        let told = say(&["breakers"]).await.map_err(|error| error.to_string())?;
        (!told
            .lines()
            .any(|line| line.starts_with("west") && line.contains("Open")))
        .then_some(())
        .ok_or(told)
    })
    .await;
    say(&["breaker", "reset", "west", "--reason", "as it was"])
        .await
        .unwrap();
}
