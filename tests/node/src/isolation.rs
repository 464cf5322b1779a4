//! Which namespaces Pods get here: found out once, by trying.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::subnet::Subnet;
use crate::tools::Tools;

/// Namespaces are granted on some machines of which nothing can be made.
const TRY_MOUNT: &str = "PATH=$PATH:/usr/sbin:/sbin; mount -t tmpfs portolan /tmp";

/// How far Pods shall be apart from this machine and from each other, where it lets them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Apart {
    /// Each Pod has a network of its own with an address on a bridge, each container its own mounts and processes.
    Networks(Subnet),
    /// Pods share this machine's network; each container has its own mounts and processes.
    Mounts,
    /// Containers are plain processes, with no volumes but the token of their ServiceAccount.
    Nothing,
}

/// How far Pods are apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Isolation {
    Full(Subnet),
    Mounts(User),
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

/// What is possible here, at most `wanted`, and why Pods share what they share.
pub(crate) fn find(tools: &Tools, wanted: Apart) -> (Isolation, Option<String>) {
    match wanted {
        Apart::Networks(subnet) => match try_full(tools, &subnet) {
            Ok(()) => (Isolation::Full(subnet), None),
            Err(error) => {
                let (less, why) = find(tools, Apart::Mounts);
                let more = why.filter(|_| less == Isolation::None);
                let more = more.map(|why| format!("; {why}")).unwrap_or_default();
                (less, Some(format!("no networks: {error:#}{more}")))
            }
        },
        Apart::Mounts => match unshared(tools, &["--mount", "--uts", "--pid"], &[&tools.sh, "-c", TRY_MOUNT]) {
            Ok(user) => (
                Isolation::Mounts(user),
                Some("no networks: none were asked for".to_owned()),
            ),
            Err(error) => (Isolation::None, Some(format!("no mounts: {error:#}"))),
        },
        Apart::Nothing => (Isolation::None, Some("no mounts: none were asked for".to_owned())),
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
