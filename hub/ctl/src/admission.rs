//! The admission policies of a member, written by join with the rights of who runs it. The agent has none to write them:
//! whoever may write a mutating policy may rewrite every object.

use std::collections::BTreeSet;

use anyhow::Context as _;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::api::{Api, DynamicObject, ObjectMeta, PostParams};
use kube::{Client, ResourceExt as _};
use portolan_crds::policy::{GROUP, Policy, PolicyInput, input_of};
use portolan_crds::{GroupResource, LabelKeys};
use serde_json::Value;

use crate::apply::{self, MANAGER};
use crate::grant::WRITES_OF_OTHERS;
use crate::label_kinds;

/// Label that Helm sets on what is of a release.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// Who asks for what: the kinds are those that the member's RBAC lets its agent patch.
pub(crate) struct Policies<'a> {
    /// What `deploy/member/rbac.yaml` gives.
    pub(crate) rbac: &'a [DynamicObject],
    /// Another prefix than the one in force, which is the default at first.
    pub(crate) prefix: Option<&'a str>,
}

impl Policies<'_> {
    /// Writes all that the member serves, each whole: an apply would leave what somebody else added to a list.
    pub(crate) async fn install(&self, member: &Client) -> anyhow::Result<()> {
        let input = PolicyInput {
            keys: self.keys(member).await?,
            kinds: self.kinds(member).await?,
        };
        let manifests = |policy: Policy| policy.manifests(&input).map(|manifest| (policy, manifest));
        for (policy, manifest) in Policy::ALL.into_iter().flat_map(manifests) {
            let object = object(manifest)?;
            if let Some(object) = as_served(member, policy.versions(), &object).await? {
                put(member, object).await?;
            } else {
                println!(
                    "this API server has no {}, as Kubernetes 1.36 does, and before where the beta is switched on: its agent labels \
                     new objects a moment after their creation, and routers choose by namespace what callers see",
                    apply::describe(&object)
                );
            }
        }
        Ok(())
    }

    async fn keys(&self, member: &Client) -> anyhow::Result<LabelKeys> {
        if let Some(prefix) = self.prefix {
            return LabelKeys::new(prefix).context("--label-prefix");
        }
        keys_in_force(member).await
    }

    async fn kinds(&self, member: &Client) -> anyhow::Result<BTreeSet<GroupResource>> {
        let roles: Api<ClusterRole> = Api::all(member.clone());
        let more = roles.get_opt(label_kinds::ROLE).await;
        let more = more.with_context(|| format!("cannot read ClusterRole {}", label_kinds::ROLE))?;
        let more = more.and_then(|role| role.rules).unwrap_or_default();
        let roles = self
            .rbac
            .iter()
            .filter(|object| object.types.as_ref().is_some_and(|types| types.kind == "ClusterRole"));
        let usual = roles.filter_map(|role| serde_json::from_value::<Vec<PolicyRule>>(role.data["rules"].clone()).ok());
        Ok(labelled(&usual.flatten().chain(more).collect::<Vec<_>>()))
    }
}

/// The object in the first of these versions that the member serves.
pub(crate) async fn as_served(
    member: &Client,
    versions: &[&str],
    object: &DynamicObject,
) -> anyhow::Result<Option<DynamicObject>> {
    for version in versions {
        let object = in_version(object, version);
        if apply::is_served(member, &object).await? {
            return Ok(Some(object));
        }
    }
    Ok(None)
}

/// A policy, or a binding, in this version of its API.
pub(crate) fn in_version(object: &DynamicObject, version: &str) -> DynamicObject {
    let mut object = object.clone();
    if let Some(types) = &mut object.types {
        types.api_version = format!("{GROUP}/{version}");
    }
    object
}

/// Keys of the labels that the member's policies speak of; the usual ones where it has none.
pub(crate) async fn keys_in_force(member: &Client) -> anyhow::Result<LabelKeys> {
    let [reserved, _] = Policy::Reserved.manifests(&PolicyInput {
        keys: LabelKeys::default(),
        kinds: BTreeSet::new(),
    });
    let present = apply::get(member, &object(reserved)?).await?;
    let in_force = present
        .and_then(|present| input_of(&present.data))
        .map(|input| input.keys);
    Ok(in_force.unwrap_or_default())
}

/// The kinds that rules let be patched.
fn labelled(rules: &[PolicyRule]) -> BTreeSet<GroupResource> {
    let patched = rules
        .iter()
        .filter(|rule| rule.resource_names.is_none() && rule.verbs.iter().any(|verb| verb == "patch"));
    let kinds = patched.flat_map(|rule| {
        let groups = rule.api_groups.iter().flatten();
        groups.flat_map(|group| {
            let resources = rule.resources.iter().flatten();
            resources.map(move |resource| GroupResource::new(group, resource))
        })
    });
    kinds
        .filter(|kind| *kind != GroupResource::new("", "namespaces"))
        .collect()
}

/// All of them, known by their names alone, with the versions of their API, the best first.
pub(crate) fn named() -> anyhow::Result<Vec<(DynamicObject, &'static [&'static str])>> {
    let input = PolicyInput {
        keys: LabelKeys::default(),
        kinds: BTreeSet::new(),
    };
    let of = |policy: Policy| {
        policy
            .manifests(&input)
            .map(|manifest| (object(manifest), policy.versions()))
    };
    let all = Policy::ALL.into_iter().flat_map(of);
    all.map(|(object, versions)| Ok((object?, versions))).collect()
}

/// Names of all of them, in each version that a member may serve, for the record of `dev up`.
pub(crate) fn references() -> Vec<Value> {
    let input = PolicyInput {
        keys: LabelKeys::default(),
        kinds: BTreeSet::new(),
    };
    let in_all_versions = |policy: Policy| {
        let manifests = policy.manifests(&input).into_iter();
        manifests.flat_map(move |manifest| {
            let versions = policy.versions().iter();
            versions.map(move |version| {
                let mut manifest = manifest.clone();
                manifest["apiVersion"] = format!("{GROUP}/{version}").into();
                manifest
            })
        })
    };
    Policy::ALL.into_iter().flat_map(in_all_versions).collect()
}

fn object(manifest: Value) -> anyhow::Result<DynamicObject> {
    serde_json::from_value(manifest).context("a policy is a Kubernetes object")
}

/// Writes an object whole, in place of the one that is there.
pub(crate) async fn put(member: &Client, mut object: DynamicObject) -> anyhow::Result<()> {
    let (api, name) = (apply::api_of(member, &object).await?, object.name_any());
    let params = PostParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PostParams::default()
    };
    let mut others = 0;
    loop {
        let known = api.get_metadata_opt(&name).await?;
        object.metadata.resource_version = known.as_ref().and_then(|known| known.metadata.resource_version.clone());
        if let Some(known) = &known {
            keep_release(&mut object, &known.metadata);
        }
        let written = match known {
            Some(_) => api.replace(&name, &params, &object).await,
            None => api.create(&params, &object).await,
        };
        match written {
            Ok(_) => return Ok(()),
            // Somebody wrote, made or deleted it since it was read.
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) && others < WRITES_OF_OTHERS => {
                others += 1;
            }
            Err(error) => return Err(error).with_context(|| format!("cannot write {}", apply::describe(&object))),
        }
    }
}

/// Leaves an object to the Helm release that it is of, which would else take it for another's.
fn keep_release(object: &mut DynamicObject, known: &ObjectMeta) {
    let of_helm = known
        .labels
        .iter()
        .flatten()
        .find(|&(key, value)| key == MANAGED_BY && value == "Helm");
    let Some((key, value)) = of_helm else {
        return;
    };
    object.labels_mut().insert(key.clone(), value.clone());
    let notes = known
        .annotations
        .iter()
        .flatten()
        .filter(|(key, _)| key.starts_with("meta.helm.sh/"));
    object
        .annotations_mut()
        .extend(notes.map(|(key, value)| (key.clone(), value.clone())));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_of_a_release_stays_of_it() {
        let object = |labels: Value, notes: Value| -> DynamicObject {
            let metadata = json!({"name": "a", "labels": labels, "annotations": notes});
            serde_json::from_value(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})).unwrap()
        };
        let ours = object(json!({MANAGED_BY: "portolan"}), json!({}));
        let notes = json!({"meta.helm.sh/release-name": "portolan-agent", "other": "1"});
        let mut written = ours.clone();
        keep_release(&mut written, &object(json!({MANAGED_BY: "Helm"}), notes).metadata);
        let kept = json!({"meta.helm.sh/release-name": "portolan-agent"});
        assert_eq!(written, object(json!({MANAGED_BY: "Helm"}), kept));
        let mut written = ours.clone();
        keep_release(&mut written, &ours.metadata);
        assert_eq!(written, ours);
    }

    fn usual_kinds() -> BTreeSet<GroupResource> {
        let rbac = crate::join::member_rbac().unwrap();
        let rules = rbac.iter().filter(|object| object.name_any() == "portolan-agent");
        let rules = rules.filter_map(|role| serde_json::from_value::<Vec<PolicyRule>>(role.data["rules"].clone()).ok());
        labelled(&rules.flatten().collect::<Vec<_>>())
    }

    /// `PORTOLAN_BLESS=1` writes it anew.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "no setting of the program")]
    fn the_chart_has_the_policies_that_join_writes() {
        let input = PolicyInput {
            keys: LabelKeys::default(),
            kinds: usual_kinds(),
        };
        let mut text = "# The admission policies that label, for charts: what `portolanctl join` writes by itself where nothing else is asked for.\n\
            # Generated from crds/src/policy.rs and deploy/member/rbac.yaml by a test of hub/ctl; do not edit.\n"
            .to_owned();
        for manifest in Policy::ALL.into_iter().flat_map(|policy| policy.manifests(&input)) {
            text.push_str("---\n");
            text.push_str(&serde_yaml_ng::to_string(&manifest).unwrap());
        }
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/member/policies.yaml");
        if std::env::var("PORTOLAN_BLESS").is_ok() {
            std::fs::write(file, &text).unwrap();
        }
        let kept = std::fs::read_to_string(file).unwrap_or_default();
        assert!(kept == text, "deploy/member/policies.yaml is stale: make bless");
    }

    #[test]
    fn the_policies_are_for_what_the_agent_may_label() {
        let kinds = usual_kinds();
        let named = |group, resource| kinds.contains(&GroupResource::new(group, resource));
        assert_eq!(kinds.len(), 15, "{kinds:?}");
        assert!(named("", "pods") && named("apps", "deployments") && !named("", "namespaces") && !named("", "secrets"));
    }
}
