//! The members, the shard as it is, and when which object was not to be seen.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;

use crate::dice::Dice;
use crate::member::{Asked, Key, Member, Stored};
use crate::shard::{NAMESPACES, Owners, Shard};

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
    /// The client looks at one namespace from the beginning.
    pub(crate) narrow: bool,
    /// Of several routers each may know of another view, and they come and go.
    pub(crate) apart: bool,
    /// Members are restored from backups.
    pub(crate) restores: bool,
    /// So much time passes that what left is forgotten.
    pub(crate) days: bool,
    /// The client reads whole objects only.
    pub(crate) whole: bool,
    /// Agents do not vouch for labels, of members that are away or well.
    pub(crate) silence: bool,
}

#[derive(Debug)]
pub(crate) struct Truth {
    pub(crate) setting: Setting,
    pub(crate) members: Vec<Member>,
    /// As it is configured now.
    pub(crate) shard: Shard,
    /// Whose objects are asked for by label; of others the router drops what is not the caller's.
    pub(crate) labelled: Vec<bool>,
    /// What a client looks at: one namespace, or all.
    pub(crate) scope: Option<&'static str>,
    /// The owners at each view revision.
    pub(crate) views: Vec<Owners>,
    clock: u64,
    serial: u64,
    /// When a member wrote a version; if it did so again after it was restored, the first time.
    written: HashMap<(usize, u64), u64>,
    /// When which object (uid) was to be seen.
    seen: Sightings<String>,
    /// When there was which object, whosoever it was.
    existed: Sightings<String>,
    /// When anything was to be seen under a key, of whichever member: an object that moved is not gone.
    held: Sightings<Key>,
    /// When a member was restored.
    restored: Vec<u64>,
}

impl Truth {
    pub(crate) fn new(setting: Setting, dice: &mut Dice) -> Self {
        let count = setting.members;
        let members = (0..count).map(|_| Member {
            up: true,
            ..Member::default()
        });
        let mut members: Vec<Member> = members.collect();
        let owner: Owners = NAMESPACES.map(|namespace| (namespace, dice.below(count))).into();
        for member in &mut members {
            // An API server has written before it serves.
            member.skip(2 + dice.next() % if setting.close { 3 } else { 200 });
        }
        let mut truth = Self {
            members,
            labelled: vec![setting.labelled; count],
            scope: setting.narrow.then_some(NAMESPACES[0]),
            views: vec![owner.clone()],
            shard: Shard::new(count, setting.unique, setting.views, owner),
            setting,
            clock: 0,
            serial: 0,
            written: HashMap::new(),
            seen: Sightings::default(),
            existed: Sightings::default(),
            held: Sightings::default(),
            restored: Vec::new(),
        };
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

    /// What a member is asked by who knows the shard so.
    pub(crate) fn asked(&self, shard: &Shard, member: usize, labelled: bool) -> Asked {
        let by_label = (labelled && !self.setting.unique).then(|| shard.owned(member));
        Asked {
            namespaces: self.scope.map(|scope| BTreeSet::from([scope.to_owned()])).or(by_label),
            selector: self.setting.selector,
        }
    }

    /// Whether it is in what the client looks at.
    pub(crate) fn in_scope(&self, namespace: &str) -> bool {
        self.scope.is_none_or(|scope| scope == namespace)
    }

    /// Whether the caller may see it at all in this view of the shard, collisions aside.
    pub(crate) fn visible(&self, shard: &Shard, member: usize, object: &Stored) -> bool {
        shard.has(member, object) && self.is_selected(object)
    }

    fn is_selected(&self, object: &Stored) -> bool {
        object.shown || !self.setting.selector
    }

    pub(crate) fn union(&self) -> BTreeMap<Key, Stored> {
        let mut union = BTreeMap::new();
        for member in self.shard.order() {
            for (key, object) in &self.members[member].objects {
                if self.visible(&self.shard, member, object) {
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
            truth.written.entry((member, version)).or_insert(truth.clock);
        });
    }

    /// Does it, and notes what is to be seen before and after it.
    fn record(&mut self, does: impl FnOnce(&mut Self)) {
        self.clock += 1;
        does(self);
        let seen = self.uids(|truth, member, object| truth.visible(&truth.shard, member, object));
        let keys = self.union().into_keys().collect();
        let existed = self.uids(|truth, _, object| truth.is_selected(object));
        self.seen.look(self.clock, seen);
        self.existed.look(self.clock, existed);
        self.held.look(self.clock, keys);
    }

    fn uids(&self, which: impl Fn(&Self, usize, &Stored) -> bool) -> HashSet<String> {
        let all = self.members.iter().enumerate();
        let objects = all.flat_map(|(member, store)| store.objects.values().map(move |object| (member, object)));
        let of_these = objects.filter(|(member, object)| which(self, *member, object));
        of_these.map(|(_, object)| object.uid.clone()).collect()
    }

    /// Another configuration of the shard.
    pub(crate) fn reconfigure(&mut self, dice: &mut Dice) {
        let member = dice.below(self.members.len());
        let namespace = *dice.pick(&NAMESPACES);
        let joins = dice.percent(40);
        let leaves = self.setting.views && !joins && dice.percent(30);
        self.record(|truth| {
            if joins {
                truth.shard.change_members(member);
            } else if truth.setting.unique {
                truth.shard.prefer(member);
            } else {
                truth.shard.hand_over(namespace, (!leaves).then_some(member));
                truth.views.push(truth.shard.owner.clone());
            }
            for member in &mut truth.members {
                member.configured = member.version;
            }
        });
    }

    /// Namespaces whose owner is another since that view of the shard, or was in between.
    pub(crate) fn changed_since(&self, revision: u64) -> BTreeSet<String> {
        let from = usize::try_from(revision).unwrap_or(usize::MAX);
        let views = self.views.get(from..).unwrap_or_default();
        let changed = |namespace: &&str| {
            views
                .windows(2)
                .any(|pair| pair[0].get(namespace) != pair[1].get(namespace))
        };
        NAMESPACES
            .iter()
            .filter(|namespace| changed(namespace))
            .map(|namespace| (*namespace).to_owned())
            .collect()
    }

    /// A namespace that is nobody's is this member's from now on, or the other way round. `absent`: which member cannot be
    /// reached.
    pub(crate) fn grant_or_take(&mut self, namespace: &'static str, member: usize, absent: Option<usize>) {
        self.record(|truth| {
            let owned = truth.shard.owner.contains_key(namespace);
            truth.shard.hand_over(namespace, (!owned).then_some(member));
            truth.views.push(truth.shard.owner.clone());
            for (index, store) in truth.members.iter_mut().enumerate() {
                if Some(index) != absent {
                    store.configured = store.version;
                }
            }
        });
    }

    /// A member is restored from a backup: it is what it was, and counts on from there.
    pub(crate) fn restore(&mut self, dice: &mut Dice) {
        let member = dice.below(self.members.len());
        let back = dice.next() % 20;
        self.record(|truth| {
            let store = &mut truth.members[member];
            store.restore(store.version.saturating_sub(back));
            truth.shard.restored(member);
            truth.restored.push(truth.clock);
        });
    }

    /// Whether a client that last heard of an object at this version may hold a newer one than there is.
    pub(crate) fn went_back(&self, version: u64) -> bool {
        let heard = self.heard(version);
        heard.is_some_and(|heard| self.restored.iter().any(|restored| *restored >= heard))
    }

    /// Whether a client that last heard of the object at this version may be told that there is nothing under the key. Where
    /// it is in an older view, another member may have something there that is nobody's in that view.
    pub(crate) fn was_absent(&self, key: &Key, uid: &str, version: u64) -> bool {
        self.heard(version).is_some_and(|heard| {
            let deleted = (self.setting.views || self.setting.apart) && self.existed.missing_since(uid, heard);
            deleted || self.held.missing_since(key, heard)
        })
    }

    /// Whether the object may be told to be gone to somebody who last heard of it at this version.
    pub(crate) fn went(&self, uid: &str, version: u64) -> bool {
        self.heard(version)
            .is_some_and(|heard| self.seen.missing_since(uid, heard))
    }

    /// Two members may have written the same version: the earlier writing is the laxer one.
    fn heard(&self, version: u64) -> Option<u64> {
        (0..self.members.len())
            .filter_map(|member| self.written.get(&(member, version)))
            .min()
            .copied()
    }
}

/// When things were there, by the clock.
#[derive(Debug)]
struct Sightings<K> {
    there: HashSet<K>,
    /// Moments at which a thing was not there: the first and the last of each time.
    missing: HashMap<K, Vec<u64>>,
}

impl<K> Default for Sightings<K> {
    fn default() -> Self {
        Self {
            there: HashSet::new(),
            missing: HashMap::new(),
        }
    }
}

impl<K: Hash + Eq + Clone> Sightings<K> {
    /// From `now` on these are there.
    fn look(&mut self, now: u64, there: HashSet<K>) {
        for key in there.difference(&self.there) {
            self.missing.entry(key.clone()).or_default().push(now - 1);
        }
        for key in self.there.difference(&there) {
            self.missing.entry(key.clone()).or_default().push(now);
        }
        self.there = there;
    }

    /// Whether it was not there at this moment or at any later one.
    fn missing_since<Q: Hash + Eq + ?Sized>(&self, key: &Q, since: u64) -> bool
    where
        K: Borrow<Q>,
    {
        let missing = self.missing.get(key).map(Vec::as_slice).unwrap_or_default();
        !self.there.contains(key) || missing.iter().any(|missing| *missing >= since)
    }
}
