//! Where it has to be judged anew, and what came of the rest. What is judged at once are an operator's pairs of one cluster, a *field*.
//!
//! A pair goes by what is asked for in its field, by its part of the ledger, and by the cluster's facts. Where all of these are as
//! in the last run, and that left the ledger as it was, the same comes out again. What is not settled, on its way or withheld
//! is judged in every run.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use portolan_crds::{OperatorName, ShardName};

use super::draft::Draft;
use super::{Contested, Given, Verdict};
use crate::compile::ledger::{Field, Fields, Ledger, Pairs, each};
use crate::compile::roots::Generated;
use crate::compile::wanted::Wanted;
use crate::facts::{Facts, OfPairs};

/// What came of the last run.
#[derive(Debug, Clone, Default)]
pub(in crate::compile) struct Judgements {
    /// Fields that the last run left as it found them.
    steady: BTreeMap<(OperatorName, String), Grounds>,
    /// What shards asked for, and how they stood to each other.
    drafts: BTreeMap<ShardName, Standpoint>,
    /// Pairs that others have, of the shards that have to do with any.
    contests: BTreeMap<ShardName, Contests>,
}

/// Pairs of a shard that others have: those that they go on wanting, and those that they let go of.
#[derive(Debug, Clone, Default)]
pub(super) struct Contests {
    pub(super) shared: Vec<Contested>,
    pub(super) moving: Vec<Contested>,
}

/// What a field's pairs were moved on by.
#[derive(Debug, Clone)]
struct Grounds {
    facts: OfPairs,
    pairs: Option<Arc<Pairs>>,
}

/// What of a draft has a say in what becomes of pairs.
#[derive(Debug, Clone)]
struct Standpoint {
    uid: String,
    /// When it may claim, by `by_age`.
    turn: (Timestamp, Timestamp),
    root: Option<ShardName>,
    is_discarded: bool,
    is_settled: bool,
    generated: Option<Arc<Generated>>,
    /// By the present spec and the accepted one.
    wanted: Vec<Arc<Wanted>>,
}

impl Standpoint {
    fn of(draft: &Draft<'_>, is_discarded: bool, eldest: Timestamp) -> Self {
        let present = draft.present.as_ref().ok().map(|(_, wanted)| wanted);
        let accepted = draft.accepted.as_ref().map(|(_, wanted)| wanted);
        Self {
            uid: draft.object.uid.clone(),
            turn: (eldest, draft.object.created),
            root: draft.kin.root().cloned(),
            is_discarded,
            is_settled: draft.settled,
            generated: draft.kin.in_force.clone(),
            wanted: present.into_iter().chain(accepted).cloned().collect(),
        }
    }

    /// Whether it has the same say as it had, and is not up for any decision.
    fn is_as(&self, before: &Self) -> bool {
        let same_generated = match (&self.generated, &before.generated) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        let wanted = self.wanted.iter().map(Arc::as_ptr);
        self.is_settled
            && before.is_settled
            && same_generated
            && wanted.eq(before.wanted.iter().map(Arc::as_ptr))
            && self.uid == before.uid
            && self.turn == before.turn
            && self.root == before.root
            && self.is_discarded == before.is_discarded
    }

    fn fields(&self) -> impl Iterator<Item = Field<'_>> {
        self.wanted.iter().flat_map(|wanted| wanted.fields())
    }

    /// Whether it waits until all is released that `shard` has as another operator's.
    fn waits(&self, shard: &ShardName, ledger: &Ledger) -> bool {
        let mut wanted = self.wanted.iter();
        wanted.any(|wanted| ledger.is_owner_elsewhere(shard, &wanted.operator))
    }
}

/// What this run has to judge, and what it is judged by.
pub(super) struct Docket {
    pub(super) judged: Fields,
    drafts: BTreeMap<ShardName, Standpoint>,
}

impl Docket {
    /// Which epochs a member takes of a namespace depends on all operators that have it.
    fn add_beside(&mut self, ledger: &Ledger) {
        let clusters: BTreeSet<_> = self.judged.values().flatten().cloned().collect();
        for cluster in &clusters {
            let beside = ledger.shared_in(cluster);
            let beside = beside.filter(|(_, pairs)| pairs.may_want_fences());
            let beside = beside.map(|(operator, _)| (operator, cluster.as_str()));
            add(&mut self.judged, beside);
        }
    }
}

impl Judgements {
    /// What has to be judged anew. `discarded`: whether a shard is, if nothing is refused.
    pub(super) fn docket(
        &self,
        given: Given<'_>,
        ledger: &Ledger,
        drafts: &[Draft<'_>],
        is_discarded: impl Fn(&ShardName) -> bool,
    ) -> Docket {
        let (facts, by_all) = (given.facts, given.released.by_all);
        let mut docket = Docket {
            judged: Fields::new(),
            drafts: BTreeMap::new(),
        };
        let mut same = HashMap::new();
        for draft in drafts {
            let family = draft.kin.root().unwrap_or(draft.name);
            let eldest = facts
                .shards
                .get(family)
                .map_or(draft.object.created, |root| root.created);
            let standpoint = Standpoint::of(draft, is_discarded(draft.name), eldest);
            let before = self.drafts.get(draft.name);
            // Drafts of roots come before those of their children. One that is being deleted has none.
            let is_of_same = draft
                .kin
                .root()
                .is_none_or(|root| same.get(root).copied().unwrap_or(true));
            let waits = standpoint.waits(draft.name, &given.before.ledger);
            let is_same = is_of_same && !waits && before.is_some_and(|before| standpoint.is_as(before));
            same.insert(draft.name, is_same);
            if !is_same {
                let fields = standpoint.fields();
                add(
                    &mut docket.judged,
                    fields.chain(before.into_iter().flat_map(Standpoint::fields)),
                );
            }
            docket.drafts.insert(draft.name.clone(), standpoint);
        }
        let gone = self.drafts.iter().filter(|(name, _)| !same.contains_key(name));
        add(&mut docket.judged, gone.flat_map(|(_, before)| before.fields()));
        let asked_for = docket.drafts.values().flat_map(Standpoint::fields);
        let known: BTreeSet<_> = asked_for.chain(ledger.fields()).collect();
        let unsteady = known.into_iter().filter(|(operator, cluster)| {
            let before = given.before.ledger.shared(operator, cluster);
            let was_on_its_way = before.is_some_and(|pairs| pairs.are_on_their_way(by_all));
            let vacancy_ends = ledger.shared(operator, cluster).and_then(|pairs| pairs.vacancy_ends());
            let is_over = vacancy_ends.is_some_and(|end| end <= given.now);
            let is_steady = || self.is_steady(facts, (ledger, by_all), (operator, cluster));
            was_on_its_way || is_over || ledger.is_withholding() || !is_steady()
        });
        let mut judged = Fields::new();
        add(&mut judged, unsteady);
        add(&mut docket.judged, each(&judged));
        docket.add_beside(ledger);
        docket
    }

    fn is_steady(&self, facts: &Facts, (ledger, by_all): (&Ledger, u64), (operator, cluster): Field<'_>) -> bool {
        let pairs = ledger.shared(operator, cluster);
        let on_their_way = pairs.is_some_and(|pairs| pairs.are_on_their_way(by_all));
        let grounds = self.steady.get(&(operator.clone(), cluster.to_owned()));
        !on_their_way
            && grounds.is_some_and(|grounds| {
                grounds.facts == facts.of_pairs(cluster) && are_shared(pairs, grounds.pairs.as_ref())
            })
    }

    /// What came of the last run for a shard in a cluster where it is not judged anew.
    pub(super) fn contests_in(&self, shard: &ShardName, cluster: &str) -> Contests {
        let Some(contests) = self.contests.get(shard) else {
            return Contests::default();
        };
        let in_cluster = |contested: &&Contested| contested.pair.split('/').next() == Some(cluster);
        let of = |all: &[Contested]| all.iter().filter(in_cluster).cloned().collect();
        Contests {
            shared: of(&contests.shared),
            moving: of(&contests.moving),
        }
    }

    /// Notes what came of this run. `before`: the ledger of the run before, and `left`: the one that it ends with. Pairs that it
    /// frees are promised to who waits for them in that of before, and the next run knows of no promise.
    pub(in crate::compile) fn note(&mut self, facts: &Facts, judged: &Fields, (before, left): (&Ledger, &Ledger)) {
        if left.is_withholding() {
            *self = Self::default();
            return;
        }
        for (operator, cluster) in each(judged) {
            let pairs = left.shared(operator, cluster);
            let field = (operator.clone(), cluster.to_owned());
            if are_shared(before.shared(operator, cluster), pairs) {
                let grounds = Grounds {
                    facts: facts.of_pairs(cluster),
                    pairs: pairs.cloned(),
                };
                self.steady.insert(field, grounds);
            } else {
                self.steady.remove(&field);
            }
        }
    }

    pub(super) fn note_verdicts(&mut self, docket: Docket, verdicts: &BTreeMap<ShardName, Verdict>) {
        self.drafts = docket.drafts;
        let contested = verdicts
            .iter()
            .filter(|(_, verdict)| !verdict.conflicts.is_empty() || !verdict.awaited.is_empty());
        let contests = contested.map(|(name, verdict)| {
            let contests = Contests {
                shared: verdict.conflicts.clone(),
                moving: verdict.awaited.clone(),
            };
            (name.clone(), contests)
        });
        self.contests = contests.collect();
    }
}

fn add<'a>(fields: &mut Fields, more: impl Iterator<Item = Field<'a>>) {
    for (operator, cluster) in more {
        match fields.get_mut(operator) {
            Some(clusters) => drop(clusters.insert(cluster.to_owned())),
            None => drop(fields.insert(operator.clone(), [cluster.to_owned()].into())),
        }
    }
}

fn are_shared(one: Option<&Arc<Pairs>>, other: Option<&Arc<Pairs>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    }
}
