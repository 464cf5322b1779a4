//! Flags of `portolan-node`.

use std::path::PathBuf;

use clap::{Args as Flags, Parser, Subcommand};
use portolan_node::{Images, Lan, Options, Pace};
use portolan_runtime::TelemetryArgs;

/// Runs Pods as processes of this machine: a small stand-in for the kubelet, for tests and demos.
#[derive(Debug, Parser)]
#[command(name = "portolan-node", version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Be a Node of a cluster until told to end
    Run(RunFlags),
    /// Run a program, a shell for example, in a network of its own with a bridge that Pods join: the control planes must be
    /// started there, with --address $PORTOLAN_LAN, and `run` too
    Enter {
        /// The program and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        program: Vec<String>,
    },
}

#[derive(Debug, Flags)]
pub(crate) struct RunFlags {
    /// Kubeconfig of an administrator; Pods are told its server
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Name of the Node
    #[arg(long, default_value = "node-1")]
    name: String,
    /// A program that stands for an image; repeatable
    #[arg(long = "image", value_name = "NAME=PROGRAM", value_parser = |text: &str| Images::parse(text))]
    images: Vec<Images>,
    /// Folder of volumes and logs
    #[arg(long)]
    folder: PathBuf,
    /// Which addresses of the bridge Pods get; each node there needs its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=255))]
    part: u8,
    #[command(flatten)]
    pub(crate) telemetry: TelemetryArgs,
}

impl RunFlags {
    pub(crate) fn options(self) -> Options {
        Options {
            name: self.name,
            kubeconfig: self.kubeconfig,
            images: self.images.into_iter().fold(Images::new(), Images::and),
            apart: Lan::here().part(self.part),
            folder: self.folder,
            pace: Pace::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() -> anyhow::Result<()> {
        <Args as clap::CommandFactory>::command().debug_assert();
        let line = [
            "x",
            "run",
            "--kubeconfig",
            "k",
            "--folder",
            "f",
            "--image",
            "a:1=/bin/a",
            "--image",
            "b=/bin/b",
        ];
        let Command::Run(flags) = Args::try_parse_from(line)?.command else {
            panic!("not run");
        };
        assert_eq!(
            flags.options().images,
            Images::parse("a:1=/bin/a")?.and(Images::parse("b=/bin/b")?)
        );
        assert!(Args::try_parse_from(["x", "enter", "--", "sh", "-c", "true"]).is_ok());
        Ok(())
    }
}
