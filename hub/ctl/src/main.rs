//! `portolanctl`, also `kubectl portolan`: joins members, shows what the hub decided, runs a local fleet.
//!
//! It talks to hub and members by kubeconfig and to a router's admin port; it holds no rules of its own.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool answers on stdout"
)]

mod acceptance;
mod admin;
mod admission;
mod apply;
mod apply_files;
mod bootstrap;
mod breaker;
mod breakers;
mod ca;
mod check;
mod cli;
mod connect;
mod dev;
mod explain;
mod faults;
mod foreign;
mod forget;
mod get;
mod grant;
mod hub;
mod hub_ca;
mod inject;
mod injection;
mod install;
mod join;
mod kinds;
mod kubeconfig;
mod label_kinds;
mod leader;
mod ledger;
mod person;
mod pods;
mod policies;
mod register;
mod rights;
mod router;
mod sentence;
mod shards;
mod steps;
mod strict;
mod table;
mod uninstall;
mod unregister;
mod watch_state;
mod whoami;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{CaCommand, Cli, Command, DevCommand, RouterCommand};
use crate::dev::request::Request;

/// Exit code of what compares and could not, as of `kubectl diff`: 1 says that there is a difference.
const NOT_COMPARED: u8 = 2;

#[tokio::main]
async fn main() -> ExitCode {
    portolan_runtime::tls::install_crypto_provider();
    let command = Cli::parse().command;
    let failure = match &command {
        Command::Shards { command } if command.compares() => ExitCode::from(NOT_COMPARED),
        _ => ExitCode::FAILURE,
    };
    match run(command).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("portolanctl: {}", sentence::of(&error));
            failure
        }
    }
}

async fn run(command: Command) -> anyhow::Result<ExitCode> {
    if let Command::Shards { command } = &command {
        return shards::run(command).await;
    }
    if let Command::Check(args) = &command {
        return check::run(args).await;
    }
    dispatch(command).await.map(|()| ExitCode::SUCCESS)
}

async fn dispatch(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Install(args) => install::run(&args).await,
        Command::Uninstall(args) => uninstall::run(&args).await,
        Command::Join(args) => join::run(&args).await,
        Command::Register(args) => register::run(&args).await,
        Command::Unregister(args) => unregister::run(&args).await,
        Command::Allow(args) => grant::run(&args).await,
        Command::Apply(args) => apply_files::run(&args).await,
        Command::Inject(args) => inject::run(&args).await,
        Command::Kubeconfig(args) => kubeconfig::run(&args).await,
        Command::RouterToken(args) => bootstrap::run_router_token(&args).await,
        Command::Get(args) => get::run(&args).await,
        Command::Router { command } => match command {
            RouterCommand::Forget(args) => forget::run(&args).await,
        },
        Command::Shards { command } => shards::run(&command).await.map(drop),
        Command::Check(args) => check::run(&args).await.map(drop),
        Command::Breakers(args) => breakers::run(&args).await,
        Command::Breaker { command } => breaker::run(&command).await,
        Command::Policies { command } => policies::run(&command).await,
        Command::Faults(args) => faults::run(&args).await,
        Command::Ca { command } => match command {
            CaCommand::Show(args) => ca::show(&args).await,
            CaCommand::Rotate(args) => ca::rotate(&args).await,
        },
        Command::Ledger { command } => ledger::run(&command).await,
        Command::Explain(args) => explain::run(&args).await,
        Command::WatchState(args) => watch_state::run(&args).await,
        Command::Dev { command } => match command {
            DevCommand::Up(args) => dev::up::run(&args).await,
            DevCommand::Status(args) => dev::status::run(&args).await,
            DevCommand::Down(args) => dev::down::run(&args).await,
            DevCommand::Restart(args) => dev::control::run(Request::restart, &args).await,
            DevCommand::Stop(args) => dev::control::run(Request::stop, &args).await,
            DevCommand::Supervise(args) => dev::supervise::run(&args).await,
        },
    }
}
