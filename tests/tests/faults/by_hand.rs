//! What people say of a member's breakers, by way of the hub.

use portolan_testbed::eventually;
use portolan_tests::ctl;
use portolan_tests::door::Door;
use portolan_tests::programs::argument;

use crate::{EAST, Ground, WEST, served, with_west};

const WEST_MAPS: &str = "/api/v1/namespaces/team-b/configmaps";
const WHY: &str = "etcd is repaired";

/// `portolanctl`, asked about this hub.
struct Hub<'a> {
    ground: &'a Ground,
    kubeconfig: String,
}

impl Hub<'_> {
    fn words<'w>(&'w self, words: &[&'w str]) -> Vec<&'w str> {
        [words, &["--hub-kubeconfig", &self.kubeconfig]].concat()
    }

    async fn said(&self, words: &[&str]) -> String {
        ctl::ok(&self.words(words)).await.unwrap()
    }

    async fn refused(&self, words: &[&str]) -> String {
        ctl::refused(&self.words(words)).await.unwrap()
    }

    /// Waits until the table of breakers has these rows of west's.
    async fn told(&self, are: impl Fn(&[&str]) -> bool) {
        eventually("breakers are told", || async {
            let told = self.said(&["breakers"]).await;
            let rows: Vec<&str> = told.lines().filter(|line| line.starts_with("west ")).collect();
            are(&rows).then_some(()).ok_or(told)
        })
        .await;
    }

    async fn has_event(&self, words: [&str; 2]) {
        let columns = "-o=custom-columns=OBJECT:.involvedObject.name,REASON:.reason,MESSAGE:.message";
        let arguments = ["get", "events", "-n", "default", columns];
        eventually("there is an Event", || async {
            let events = self.ground.world.direct("hub").ok(&arguments).await;
            let events = events.map_err(|error| error.to_string())?;
            let mut of_west = events.lines().filter(|line| line.starts_with("west "));
            let said = of_west.any(|line| words.iter().all(|word| line.contains(word)));
            said.then_some(()).ok_or(events)
        })
        .await;
    }
}

async fn until_refused(door: &Door, path: &str) {
    eventually("it is refused, and said why", || async {
        let answer = door.get(path, &[]).await.map_err(|error| error.to_string())?;
        let message = answer.message();
        (answer.status != 200 && message.contains(WHY))
            .then_some(())
            .ok_or(message)
    })
    .await;
}

async fn until_served(door: &Door, path: &str) {
    eventually(path, || async { served(&door.get(path, &[]).await?) }).await;
}

#[tokio::test]
async fn breakers_are_held_by_hand_in_routers_and_said_who_and_why() {
    let (_mine, ground) = with_west().await;
    let kubeconfig = argument(ground.world.cluster("hub").direct_kubeconfig_path());
    let hub = Hub {
        ground: &ground,
        kubeconfig,
    };
    let door = ground.world.merged_door("alpha").await.unwrap();

    let open = [
        "breaker", "open", "west", "--reason", WHY, "--for", "10m", "--class", "list",
    ];
    assert!(
        hub.said(&open)
            .await
            .contains("west's List breaker held open in every router for 10m")
    );
    until_refused(&door, WEST_MAPS).await;
    for path in [WEST, EAST] {
        served(&door.get(path, &[]).await.unwrap()).unwrap();
    }
    for words in [["Open", "opened by hand, by ", WHY], ["List", "held open", WHY]] {
        hub.told(|rows| rows.iter().any(|row| words.iter().all(|word| row.contains(word))))
            .await;
    }
    hub.has_event(["BreakerOpened", WHY]).await;

    hub.said(&["breaker", "open", "west", "--reason", WHY]).await;
    until_refused(&door, WEST).await;
    hub.said(&["breaker", "reset", "west", "--reason", "repaired"]).await;
    for path in [WEST, WEST_MAPS] {
        until_served(&door, path).await;
    }
    hub.has_event(["BreakerClosed", "List"]).await;

    hub.said(&["breaker", "open", "west", "--reason", WHY, "--for", "2s"])
        .await;
    until_served(&door, WEST).await;
    hub.told(|rows| !rows.iter().any(|row| row.contains("Open"))).await;
    hub.said(&["breaker", "reset", "west", "--reason", "as it was"]).await;
}

#[tokio::test]
async fn what_cannot_be_held_is_refused_and_said_why() {
    let (_mine, ground) = with_west().await;
    let kubeconfig = argument(ground.world.cluster("hub").direct_kubeconfig_path());
    let hub = Hub {
        ground: &ground,
        kubeconfig,
    };
    for (words, why) in [
        (
            &["breaker", "open", "mars", "--reason", WHY][..],
            "no MemberCluster mars",
        ),
        (
            &["breaker", "open", "west", "--reason", WHY, "--class", "slow"],
            "WatchStart",
        ),
        (&["breaker", "open", "west", "--reason", WHY, "--for", "0s"], "--for"),
        (&["breaker", "close", "west"], "--reason"),
        (&["breaker", "close", "west", "--reason", ""], "spec.breaker.byHand"),
    ] {
        let told = hub.refused(words).await;
        assert!(told.contains(why), "{words:?}: {told}");
    }
}
