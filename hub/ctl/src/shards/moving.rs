//! `portolanctl shards move`: one namespace of one member to another shard, by an edit of both.

use anyhow::{Context as _, anyhow, bail};
use kube::Client;
use portolan_crds::ShardName;
use serde_json::Value;

use super::edit::{Pair, with, without};
use super::write::{Edit, read, write};
use super::{items, plan, who};
use crate::cli::{EditArgs, MoveArgs, Output};
use crate::hub;
use crate::router::text;

pub(super) async fn run(args: &MoveArgs) -> anyhow::Result<()> {
    let (pair, to) = (
        Pair {
            cluster: &args.cluster,
            namespace: &args.namespace,
        },
        &args.to,
    );
    let text = format!("{}/{}", pair.cluster, pair.namespace);
    let answer = who::pairs(&args.edit.hub, (Some(pair.cluster), pair.namespace), Some(to)).await?;
    let known = items(&answer["pairs"]).first();
    let known = known.with_context(|| format!("no member cluster {:?} is known to the hub", pair.cluster))?;
    let from = match owner(known, &text)? {
        Some(from) if from == *to => {
            if args.edit.output.output != Output::Json {
                println!("{to} has {text} already");
            }
            return Ok(());
        }
        from => from,
    };
    let client = client(&args.edit).await?;
    let mut edits = Vec::new();
    // The owner first: at no time do two ask for it.
    for (name, edited) in from.iter().map(|from| (from, Side::Leaves)).chain([(to, Side::Comes)]) {
        let object = read(&client, name).await?;
        let spec = match edited {
            Side::Leaves => without(&object.data["spec"], pair),
            Side::Comes => with(&object.data["spec"], pair),
        };
        let spec = spec.map_err(|wrong| anyhow!("ShardingConfig {name}: {wrong}"))?;
        edits.push(Edit {
            name: name.clone(),
            object,
            spec,
        });
    }
    let planned = ask(&args.edit, &edits).await?;
    check(&planned["plan"], pair, to)?;
    write_if(&args.edit, &client, &edits).await
}

/// Which of the two an edit is of.
#[derive(Clone, Copy)]
enum Side {
    Leaves,
    Comes,
}

/// Who has it, if it may be moved now.
fn owner(known: &Value, pair: &str) -> anyhow::Result<Option<ShardName>> {
    if known["exists"] == false {
        bail!(
            "member cluster {} has no namespace {}",
            text(&known["cluster"]),
            text(&known["namespace"])
        );
    }
    if known["state"] == "Releasing" {
        bail!(
            "{pair} is being handed over already: see portolanctl shards who {}",
            text(&known["namespace"])
        );
    }
    let owner = known["owner"].as_str();
    owner.map(str::parse).transpose().context("the hub names no shard")
}

/// Whether the plan moves the pair to its new owner, and nothing else.
fn check(plan: &Value, pair: Pair<'_>, to: &ShardName) -> anyhow::Result<()> {
    if let Some(refused) = items(&plan["refused"]).first() {
        let [shard, message] = ["shard", "message"].map(|key| text(&refused[key]));
        bail!("the hub would refuse what {shard} would be: {message}; nothing was written");
    }
    let [one] = items(&plan["moves"]) else {
        bail!(
            "{} namespaces would change their owner, not one: the objects have other changes that are not in force; see \
             portolanctl shards status; nothing was written",
            items(&plan["moves"]).len()
        );
    };
    let is_it = one["cluster"] == *pair.cluster && one["namespace"] == *pair.namespace && one["to"] == *to.to_string();
    if !is_it {
        bail!("the hub would not move it: {to} would not get it; nothing was written");
    }
    Ok(())
}

pub(super) async fn client(args: &EditArgs) -> anyhow::Result<Client> {
    hub::client(&args.kubeconfig, args.hub.dir.as_deref()).await
}

/// Shows what the edits would come to, and returns it.
pub(super) async fn ask(args: &EditArgs, edits: &[Edit]) -> anyhow::Result<Value> {
    let edited: Vec<_> = edits.iter().map(Edit::edited).collect();
    let answer = plan::ask(&args.hub, &edited).await?;
    let wide = args.output.output == Output::Wide;
    args.output.print(&answer, |answer| plan::show(answer, wide))?;
    Ok(answer)
}

/// Writes them if that was asked for, and says what was done, to people.
pub(super) async fn write_if(args: &EditArgs, client: &Client, edits: &[Edit]) -> anyhow::Result<()> {
    let told = if args.yes {
        write(client, edits).await?;
        "Written: portolanctl shards status -w shows the handover."
    } else {
        "Nothing was written: add --yes to write it."
    };
    if args.output.output != Output::Json {
        println!("{told}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PAIR: Pair<'static> = Pair {
        cluster: "east",
        namespace: "ns-b",
    };

    #[test]
    fn only_a_plan_of_this_one_move_is_written() {
        let to: ShardName = "ops/b".parse().unwrap();
        let one =
            |namespace: &str, to: &str| json!({"cluster": "east", "namespace": namespace, "from": "ops/a", "to": to});
        let checked = |moves: Value, refused: Value| {
            let checked = check(&json!({"moves": moves, "refused": refused}), PAIR, &to);
            checked.map_err(|error| error.to_string())
        };
        assert_eq!(checked(json!([one("ns-b", "ops/b")]), json!([])), Ok(()));
        let cases = [
            (json!([]), json!([]), "0 namespaces"),
            (
                json!([one("ns-b", "ops/b"), one("ns-c", "ops/b")]),
                json!([]),
                "2 namespaces",
            ),
            (json!([one("ns-b", "ops/c")]), json!([]), "would not get it"),
            (
                json!([]),
                json!([{"shard": "ops/b", "message": "spec.x: no"}]),
                "spec.x: no",
            ),
        ];
        for (moves, refused, words) in cases {
            let error = checked(moves, refused).unwrap_err();
            assert!(
                error.contains(words) && error.ends_with("nothing was written"),
                "{error}"
            );
        }
    }

    #[test]
    fn what_is_not_there_or_on_its_way_is_not_moved() {
        let known = |exists: bool, state: &str| json!({"cluster": "east", "namespace": "ns-b", "exists": exists, "state": state, "owner": "ops/a"});
        let owner = |known: &Value| owner(known, "east/ns-b").map_err(|error| error.to_string());
        assert_eq!(owner(&known(true, "Granted")).unwrap(), Some("ops/a".parse().unwrap()));
        assert!(
            owner(&known(false, "Free"))
                .unwrap_err()
                .contains("has no namespace ns-b")
        );
        assert!(
            owner(&known(true, "Releasing"))
                .unwrap_err()
                .contains("handed over already")
        );
    }
}
