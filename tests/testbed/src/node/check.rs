//! What a machine lacks for a Node.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::files::{PLUGINS, SNAPSHOTTER};
use crate::system::{find, path};

/// Programs, and the package that has each on Debian.
const PROGRAMS: [(&str, &str); 7] = [
    ("unshare", "util-linux"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("runc", "runc"),
    ("ldd", "libc-bin"),
    ("strip", "binutils"),
    ("sleep", "coreutils"),
];
/// Plugins of CNI that Pods' networks take.
const NETWORK: [&str; 3] = ["ptp", "host-local", "loopback"];
/// Tries each thing that a Node does to its machine, in namespaces of their own; says what is refused.
const TRIAL: &str = include_str!("scripts/trial.sh");

/// What this machine lacks for a Node, each as a sentence with its fix; empty if it can have one.
pub fn missing() -> Vec<String> {
    let mut missing = Vec::new();
    if !std::fs::metadata("/proc/self").is_ok_and(|program| program.uid() == 0) {
        missing.push("root: containers are made with all rights of the machine; run it as root".to_owned());
    }
    let programs = PROGRAMS.iter().filter(|(name, _)| find(name, "").is_err());
    missing.extend(programs.map(|(name, package)| format!("the program {name}: install the package {package}")));
    let plugins = NETWORK
        .iter()
        .filter(|name| !PLUGINS.iter().any(|folder| Path::new(folder).join(name).is_file()));
    missing.extend(plugins.map(|name| {
        format!(
            "the CNI plugin {name} in {}: install the package containernetworking-plugins",
            PLUGINS.join(" or ")
        )
    }));
    // Whatever is missing already would be told twice.
    if missing.is_empty() {
        missing.extend(refused());
    }
    missing
}

fn refused() -> Vec<String> {
    let namespaces = [
        "--net",
        "--mount",
        "--pid",
        "--uts",
        "--cgroup",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ];
    let output = Command::new("unshare")
        .env("PATH", path())
        .args(namespaces)
        .args(["sh", "-c", TRIAL, "sh", SNAPSHOTTER])
        .stdin(Stdio::null())
        .output();
    match output {
        Ok(output) if output.status.success() => {
            let said = String::from_utf8_lossy(&output.stdout);
            said.lines().map(str::to_owned).collect()
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            vec![format!(
                "namespaces of network, mounts, processes and cgroups: {}",
                said.trim()
            )]
        }
        Err(error) => vec![format!("namespaces: unshare does not run: {error}")],
    }
}
