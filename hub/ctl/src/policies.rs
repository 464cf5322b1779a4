//! `portolanctl policies`: how the rules of CircuitBreakers and FaultInjections stand, and what they would have done.

mod status;
mod trial;

use crate::cli::PoliciesCommand;

pub(crate) async fn run(command: &PoliciesCommand) -> anyhow::Result<()> {
    match command {
        PoliciesCommand::Status(args) => status::run(args).await,
        PoliciesCommand::Try(args) => trial::run(args).await,
    }
}
