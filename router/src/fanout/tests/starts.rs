//! Who may begin, from where, and with whom: merged watches before their first byte.

use super::*;

#[tokio::test]
async fn a_replica_does_not_go_on_from_what_another_was_sent() {
    let mut world = World::new(&["east", "west"]).await;
    world.caller = replica("1");
    let (mut watch, mut streams) = world
        .open(&format!("resourceVersion={}", world.cursor(&[10, 20])))
        .await;
    streams[1].1.send_data(event("ADDED", "b", 21), false).unwrap();
    watch.expect("ADDED", "b").await;
    drop(watch);
    world.caller = replica("2");
    let other = world.start("resourceVersion=21").await.unwrap().unwrap();
    assert_eq!(other.whole().await["object"]["code"], 410);
    world.caller = replica("1");
    let (_watch, streams) = world.open("resourceVersion=21").await;
    assert!(streams[1].0.contains("resourceVersion=21&"), "{}", streams[1].0);
}
