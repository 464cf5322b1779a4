//! Pods come, run to their ends, and go.

use portolan_node::inside;

use crate::world::World;

#[test]
fn a_pod_runs_to_its_end_and_is_deleted() {
    inside(async {
        let room = World::shared().await.room("ends").await;
        room.sh("good", "echo hello").await;
        let good = room.until_phase("good", "Succeeded").await;
        let status = &good.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0];
        let ended = status.state.as_ref().unwrap().terminated.as_ref().unwrap();
        assert_eq!((ended.exit_code, ended.reason.as_deref()), (0, Some("Completed")));
        room.sh("bad", "exit 3").await;
        let bad = room.until_phase("bad", "Failed").await;
        let status = &bad.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0];
        assert_eq!(status.state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 3);
        room.delete("good").await;
        room.sh("long", "trap 'exit 0' TERM; sleep 100 & wait").await;
        room.until_ready("long").await;
        room.delete("long").await;
    });
}
