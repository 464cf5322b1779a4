//! Which cores the measured and who measures may use, so that one cannot take from the other.
//!
//! By `taskset`, as processes inherit it: this program, and with it its client and all it starts, keeps to the other cores; what is
//! measured is started on the first. Caller: `peers`.

use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

/// One core for what is measured, and all others.
pub(crate) struct Cores {
    measured: String,
    others: String,
}

impl Cores {
    /// With a single core, both are that one.
    pub(crate) fn split() -> Self {
        Self::of(std::thread::available_parallelism().map_or(1, usize::from))
    }

    fn of(cores: usize) -> Self {
        let others = match cores {
            0 | 1 => "0".to_owned(),
            2 => "1".to_owned(),
            more => format!("1-{}", more - 1),
        };
        Self {
            measured: "0".to_owned(),
            others,
        }
    }

    /// This process, with all its threads, and all that it starts from now on.
    pub(crate) fn keep_this_to_others(&self) -> anyhow::Result<()> {
        let this = std::process::id().to_string();
        let mut taskset = Command::new("taskset");
        taskset.args(["--all-tasks", "--cpu-list", "--pid", &self.others, &this]);
        let told = taskset.stdout(Stdio::null()).status();
        let told = told.context("cannot start taskset, which comes with util-linux")?;
        ensure!(told.success(), "taskset: {told}");
        Ok(())
    }

    /// What runs a program that is measured.
    pub(crate) fn measured(&self) -> Vec<String> {
        vec!["taskset".to_owned(), "--cpu-list".to_owned(), self.measured.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_shares_its_core_only_if_there_is_no_other() {
        let others = |cores| Cores::of(cores).others;
        assert_eq!(
            (others(1).as_str(), others(2).as_str(), others(8).as_str()),
            ("0", "1", "1-7")
        );
        assert_eq!(Cores::of(8).measured()[2], "0");
    }
}
