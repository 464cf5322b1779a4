//! What `dev up` says in the end: where things are, who may do what, how to go on. Called by `up`.

use crate::cli::DevUpArgs;
use crate::dev::fleet::{DEV_USER, Fleet};

/// One line for each thing that a person needs next.
pub(crate) fn of(fleet: &Fleet, args: &DevUpArgs) -> String {
    let names: Vec<&str> = fleet.members.iter().map(|member| member.name.as_str()).collect();
    let mut lines = vec![
        format!("router    {}", fleet.router_url),
        format!(
            "explicit  {} (contexts {})",
            fleet.path("explicit.kubeconfig").display(),
            names.join(", ")
        ),
    ];
    for shard in &fleet.shards {
        for caller in &shard.callers {
            let (file, home) = (caller.kubeconfig.display(), &caller.home);
            let (namespace, name) = (&shard.namespace, &shard.name);
            lines.push(format!("merged    {file} (shard {namespace}/{name}, caller in {home})"));
        }
    }
    lines.push(format!(
        "rights    {DEV_USER}, the user of explicit.kubeconfig, is {} in every member: --user-role CLUSTERROLE of dev up takes another",
        args.user_role
    ));
    if !fleet.shards.is_empty() {
        lines.push(format!(
            "          the callers of merged-*.kubeconfig are {} in every member: --caller-role CLUSTERROLE takes another",
            args.caller_role
        ));
    }
    let dir = fleet.dir.display();
    lines.push(format!("look      portolanctl dev status --dir {dir}"));
    lines.push(format!("stop it   portolanctl dev down --dir {dir}"));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command, DevCommand};
    use crate::dev::fleet::{Caller, Shard};

    #[test]
    fn it_says_who_is_an_administrator_and_how_to_give_less() {
        let args = |more: &[&str]| {
            let words = [
                "portolanctl",
                "dev",
                "up",
                "--hub",
                "h",
                "--member",
                "east=e",
                "--dir",
                "d",
            ];
            match Cli::parse_from(words.iter().chain(more)).command {
                Command::Dev {
                    command: DevCommand::Up(args),
                } => args,
                _ => panic!("another command"),
            }
        };
        let mut fleet = Fleet::default();
        let alone = of(&fleet, &args(&[]));
        assert!(
            alone.contains("portolan:dev, the user of explicit.kubeconfig, is cluster-admin"),
            "{alone}"
        );
        assert!(
            alone.contains("--user-role") && !alone.contains("--caller-role"),
            "{alone}"
        );
        let caller = |home: &str| Caller {
            home: home.to_owned(),
            kubeconfig: format!("merged-demo.{home}").into(),
        };
        fleet.shards.push(Shard {
            namespace: "ops".into(),
            name: "demo".into(),
            callers: vec![caller("east"), caller("west")],
        });
        let less = of(&fleet, &args(&["--user-role", "view", "--caller-role", "edit"]));
        for words in [
            "portolan:dev, the user of explicit.kubeconfig, is view",
            "are edit in every member",
            "caller in west",
        ] {
            assert!(less.contains(words), "{words} is not in {less}");
        }
    }
}
