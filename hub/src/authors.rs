//! May this user write this ShardingConfig? The verb `shard` on each member cluster that it lays claim to decides.
//!
//! Asked as the API server asks about a write, before it is stored (`webhook`). Compile repeats what needs no user:
//! `MemberCluster.spec.allowedNamespaces`. Says nothing of which members exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::authentication::v1::UserInfo;
use portolan_crds::labels::{FORCE_RELEASE, GROUP};
use portolan_crds::sharding::ForcedRelease;
use portolan_crds::{Claim, ShardingConfigSpec};
use serde::Deserialize;
use serde_json::Value;

use crate::access::{AccessReviewer, Question, RESOURCE};

/// What an author must be allowed to do with a MemberCluster.
const VERB: &str = "shard";
/// Questions of one write at the API server at a time.
const AT_ONCE: usize = 8;
/// Of many refused claims so many are told.
const TOLD_MAX: usize = 5;

/// A write that the API server asks about.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Write {
    pub(crate) uid: String,
    #[serde(default)]
    pub(crate) sub_resource: Option<String>,
    pub(crate) resource: Resource,
    pub(crate) operation: String,
    #[serde(default)]
    user_info: UserInfo,
    #[serde(default)]
    object: Value,
    #[serde(default)]
    old_object: Value,
}

/// What kind of object is written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Resource {
    pub(crate) group: String,
    pub(crate) resource: String,
}

/// Why a write must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The user lacks a right.
    Forbidden(String),
    /// The object cannot be read, or is none of a kind that is reviewed here.
    Invalid(String),
    /// What the object says cannot be served.
    Bad(String),
    /// Nobody decided.
    Undecided(String),
}

impl Write {
    /// The spec that the write brings; `None` if it leaves the one that is there.
    pub(crate) fn new_spec(&self) -> Option<&Value> {
        let whole = self.sub_resource.as_deref().is_none_or(str::is_empty);
        let is_new = match self.operation.as_str() {
            "CREATE" => whole,
            "UPDATE" => whole && self.object["spec"] != self.old_object["spec"],
            _ => false,
        };
        is_new.then(|| &self.object["spec"])
    }

    /// The spec that is there; `None` if nothing is.
    pub(crate) fn old_spec(&self) -> Option<&Value> {
        (self.operation == "UPDATE").then(|| &self.old_object["spec"])
    }
}

/// Whether the write may be: what it claims is asked about, whoever claimed it first.
pub(crate) async fn review(reviewer: &AccessReviewer, write: &Write) -> Result<(), Refusal> {
    if !is_claim(write)? {
        return Ok(());
    }
    let spec = ShardingConfigSpec::deserialize(&write.object["spec"])
        .map_err(|error| Refusal::Invalid(format!("the spec cannot be read: {error}")))?;
    // Whoever may shard all of them may shard each: one question for most authors.
    if may(reviewer, question(&write.user_info, None)).await? {
        return Ok(());
    }
    // What is taken out as well: it was given by somebody who may shard it.
    let before = ShardingConfigSpec::deserialize(&write.old_object["spec"]).ok();
    let mut fields = BTreeMap::<Option<String>, String>::new();
    for (spec, was) in [(Some(&spec), ""), (before.as_ref(), " (before this write)")] {
        for Claim { field, cluster } in spec.into_iter().flat_map(ShardingConfigSpec::claims) {
            let cluster = cluster.map(str::to_owned);
            fields.entry(cluster).or_insert_with(|| format!("{field}{was}"));
        }
    }
    for cluster in newly_forced(write) {
        fields
            .entry(Some(cluster))
            .or_insert_with(|| format!("annotation {FORCE_RELEASE}"));
    }
    let asked = fields.into_iter().map(|(cluster, field)| {
        let question = question(&write.user_info, cluster.as_deref());
        let reviewer = reviewer.clone();
        async move {
            // Of all it is known already.
            let allowed = cluster.is_some() && may(&reviewer, question).await?;
            Ok((!allowed).then_some((field, cluster)))
        }
    });
    let asked: Vec<_> = asked.collect();
    let answers: Vec<_> = stream::iter(asked).buffered(AT_ONCE).try_collect().await?;
    let refused: Vec<_> = answers.into_iter().flatten().collect();
    if refused.is_empty() {
        return Ok(());
    }
    let user = write.user_info.username.as_deref().unwrap_or_default();
    Err(Refusal::Forbidden(forbidden(user, &refused)))
}

/// Whether the write changes what a ShardingConfig claims, or forces it to let go.
fn is_claim(write: &Write) -> Result<bool, Refusal> {
    if (write.resource.group.as_str(), write.resource.resource.as_str()) != (GROUP, "shardingconfigs") {
        let Resource { group, resource } = &write.resource;
        let message =
            format!("only writes of shardingconfigs are reviewed here, not of {resource:?} in group {group:?}");
        return Err(Refusal::Invalid(message));
    }
    // Whoever forces a release takes namespaces from routers that may still serve them.
    Ok(write.new_spec().is_some() || forces(write))
}

/// Whether the write changes what is forced. What was forced before stays on the object as the record.
fn forces(write: &Write) -> bool {
    write.operation != "DELETE" && forced(&write.object) != forced(&write.old_object)
}

/// Members of pairs that the write forces, which the spec need not name any more. What cannot be read forces nothing.
fn newly_forced(write: &Write) -> BTreeSet<String> {
    let annotation = forced(&write.object).as_str().filter(|_| forces(write));
    let pairs = annotation.and_then(|annotation| Some(annotation.parse::<ForcedRelease>().ok()?.pairs));
    let clusters = pairs.into_iter().flatten().map(|(cluster, ..)| cluster);
    clusters.collect()
}

fn forced(object: &Value) -> &Value {
    &object["metadata"]["annotations"][FORCE_RELEASE]
}

async fn may(reviewer: &AccessReviewer, question: Question) -> Result<bool, Refusal> {
    let decision = reviewer.decide(question).await.map_err(Refusal::Undecided)?;
    Ok(decision.allowed)
}

fn question(user: &UserInfo, cluster: Option<&str>) -> Question {
    let user = user.clone();
    Question {
        user: user.username.unwrap_or_default(),
        uid: user.uid,
        groups: user.groups.unwrap_or_default(),
        extra: user.extra,
        verb: VERB,
        cluster: cluster.map(str::to_owned),
    }
}

/// A sentence per claim, and what would help.
fn forbidden(user: &str, refused: &[(String, Option<String>)]) -> String {
    let told = refused.iter().take(TOLD_MAX).map(|(field, cluster)| match cluster {
        Some(cluster) => format!("{field}: user {user:?} may not shard member cluster {cluster:?}"),
        None => format!("{field}: user {user:?} may not shard all member clusters, which this asks for"),
    });
    let mut sentence = told.collect::<Vec<_>>().join("; ");
    if let Some(more @ 1..) = refused.len().checked_sub(TOLD_MAX) {
        let _ = write!(sentence, "; and {more} more");
    }
    let all = refused.iter().any(|(_, cluster)| cluster.is_none());
    let names: Vec<_> = refused
        .iter()
        .filter_map(|(_, cluster)| cluster.as_deref())
        .take(TOLD_MAX)
        .collect();
    let names = if all {
        String::new()
    } else {
        format!(", resourceNames: [{}]", names.join(", "))
    };
    format!(
        "{sentence}. Bind a ClusterRole of the hub cluster to {user:?} with the rule \
         {{apiGroups: [{GROUP}], resources: [{RESOURCE}]{names}, verbs: [{VERB}]}}"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::sharding_rights;

    fn write(user: &str, spec: &Value) -> Write {
        let object = json!({"spec": spec});
        serde_json::from_value(json!({
            "uid": "1", "operation": "CREATE", "userInfo": {"username": user, "groups": ["g"], "extra": {"k": ["v"]}},
            "resource": {"group": GROUP, "version": "v1alpha1", "resource": "shardingconfigs"},
            "object": object, "oldObject": null,
        }))
        .unwrap()
    }

    fn claiming(clusters: &[&str]) -> Value {
        let clusters: Vec<_> = clusters.iter().map(|name| json!({"name": name})).collect();
        json!({"selector": {}, "callerClusters": ["east"], "clusters": clusters})
    }

    #[tokio::test]
    async fn each_named_member_is_asked_about() {
        let (reviewer, asked) = sharding_rights(&[("ada", Some("east")), ("root", None)]);
        let ok = async |user: &str, spec: &Value| review(&reviewer, &write(user, spec)).await;
        assert_eq!(ok("ada", &claiming(&["east"])).await, Ok(()));
        asked.lock().clear();
        assert_eq!(ok("root", &claiming(&["east", "west"])).await, Ok(()));
        assert_eq!(asked.lock().len(), 1, "of all at once");

        let Err(Refusal::Forbidden(said)) = ok("ada", &claiming(&["east", "west"])).await else {
            panic!("west is not hers");
        };
        for part in [
            "spec.clusters[1].name",
            "\"west\"",
            "resourceNames: [west]",
            "verbs: [shard]",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let question = &asked.lock()[1];
        assert_eq!(
            (&question["groups"], &question["extra"]),
            (&json!(["g"]), &json!({"k": ["v"]}))
        );
        assert!(!said.contains("\"east\""), "{said}");
    }

    #[tokio::test]
    async fn a_selector_and_an_original_manifest_ask_for_all() {
        let (reviewer, _) = sharding_rights(&[("ada", Some("east")), ("root", None)]);
        let selector = json!({"selector": {}, "callerClusters": ["east"], "clusters": [{"selector": {}}]});
        for (spec, field) in [
            (selector, "spec.clusters[0].selector"),
            (json!({"selector": {}}), "spec.callerClusters"),
        ] {
            let Err(Refusal::Forbidden(said)) = review(&reviewer, &write("ada", &spec)).await else {
                panic!("{spec}");
            };
            assert!(said.contains(field) && !said.contains("resourceNames"), "{said}");
            assert_eq!(review(&reviewer, &write("root", &spec)).await, Ok(()));
        }
    }

    #[tokio::test]
    async fn what_claims_nothing_new_is_not_asked_about() {
        let (reviewer, asked) = sharding_rights(&[("ada", Some("east"))]);
        let mut same = write("eve", &claiming(&["west"]));
        (same.operation, same.old_object) = ("UPDATE".to_owned(), same.object.clone());
        same.object["metadata"] = json!({"annotations": {"a": "b"}});
        assert_eq!(review(&reviewer, &same).await, Ok(()));
        let mut forced = same.clone();
        forced.object["metadata"]["annotations"][FORCE_RELEASE] = json!("west/ns-a@1: it burnt");
        assert!(matches!(review(&reviewer, &forced).await, Err(Refusal::Forbidden(_))));
        let mut of_before = forced.clone();
        (of_before.object["spec"], of_before.old_object["spec"]) = (claiming(&["east"]), claiming(&["east"]));
        of_before.user_info.username = Some("ada".to_owned());
        let Err(Refusal::Forbidden(said)) = review(&reviewer, &of_before).await else {
            panic!("west was edited out, and is not hers");
        };
        assert!(said.contains("\"west\"") && !said.contains("\"east\""), "{said}");
        of_before.old_object["metadata"] = of_before.object["metadata"].clone();
        assert_eq!(review(&reviewer, &of_before).await, Ok(()), "it is the record");
        asked.lock().clear();
        let mut deleted = same.clone();
        (deleted.operation, deleted.object) = ("DELETE".to_owned(), Value::Null);
        assert_eq!(review(&reviewer, &deleted).await, Ok(()));
        assert!(asked.lock().is_empty());

        same.object["spec"]["explicitView"] = json!("Allow");
        assert!(matches!(review(&reviewer, &same).await, Err(Refusal::Forbidden(_))));
        same.resource.resource = "secrets".to_owned();
        assert!(matches!(review(&reviewer, &same).await, Err(Refusal::Invalid(_))));
    }

    #[tokio::test]
    async fn of_many_claims_a_few_are_told() {
        let (reviewer, _) = sharding_rights(&[]);
        let names: Vec<_> = (0..128).map(|number| format!("m-{number:03}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let Err(Refusal::Forbidden(said)) = review(&reviewer, &write("eve", &claiming(&names))).await else {
            panic!("nothing is hers");
        };
        assert!(said.contains("and 124 more") && said.len() < 2_000, "{said}");
    }
}
