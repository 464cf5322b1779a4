//! What kubectl reads of containers, and runs in them.

use std::process::Stdio;

use portolan_testbed::kubectl;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::world::{World, in_networks};

#[test]
fn logs_are_read_in_part_and_followed_to_their_end() {
    in_networks(async {
        let world = World::shared().await;
        let room = world.room("logs").await;
        room.sh(
            "talker",
            "echo one; echo two >&2; echo three; while [ ! -e /tmp/stop ]; do sleep 0.1; done; echo last",
        )
        .await;
        room.until_ready("talker").await;
        let logs = async |more: &[&str]| world.kubectl(&[&["logs", "-n", "logs", "talker"], more].concat()).await;
        let mut lines: Vec<_> = logs(&[]).await.lines().map(str::to_owned).collect();
        // Two streams have no order between them.
        lines.sort();
        assert_eq!(lines, ["one", "three", "two"]);
        assert_eq!(logs(&["--tail=1"]).await.lines().count(), 1);
        let stamped = logs(&["--timestamps"]).await;
        assert!(
            stamped
                .lines()
                .all(|line| line.starts_with("20") && line.contains("Z ")),
            "{stamped}"
        );
        assert!(logs(&["--since=1h"]).await.contains("one"));
        assert!(logs(&["-p"]).await.contains("has not run"), "{}", logs(&["-p"]).await);

        let mut follow = kubectl(world.east().kubeconfig_path());
        let follow = follow
            .args(["logs", "-f", "-n", "logs", "talker"])
            .stdout(Stdio::piped())
            .spawn();
        let mut follow = follow.unwrap();
        let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.extend(lines.next_line().await.unwrap());
        }
        assert_eq!(
            world
                .kubectl(&["exec", "-n", "logs", "talker", "--", "touch", "/tmp/stop"])
                .await,
            ""
        );
        while let Some(line) = lines.next_line().await.unwrap() {
            seen.push(line);
        }
        assert_eq!(seen.last().map(String::as_str), Some("last"));
        assert!(follow.wait().await.unwrap().success());
    });
}

#[test]
fn programs_run_beside_a_container_with_their_own_streams_and_exit_codes() {
    in_networks(async {
        let world = World::shared().await;
        let room = world.room("exec").await;
        // Two dollar signs are one, in what a Pod says.
        room.sh("host", "echo $$$$ > /tmp/mine; sleep 100").await;
        room.until_ready("host").await;
        let mut shell = kubectl(world.east().kubeconfig_path());
        let shell = shell.args(["exec", "-i", "-n", "exec", "host", "--", "sh", "-c"]);
        let shell = shell.arg("read word; echo got $word in $(hostname); cat /tmp/mine; echo oh >&2; exit 3");
        let mut shell = shell
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        shell.stdin.take().unwrap().write_all(b"hello\n").await.unwrap();
        let output = shell.wait_with_output().await.unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "got hello in host\n1\n");
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(complaint.starts_with("oh\n"), "{complaint}");
        assert_eq!(output.status.code(), Some(3), "{complaint}");
        let missing = world
            .kubectl(&["exec", "-n", "exec", "host", "--", "no-such-program"])
            .await;
        assert!(
            missing.contains("no-such-program") && missing.contains("exit code 127"),
            "{missing}"
        );
    });
}
