//! The members, whose namespaces are the caller's, and since when which object is not to be seen any more.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use portolan_merge::cursor::{Format, Universe};

use crate::dice::Dice;
use crate::member::{Asked, Key, Member, Stored};

pub(crate) const NAMESPACES: [&str; 3] = ["a", "b", "c"];
const NAMES: [&str; 4] = ["w", "x", "y", "z"];

/// What one history is about.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) members: usize,
    /// A kind without namespaces: names collide.
    pub(crate) unique: bool,
    /// Members filter by the agent's labels, or most of them; else the router does.
    pub(crate) labelled: bool,
    /// Labels become complete, and incomplete, while everything runs.
    pub(crate) flips: bool,
    pub(crate) selector: bool,
    /// The shard's configuration changes.
    pub(crate) moves: bool,
    pub(crate) compaction: bool,
    /// All members count alike: the same numbers on each.
    pub(crate) close: bool,
    /// Cursors say how new their view of the shard is, and are gone on with in newer ones and in other scopes.
    pub(crate) views: bool,
}

/// Which member owns a namespace that is the caller's.
pub(crate) type Owners = BTreeMap<&'static str, usize>;

#[derive(Debug)]
pub(crate) struct Truth {
    pub(crate) setting: Setting,
    pub(crate) members: Vec<Member>,
    pub(crate) joined: Vec<bool>,
    /// Whose objects are asked for by label; of others the router drops what is not the caller's.
    pub(crate) labelled: Vec<bool>,
    /// Of members that have a name, this one's object is shown, else the first's.
    pub(crate) primary: usize,
    /// Which member owns a namespace.
    pub(crate) owner: Owners,
    /// What a client looks at: one namespace, or all.
    pub(crate) scope: Option<&'static str>,
    /// The owners at each view revision.
    pub(crate) views: Vec<Owners>,
    /// At which revision each namespace came to its owner.
    entered: BTreeMap<&'static str, u64>,
    /// At which revision each left a member last.
    departed: BTreeMap<(usize, &'static str), u64>,
    clock: u64,
    /// How often the shard was configured anew.
    generation: u64,
    serial: u64,
    /// When a member wrote a version.
    written: HashMap<(usize, u64), u64>,
    /// When an object was seen no more: deleted, hidden, or its namespace no longer the caller's.
    gone: HashMap<String, Vec<u64>>,
    /// When nothing was left under a key, on no member: an object that moved is not gone.
    absent: HashMap<Key, Vec<u64>>,
}

impl Truth {
    pub(crate) fn new(setting: Setting, dice: &mut Dice) -> Self {
        let mut truth = Self {
            members: (0..setting.members)
                .map(|_| Member {
                    up: true,
                    ..Member::default()
                })
                .collect(),
            joined: vec![true; setting.members],
            labelled: vec![setting.labelled; setting.members],
            primary: 0,
            owner: Owners::new(),
            scope: None,
            views: Vec::new(),
            entered: BTreeMap::new(),
            departed: BTreeMap::new(),
            setting,
            clock: 0,
            generation: 0,
            serial: 0,
            written: HashMap::new(),
            gone: HashMap::new(),
            absent: HashMap::new(),
        };
        for namespace in NAMESPACES {
            let owner = dice.below(truth.members.len());
            truth.owner.insert(namespace, owner);
        }
        truth.views.push(truth.owner.clone());
        for member in &mut truth.members {
            member.skip(1 + dice.next() % if truth.setting.close { 3 } else { 200 });
        }
        for _ in 0..dice.below(12) {
            truth.change(dice);
        }
        for member in &mut truth.members {
            member.plain = dice.percent(15);
        }
        truth
    }

    pub(crate) fn name(member: usize) -> String {
        format!("member-{member}")
    }

    pub(crate) fn universe(&self) -> Universe {
        let joined = self.joined.iter().enumerate().filter(|(_, joined)| **joined);
        // Whose namespaces are whose is part of the epoch: a client that was away while they moved must list. So is how
        // often they moved: a member that left and came back begins anew, and its slot would go back.
        let universe = Universe::new(
            &format!("shard {}", self.generation),
            joined.map(|(member, _)| Self::name(member)),
        );
        if !self.setting.views {
            return universe;
        }
        // All but the moves of namespaces: those have their revisions.
        let others = self.generation - self.revision();
        universe.identified(&format!("shard {others}"), "hub", self.revision(), Format::Two)
    }

    /// How often namespaces moved.
    pub(crate) fn revision(&self) -> u64 {
        self.views.len() as u64 - 1
    }

    /// The members, in the order in which they win names.
    pub(crate) fn order(&self) -> impl Iterator<Item = usize> {
        let primary = self.primary;
        let others = (0..self.members.len()).filter(move |member| *member != primary);
        std::iter::once(primary).chain(others)
    }

    /// The caller's namespaces of a member, as these owners say.
    pub(crate) fn owned(&self, owners: &Owners, member: usize) -> BTreeSet<String> {
        let owned = owners
            .iter()
            .filter(|(_, owner)| **owner == member && self.joined[member]);
        owned.map(|(namespace, _)| (*namespace).to_owned()).collect()
    }

    pub(crate) fn asked(&self, owners: &Owners, member: usize, labelled: bool) -> Asked {
        let by_label = (labelled && !self.setting.unique).then(|| self.owned(owners, member));
        Asked {
            namespaces: self.scope.map(|scope| BTreeSet::from([scope.to_owned()])).or(by_label),
            selector: self.setting.selector,
        }
    }

    /// The members that are asked, in their order.
    pub(crate) fn asks(&self, owners: &Owners) -> Vec<usize> {
        let owner = |scope: &str, member: usize| owners.get(scope) == Some(&member);
        let asked = |member: &usize| self.joined[*member] && self.scope.is_none_or(|scope| owner(scope, *member));
        self.order().filter(asked).collect()
    }

    /// Whether it is in what the client looks at.
    pub(crate) fn in_scope(&self, namespace: &str) -> bool {
        self.scope.is_none_or(|scope| scope == namespace)
    }

    /// Whether the caller may see it at all, collisions aside.
    pub(crate) fn visible(&self, member: usize, object: &Stored) -> bool {
        self.visible_as(&self.owner, member, object)
    }

    pub(crate) fn visible_as(&self, owners: &Owners, member: usize, object: &Stored) -> bool {
        let place = self.setting.unique || owners.get(object.namespace.as_str()) == Some(&member);
        self.joined[member] && place && (object.shown || !self.setting.selector)
    }

    pub(crate) fn union(&self) -> BTreeMap<Key, Stored> {
        let mut union = BTreeMap::new();
        for member in self.order() {
            for (key, object) in &self.members[member].objects {
                if self.visible(member, object) {
                    union.entry(key.clone()).or_insert_with(|| object.clone());
                }
            }
        }
        union
    }

    /// One write somewhere.
    pub(crate) fn change(&mut self, dice: &mut Dice) {
        let member = dice.below(self.members.len());
        let skips = !self.setting.close && dice.percent(30);
        self.members[member].skip(if skips { dice.next() % 5 } else { 0 });
        let namespace = if self.setting.unique {
            ""
        } else {
            dice.pick(&NAMESPACES)
        };
        let key = (namespace.to_owned(), (*dice.pick(&NAMES)).to_owned());
        let held = self.members[member].objects.get(&key).cloned();
        let after = match held {
            Some(_) if dice.percent(35) => None,
            Some(object) if dice.percent(25) => Some(Stored {
                shown: !object.shown,
                ..object
            }),
            Some(object) => Some(object),
            None => {
                self.serial += 1;
                let uid = format!("00000000-0000-4000-8000-{:012x}", self.serial);
                let uid = if dice.percent(10) {
                    format!("odd-{}", self.serial)
                } else {
                    uid
                };
                let (namespace, name) = key.clone();
                Some(Stored {
                    namespace,
                    name,
                    uid,
                    version: 0,
                    shown: dice.percent(80),
                })
            }
        };
        self.record(|truth| {
            let version = truth.members[member].write(&key, after);
            truth.written.insert((member, version), truth.clock);
        });
    }

    /// Does it, and notes what is seen no more after it, and what is no more: a client whose connection stood still may be
    /// told of it after the shard has got it back.
    fn record(&mut self, does: impl FnOnce(&mut Self)) {
        let (seen, exist) = (self.seen(), self.exist());
        let keys: Vec<Key> = self.union().into_keys().collect();
        self.clock += 1;
        does(self);
        let (still_seen, still_exist) = (self.seen(), self.exist());
        let unseen = seen.into_iter().filter(|uid| !still_seen.contains(uid));
        for uid in unseen {
            self.gone.entry(uid).or_default().push(self.clock);
        }
        let union = self.union();
        let mut absent = |key: Key| self.absent.entry(key).or_default().push(self.clock);
        keys.into_iter()
            .filter(|key| !union.contains_key(key))
            .for_each(&mut absent);
        for (uid, key) in exist {
            if still_exist.contains_key(&uid) {
                continue;
            }
            self.gone.entry(uid).or_default().push(self.clock);
            if !union.contains_key(&key) {
                absent(key);
            }
        }
    }

    /// All objects of all members that the selector shows by UID, whosoever they are.
    fn exist(&self) -> HashMap<String, Key> {
        let all = self.members.iter().flat_map(|store| store.objects.iter());
        let shown = all.filter(|(_, object)| object.shown || !self.setting.selector);
        shown.map(|(key, object)| (object.uid.clone(), key.clone())).collect()
    }

    fn seen(&self) -> Vec<String> {
        let all = self.members.iter().enumerate();
        all.flat_map(|(member, store)| {
            let visible = store
                .objects
                .values()
                .filter(move |object| self.visible(member, object));
            visible.map(|object| object.uid.clone())
        })
        .collect()
    }

    /// Another configuration of the shard.
    pub(crate) fn reconfigure(&mut self, dice: &mut Dice) {
        let member = dice.below(self.members.len());
        let namespace = *dice.pick(&NAMESPACES);
        let joins = dice.percent(40);
        self.generation += 1;
        let leaves = self.setting.views && !joins && dice.percent(30);
        self.record(|truth| {
            if joins {
                truth.joined[member] = !truth.joined[member];
                if truth.joined.iter().all(|joined| !joined) {
                    truth.joined[member] = true;
                }
            } else if truth.setting.unique {
                truth.primary = member;
            } else {
                truth.hand_over(namespace, (!leaves).then_some(member));
            }
            for member in &mut truth.members {
                member.configured = member.version;
            }
        });
    }

    /// As the ledger notes it.
    fn hand_over(&mut self, namespace: &'static str, to: Option<usize>) {
        let from = self.owner.remove(namespace);
        self.owner.extend(to.map(|to| (namespace, to)));
        self.views.push(self.owner.clone());
        let revision = self.revision();
        if from != to {
            self.entered.remove(namespace);
            self.entered.extend(to.map(|_| (namespace, revision)));
            self.departed.extend(from.map(|from| ((from, namespace), revision)));
        }
    }

    /// The owners at a view revision, from what is known now: what the router has of the ledger. What came and went since may
    /// be among them. `None`: it cannot be told.
    pub(crate) fn owners_as_of(&self, revision: u64) -> Option<Owners> {
        let entered = |namespace: &str| self.entered.get(namespace).copied().unwrap_or(0);
        let stayed = |namespace: &str| self.owner.contains_key(namespace) && entered(namespace) <= revision;
        let mut owners = self.owner.clone();
        owners.retain(|namespace, _| stayed(namespace));
        for (member, namespace) in self
            .departed
            .iter()
            .filter(|(_, left)| **left > revision)
            .map(|(pair, _)| pair)
        {
            if stayed(namespace) {
                continue;
            }
            // Back, or of two members: when it came first is not known.
            if self.owner.get(namespace) == Some(member) || owners.insert(*namespace, *member).is_some() {
                return None;
            }
        }
        Some(owners)
    }

    /// Whether a client that last heard of it at this version may be told that there is nothing under the key.
    pub(crate) fn was_absent(&self, key: &Key, version: u64) -> bool {
        let absent = self.absent.get(key).map(Vec::as_slice).unwrap_or_default();
        self.heard(version)
            .is_some_and(|heard| absent.iter().any(|absent| *absent >= heard))
    }

    /// Whether the object may be told to be gone to somebody who last heard of it at this version.
    pub(crate) fn went(&self, uid: &str, version: u64) -> bool {
        let heard = self.heard(version);
        let gone = self.gone.get(uid).map(Vec::as_slice).unwrap_or_default();
        heard.is_some_and(|heard| gone.iter().any(|gone| *gone >= heard))
    }

    /// Two members may have written the same version: the earlier writing is the laxer one.
    fn heard(&self, version: u64) -> Option<u64> {
        (0..self.members.len())
            .filter_map(|member| self.written.get(&(member, version)))
            .min()
            .copied()
    }
}
