//! Which member serves which kinds, by what each said last: one immutable value, frozen for a request as the snapshot is.
//!
//! A member that is away keeps what it said last. `None` always means "not known (yet)", never "no". Pure;
//! `resource::routing` keeps it, filled by `discovery` from the members' documents. Readers: `plan`, `preflight`, `/kinds`.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::value::hashed::HashMap;

/// Whether objects of a kind live in namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Scope {
    /// They do.
    Namespaced,
    /// They do not.
    Cluster,
}

/// One resource as one member serves it, over all versions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Kind {
    /// Where its objects live.
    pub(crate) scope: Scope,
    /// As in objects: `ConfigMap`.
    pub(crate) kind: String,
    /// Served versions, the member's preferred one first.
    pub(crate) versions: Vec<String>,
    /// What all of its versions allow.
    pub(crate) verbs: BTreeSet<String>,
}

/// Everything one member serves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberKinds {
    /// Group → resource → kind. Nested, so that a look-up makes no strings.
    groups: HashMap<String, HashMap<String, Arc<Kind>>>,
    /// Versions by group of which the member itself does not know now what it serves: their backend does not answer it.
    #[serde(default)]
    stale: BTreeMap<String, BTreeSet<String>>,
}

impl MemberKinds {
    /// One version of a resource. Versions are told in the member's order of preference.
    pub(crate) fn add(&mut self, group: &str, resource: &str, served: Kind) {
        let resources = self.groups.entry(group.to_owned()).or_default();
        match resources.get_mut(resource) {
            None => {
                resources.insert(resource.to_owned(), Arc::new(served));
            }
            Some(known) => {
                let known = Arc::make_mut(known);
                known.verbs.retain(|verb| served.verbs.contains(verb));
                known.versions.extend(served.versions);
            }
        }
    }

    /// The member marks a version of a group as stale.
    pub(crate) fn mark_stale(&mut self, group: &str, version: &str) {
        self.stale
            .entry(group.to_owned())
            .or_default()
            .insert(version.to_owned());
    }

    /// Whether the member does not know now what it serves of some version of a group.
    fn is_stale(&self, group: &str) -> bool {
        self.stale.contains_key(group)
    }

    /// Takes what it said `before` of versions that are stale now and of which it says nothing: what it serves does not end because
    /// it cannot tell.
    pub(crate) fn keep_stale_of(&mut self, before: &Self) {
        for (group, versions) in &self.stale {
            let Some(known) = before.groups.get(group) else {
                continue;
            };
            let now = self.groups.entry(group.clone()).or_default();
            for (resource, kind) in known {
                let told = now.get(resource);
                let is_told = |version: &String| told.is_some_and(|told| told.versions.contains(version));
                let kept = kind
                    .versions
                    .iter()
                    .filter(|version| versions.contains(*version) && !is_told(version));
                let kept: Vec<_> = kept.cloned().collect();
                if kept.is_empty() {
                    continue;
                }
                let mut kept = Kind {
                    versions: kept,
                    ..Kind::clone(kind)
                };
                if let Some(told) = told {
                    kept.verbs.retain(|verb| told.verbs.contains(verb));
                    kept.versions.splice(0..0, told.versions.iter().cloned());
                    kept.scope = told.scope;
                }
                now.insert(resource.clone(), Arc::new(kept));
            }
            if now.is_empty() {
                self.groups.remove(group);
            }
        }
    }

    /// A resource; `None` if the member does not serve it.
    pub(crate) fn get(&self, group: &str, resource: &str) -> Option<&Arc<Kind>> {
        self.groups.get(group)?.get(resource)
    }

    /// The plural name of a kind, for ownerReferences.
    pub(crate) fn resource_of(&self, group: &str, kind: &str) -> Option<&str> {
        let mut resources = self.groups.get(group)?.iter();
        let (resource, _) = resources.find(|(_, served)| served.kind == kind)?;
        Some(resource)
    }

    fn all(&self) -> impl Iterator<Item = (&str, &str, &Arc<Kind>)> {
        self.groups.iter().flat_map(|(group, resources)| {
            resources
                .iter()
                .map(move |(resource, kind)| (group.as_str(), resource.as_str(), kind))
        })
    }
}

/// What all members serve, at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kinds {
    members: HashMap<Arc<str>, Arc<MemberKinds>>,
    /// Grows with every change.
    revision: u64,
}

/// Member → versions.
type Versions = BTreeMap<Arc<str>, Vec<String>>;

/// A kind that some of the members asked about do not serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Partial {
    /// API group; empty is the core group.
    pub(crate) group: String,
    /// Plural name.
    pub(crate) resource: String,
    /// Members that serve it, with their versions.
    pub(crate) served: Versions,
    /// Members that do not.
    pub(crate) missing: BTreeSet<Arc<str>>,
}

impl Kinds {
    /// What one member serves; `None` if it has never said.
    pub(crate) fn member(&self, cluster: &str) -> Option<&Arc<MemberKinds>> {
        self.members.get(cluster)
    }

    /// Members that have said what they serve.
    pub(crate) fn clusters(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(|cluster| &**cluster)
    }

    /// Members that have said what they serve, with that.
    pub(crate) fn members(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<MemberKinds>)> {
        self.members.iter()
    }

    /// Of two tables of one router the same only if they say the same.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Replaces what one member serves.
    pub(crate) fn set(&mut self, cluster: &Arc<str>, served: Arc<MemberKinds>) {
        self.members.insert(cluster.clone(), served);
        self.revision += 1;
    }

    /// Forgets all other members.
    pub(crate) fn retain(&mut self, known: impl Fn(&str) -> bool) {
        self.members.retain(|cluster, _| known(cluster));
        self.revision += 1;
    }

    /// Kinds that not all of `clusters` serve, or not in the same versions; members that never spoke are not counted.
    pub(crate) fn partial(&self, clusters: &[Arc<str>]) -> Vec<Partial> {
        let known: Vec<_> = clusters
            .iter()
            .filter_map(|cluster| Some((cluster, self.members.get(cluster)?)))
            .collect();
        let mut served: BTreeMap<(&str, &str), Versions> = BTreeMap::new();
        for (cluster, member) in &known {
            for (group, resource, kind) in member.all() {
                let versions = served.entry((group, resource)).or_default();
                versions.insert((*cluster).clone(), kind.versions.clone());
            }
        }
        let partial = |((group, resource), served): ((&str, &str), Versions)| {
            let missing: BTreeSet<_> = known
                .iter()
                .filter(|(cluster, member)| !served.contains_key(*cluster) && !member.is_stale(group))
                .map(|(cluster, _)| (*cluster).clone())
                .collect();
            let set = |versions: &Vec<String>| versions.iter().cloned().collect::<BTreeSet<_>>();
            let mut sets = served.values().map(set);
            let first = sets.next();
            let same = sets.all(|other| Some(&other) == first.as_ref());
            (!missing.is_empty() || !same).then(|| Partial {
                group: group.to_owned(),
                resource: resource.to_owned(),
                served,
                missing,
            })
        };
        served.into_iter().filter_map(partial).collect()
    }
}

impl Kinds {
    /// Where objects of a resource live in these clusters. `None` if none of them [is known to serve it](Self::is_served), or
    /// if those that do disagree. One that has never spoken may disagree as well: ask [`Kinds::serves`] before what it sends is
    /// trusted.
    pub(crate) fn scope<'a>(&self, clusters: impl IntoIterator<Item = &'a str>, gr: (&str, &str)) -> Option<Scope> {
        let mut scopes = self.serving(clusters, gr).map(|kind| kind.scope);
        let first = scopes.next()?;
        scopes.all(|scope| scope == first).then_some(first)
    }

    /// Whether objects of this kind (`Node`), of whatever group, have no namespace wherever these clusters serve any.
    pub(crate) fn is_placeless<'a>(&self, clusters: impl IntoIterator<Item = &'a str>, kind: &str) -> bool {
        let members = clusters.into_iter().filter_map(|cluster| self.member(cluster));
        let served = members.flat_map(|member| member.all()).map(|(.., served)| served);
        let mut scopes = served
            .filter(|served| served.kind == kind)
            .map(|served| served.scope)
            .peekable();
        scopes.peek().is_some() && scopes.all(|scope| scope == Scope::Cluster)
    }

    /// Why a resource cannot be asked of these clusters as one: its objects have namespaces in some of them, and none in others.
    pub(crate) fn scope_conflict<'a>(
        &self,
        clusters: impl IntoIterator<Item = &'a str>,
        (group, resource): (&str, &str),
    ) -> Option<String> {
        let (mut spaced, mut whole) = (Vec::new(), Vec::new());
        for cluster in clusters {
            let served = self.members.get(cluster).and_then(|member| member.get(group, resource));
            match served.map(|kind| kind.scope) {
                Some(Scope::Namespaced) => spaced.push(cluster),
                Some(Scope::Cluster) => whole.push(cluster),
                None => {}
            }
        }
        (!spaced.is_empty() && !whole.is_empty()).then(|| {
            format!(
                "{} has namespaces in member clusters {} and none in {}, so it has no merged view: give it one scope, or ask one member by /clusters/<member>/",
                qualified(group, resource),
                spaced.join(", "),
                whole.join(", ")
            )
        })
    }

    /// Whether one of these clusters is known to serve a resource.
    pub(crate) fn is_served<'a>(&self, clusters: impl IntoIterator<Item = &'a str>, gr: (&str, &str)) -> bool {
        self.serving(clusters, gr).next().is_some()
    }

    fn serving<'a>(
        &self,
        clusters: impl IntoIterator<Item = &'a str>,
        (group, resource): (&str, &str),
    ) -> impl Iterator<Item = &Arc<Kind>> {
        let clusters = clusters.into_iter();
        clusters.filter_map(move |cluster| self.members.get(cluster)?.get(group, resource))
    }

    /// Whether one member serves a resource in any version; `None` if it has never said, or does not know now.
    pub(crate) fn serves(&self, cluster: &str, group: &str, resource: &str) -> Option<bool> {
        let member = self.members.get(cluster)?;
        let is_served = member.get(group, resource).is_some();
        (is_served || !member.is_stale(group)).then_some(is_served)
    }

    /// Whether one member serves a resource in this version; `None` if it has never said, or does not know now.
    pub(crate) fn serves_version(&self, cluster: &str, (group, version, resource): (&str, &str, &str)) -> Option<bool> {
        let member = self.members.get(cluster)?;
        let kind = member.get(group, resource);
        let is_served = kind.is_some_and(|kind| kind.versions.iter().any(|served| served == version));
        let is_stale = member
            .stale
            .get(group)
            .is_some_and(|versions| versions.contains(version));
        (is_served || !is_stale).then_some(is_served)
    }

    /// Whether one member says of itself that it does not know now what it serves of a group.
    pub(crate) fn is_stale(&self, cluster: &str, group: &str) -> bool {
        self.members.get(cluster).is_some_and(|member| member.is_stale(group))
    }

    /// Changes, in this process, with what any member says of a resource.
    pub(crate) fn digest(&self, group: &str, resource: &str) -> u64 {
        let said = self.members.iter().map(|(cluster, member)| {
            let mut hash = DefaultHasher::new();
            (cluster, member.get(group, resource)).hash(&mut hash);
            hash.finish()
        });
        said.fold(0, u64::wrapping_add)
    }

    /// Why a version of a resource cannot be asked of these members as one: one of them serves the resource, but not in
    /// this version. Its objects would silently be missing. Members that do not serve it at all are fine.
    pub(crate) fn version_conflict(&self, clusters: &[Arc<str>], gvr: (&str, &str, &str)) -> Option<String> {
        let (group, version, resource) = gvr;
        let serving = clusters.iter().filter_map(|cluster| {
            let kind = self.members.get(cluster)?.get(group, resource)?;
            Some((cluster, kind))
        });
        let (with, without): (Vec<_>, Vec<_>) =
            serving.partition(|(_, kind)| kind.versions.iter().any(|served| served == version));
        if with.is_empty() || without.is_empty() {
            return None;
        }
        let name = qualified(group, resource);
        let list = |members: &[(&Arc<str>, &Arc<Kind>)]| {
            let each = members
                .iter()
                .map(|(cluster, kind)| format!("{cluster}: {}", kind.versions.join(", ")));
            each.collect::<Vec<_>>().join("; ")
        };
        Some(format!(
            "{name} is not served as {version} by all member clusters that have it ({}; {}): ask for a version they have in common, or one member by /clusters/<member>/",
            list(&with),
            list(&without)
        ))
    }
}

/// As people name a resource: `ships.x.io`.
fn qualified(group: &str, resource: &str) -> String {
    if group.is_empty() {
        return resource.to_owned();
    }
    format!("{resource}.{group}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(name: &str, scope: Scope, versions: &[&str], verbs: &[&str]) -> Kind {
        Kind {
            scope,
            kind: name.to_owned(),
            versions: versions.iter().map(|text| (*text).to_owned()).collect(),
            verbs: verbs.iter().map(|text| (*text).to_owned()).collect(),
        }
    }

    fn kinds() -> Kinds {
        let mut kinds = Kinds::default();
        let mut east = MemberKinds::default();
        east.add("", "nodes", kind("Node", Scope::Cluster, &["v1"], &["get", "list"]));
        east.add(
            "x.io",
            "ships",
            kind("Ship", Scope::Namespaced, &["v2"], &["get", "list"]),
        );
        east.add("x.io", "ships", kind("Ship", Scope::Namespaced, &["v1"], &["get"]));
        let mut west = MemberKinds::default();
        west.add("", "nodes", kind("Node", Scope::Cluster, &["v1"], &["get", "list"]));
        west.add("x.io", "ships", kind("Ship", Scope::Namespaced, &["v1"], &["get"]));
        west.add("x.io", "ports", kind("Port", Scope::Cluster, &["v1"], &["get"]));
        kinds.set(&"east".into(), Arc::new(east));
        kinds.set(&"west".into(), Arc::new(west));
        kinds
    }

    #[test]
    fn what_a_member_does_not_know_of_itself_is_not_known_and_what_it_said_before_stays() {
        let ships = |versions: &[&str], verbs: &[&str]| kind("Ship", Scope::Cluster, versions, verbs);
        let mut before = MemberKinds::default();
        before.add("x.io", "ships", ships(&["v1"], &["get", "list"]));
        before.add("x.io", "ships", ships(&["v1beta1"], &["get", "list"]));
        before.add("y.io", "ports", ships(&["v1"], &["get"]));
        let mut whole = MemberKinds::default();
        whole.mark_stale("x.io", "v1");
        whole.mark_stale("x.io", "v1beta1");
        whole.mark_stale("z.io", "v1");
        whole.keep_stale_of(&before);
        assert_eq!(whole.get("x.io", "ships"), before.get("x.io", "ships"));
        assert_eq!(whole.get("y.io", "ports"), None, "it says surely that there are none");
        let mut half = MemberKinds::default();
        half.add("x.io", "ships", ships(&["v1"], &["get", "watch"]));
        half.mark_stale("x.io", "v1beta1");
        half.keep_stale_of(&before);
        let kept = half.get("x.io", "ships").unwrap();
        assert_eq!(kept.versions, ["v1", "v1beta1"]);
        assert_eq!(
            kept.verbs.iter().collect::<Vec<_>>(),
            ["get"],
            "what all versions allow"
        );

        let mut kinds = kinds();
        let digest = |kinds: &Kinds| kinds.digest("x.io", "ships");
        kinds.set(&"north".into(), Arc::new(before));
        let told = digest(&kinds);
        kinds.set(&"north".into(), Arc::new(whole));
        assert_eq!(digest(&kinds), told, "no watch is planned anew for it");
        assert_eq!(kinds.scope(["north"], ("x.io", "ships")), Some(Scope::Cluster));
        assert_eq!(kinds.serves_version("north", ("x.io", "v1", "ships")), Some(true));
        assert_eq!(kinds.serves("north", "x.io", "other"), None, "nor is there surely none");
        assert_eq!(kinds.serves("north", "z.io", "any"), None);
        assert_eq!(kinds.serves_version("north", ("z.io", "v1", "any")), None);
        assert_eq!(kinds.serves_version("north", ("z.io", "v2", "any")), Some(false));
        assert_eq!(kinds.serves("north", "y.io", "ports"), Some(false));
        assert!(kinds.is_stale("north", "z.io") && !kinds.is_stale("north", "y.io") && !kinds.is_stale("east", "x.io"));
        let missing = kinds.partial(&["east".into(), "north".into()]);
        let of = |group: &str| {
            missing
                .iter()
                .any(|partial| partial.group == group && partial.missing.contains("north"))
        };
        assert!(of("") && !of("x.io"), "{missing:?}");
    }

    #[test]
    fn what_members_say_is_known_and_nothing_else() {
        let kinds = kinds();
        let both = ["east", "west"];
        assert_eq!(kinds.scope(both, ("", "nodes")), Some(Scope::Cluster));
        assert_eq!(kinds.scope(both, ("x.io", "ports")), Some(Scope::Cluster));
        assert_eq!(kinds.scope(both, ("x.io", "ships")), Some(Scope::Namespaced));
        assert_eq!(kinds.scope(both, ("x.io", "none")), None);
        assert_eq!(
            kinds.scope(["east"], ("x.io", "ports")),
            None,
            "west is not asked about"
        );
        assert_eq!(kinds.serves("east", "x.io", "ports"), Some(false));
        assert_eq!(kinds.serves("north", "x.io", "ports"), None);
        assert_eq!(kinds.member("west").unwrap().resource_of("x.io", "Port"), Some("ports"));
        let ships = kinds.members["east"].get("x.io", "ships").unwrap().clone();
        assert_eq!(ships.versions, ["v2", "v1"]);
        assert_eq!(
            ships.verbs.iter().collect::<Vec<_>>(),
            ["get"],
            "what all versions allow"
        );
        assert!(kinds.is_served(both, ("x.io", "ports")) && !kinds.is_served(["east"], ("x.io", "ports")));
    }

    #[test]
    fn a_version_that_one_member_lacks_is_a_conflict_and_an_absent_kind_is_not() {
        let kinds = kinds();
        let members: [Arc<str>; 2] = ["east".into(), "west".into()];
        let conflict = kinds.version_conflict(&members, ("x.io", "v2", "ships")).unwrap();
        assert!(
            conflict.contains("ships.x.io") && conflict.contains("west: v1"),
            "{conflict}"
        );
        assert_eq!(kinds.version_conflict(&members, ("x.io", "v1", "ships")), None);
        assert_eq!(kinds.version_conflict(&members, ("x.io", "v1", "ports")), None);
        assert_eq!(
            kinds.version_conflict(&members, ("x.io", "v9", "ships")),
            None,
            "nobody has it: 404 says so"
        );
    }

    #[test]
    fn partial_kinds_are_those_that_some_lack_or_serve_otherwise() {
        let members: [Arc<str>; 3] = ["east".into(), "west".into(), "never-seen".into()];
        let partial = kinds().partial(&members);
        let names: Vec<_> = partial.iter().map(|one| (&*one.resource, one.missing.len())).collect();
        assert_eq!(names, [("ports", 1), ("ships", 0)]);
    }
}
