//! `portolanctl shards rollback`: the spec that was accepted last, from the hub's ledger.

use std::collections::BTreeSet;

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DynamicObject};
use kube::{Client, ResourceExt as _};
use portolan_crds::ShardName;
use portolan_crds::labels::SYSTEM_NAMESPACE;
use portolan_crds::ledger::{Content, Record, SpecInForce, spec_object};
use serde_json::Value;

use super::items;
use super::moving::{ask, client, write_if};
use super::write::{Edit, read};
use crate::cli::{Output, RollbackArgs};
use crate::router::text;

pub(super) async fn run(args: &RollbackArgs) -> anyhow::Result<()> {
    let client = client(&args.edit).await?;
    let name = &args.shard;
    let object = read(&client, name).await?;
    let kept = kept(&client, name).await?;
    let (generation, spec) = earlier(name, &object, kept)?;
    if args.edit.output.output != Output::Json {
        let fields = differing(&object.data["spec"], &spec);
        println!(
            "{name}: back to the spec of generation {generation}, in {}",
            fields.join(", ")
        );
    }
    let edits = [Edit {
        name: name.clone(),
        object,
        spec,
    }];
    let planned = ask(&args.edit, &edits).await?;
    if let Some(refused) = items(&planned["plan"]["refused"]).first() {
        bail!(
            "the hub would not take it any more: {}; nothing was written",
            text(&refused["message"])
        );
    }
    write_if(&args.edit, &client, &edits).await
}

/// What the ledger has of the shard.
async fn kept(hub: &Client, name: &ShardName) -> anyhow::Result<SpecInForce> {
    let maps = Api::<ConfigMap>::namespaced(hub.clone(), SYSTEM_NAMESPACE);
    let object = spec_object(name);
    let cannot = || format!("cannot read ConfigMap {object} of the hub's ledger");
    let map = maps.get_opt(&object).await.with_context(cannot)?;
    let map = map.with_context(|| format!("no spec of {name} was ever accepted: there is nothing to go back to"))?;
    let record = Record::decode(&object, &map.data.unwrap_or_default()).with_context(cannot)?;
    match record.content {
        Content::Spec(spec) if spec.shard == *name => Ok(spec),
        _ => bail!("ConfigMap {object} of the hub's ledger is not about {name}"),
    }
}

/// What was accepted before the present spec, and its generation.
fn earlier(name: &ShardName, object: &DynamicObject, kept: SpecInForce) -> anyhow::Result<(i64, Value)> {
    if object.uid().as_deref() != Some(&kept.uid) {
        bail!(
            "no spec of this ShardingConfig {name} was accepted yet: the hub's ledger has that of one that was deleted"
        );
    }
    if object.metadata.generation != Some(kept.generation) {
        return Ok((kept.generation, kept.spec));
    }
    let before = kept.before.with_context(|| {
        format!("the present spec of {name} is the only one that the hub's ledger has: there is nothing to go back to")
    })?;
    Ok((before.generation, before.spec))
}

/// Fields of the spec that the two have different.
fn differing(present: &Value, earlier: &Value) -> Vec<String> {
    let keys = [present, earlier]
        .into_iter()
        .filter_map(Value::as_object)
        .flat_map(|fields| fields.keys());
    let keys: BTreeSet<_> = keys.collect();
    let fields = keys.into_iter().filter(|key| present[*key] != earlier[*key]);
    fields.map(|key| format!("spec.{key}")).collect()
}

#[cfg(test)]
mod tests {
    use portolan_crds::ledger::EarlierSpec;
    use serde_json::json;

    use super::*;

    fn kept(before: bool) -> SpecInForce {
        SpecInForce {
            shard: name(),
            uid: "u".to_owned(),
            generation: 4,
            spec: json!({"in": "force"}),
            before: before.then(|| EarlierSpec {
                generation: 3,
                spec: json!({"of": "before"}),
            }),
            lock: None,
            withheld: Vec::new(),
        }
    }

    fn name() -> ShardName {
        "ops/a".parse().unwrap()
    }

    fn object(uid: &str, generation: i64) -> DynamicObject {
        let metadata = json!({"name": "a", "namespace": "ops", "uid": uid, "generation": generation});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"present": 1}})).unwrap()
    }

    #[test]
    fn a_refused_spec_goes_back_to_what_is_in_force_and_that_to_what_was() {
        let refused = earlier(&name(), &object("u", 5), kept(true)).unwrap();
        assert_eq!(refused, (4, json!({"in": "force"})));
        let accepted = earlier(&name(), &object("u", 4), kept(true)).unwrap();
        assert_eq!(accepted, (3, json!({"of": "before"})));
    }

    #[test]
    fn where_nothing_is_kept_nothing_is_written() {
        for (object, words) in [(object("u", 4), "the only one"), (object("other", 4), "was deleted")] {
            let error = earlier(&name(), &object, kept(false)).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("ops/a"), "{error}");
        }
    }

    #[test]
    fn fields_that_change_are_named() {
        let present = json!({"clusters": [1], "selector": {}, "primaryCluster": "east"});
        let earlier = json!({"clusters": [2], "selector": {}, "enforcement": "Audit"});
        let told = ["spec.clusters", "spec.enforcement", "spec.primaryCluster"];
        assert_eq!(differing(&present, &earlier), told);
    }
}
