//! Namespaces of Linux, as unshare(1) makes them: Rust could only by unsafe code.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::system::System;

/// Who makes the namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum User {
    /// Root, or whoever has its capabilities here.
    Capable,
    /// Anybody else, who needs a user namespace for each.
    Mapped,
}

impl User {
    /// Who can run a command in new namespaces of these kinds (flags of unshare). The error is what unshare says.
    pub(crate) fn of(system: &System, namespaces: &[&str], command: &[&str]) -> Result<Self> {
        let attempt = |user: Self| {
            let fork = ["--fork", "--kill-child", "--"];
            let args: Vec<_> = [user.flags(), namespaces, &fork, command].concat();
            run(&system.unshare, &args).map(|()| user)
        };
        attempt(Self::Capable).or_else(|_| attempt(Self::Mapped))
    }

    /// Flags of unshare that let it make all other namespaces.
    pub(crate) fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Capable => &[],
            Self::Mapped => &["--user", "--map-root-user"],
        }
    }
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
