//! What the hub tells routers of a shard: its members, and whose namespaces are the caller's, now and of late.

use std::collections::{BTreeMap, BTreeSet};

use portolan_merge::cursor::{Format, Universe};

use crate::member::Stored;

pub(crate) const NAMESPACES: [&str; 3] = ["a", "b", "c"];

/// Which member owns a namespace that is the caller's.
pub(crate) type Owners = BTreeMap<&'static str, usize>;

/// The shard as one configuration has it. A router may know of an older one than there is.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    /// Of a kind without namespaces.
    pub(crate) unique: bool,
    /// Cursors say how new their view of the shard is.
    views: bool,
    pub(crate) joined: Vec<bool>,
    /// How often each member was restored from a backup: each time it is another incarnation.
    lives: Vec<u64>,
    /// Of members that have a name, this one's object is shown, else the first's.
    primary: usize,
    pub(crate) owner: Owners,
    /// How often namespaces moved.
    pub(crate) revision: u64,
    /// How often all else changed.
    others: u64,
    /// At which revision each namespace came to its owner.
    entered: BTreeMap<&'static str, u64>,
    /// At which revision each left a member last.
    departed: BTreeMap<(usize, &'static str), u64>,
    /// The highest revision of departures from each member that are not known any more.
    dropped_up_to: Vec<u64>,
}

impl Shard {
    pub(crate) fn new(members: usize, unique: bool, views: bool, owner: Owners) -> Self {
        Self {
            unique,
            views,
            joined: vec![true; members],
            lives: vec![0; members],
            primary: 0,
            owner,
            revision: 0,
            others: 0,
            entered: BTreeMap::new(),
            departed: BTreeMap::new(),
            dropped_up_to: vec![0; members],
        }
    }

    /// Its UID, which changes with each restore.
    fn uid(&self, member: usize) -> String {
        format!("member-{member}#{}", self.lives[member])
    }

    /// Which life of the member this is.
    pub(crate) fn life(&self, member: usize) -> u64 {
        self.lives[member]
    }

    pub(crate) fn universe(&self) -> Universe {
        // Whose namespaces are whose is part of the epoch of the first format: a client that was away while they moved must
        // list. So is, in both, how often all else changed: a member that left and came back begins anew, and its slot
        // would go back.
        let moved = self.revision + self.others;
        let uids = self.members().map(|member| self.uid(member));
        let universe = Universe::new(&format!("shard {moved}"), uids);
        if !self.views {
            return universe;
        }
        let shard = format!("shard {}", self.others);
        universe.identified(&shard, "hub", self.revision, Format::Two)
    }

    /// Where cursors of this universe say how far a client is on a member.
    pub(crate) fn slot(&self, universe: &Universe, member: usize) -> usize {
        universe.slot(&self.uid(member)).expect("a member of the shard")
    }

    /// Its members, in the order of their slots.
    pub(crate) fn members(&self) -> impl Iterator<Item = usize> {
        (0..self.joined.len()).filter(|member| self.joined[*member])
    }

    /// All members there are, in the order in which they win names.
    pub(crate) fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let primary = self.primary;
        let others = (0..self.joined.len()).filter(move |member| *member != primary);
        std::iter::once(primary).chain(others)
    }

    /// The caller's namespaces of a member.
    pub(crate) fn owned(&self, member: usize) -> BTreeSet<String> {
        let owned = self.owner.iter();
        let owned = owned.filter(|(_, owner)| **owner == member && self.joined[member]);
        owned.map(|(namespace, _)| (*namespace).to_owned()).collect()
    }

    /// The members that are asked for one namespace or all, in their order.
    pub(crate) fn asks(&self, scope: Option<&str>) -> Vec<usize> {
        let owner = |scope: &str, member: usize| self.owner.get(scope) == Some(&member);
        let asked = |member: &usize| self.joined[*member] && scope.is_none_or(|scope| owner(scope, *member));
        self.order().filter(asked).collect()
    }

    /// Whether a member's object of this namespace is the caller's, collisions aside.
    pub(crate) fn has(&self, member: usize, object: &Stored) -> bool {
        self.joined[member] && (self.unique || self.owner.get(object.namespace.as_str()) == Some(&member))
    }

    /// A member joins, or leaves; the last one stays.
    pub(crate) fn change_members(&mut self, member: usize) {
        self.others += 1;
        self.joined[member] = !self.joined[member];
        if self.joined.iter().all(|joined| !joined) {
            self.joined[member] = true;
        }
    }

    pub(crate) fn prefer(&mut self, member: usize) {
        self.others += 1;
        self.primary = member;
    }

    /// The member's numbers went back.
    pub(crate) fn restored(&mut self, member: usize) {
        self.lives[member] += 1;
    }

    /// As the ledger notes it.
    pub(crate) fn hand_over(&mut self, namespace: &'static str, to: Option<usize>) {
        let from = self.owner.remove(namespace);
        self.owner.extend(to.map(|to| (namespace, to)));
        self.revision += 1;
        if from != to {
            self.entered.remove(namespace);
            self.entered.extend(to.map(|_| (namespace, self.revision)));
            self.departed
                .extend(from.map(|from| ((from, namespace), self.revision)));
        }
    }

    /// As the ledger forgets what left more than a day ago (`portolan-hub`, `compile::ledger::departures`): all but the last
    /// of each member.
    pub(crate) fn forget_departures(&mut self) {
        let departed = std::mem::take(&mut self.departed);
        for ((member, namespace), left) in &departed {
            let of_member = departed.iter().filter(|((other, _), _)| other == member);
            if of_member.map(|(_, left)| left).max() == Some(left) {
                self.departed.insert((*member, *namespace), *left);
            } else {
                self.dropped_up_to[*member] = self.dropped_up_to[*member].max(*left);
            }
        }
    }

    /// The shard at a view revision, from what is known now (the router's `Shard::as_of`): what came and went since may be
    /// in it. `None`: it cannot be told.
    pub(crate) fn as_of(&self, revision: u64) -> Option<Self> {
        if self.dropped_up_to.iter().any(|dropped| revision < *dropped) {
            return None;
        }
        let entered = |namespace: &str| self.entered.get(namespace).copied().unwrap_or(0);
        let stayed = |namespace: &str| self.owner.contains_key(namespace) && entered(namespace) <= revision;
        let mut then = self.clone();
        then.revision = revision;
        then.owner.retain(|namespace, _| stayed(namespace));
        for ((member, namespace), left) in &self.departed {
            if *left <= revision || stayed(namespace) {
                continue;
            }
            // Back, or of two members: when it came first is not known.
            if self.owner.get(namespace) == Some(member) || then.owner.insert(namespace, *member).is_some() {
                return None;
            }
        }
        Some(then)
    }

    /// The member that the namespace is of, if no other is known to have had it, nor another life of the member (the router's
    /// `Merged::is_only_member`).
    pub(crate) fn only_member(&self, namespace: &str) -> Option<usize> {
        let owner = *self.owner.get(namespace)?;
        let remembered = |member: usize, left: u64| left > self.dropped_up_to[member];
        let mut departed = self.departed.iter().filter(|((_, of), _)| *of == namespace);
        let others = departed.any(|((member, _), left)| *member != owner && remembered(*member, *left));
        (!others && self.lives[owner] == 0).then_some(owner)
    }
}
