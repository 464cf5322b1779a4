//! Whose a namespace is, by the names of operators.

use portolan_testbed::eventually;
use portolan_tests::ctl;
use portolan_tests::programs::argument;
use portolan_tests::shard::federated;

use crate::scene::{apply, condition, of, until, world};

/// Who forgets the name of the program is refused, and told of it.
#[tokio::test(flavor = "multi_thread")]
async fn one_name_has_one_owner() {
    let world = world().await;
    let plain = federated("nameless", "east", &[("east", &["shop-a"])]);
    let second = of("rollouts", "rollouts-c", &[("east", &["shop-a"])]);
    apply(&world, &(plain + &second)).await;
    eventually("the second of one operator is refused", || async {
        let found = condition(&world, "rollouts-c", "Accepted").await;
        let (status, message) = found.unwrap_or_default();
        let is = status == "False" && message.contains("operators/rollouts-a") && message.contains("spec.operator");
        if is { Ok(()) } else { Err(message) }
    })
    .await;
    // Who has no name is an operator too.
    until(&world, "nameless", "Accepted", Some("True")).await;
    let dir = argument(world.fleet.dir());
    let told = ctl::ok(&["shards", "who", "shop-a", "--cluster", "east", "--dir", &dir]).await;
    let told = told.unwrap();
    for shard in ["rollouts-a", "prometheus", "nameless"] {
        assert!(told.contains(&format!("operators/{shard} ")), "{told}");
    }
}
