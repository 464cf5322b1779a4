//! Where a new Namespace goes (`docs/semantics.md#namespaces`).
//!
//! A new one goes to the member of its annotation, else to where another operator's shard has the name, else by the shard's rules: to
//! the one member that would have it, or to the default of several. One that no rule takes would be made for nobody, so it is refused.
//! Pure: `preflight` gathers the body.

use portolan_crds::labels::system_namespace;
use portolan_crds::selector::Selector;
use portolan_wire::v1;

use super::choose::{By, Choose, Chosen};
use super::merged::{Merged, Outcome};
use super::wanted::Wanted;
use super::{Plan, Rule};
use crate::value::classify::ResourceRequest;
use crate::value::fault::Fault;
use crate::value::snapshot::{Binding, Enforcement, GrantState, Shard, Snapshot};

/// Label of every Namespace, by its API server: its name.
const METADATA_NAME: &str = "kubernetes.io/metadata.name";
/// Names of one rule that a refusal lists.
const MOST_NAMES: usize = 5;

impl Merged<'_> {
    pub(super) fn new_namespace(&self, resource: &ResourceRequest) -> Outcome {
        let Binding::One(shard) = &self.view.binding else {
            return Err(super::merged::unbound(self.view, self.route.request));
        };
        let members: Vec<&str> = self.members().collect();
        if shard.members.is_empty() {
            return Err(self.memberless());
        }
        let by = By::NewNamespace(shard.clone());
        let plan: Plan = self.choose(&members, resource, by)?;
        Ok((Rule::NewNamespace, plan))
    }
}

impl Choose {
    /// Which candidate a new Namespace goes to, from its body.
    pub(crate) fn place(&self, shard: &Shard, snapshot: &Snapshot, body: &[u8], content_type: Option<&str>) -> Chosen {
        let wanted = Wanted::read(shard.label_keys.cluster(), content_type, body)?;
        let index = self.member((shard, snapshot), &wanted)?;
        let cluster = &self.candidates[index].forward.target.cluster;
        match doubt(shard, snapshot, cluster, &wanted) {
            None => Ok((index, None)),
            Some((true, why)) if shard.enforcement == Enforcement::Enforce => Err(Fault::Forbidden(format!(
                "Namespace {} in member cluster {cluster} would be outside shard {}: {why}",
                wanted.name, shard.config
            ))),
            Some((_, why)) => Ok((
                index,
                Some(format!("Namespace {} in member cluster {cluster}: {why}", wanted.name)),
            )),
        }
    }

    fn member(&self, (shard, snapshot): (&Shard, &Snapshot), wanted: &Wanted) -> Result<usize, Fault> {
        if let Some(cluster) = &wanted.cluster {
            return self.named(cluster, shard);
        }
        let owner = shard.owner(&wanted.name).filter(|_| !wanted.name.is_empty());
        if let Some((member, _)) = owner.filter(|(_, grant)| grant.exact) {
            return self.named(&member.cluster, shard);
        }
        let cluster = |index: usize| &*self.candidates[index].forward.target.cluster;
        // Another operator's shard has it: there it exists already.
        let mut all = 0..self.candidates.len();
        let is_anothers = |index: &usize| {
            let (there, name) = (cluster(*index), &wanted.name);
            snapshot.owners(there, name).next().is_some() && snapshot.contender(shard.operator(), there, name).is_none()
        };
        if let Some(there) = all.find(is_anothers).filter(|_| !wanted.name.is_empty()) {
            return Ok(there);
        }
        let may = |index: &usize| takes(shard, cluster(*index), wanted) != Some(false);
        let takers: Vec<usize> = (0..self.candidates.len()).filter(may).collect();
        let mut defaults = takers.iter().filter(|index| {
            let rules = shard.namespace_rules(cluster(**index));
            rules.is_some_and(|rules| rules.default_for_new)
        });
        match (takers.as_slice(), defaults.next(), defaults.next()) {
            ([taker], _, _) | (_, Some(taker), None) => Ok(*taker),
            // Whether that is refused depends on the enforcement.
            ([], _, _) if self.candidates.len() == 1 => Ok(0),
            ([], _, _) if shard.enforcement == Enforcement::Enforce => Err(Fault::Forbidden(format!(
                "Namespace {} would be outside shard {}: {}",
                wanted.name,
                shard.config,
                rules_of(shard)
            ))),
            _ => Err(Fault::BadRequest(format!(
                "a Namespace could go to several member clusters of shard {} ({}): say which by the annotation {}, or make one entry of spec.clusters the default",
                shard.config,
                self.clusters(),
                shard.label_keys.cluster()
            ))),
        }
    }

    fn named(&self, cluster: &str, shard: &Shard) -> Result<usize, Fault> {
        let mut candidates = self.candidates.iter();
        let index = candidates.position(|one| *one.forward.target.cluster == *cluster);
        index.ok_or_else(|| {
            Fault::BadRequest(format!(
                "member cluster {cluster:?} is not among those of shard {} ({})",
                shard.config,
                self.clusters()
            ))
        })
    }
}

/// Whether the shard would not own the Namespace there, and why; or that it is not known yet.
fn doubt(shard: &Shard, snapshot: &Snapshot, cluster: &str, wanted: &Wanted) -> Option<(bool, String)> {
    let name = wanted.name.as_str();
    let owner = shard.owner(name);
    // What is gone from another member shadows nothing.
    let elsewhere = owner.filter(|(member, grant)| grant.exact && !grant.pair.vacant && *member.cluster != *cluster);
    if let Some((member, _)) = elsewhere {
        let other = &member.cluster;
        return Some((
            true,
            format!("the shard owns the one of member cluster {other}, which would shadow it"),
        ));
    }
    if let Some(other) = snapshot.contender(shard.operator(), cluster, name)
        && *other != shard.config
    {
        return Some((
            true,
            format!("it belongs to {} there", other.told_in(shard.config.namespace())),
        ));
    }
    match (owner, takes(shard, cluster, wanted)) {
        (Some((_, grant)), _) if grant.pair.state == GrantState::Releasing => {
            Some((true, "it is on its way to another shard".to_owned()))
        }
        (Some((member, _)), _) if *member.cluster == *cluster => None,
        (_, Some(true)) => None,
        _ if system_namespace(name) => Some((true, "a system namespace is owned by exact name only".to_owned())),
        (_, Some(false)) => Some((true, rules_of(shard))),
        (_, None) => Some((
            false,
            format!(
                "shard {} owns it once the hub has seen it, and only if spec.clusters selects it there",
                shard.config
            ),
        )),
    }
}

/// Whether the shard will have the Namespace in this member; `None`: the hub does not say.
fn takes(shard: &Shard, cluster: &str, wanted: &Wanted) -> Option<bool> {
    let rules = shard.namespace_rules(cluster)?;
    let name = wanted.name.as_str();
    if rules.names.iter().any(|one| one == name) {
        return Some(true);
    }
    let keys = &shard.label_keys;
    let mut labels = wanted.labels.clone();
    let derived = [
        (METADATA_NAME, name.to_owned()),
        (keys.namespace(), name.to_owned()),
        (keys.sharding_hash(), shard.bucketing.bucket_of(name).to_string()),
        (keys.control(), true.to_string()),
    ];
    labels.extend(derived.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    // A name that the API server makes up may be any.
    let is_open = |key: &str| name.is_empty() && derived.iter().any(|(derived, _)| *derived == key);
    let matches = |text: &String| {
        let selector = Selector::parse(text).unwrap_or(Selector::nothing());
        let told = selector.requirements().iter().filter(|one| !is_open(one.key()));
        !selector.is_nothing() && Selector::from_requirements(told.cloned()).matches(&labels)
    };
    Some(!system_namespace(name) && rules.selectors.iter().any(matches))
}

/// Whether a shard may have a Namespace of this name in the member, whatever labels it has.
pub(super) fn may_take(shard: &Shard, cluster: &str, name: &str) -> bool {
    let Some(rules) = shard.namespace_rules(cluster) else {
        return true;
    };
    rules.names.iter().any(|one| one == name) || (!system_namespace(name) && !rules.selectors.is_empty())
}

/// Which Namespaces a shard takes, for a refusal.
fn rules_of(shard: &Shard) -> String {
    let of_member = |rules: &v1::NamespaceRules| {
        let mut said = Vec::new();
        if !rules.names.is_empty() {
            let names: Vec<&str> = rules.names.iter().take(MOST_NAMES).map(String::as_str).collect();
            let more = rules.names.len().saturating_sub(MOST_NAMES);
            let more = if more > 0 {
                format!(" and {more} more")
            } else {
                String::new()
            };
            said.push(format!("named {}{more}", names.join(", ")));
        }
        let selector = |text: &String| match text.as_str() {
            "" => "all but system namespaces".to_owned(),
            text => format!("labelled {text}"),
        };
        said.extend(rules.selectors.iter().map(selector));
        said.join("; ")
    };
    let members = shard.members.iter().filter_map(|member| {
        let rules = shard.namespace_rules(&member.cluster)?;
        Some(format!("in {} those {}", member.cluster, of_member(rules)))
    });
    let rules: Vec<String> = members.collect();
    format!("spec.clusters takes {}", rules.join(", "))
}
