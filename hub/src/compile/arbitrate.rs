//! Which spec of each shard is in force, and which pairs it gets.
//!
//! A spec is taken as a whole or not at all: a new one that cannot be served, or that asks for a pair which another shard
//! goes on wanting, is refused and the last accepted one stays. A pair that its owner is letting go of is no reason to
//! refuse: whoever asks for it first is accepted and waits for it, and has everything else at once. What was accepted
//! stays accepted, whatever happens to its surroundings; it then merely does not get pairs that others have.
//!
//! A root owns nothing: it is judged for all of its children, which then are not refused one by one (`family`).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use portolan_crds::{ConditionReason, ShardName, ShardingConfigSpec};

use self::draft::{Draft, Drafting};
use super::extents::{self, Extents};
use super::ledger::{Claims, Field, Fields, Ledger, Pair, Released};
use super::roots::{Attempts, Children, Generator, roots};
use super::wanted::{Asked, Known, Wanted};
use super::{Accepted, State};
use crate::facts::Facts;
use crate::settings::Settings;

mod beside;
mod contested;
mod draft;
mod family;
mod judgements;
mod kin;
mod lease;
mod members;
mod operators;
mod rename;
mod weights;

use beside::Beside;
pub(crate) use contested::{Contested, some_contested, some_of};
use judgements::Contests;
pub(super) use judgements::Judgements;

/// What became of a ShardingConfig.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Verdict {
    /// metadata.generation that the verdict is about.
    pub(crate) generation: i64,
    /// Why the present generation is not in force.
    pub(crate) refusal: Option<Refusal>,
    /// What the spec in force asks for. Shared by worlds and drafts.
    pub(crate) wanted: Arc<Wanted>,
    /// Pairs that the present spec asks for and that another shard has and goes on wanting.
    pub(crate) conflicts: Vec<Contested>,
    /// Pairs that the spec in force asks for and that their owner is letting go of.
    pub(crate) awaited: Vec<Contested>,
    /// A child that no root generates any more: it has nothing, and its object is to be deleted.
    pub(crate) discarded: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) reason: ConditionReason,
    pub(crate) message: String,
}

/// Whoever must let go of a pair before another shard may have it.
#[derive(Debug, Clone, Copy)]
enum Holder<'a> {
    Shard(&'a ShardName),
    /// Some router may serve it to some shard.
    Unknown,
}

/// What came of all shards.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) accepted: BTreeMap<ShardName, Accepted>,
    pub(super) roots: BTreeMap<ShardName, Children>,
    pub(super) attempts: Attempts,
    pub(super) verdicts: BTreeMap<ShardName, Verdict>,
    /// Of the fields that were judged.
    pub(super) claims: Claims,
    /// What the last run left as it found it, and this one would too, is not among them.
    pub(super) judged: Fields,
}

/// The shard that is to have each pair next.
type Queue<'a> = BTreeMap<Pair<'a>, &'a ShardName>;
/// Conflicts over which a new spec was refused.
type Refused = BTreeMap<ShardName, Vec<Contested>>;

/// What is decided by.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a> {
    pub(crate) facts: &'a Facts,
    pub(crate) settings: &'a Settings,
    /// The state of the run before.
    pub(crate) before: &'a State,
    /// What routers let go of since.
    pub(crate) released: &'a Released,
    /// When what leaves a shard leaves it.
    pub(crate) now: Timestamp,
}

/// Decides over all shards, oldest first.
///
/// Whether an owner lets go of a pair depends on whether its own new spec is accepted. So all new specs are taken for
/// accepted first, and those that turn out to be refused stay so while the others are decided anew.
///
/// `ledger` is that of the run before without what has been released since. What was `asked` in the last run, and the `judgements` of
/// it, say what comes to the same again.
pub(super) fn arbitrate(
    given: Given<'_>,
    ledger: &Ledger,
    (asked, judgements, extents): (&mut Asked, &mut Judgements, &mut extents::Known),
) -> Outcome {
    let Given {
        facts,
        settings,
        before,
        now,
        ..
    } = given;
    asked.refresh(facts, ledger);
    let generator = Generator {
        facts,
        settings,
        before,
        now,
        attempts: RefCell::default(),
    };
    let drafting = Drafting {
        known: Known {
            facts,
            settings,
            ledger,
            asked,
            noted: RefCell::default(),
        },
        generator,
        roots: roots(facts),
        given,
    };
    let mut drafts = drafting.drafts();
    weights::weigh(&mut drafts);
    operators::count(&mut drafts);
    beside::count(&mut drafts);
    let (attempts, noted) = (drafting.generator.attempts, drafting.known.noted.take());
    let discarded = family::discarded(&drafts, &Refused::new());
    let is_discarded = |name: &ShardName| discarded.contains(name);
    let docket = judgements.docket(given, ledger, &drafts, is_discarded);
    let case = Case {
        by_name: drafts.iter().map(|draft| (draft.name, draft)).collect(),
        beside: Beside::new(&drafts, Extents::new(settings, extents)),
        ledger,
        judged: &docket.judged,
        judgements,
    };
    let mut outcome = case.decide(&drafts, &before.ledger);
    family::finish(&mut outcome, &drafts);
    outcome.attempts = attempts.take();
    outcome.judged.clone_from(&docket.judged);
    let measured = case.beside.measured();
    *extents = measured;
    judgements.note_verdicts(docket, &outcome.verdicts);
    asked.by_shard = noted;
    outcome
}

/// What is decided about, with all that does not change while it is.
struct Case<'a> {
    by_name: HashMap<&'a ShardName, &'a Draft<'a>>,
    /// What is not contended for pair by pair.
    beside: Beside<'a>,
    ledger: &'a Ledger,
    /// Where it is judged anew.
    judged: &'a Fields,
    /// What came of the others.
    judgements: &'a Judgements,
}

impl<'a> Case<'a> {
    /// Decides about all drafts in order, anew for as long as any is refused. `before`: the ledger of the run before.
    fn decide(&'a self, drafts: &'a [Draft<'a>], before: &Ledger) -> Outcome {
        let queue = waiting(drafts, before);
        let mut refused = Refused::new();
        loop {
            let mut pass = Pass::new(self, drafts, queue.clone(), &refused);
            for draft in drafts {
                pass.decide(draft);
            }
            if pass.refused_now.is_empty() {
                return pass.outcome;
            }
            let newly = pass.refused_now;
            refused.extend(newly);
        }
    }
}

/// One pass over all drafts.
struct Pass<'a> {
    case: &'a Case<'a>,
    refused: &'a Refused,
    /// The root of each child.
    roots: HashMap<&'a ShardName, &'a ShardName>,
    /// Children that their root does not generate.
    discarded: BTreeSet<&'a ShardName>,
    /// What roots in force share out: no others' to claim, whether or not their children are there.
    reserved: Queue<'a>,
    /// Who waits for pairs that their owners are letting go of.
    queue: Queue<'a>,
    refused_now: Refused,
    outcome: Outcome,
}

impl<'a> Pass<'a> {
    fn new(case: &'a Case<'a>, drafts: &'a [Draft<'a>], queue: Queue<'a>, refused: &'a Refused) -> Self {
        let roots = drafts.iter().filter_map(|draft| Some((draft.name, draft.kin.root()?)));
        Self {
            case,
            refused,
            roots: roots.collect(),
            discarded: family::discarded(drafts, refused),
            reserved: Queue::new(),
            queue,
            refused_now: Refused::new(),
            outcome: Outcome::default(),
        }
    }

    fn decide(&mut self, draft: &'a Draft<'a>) {
        let name = draft.name;
        let mut verdict = Verdict {
            generation: draft.object.generation,
            ..Verdict::default()
        };
        if self.discarded.contains(name) {
            verdict.refusal = Some(draft.kin.discard());
            verdict.discarded = true;
            self.outcome.verdicts.insert(name.clone(), verdict);
            return;
        }
        // What it waits for, if what its present spec asks for was looked through already.
        let mut awaited = None;
        let decided = match &draft.present {
            Ok((spec, wanted)) => {
                let refused = self.refused.get(name);
                verdict.conflicts = if let Some(conflicts) = refused {
                    conflicts.clone()
                } else {
                    let Contests { shared, moving } = self.contested_by(draft, spec, wanted);
                    awaited = Some((Arc::as_ptr(wanted), moving));
                    shared
                };
                let judged = draft.settled || draft.kin.root().is_some() || self.case.beside.is_as_before(draft, spec);
                if judged || verdict.conflicts.is_empty() {
                    let accept = || (draft.accept(spec), wanted);
                    draft.kin.pending().map_or_else(|| Ok(accept()), Err)
                } else {
                    if refused.is_none() {
                        self.refused_now.insert(name.clone(), verdict.conflicts.clone());
                    }
                    let contention = self.case.ledger.contention();
                    Err(beside::refuse((name, spec), contention, &verdict.conflicts))
                }
            }
            Err(refusal) => Err(refusal.clone()),
        };
        let in_force = match decided {
            Ok(in_force) => Some(in_force),
            Err(refusal) => {
                verdict.refusal = Some(refusal);
                let accepted = draft.accepted.as_ref();
                accepted.map(|(accepted, wanted)| (accepted.clone(), wanted))
            }
        };
        if let Some((accepted, wanted)) = in_force {
            let awaited = awaited.filter(|(of, _)| *of == Arc::as_ptr(wanted));
            self.put_in_force(
                (name, &mut verdict),
                accepted,
                wanted,
                awaited.map(|(_, moving)| moving),
            );
        }
        self.outcome.verdicts.insert(name.clone(), verdict);
    }

    /// `awaited`: what it waits for, if that was looked through already.
    fn put_in_force(
        &mut self,
        (name, verdict): (&'a ShardName, &mut Verdict),
        accepted: Accepted,
        wanted: &'a Arc<Wanted>,
        awaited: Option<Vec<Contested>>,
    ) {
        if accepted.spec.root.is_some() {
            verdict.wanted = wanted.without_members().into();
            self.reserve(name, wanted);
        } else {
            verdict.awaited = awaited.unwrap_or_else(|| self.contested(name, wanted).moving);
            self.claim(name, wanted);
            verdict.wanted.clone_from(wanted);
        }
        self.outcome.accepted.insert(name.clone(), accepted);
    }

    /// Who has the pair before `name` may: whoever is next in the queue, a shard that held it before and may still, or one
    /// that claimed it in this pass.
    fn before(&self, name: &ShardName, pair: Pair<'_>) -> Option<Holder<'_>> {
        let next = self.queue.get(&pair).copied().filter(|next| *next != name);
        let owner = || {
            let entry = self.case.ledger.get(pair.0, pair.1, pair.2);
            entry.and_then(|entry| entry.owner.as_ref())
        };
        let claimed = || self.outcome.claims.get(pair.0)?.get(pair.1)?.get(pair.2);
        let reserved = || {
            self.reserved
                .get(&pair)
                .copied()
                .filter(|root| !self.are_kin(name, root))
        };
        match next.or_else(owner) {
            None if self.case.ledger.is_withholding() => Some(Holder::Unknown),
            known => {
                let other = known.or_else(claimed).or_else(reserved);
                let other = other.filter(|owner| *owner != name);
                other.map(Holder::Shard)
            }
        }
    }

    /// Whether its holder goes on wanting a pair that is not promised to `name` yet.
    fn is_kept(&self, name: &ShardName, pair: Pair<'_>, holder: Holder<'_>) -> bool {
        let promised = self.queue.get(&pair).is_some_and(|next| *next == name);
        match holder {
            // Root and children hand to each other what they have.
            Holder::Shard(owner) if self.are_kin(name, owner) => false,
            Holder::Shard(owner) => !promised && (self.wants(owner, pair) || self.is_of_family(name, owner, pair)),
            Holder::Unknown => false,
        }
    }

    /// The pairs that `name` wants and others have.
    fn contested(&self, name: &ShardName, wanted: &Wanted) -> Contests {
        let mut contests = Contests::default();
        for member in &wanted.members {
            if !is_in(self.case.judged, (&wanted.operator, &member.cluster)) {
                let known = self.case.judgements.contests_in(name, &member.cluster);
                contests.shared.extend(known.shared);
                contests.moving.extend(known.moving);
                continue;
            }
            for namespace in &member.namespaces {
                let pair = (&wanted.operator, member.cluster.as_str(), namespace.as_str());
                let Some(holder) = self.before(name, pair) else {
                    continue;
                };
                let contested = Contested {
                    pair: format!("{}/{}", pair.1, pair.2),
                    owner: match holder {
                        Holder::Shard(owner) => Some(owner.clone()),
                        Holder::Unknown => None,
                    },
                };
                if self.is_kept(name, pair, holder) {
                    contests.shared.push(contested);
                } else {
                    contests.moving.push(contested);
                }
            }
        }
        contests
    }

    /// What a present spec wants and others have, pairs or not.
    fn contested_by(&self, draft: &Draft<'_>, spec: &Arc<ShardingConfigSpec>, wanted: &Arc<Wanted>) -> Contests {
        let mut contests = self.contested(draft.name, wanted);
        let beside = &self.case.beside;
        let more = beside.contested((draft, spec, wanted), &self.discarded, self.refused);
        contests.shared.extend(more);
        contests
    }

    fn wants(&self, name: &ShardName, pair: Pair<'_>) -> bool {
        let draft = self
            .case
            .by_name
            .get(name)
            .filter(|draft| !self.discarded.contains(draft.name));
        let wanted = draft.and_then(|draft| draft.wants(self.refused.contains_key(name)));
        wanted.is_some_and(|wanted| wanted.has(pair))
    }

    /// Whether a pair that a child lets go of is another one's of its root, or the root's, and not `name`'s.
    fn is_of_family(&self, name: &ShardName, owner: &ShardName, pair: Pair<'_>) -> bool {
        let root = self.roots.get(owner).filter(|root| self.roots.get(name) != Some(root));
        root.is_some_and(|root| self.wants(root, pair))
    }

    fn are_kin(&self, one: &ShardName, other: &ShardName) -> bool {
        let is_child = |child, root| self.roots.get(child).is_some_and(|of| *of == root);
        is_child(one, other) || is_child(other, one)
    }

    fn reserve(&mut self, name: &'a ShardName, wanted: &'a Wanted) {
        let pairs = wanted.pairs_in(|field| is_in(self.case.judged, field));
        for pair in pairs {
            self.reserved.entry(pair).or_insert(name);
        }
    }

    /// Claims what nobody else has and queues for what is being let go of. What it has as another operator's shard it lets go of
    /// first, all of it.
    fn claim(&mut self, name: &'a ShardName, wanted: &'a Wanted) {
        let (judged, operator) = (self.case.judged, &wanted.operator);
        if self.case.ledger.is_owner_elsewhere(name, operator) {
            return;
        }
        let members = wanted.members.iter();
        for member in members.filter(|member| is_in(judged, (operator, &member.cluster))) {
            let cluster = member.cluster.as_str();
            let mut claimed = Vec::with_capacity(member.namespaces.len());
            for namespace in &member.namespaces {
                let pair = (operator, cluster, namespace.as_str());
                match self.before(name, pair) {
                    None => claimed.push((namespace.clone(), name.clone())),
                    Some(Holder::Unknown) => {}
                    Some(holder) => {
                        if !self.is_kept(name, pair, holder) {
                            self.queue.entry(pair).or_insert(name);
                        }
                    }
                }
            }
            if !claimed.is_empty() {
                let claims = self.outcome.claims.entry(operator.clone()).or_default();
                claims.entry(cluster.to_owned()).or_default().extend(claimed);
            }
        }
    }
}

/// Who waits for what the run before was releasing: neither an owner that has begun to let go nor anybody else takes it
/// from them, and the moment it is free it is theirs.
fn waiting<'a>(drafts: &'a [Draft<'a>], ledger: &Ledger) -> Queue<'a> {
    let mut queue = Queue::new();
    let releasing = ledger.fields_where(|pairs| pairs.is_releasing);
    if releasing.is_empty() {
        return queue;
    }
    // Roots have nothing.
    for draft in drafts.iter().filter(|draft| !draft.may_be_root()) {
        for pair in draft.surely_wants(|field| is_in(&releasing, field)) {
            let entry = ledger.get(pair.0, pair.1, pair.2);
            let released_by_another =
                entry.is_some_and(|entry| entry.releasing_since.is_some() && entry.owner.as_ref() != Some(draft.name));
            if released_by_another {
                queue.entry(pair).or_insert(draft.name);
            }
        }
    }
    queue
}

fn is_in(fields: &Fields, (operator, cluster): Field<'_>) -> bool {
    fields.get(operator).is_some_and(|clusters| clusters.contains(cluster))
}
