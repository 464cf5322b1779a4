//! `portolanctl check`: whether an installation is as it should be, each line with the object that says so. Writes nothing.
//!
//! `report` is what is found; `hub` looks at the hub cluster, `told` at what the hub says of members and routers, `member` into a
//! member by its own kubeconfig, `accounts` at what ServiceAccounts may do, `skew` at versions.

use std::process::ExitCode;

use crate::cli::CheckArgs;
use crate::connect::connect;
use crate::hub as asked;

mod accounts;
mod hub;
mod member;
mod report;
mod skew;
mod told;

use report::Report;

pub(crate) async fn run(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let mut report = Report::default();
    if args.member_alone {
        let member = connect("the member", None).await?;
        member::look(&mut report, "of this kubeconfig", &member.client, None).await;
    } else {
        let client = asked::of(&args.hub).await?;
        let seen = hub::look(&mut report, &client).await;
        let members = told::look(&mut report, &client, &seen).await;
        for file in &args.member_kubeconfigs {
            let what = format!("the member of {}", file.display());
            match connect(&what, Some(file)).await {
                Err(error) => report.unreachable(&what, &error),
                Ok(member) => {
                    let name = member::named(&mut report, &what, &member, &members).await;
                    member::look(&mut report, &name, &member.client, seen.ca.as_deref()).await;
                }
            }
        }
    }
    args.output.print(&report, ToString::to_string)?;
    Ok(if report.is_well(args.strict) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
