//! `/kinds` on the admin server: per shard, the kinds that its members do not all serve alike. Caller: `admin`;
//! `portolanctl` shows it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::value::kinds::{Kinds, Partial};
use crate::value::snapshot::{Binding, Shard, Snapshot};

/// All shards with callers on this router.
pub(crate) fn page(kinds: &Kinds, snapshot: &Snapshot) -> Value {
    let mut shards = BTreeMap::new();
    for view in snapshot.callers.values() {
        if let Binding::One(shard) = &view.binding {
            shards.entry(shard.config.to_string()).or_insert(shard);
        }
    }
    let shards: Vec<_> = shards
        .into_iter()
        .map(|(name, shard)| describe(&name, shard, kinds))
        .collect();
    json!({ "shards": shards })
}

fn describe(name: &str, shard: &Shard, table: &Kinds) -> Value {
    let members = std::iter::once(&shard.primary_cluster).chain(shard.members.iter().map(|member| &member.cluster));
    let members: BTreeSet<Arc<str>> = members.cloned().collect();
    let members: Vec<Arc<str>> = members.into_iter().collect();
    let unread: Vec<_> = members
        .iter()
        .filter(|cluster| table.member(cluster).is_none())
        .collect();
    let partial: Vec<_> = table.partial(&members).iter().map(describe_kind).collect();
    json!({
        "shard": name,
        "members": members,
        "neverRead": unread,
        "partial": partial,
    })
}

/// `offered`: the versions in common, which are all that the merged view serves; none is a conflict.
fn describe_kind(kind: &Partial) -> Value {
    let mut served = kind.served.values();
    let first = served.next().cloned().unwrap_or_default();
    let rest: Vec<_> = served.collect();
    let offered: Vec<_> = first
        .into_iter()
        .filter(|version| rest.iter().all(|other| other.contains(version)))
        .collect();
    json!({
        "group": kind.group,
        "resource": kind.resource,
        "served": kind.served,
        "missing": kind.missing,
        "offered": offered,
    })
}
