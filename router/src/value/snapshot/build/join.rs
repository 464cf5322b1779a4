//! Callers with their shards, and shards with what they own: each shard is made once, however many callers it has.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use portolan_wire::v1;

use super::shard;
use crate::value::hashed::HashMap;
use crate::value::snapshot::keys::KeyIndex;
use crate::value::snapshot::{
    Binding, CallerView, MadeOf, Map, Owners, Ownership, Shard, ShardKey, ShardName, Snapshot, Target,
};

/// Shards of one join, or what is missing of them.
type Joined = HashMap<ShardKey, Result<Arc<Shard>, String>>;

impl Snapshot {
    /// Joins what changed since `previous`; what did not stays the same value.
    pub(super) fn join(&mut self, previous: &Self) {
        if !Arc::ptr_eq(&self.targets, &previous.targets) {
            self.incarnations = incarnations(self.targets.values());
        }
        if !Arc::ptr_eq(&self.identities, &previous.identities) {
            self.keys = Arc::new(KeyIndex::new(self.identities.iter()));
        }
        let untouched = Arc::ptr_eq(&self.callers, &previous.callers)
            && Arc::ptr_eq(&self.rules, &previous.rules)
            && Arc::ptr_eq(&self.ownership, &previous.ownership);
        if untouched {
            return;
        }
        self.owners = self.owners_since(previous);
        let mut joined = Joined::default();
        let callers = self.callers.values();
        let rebound: Vec<_> = callers.filter_map(|view| self.rebind(view, &mut joined)).collect();
        if !rebound.is_empty() {
            let callers = Arc::make_mut(&mut self.callers);
            callers.extend(rebound.into_iter().map(|view| (view.key.clone(), Arc::new(view))));
        }
        let shards = joined.into_iter().filter_map(|(key, shard)| Some((key, shard.ok()?)));
        self.shards = Arc::new(shards.collect());
    }

    /// Who owns which namespace, made anew for members of which something changed.
    fn owners_since(&self, previous: &Self) -> HashMap<Arc<str>, Arc<Owners>> {
        let of_member = |(cluster, shards): (&Arc<str>, &Map<ShardName, Ownership>)| {
            let same = previous
                .ownership
                .get(cluster)
                .is_some_and(|before| Arc::ptr_eq(before, shards));
            let kept = previous.owners.get(cluster).filter(|_| same);
            let owners = kept.cloned().unwrap_or_else(|| Arc::new(owners(shards)));
            (cluster.clone(), owners)
        };
        self.ownership.iter().map(of_member).collect()
    }

    /// The caller with the shard that it belongs to now; `None` if it has it already.
    fn rebind(&self, view: &CallerView, joined: &mut Joined) -> Option<CallerView> {
        let config = match &view.binding {
            Binding::One(shard) => &shard.config,
            Binding::Unknown { config, .. } => config,
            Binding::None | Binding::Several(_) => return None,
        };
        let rules = self.rules.get(config);
        let of_home = rules.is_some_and(|rules| shard::is_of_home(rules));
        let key = ShardKey {
            config: config.clone(),
            home: of_home.then(|| view.key.home_cluster.clone()),
        };
        let shard = joined.entry(key).or_insert_with_key(|key| self.shard(key));
        let binding = match (shard, &view.binding) {
            (Ok(shard), Binding::One(before)) if Arc::ptr_eq(shard, before) => return None,
            (Ok(shard), _) => Binding::One(shard.clone()),
            (Err(missing), Binding::Unknown { missing: before, .. }) if missing == before => return None,
            (Err(missing), _) => Binding::Unknown {
                config: config.clone(),
                missing: missing.clone(),
            },
        };
        let view = view.clone();
        Some(CallerView { binding, ..view })
    }

    /// The shard of rules and ownership as they are now: the one there was, if it was made of the same.
    fn shard(&self, key: &ShardKey) -> Result<Arc<Shard>, String> {
        let config = &key.config;
        let rules = self.rules.get(config);
        let rules = rules.ok_or_else(|| format!("the hub has not told the rules of shard {config}"))?;
        let home = key.home.as_deref().unwrap_or_default();
        let cluster = |member: &v1::ShardMember| match &*member.cluster {
            "" => home.to_owned(),
            name => name.to_owned(),
        };
        let members: Vec<String> = rules.members.iter().map(cluster).collect();
        let owned = rules
            .members
            .iter()
            .zip(&members)
            .map(|(member, cluster)| match self.owned(cluster, config) {
                None if !member.all_namespaces => Err(format!(
                    "the hub has not told what shard {config} owns in member cluster {cluster}"
                )),
                owned => Ok(owned.cloned()),
            });
        let owned = owned.collect::<Result<Vec<_>, _>>()?;
        let others = self
            .ownership
            .keys()
            .filter(|cluster| !members.iter().any(|member| **member == ***cluster));
        let mut elsewhere: Vec<_> = others
            .filter_map(|cluster| self.owned(cluster, config))
            .cloned()
            .collect();
        elsewhere.sort_unstable_by(|one, other| one.cluster.cmp(&other.cluster));
        let made_of = MadeOf {
            rules: rules.clone(),
            owned,
            elsewhere,
        };
        if let Some(kept) = self.shards.get(key).filter(|shard| shard.made_of.is_same(&made_of)) {
            return Ok(kept.clone());
        }
        // The rules were checked when they came, by the same function.
        let shard = shard::shard(made_of, home).map_err(|error| error.to_string())?;
        Ok(Arc::new(shard))
    }

    fn owned(&self, cluster: &str, config: &portolan_crds::names::ShardName) -> Option<&Arc<Ownership>> {
        self.ownership.get(cluster)?.get(config)
    }
}

/// In any order.
fn incarnations<'a>(targets: impl Iterator<Item = &'a Arc<Target>>) -> u64 {
    let one = |target: &Arc<Target>| {
        let mut hash = DefaultHasher::new();
        (&target.cluster, &target.cluster_uid).hash(&mut hash);
        hash.finish()
    };
    targets.map(one).fold(0, u64::wrapping_add)
}

fn owners(shards: &Map<ShardName, Ownership>) -> Owners {
    let mut owners = Owners::default();
    for owned in shards.values() {
        for namespace in owned.namespaces.keys() {
            owners.entry(namespace.clone()).or_default().push(owned.clone());
        }
    }
    owners
}
