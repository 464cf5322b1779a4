//! The plan that a long request runs by, and whether it would be planned so now.

use std::sync::Arc;

use portolan_crds::selector::Selector;

use super::Word;
use crate::decision::plan::{self, FanOut, Forward, Plan, Replan, Rule};
use crate::resource::routing::Routing;
use crate::value::classify::{ApiRequest, Impersonation};
use crate::value::snapshot::{Caller, Coverage, MemberIdentity, Snapshot};

/// The plan in force and who asked for it.
#[derive(Debug)]
pub(super) struct Seen {
    caller: Caller,
    pub(super) rests_on: Basis,
    /// Of each member that the plan asks.
    footings: Vec<Footing>,
    /// Of the snapshot: cursors name also the members that are not asked.
    incarnations: u64,
    /// What members say of the kind that is asked for.
    kind: u64,
}

/// What the hub told of a member when the plan was made: by the same, and for the same caller, it would be the same plan.
#[derive(Debug)]
pub(super) struct Footing {
    cluster: Arc<str>,
    /// Of the target.
    version: String,
    identity: Option<Arc<MemberIdentity>>,
    /// Of the kind that is asked for.
    coverage: Option<Coverage>,
}

/// What a plan in force rests on.
#[derive(Debug)]
pub(super) enum Basis {
    One(OneLeg),
    Fan(Arc<FanOut>),
}

/// A plan for one member. Holds no target: an old one would live as long as the request.
#[derive(Debug)]
pub(super) struct OneLeg {
    cluster: Arc<str>,
    cluster_uid: String,
    selector: Option<Selector>,
    act_as: Impersonation,
}

impl Seen {
    /// Of a request that was planned with `routing`.
    pub(super) fn new(rests_on: Basis, asked: &ApiRequest, caller: &Caller, routing: &Routing) -> Self {
        let snapshot = &routing.snapshot;
        Self {
            footings: rests_on.footings(asked, snapshot),
            caller: caller.clone(),
            rests_on,
            incarnations: snapshot.incarnations,
            kind: kind(asked, routing),
        }
    }

    /// What `routing` makes of the request; remembers it if it may go on.
    pub(super) fn replan(&mut self, asked: &ApiRequest, routing: &Routing) -> Word {
        let snapshot = &*routing.snapshot;
        let Some(caller) = current(&self.caller, snapshot) else {
            return Word::Withdrawn;
        };
        let same_view = same(&caller, &self.caller);
        // Of the usual swap most of them need no more than this.
        let same_members = self.incarnations == snapshot.incarnations;
        let said = kind(asked, routing);
        let same_kind = said == self.kind;
        let is_taken = self.rests_on.is_taken(snapshot);
        let stand = || self.footings.iter().all(|footing| footing.stands(asked, snapshot));
        if same_view && same_members && same_kind && !is_taken && stand() {
            return Word::Same;
        }
        let planned = plan::plan(&caller, asked, snapshot, &routing.kinds);
        let word = match (planned.plan, &mut self.rests_on) {
            (Plan::Forward(forward), Basis::One(member)) => member.replan(&forward),
            (Plan::FanOut(next), Basis::Fan(plan)) if !is_taken => replan_fan(plan, *next),
            // An object does not move: where it was found it stays.
            (Plan::Choose(choose), Basis::One(member)) if !choose.is_unowned() => choose
                .candidates
                .iter()
                .find(|one| one.forward.target.cluster == member.cluster)
                .map_or(Word::Withdrawn, |one| member.replan(&one.forward)),
            // Whoever lists anew is refused.
            (Plan::Refuse(_) | Plan::FanOut(_), _) if is_taken => Word::Changed,
            (Plan::Refuse(_), basis) if basis.outlives(planned.rule) => {
                // What it would be filtered by then is not known.
                return if same_view { Word::Same } else { Word::Changed };
            }
            _ => Word::Withdrawn,
        };
        self.kind = said;
        self.caller = caller;
        self.footings = self.rests_on.footings(asked, snapshot);
        self.incarnations = snapshot.incarnations;
        // Members that served nothing of it are to be asked again.
        if same_kind { word } else { word.max(Word::Renewed) }
    }
}

/// What members say of the kind that is asked for, as a number that changes with it.
fn kind(asked: &ApiRequest, routing: &Routing) -> u64 {
    let resource = asked.resource.as_ref();
    resource.map_or(0, |resource| routing.kinds.digest(&resource.group, &resource.resource))
}

fn replan_fan(plan: &mut Arc<FanOut>, next: FanOut) -> Word {
    match next.after(plan) {
        Replan::Same => Word::Same,
        Replan::Renewed(next) => {
            *plan = Arc::new(next);
            Word::Renewed
        }
        Replan::Changed(next) => {
            *plan = Arc::new(next);
            Word::Replanned
        }
        Replan::Anew => Word::Changed,
        Replan::Withdrawn => Word::Withdrawn,
    }
}

impl Basis {
    /// Whether a refusal by this rule goes away by itself and says nothing against what runs.
    fn outlives(&self, rule: Rule) -> bool {
        match self {
            Self::One(_) => rule == Rule::Cordoned,
            Self::Fan(_) => {
                matches!(
                    rule,
                    Rule::Cordoned | Rule::NoTarget | Rule::VersionConflict | Rule::KindUntold
                )
            }
        }
    }

    /// Whether another shard has a namespace by now that was nowhere.
    fn is_taken(&self, snapshot: &Snapshot) -> bool {
        let Self::Fan(plan) = self else { return false };
        let unowned = plan.unowned.as_ref().filter(|_| plan.is_nowhere());
        unowned.is_some_and(|unowned| unowned.is_taken(snapshot))
    }

    fn footings(&self, asked: &ApiRequest, snapshot: &Snapshot) -> Vec<Footing> {
        match self {
            Self::One(member) => vec![Footing::of(&member.cluster, asked, snapshot)],
            Self::Fan(plan) => {
                let clusters = plan.legs.iter().map(|leg| &leg.forward.target.cluster);
                clusters.map(|cluster| Footing::of(cluster, asked, snapshot)).collect()
            }
        }
    }
}

impl Footing {
    pub(super) fn of(cluster: &Arc<str>, asked: &ApiRequest, snapshot: &Snapshot) -> Self {
        let target = snapshot.targets.get(cluster);
        Self {
            cluster: cluster.clone(),
            version: target.map(|target| target.version.clone()).unwrap_or_default(),
            identity: snapshot.identities.get(cluster).cloned(),
            coverage: coverage(cluster, asked, snapshot).cloned(),
        }
    }

    /// Whether nothing of it was told anew.
    pub(super) fn stands(&self, asked: &ApiRequest, snapshot: &Snapshot) -> bool {
        let target = snapshot.targets.get(&self.cluster);
        let identity = snapshot.identities.get(&self.cluster);
        target.is_some_and(|target| target.version == self.version)
            && identity.map(Arc::as_ptr) == self.identity.as_ref().map(Arc::as_ptr)
            && coverage(&self.cluster, asked, snapshot) == self.coverage.as_ref()
    }
}

fn coverage<'a>(cluster: &str, asked: &ApiRequest, snapshot: &'a Snapshot) -> Option<&'a Coverage> {
    let resource = asked.resource.as_ref()?;
    snapshot.coverage(cluster, &resource.group, &resource.resource)
}

impl OneLeg {
    pub(super) fn of(forward: &Forward) -> Self {
        Self {
            cluster: forward.target.cluster.clone(),
            cluster_uid: forward.target.cluster_uid.clone(),
            selector: forward.rewrite.selector.clone(),
            act_as: forward.act_as.clone(),
        }
    }

    fn replan(&mut self, forward: &Forward) -> Word {
        let next = Self::of(forward);
        if next.act_as != self.act_as {
            return Word::Withdrawn;
        }
        let kept =
            next.cluster == self.cluster && next.cluster_uid == self.cluster_uid && next.selector == self.selector;
        *self = next;
        if kept { Word::Same } else { Word::Changed }
    }
}

fn same(one: &Caller, other: &Caller) -> bool {
    match (one, other) {
        (Caller::Pod(one), Caller::Pod(other)) => Arc::ptr_eq(one, other) || one.is_planned_as(other),
        _ => one == other,
    }
}

/// The same caller as `snapshot` knows it; `None`: not at all.
pub(crate) fn current(caller: &Caller, snapshot: &Snapshot) -> Option<Caller> {
    match caller {
        Caller::Person { .. } => Some(caller.clone()),
        Caller::Pod(view) => snapshot.callers.get(&view.key).cloned().map(Caller::Pod),
    }
}
