//! A collection of the merged view: which members are asked for what, and what of their answers is the caller's.
//!
//! Every LIST and WATCH of the merged view is one of these, also of one namespace and of one member, so that one code path
//! gives cursors. It is complete: `fanout` runs it and decides nothing about routing. Where labels are complete the member
//! is asked with them; where not, it is asked without and a filter says what to keep. Both say the same ([`Share`]), so a
//! running watch keeps its way when labels become complete, or some are missing; when others count, or objects may lose
//! theirs, the member is asked anew. Made by `collection` and `clusterwide`; `stage::replan` compares.

use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use portolan_crds::labels::SYSTEM_NAMESPACES;
use portolan_crds::names::SHARD_MEMBERS_MAX;
use portolan_crds::selector::Selector;
use portolan_merge::cursor::{MOST_MEMBERS, Universe};
use portolan_merge::filter::{Names, NamespaceFilter, share_digest};

use super::choose::Unowned;
use super::{Forward, Rewrite};
use crate::value::classify::ApiRequest;
use crate::value::fault::Fault;
use crate::value::snapshot::{LeaseName, Shard, Snapshot, Target, Unavailable, Unlabelled};

/// One request to many members.
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each says something of its own, in any combination"
)]
pub(crate) struct FanOut {
    /// Whom to ask, in `clusters[]` order; for unions of cluster-scoped kinds the primary first. At least one.
    pub(crate) legs: Vec<FanLeg>,
    /// What the caller's cursors speak of: all members of the shard, and of those that are asked the shares. Members that
    /// are not asked keep their slots unasked, and what the shard owns of them changes no epoch.
    pub(crate) universe: Arc<Universe>,
    /// A watch, else a list.
    pub(crate) watch: bool,
    /// What a list does while a member is unreachable.
    pub(crate) unavailable: Unavailable,
    /// A union of cluster-scoped objects: one name once, the earlier leg wins.
    pub(crate) unique: bool,
    /// A watch that the answers to the caller's own writes wait for.
    pub(crate) fence: bool,
    /// Nobody but its one member has had any of it in 24 hours: an object's version can only be that member's.
    pub(crate) only_member: bool,
    /// Of a namespace that has left the shard nothing is told but that: then it is refused.
    pub(crate) left: Option<Left>,
    /// Of a namespace that no shard is known to own: whether it is anywhere is asked first. Where it is, the answer is a refusal; where it is
    /// nowhere nothing has `left`.
    pub(crate) unowned: Option<Box<Unowned>>,
    /// Members of the shard that were withdrawn: the answer goes without them, and says so.
    pub(crate) withdrawn: Vec<Arc<str>>,
}

/// A namespace that has left the shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Left {
    /// At this view revision: who stands at a later one has been told.
    pub(crate) revision: u64,
    /// Whose it is now, for a refusal.
    pub(crate) message: String,
}

/// One member of it.
#[derive(Debug, Clone)]
pub(crate) struct FanLeg {
    /// Target, identity, checks, class and selector, as if it were the only one. Reconnects of a watch need the
    /// credential of their time: take it from the then current snapshot.
    pub(crate) forward: Forward,
    /// In the universe.
    pub(crate) slot: usize,
    /// What to keep of the answer. `None`: everything, the selector has said it all.
    pub(crate) filter: Option<NamespaceFilter>,
    /// What of the member is the caller's, whichever way it is asked for.
    pub(crate) share: Share,
    /// The [`digest`] of the share by labels, if objects of the kind get theirs, though not every one may have them yet. A
    /// plan lives as long as its watch, and the selector names every namespace.
    pub(crate) by_labels: Option<u64>,
    /// Why labels do not choose the share, which the router filters instead.
    pub(crate) unlabelled: Option<Unlabelled>,
    /// Why this member must not be asked now (a cordon): treat it as one that does not answer, and send nothing. A running stream
    /// goes on.
    pub(crate) held: Option<String>,
}

/// What of one member's objects belongs to an answer: in these namespaces, with these labels.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Share {
    /// By namespace, as the shard's namespaces and the agents' labels say. `None`: the path has said it.
    pub(crate) namespaces: Option<NamespaceFilter>,
    /// By labels that are not the agents'.
    pub(crate) selector: Option<Selector>,
}

/// How a running watch goes on under a new plan.
#[derive(Debug, Clone)]
pub(crate) enum Replan {
    /// As before.
    Same,
    /// As before, but targets or holds were renewed: for reconnects. Streams stay as they are.
    Renewed(FanOut),
    /// Other legs, or other objects of some of them: tell the merge core.
    Changed(FanOut),
    /// A name may be several members' from now on, and is to be told once, or the other way round: only a relist tells whose.
    Anew,
    /// Another identity: what was sent cannot be continued.
    Withdrawn,
}

impl FanLeg {
    /// The member.
    pub(crate) fn cluster(&self) -> &Arc<str> {
        &self.forward.target.cluster
    }

    /// A hash of what the member is asked besides the client's own words: equal if the same objects come.
    pub(crate) fn asks(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        self.forward.target.cluster_uid.hash(&mut hash);
        let Rewrite {
            selector,
            fields,
            lease,
            shown,
        } = &self.forward.rewrite;
        let renamed = |names: &Option<LeaseName>| names.as_ref().map(|names| names.member.clone());
        (selector, fields, renamed(lease), renamed(shown)).hash(&mut hash);
        hash.finish()
    }

    /// Takes over the other's way of asking (selector or filter) for the same share, if that goes on saying it. False: the
    /// member must be asked anew.
    fn goes_on_as(&mut self, running: &Self) -> bool {
        let (mine, theirs) = (&self.forward.rewrite, &running.forward.rewrite);
        if (mine.fields, &mine.lease, &mine.shown) != (theirs.fields, &theirs.lease, &theirs.shown) {
            return false;
        }
        let selector = &theirs.selector;
        let by_label = self.by_labels.is_some() && self.by_labels == selector.as_ref().map(digest);
        match (&running.filter, &self.filter) {
            (Some(_), Some(_)) => return true,
            // A filter holds whatever becomes of labels.
            (Some(_), None) => {}
            (None, None) => return self.forward.rewrite.selector == *selector,
            // Objects whose labels are missing now come when they get them, if they get those that are asked for.
            (None, Some(_)) if by_label => {}
            (None, Some(_)) => return false,
        }
        self.filter.clone_from(&running.filter);
        self.forward.rewrite.selector.clone_from(selector);
        true
    }
}

/// Equal for equal selectors, in this process.
pub(super) fn digest(selector: &Selector) -> u64 {
    let mut hash = DefaultHasher::new();
    selector.hash(&mut hash);
    hash.finish()
}

impl FanOut {
    /// What becomes of `running` when the same request is planned as `self` now.
    #[must_use]
    pub(crate) fn after(mut self, running: &Self) -> Replan {
        // What was nowhere still is, as far as it is nobody's.
        if running.is_nowhere() && self.unowned.is_some() {
            self = self.nowhere();
        }
        // Nothing is known of when it left: whoever asks again is told what has become of it.
        if self.is_nowhere() && running.unowned.is_none() && running.left.is_none() {
            return Replan::Withdrawn;
        }
        let act_as = |plan: &Self| plan.legs.first().map(|leg| leg.forward.act_as.clone());
        if act_as(&self) != act_as(running) {
            return Replan::Withdrawn;
        }
        // One member alone has no names twice; of several the kind has lost its namespaces, or got some.
        if self.unique != running.unique && (self.unique || self.legs.len() > 1) {
            return Replan::Anew;
        }
        // A lock by another name, or in another member, is another object by the same name.
        if !self.renamed().eq(running.renamed()) {
            return Replan::Anew;
        }
        let mut changed = self.universe != running.universe || self.legs.len() != running.legs.len();
        let mut renewed = self.unavailable != running.unavailable || self.fence != running.fence;
        for (index, leg) in self.legs.iter_mut().enumerate() {
            let Some((at, before)) = running.leg(leg.cluster()) else {
                changed = true;
                continue;
            };
            changed |= at != index || !same_cluster(&leg.forward.target, &before.forward.target);
            if leg.share == before.share {
                changed |= !leg.goes_on_as(before);
            } else {
                changed = true;
                leg.prefer_filter(before);
            }
            renewed |= leg.forward.target.version != before.forward.target.version || leg.held != before.held;
        }
        match (changed, renewed) {
            (true, _) => Replan::Changed(self),
            (false, true) => Replan::Renewed(self),
            (false, false) => Replan::Same,
        }
    }

    /// The same, once it is known that the namespace is nowhere.
    #[must_use]
    pub(crate) fn nowhere(mut self) -> Self {
        self.left = None;
        if let Some(unowned) = &mut self.unowned {
            // A plan lives as long as its watch.
            unowned.lookable.clear();
        }
        self
    }

    /// Whether it is of a namespace that is nowhere.
    pub(crate) fn is_nowhere(&self) -> bool {
        self.unowned.is_some() && self.left.is_none()
    }

    /// The members whose answers name the lock otherwise than callers do, with its names.
    fn renamed(&self) -> impl Iterator<Item = (&Arc<str>, &LeaseName)> {
        let legs = self.legs.iter();
        legs.filter_map(|leg| Some((leg.cluster(), leg.forward.rewrite.renames_answers()?)))
    }

    fn leg(&self, cluster: &str) -> Option<(usize, &FanLeg)> {
        let mut legs = self.legs.iter().enumerate();
        legs.find(|(_, leg)| **leg.cluster() == *cluster)
    }

    /// The members, for messages.
    pub(crate) fn clusters(&self) -> impl Iterator<Item = &Arc<str>> {
        self.legs.iter().map(FanLeg::cluster)
    }

    /// For each member that the answer goes without, what is said of it.
    pub(crate) fn without(&self) -> impl Iterator<Item = String> {
        self.withdrawn.iter().map(|cluster| {
            format!(
                "nothing of member cluster {cluster} is in this answer: it was withdrawn (spec.accept of its MemberCluster is false)"
            )
        })
    }

    /// The explanation for people.
    pub(super) fn explain(&self, lines: &mut Vec<String>) {
        let what = if self.watch { "watch" } else { "list" };
        lines.push(format!(
            "merged {what} over {} of {} members",
            self.legs.len(),
            self.universe.len()
        ));
        if self.unique {
            lines.push("a name that several members have is shown once: the first member of these wins".into());
        }
        for leg in &self.legs {
            leg.explain(lines);
        }
        lines.extend(self.without());
        lines.extend(self.unowned.iter().map(|unowned| {
            let clusters: Vec<&str> = unowned.clusters.iter().map(|cluster| &**cluster).collect();
            let (namespace, clusters) = (&unowned.namespace, clusters.join(", "));
            format!("empty if none of {clusters} has Namespace {namespace}, else refused")
        }));
        lines.extend(
            self.left
                .iter()
                .map(|left| format!("told to be empty once, then refused: {}", left.message)),
        );
        if !self.watch && self.unavailable == Unavailable::PartialStart {
            lines.push("a list goes without a member that has answered no router since the caller's Pod was created (PartialStart)".into());
        }
    }
}

impl FanLeg {
    /// What of the member's words is believed, though it was asked for no more than that: labels can be copied, and a member
    /// can lie. `None`: all of it.
    pub(crate) fn believed(&self, asked: &ApiRequest) -> Option<NamespaceFilter> {
        if self.share.selector.as_ref().is_some_and(Selector::is_nothing) {
            return Some(NamespaceFilter::only(Names::default()));
        }
        let of_path = || {
            let resource = asked.resource.as_ref()?;
            let only = NamespaceFilter::only(Names::new([Arc::from(resource.namespace.as_deref()?)].into()));
            Some(if resource.is("", "namespaces") {
                only.of_names()
            } else {
                only
            })
        };
        self.share.namespaces.clone().or_else(of_path)
    }

    /// A filtered stream can be given another filter; one that the member filters must be asked anew.
    fn prefer_filter(&mut self, running: &Self) {
        if running.filter.is_some() && self.share.selector == running.share.selector {
            self.filter.clone_from(&self.share.namespaces);
            self.forward.rewrite.selector.clone_from(&self.share.selector);
        }
    }

    fn explain(&self, lines: &mut Vec<String>) {
        lines.push(format!("leg {}, cursor slot {}:", self.cluster(), self.slot));
        let from = lines.len();
        self.forward.explain(lines);
        match &self.filter {
            Some(filter) => lines.push(match &self.unlabelled {
                Some(why) => format!("the router keeps {filter}: {why}"),
                None => {
                    format!("the router keeps {filter}: the member has not told whether the kind has namespaces there")
                }
            }),
            None if self.share.namespaces.is_some() => {
                lines.push("labels of the kind are complete there: the member filters".into());
            }
            None => lines.push("everything that the member sends is kept".into()),
        }
        let is_out = |system: &&str| {
            self.share
                .namespaces
                .as_ref()
                .is_some_and(|share| !share.admits(system))
        };
        let out: Vec<_> = SYSTEM_NAMESPACES.into_iter().filter(is_out).collect();
        if !out.is_empty() {
            lines.push(format!(
                "left out: {}, which are a shard's only where spec.clusters[].namespaces names them, and what spec.clusters does not choose",
                out.join(", ")
            ));
        }
        if let Some(held) = &self.held {
            lines.push(format!("not asked now: {held}"));
        }
        for line in &mut lines[from..] {
            line.insert_str(0, "  ");
        }
    }
}

impl Share {
    fn digest(&self) -> u64 {
        share_digest(self.namespaces.as_ref(), self.selector.as_ref())
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespaces {
            Some(namespaces) => write!(f, "{namespaces}")?,
            None => f.write_str("as the path says")?,
        }
        match &self.selector {
            Some(selector) => write!(f, "; {selector}"),
            None => Ok(()),
        }
    }
}

fn same_cluster(one: &Target, other: &Target) -> bool {
    one.cluster_uid == other.cluster_uid
}

/// What tells a member apart for ever; its name, while its UID is not known.
fn uid(target: &Target) -> String {
    if target.cluster_uid.is_empty() {
        format!("name:{}", target.cluster)
    } else {
        target.cluster_uid.clone()
    }
}

/// The universe of a caller's cursors: its shard's members, its home and the primary, as far as they are known, and what
/// of them these legs are asked for; for a union of names (`unique`) also whose they are. Gives each leg its slot.
pub(super) fn universe(
    shard: &Shard,
    home: &Arc<str>,
    snapshot: &Snapshot,
    legs: &mut [FanLeg],
    unique: bool,
) -> Arc<Universe> {
    let members = shard.members.iter().map(|member| &member.cluster);
    let clusters = members.chain([home, &shard.primary_cluster]);
    let uids = clusters
        .filter_map(|cluster| snapshot.targets.get(cluster))
        .map(|target| uid(target));
    let mut universe = Universe::new(&shard.config.to_string(), uids);
    if let Some(identity) = &shard.identity {
        let ranks = if unique { &*identity.ranks } else { "" };
        let (uid, life) = (format!("{}{ranks}", identity.shard), &identity.hub_incarnation);
        universe = universe.identified(&uid, life, identity.view_revision, identity.writes);
    }
    for leg in legs.iter_mut() {
        // It is in there: whom the router does not know is in no plan.
        leg.slot = universe.slot(&uid(&leg.forward.target)).unwrap_or_default();
    }
    let shares = legs.iter().map(|leg| (leg.slot, leg.share.digest()));
    Arc::new(universe.covering(shares))
}

/// The hub refuses shards of more.
const _: () = assert!(MOST_MEMBERS == SHARD_MEMBERS_MAX, "what a cursor has room for");

/// An answer of so many legs whose cursors might outgrow what clients can send back is refused before it begins.
pub(super) fn room(universe: &Universe, legs: usize) -> Result<(), Fault> {
    if universe.has_room(legs) {
        return Ok(());
    }
    Err(Fault::BadRequest(format!(
        "one request can be answered for at most {MOST_MEMBERS} member clusters, and this would be for {legs} of the shard's \
         {}: split the shard (spec.clusters), or ask for one namespace",
        universe.len()
    )))
}
