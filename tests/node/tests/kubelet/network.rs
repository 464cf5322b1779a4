//! Networks of Pods, where there are any.

use serde_json::json;

use crate::world::{PROGRAM, World, ask, in_networks, ip};

#[test]
fn pods_reach_each_other_and_no_loopback_address_but_their_own() {
    in_networks(async {
        let world = World::shared().await;
        assert_eq!(world.node.shares(), None);
        let room = world.room("networks").await;
        let container = |args: &[&str]| json!({"name": "main", "image": PROGRAM, "args": args});
        for name in ["a", "b"] {
            let containers = [container(&["80"])];
            room.create(
                name,
                json!({"terminationGracePeriodSeconds": 0, "containers": containers}),
            )
            .await;
        }
        let second = json!({"name": "second", "image": PROGRAM, "args": ["9000", "127.0.0.1"]});
        let containers = [container(&["80"]), second];
        room.create(
            "two",
            json!({"terminationGracePeriodSeconds": 0, "containers": containers}),
        )
        .await;
        let (a, b) = (ip(&room.until_ready("a").await), ip(&room.until_ready("b").await));
        let two = ip(&room.until_ready("two").await);
        assert_ne!(a, b);

        let said = |from, path: String| async move { ask((from, 80), &path).await };
        assert_eq!(said(a, format!("/dial/{b}:80")).await.as_deref(), Ok("connected"));
        // One Pod's containers share its loopback address, and nobody else does.
        assert_eq!(
            said(two, "/dial/127.0.0.1:9000".to_owned()).await.as_deref(),
            Ok("connected")
        );
        assert!(
            said(a, "/dial/127.0.0.1:9000".to_owned())
                .await
                .unwrap_err()
                .contains("refused")
        );
        assert!(
            said(a, format!("/dial/{two}:9000"))
                .await
                .unwrap_err()
                .contains("refused")
        );
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ours = listener.local_addr().unwrap();
        assert!(said(a, format!("/dial/{ours}")).await.unwrap_err().contains("refused"));
        assert_eq!(said(a, "/env/HOSTNAME".to_owned()).await.as_deref(), Ok("a"));
        assert_eq!(
            said(a, "/read/proc/sys/kernel/hostname".to_owned()).await.as_deref(),
            Ok("a\n")
        );
    });
}
