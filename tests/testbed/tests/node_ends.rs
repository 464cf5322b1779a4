//! Whatever happens to a test that holds Pods, nothing of them is left. The test is this program itself, run again for the
//! one that is ignored here.
#![allow(clippy::unwrap_used, reason = "also in functions that only tests call")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use portolan_testbed::{Image, Options, Testbed, eventually, inside};
use serde_json::json;

const MARK: &str = "holding in ";

/// Processes with `folder` on their command line: control planes, what stands around Pods, and the marked program of one.
fn processes_of(folder: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(folder)).collect()
}

/// Not a test: the process that the other kills.
#[test]
#[ignore = "run by the other test"]
fn hold_a_pod() {
    inside(async {
        let images = vec![Image::new("example.com/held:1", env!("CARGO_BIN_EXE_pod-program"))];
        let testbed = Testbed::start_with(Options {
            clusters: vec!["east".to_owned()],
            nodes: [("east".to_owned(), images)].into(),
            ..Options::default()
        });
        let testbed = testbed.await.unwrap();
        let folder = testbed.dir().display().to_string();
        let east = testbed.cluster("east");
        let pods = Api::<Pod>::namespaced(east.client().await.unwrap(), "default");
        let main = json!({"name": "main", "image": "example.com/held:1", "imagePullPolicy": "Never", "args": ["80", "0.0.0.0", format!("in {folder}")]});
        let pod = json!({"metadata": {"name": "held"}, "spec": {"nodeName": "node-1", "containers": [main]}});
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap())
            .await
            .unwrap();
        eventually("the Pod runs", || async {
            let pod = pods.get("held").await.unwrap();
            pod.status.and_then(|status| status.phase).as_deref() == Some("Running")
        })
        .await;
        writeln!(std::io::stderr(), "{MARK}{folder}").unwrap();
        std::future::pending::<()>().await;
    });
}

#[tokio::test]
async fn after_sigkill() {
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hold_a_pod", "--ignored", "--nocapture"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(holder.stderr.take().unwrap()).lines();
    let folder = lines
        .map_while(Result::ok)
        .find_map(|line| line.split_once(MARK).map(|(_, folder)| folder.to_owned()));
    let folder = folder.expect("the holder did not start its Pod");
    let running = processes_of(&folder);
    for program in ["kube-apiserver", &format!("0.0.0.0\0in {folder}")] {
        assert!(
            running.iter().any(|line| line.contains(program)),
            "{program}: {running:?}"
        );
    }
    holder.kill().unwrap();
    holder.wait().unwrap();
    eventually("all processes are gone", || async {
        let left = processes_of(&folder);
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
    eventually("the folder is gone", || async { !PathBuf::from(&folder).exists() }).await;
}
