//! What each agent must label and which Pods it must report.

use std::collections::{BTreeMap, BTreeSet};

use portolan_crds::{GroupResource, ShardName};
use portolan_wire::v1;

use super::Accepted;
use super::callers::{caller_selector, runs_in};
use crate::facts::Facts;
use crate::settings::Settings;

/// One configuration for each accepted member.
pub(super) fn render(
    facts: &Facts,
    settings: &Settings,
    accepted: &BTreeMap<ShardName, Accepted>,
) -> BTreeMap<String, v1::AgentConfig> {
    let kinds: Vec<_> = kinds(settings, accepted).into_iter().map(v1::KindRef::from).collect();
    let members = facts.members.iter().filter(|(_, member)| member.accept);
    members
        .map(|(cluster, _)| {
            let config = v1::AgentConfig {
                label_prefix: settings.keys.prefix().to_owned(),
                bucketing: Some(settings.bucketing.into()),
                labelled_kinds: kinds.clone(),
                caller_selectors: selectors(cluster, accepted),
            };
            (cluster.clone(), config)
        })
        .collect()
}

/// The configured kinds and those that limits in force name, without repetition.
fn kinds(settings: &Settings, accepted: &BTreeMap<ShardName, Accepted>) -> BTreeSet<GroupResource> {
    let named = accepted.values().flat_map(|accepted| accepted.spec.limited_kinds());
    // Subresources have no labels of their own.
    let whole = named.map(|kind| GroupResource::new(kind.group, kind.resource.split('/').next().unwrap_or_default()));
    settings.label_kinds.iter().cloned().chain(whole).collect()
}

fn selectors(cluster: &str, accepted: &BTreeMap<ShardName, Accepted>) -> Vec<v1::CallerSelector> {
    let here = accepted.iter().filter(|(_, accepted)| runs_in(accepted, cluster));
    let selectors =
        here.filter_map(|(name, accepted)| Some((name.namespace().to_owned(), caller_selector(accepted)?.to_string())));
    let unique: BTreeSet<_> = selectors.collect();
    unique
        .into_iter()
        .map(|(namespace, selector)| v1::CallerSelector { namespace, selector })
        .collect()
}
