//! Which namespaces Pods get here: found out once, by trying.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::subnet::Subnet;
use crate::tools::Tools;

/// How far Pods are apart from this machine and from each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Isolation {
    /// Each Pod has a network of its own with an address on a bridge, each container its own mounts and processes.
    Full(Subnet),
    /// Pods share this machine's network; each container has its own mounts and processes.
    Mounts(User),
    /// Containers are plain processes: no volumes, no root of their own.
    None,
}

/// Who makes the namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum User {
    /// Root, or whoever has its capabilities here.
    Capable,
    /// Anybody else, who needs a user namespace for each.
    Mapped,
}

impl User {
    /// Flags of unshare(1) that let it make all other namespaces.
    pub(crate) fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Capable => &[],
            Self::Mapped => &["--user", "--map-root-user"],
        }
    }
}

/// What is possible here, at most `wanted`, and why it is not more.
pub(crate) fn find(tools: &Tools, wanted: Isolation) -> (Isolation, Option<String>) {
    match wanted {
        Isolation::Full(subnet) => match try_full(tools, &subnet) {
            Ok(()) => (Isolation::Full(subnet), None),
            Err(error) => {
                let (less, _) = find(tools, Isolation::Mounts(User::Capable));
                (less, Some(format!("no networks of their own: {error:#}")))
            }
        },
        Isolation::Mounts(_) => match unshared(tools, &["--mount", "--uts", "--pid"], &["true"]) {
            Ok(user) => (Isolation::Mounts(user), None),
            Err(error) => (Isolation::None, Some(format!("no mounts of their own: {error:#}"))),
        },
        Isolation::None => (Isolation::None, None),
    }
}

/// Whether networks can be made and joined by the bridge; that takes being in the bridge's own user namespace.
fn try_full(tools: &Tools, subnet: &Subnet) -> Result<()> {
    run(&tools.ip, &["link", "show", "dev", &subnet.bridge])?;
    match unshared(
        tools,
        &["--net", "--mount", "--uts", "--pid"],
        &[&tools.ip, "link", "set", "lo", "up"],
    )? {
        User::Capable => Ok(()),
        User::Mapped => bail!("not permitted to change the network of {}", subnet.bridge),
    }
}

/// Who can run a command in new namespaces.
pub(crate) fn unshared(tools: &Tools, namespaces: &[&str], command: &[&str]) -> Result<User> {
    let attempt = |user: User| {
        let fork = ["--fork", "--kill-child", "--"];
        let args: Vec<_> = [user.flags(), namespaces, &fork, command].concat();
        run(&tools.unshare, &args).map(|()| user)
    };
    attempt(User::Capable).or_else(|_| attempt(User::Mapped))
}

fn run(program: &str, args: &[&str]) -> Result<()> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("running {program}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    bail!("{program} {}: {}", args.join(" "), said.trim())
}
