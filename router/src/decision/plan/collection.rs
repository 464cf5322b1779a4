//! Lists and watches of the merged view: which members, and what of each is the caller's
//! (`docs/semantics.md#planning`, `docs/semantics.md#label-coverage`).
//!
//! A namespace in the path is one leg on its owner; without one, every member is asked for its share of the shard. Where
//! the agent has labelled a kind completely the member filters by labels; elsewhere the router does, so nothing is missed
//! or seen twice meanwhile. Not here: running it (`fanout`). Caller: `merged`.

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_crds::selector::Selector;
use portolan_merge::filter::{Names, NamespaceFilter};

use super::fanout::{self, Share, digest};
use super::merged::{Merged, Outcome};
use super::{FanLeg, FanOut, Refusal, Rewrite, Rule, scope};
use crate::value::classify::{ResourceRequest, Verb};
use crate::value::fault::Fault;
use crate::value::kinds::Scope;
use crate::value::snapshot::{Coverage, Member, Reach, Unlabelled};
use crate::value::traffic::Traffic;

impl Merged<'_> {
    /// No namespace in the path: the shard's part of every member, or the union of what has no namespace.
    pub(super) fn everywhere(&self, resource: &ResourceRequest) -> Outcome {
        self.common_scope(resource)?;
        let scope = self.scope_of(resource);
        if scope == Some(Scope::Cluster) && !resource.is("", "namespaces") {
            return self.union(resource);
        }
        if self.shard.members.is_empty() {
            return Err(self.memberless());
        }
        self.told(resource, scope)?;
        if let Some(events) = self.events_of_placeless(resource) {
            return events;
        }
        let limits = scope::limits(self.shard, resource).unwrap_or_default();
        let members = self.shard.members.iter().enumerate();
        let legs = members
            .filter(|(_, member)| !self.is_withdrawn(&member.cluster))
            .filter_map(|(index, member)| Some((member, self.shard.reach(index)?)))
            .map(|(member, reach)| self.share_leg((member, reach), resource, scope, &limits))
            .collect::<Result<Vec<_>, _>>()?;
        self.common_version(resource, &legs)?;
        Ok((Rule::AllNamespaces, self.over_all(legs, None, false)?.into()))
    }

    /// Events of one object that has no namespace, as `kubectl describe` lists them: over all namespaces, but they lie in one that
    /// is no shard's. Each member's components tell them there; of no other object any is shown.
    fn events_of_placeless(&self, resource: &ResourceRequest) -> Option<Outcome> {
        let request = self.route.request;
        if !scope::is_event(resource) || self.verb() != Verb::List {
            return None;
        }
        let [kind, name] = scope::object_of(resource).map(|field| request.demanded(field));
        name?;
        if !self.route.kinds.is_placeless(self.holders(), &kind?) {
            return None;
        }
        let limits = scope::limits(self.shard, resource);
        let leg = |cluster| {
            let mut leg = self.placed_leg(cluster, limits.clone())?;
            leg.forward.rewrite.fields = Some(scope::without_namespace(resource));
            Ok(leg)
        };
        let fan = self.holders().map(leg).collect::<Result<Vec<_>, _>>().and_then(|legs| {
            let mut fan = self.over_all(legs, Some(&self.shard.primary_cluster), false)?;
            // Of what is no shard's ownership says nothing.
            fan.only_member = false;
            Ok(fan)
        });
        Some(fan.map(|fan| (Rule::ClusterScopedEvent, fan.into())))
    }

    /// Of a kind that may have no namespaces, several members' equal names are one or two: a list that guesses is wrong, and a
    /// watch stays so.
    fn told(&self, resource: &ResourceRequest, scope: Option<Scope>) -> Result<(), Refusal> {
        let (group, name) = (resource.group.as_str(), resource.resource.as_str());
        let kinds = self.route.kinds;
        let untold = |cluster: &&str| kinds.serves(cluster, group, name).is_none();
        if scope.is_some() || kinds.is_served(self.holders(), (group, name)) {
            return Ok(());
        }
        let Some(cluster) = self.holders().find(untold) else {
            return Ok(());
        };
        Err(Refusal {
            rule: Rule::KindUntold,
            fault: Fault::TooManyRequests {
                message: format!(
                    "member cluster {cluster} has not told yet how it serves {}",
                    resource.kind()
                ),
                retry_after_seconds: 1,
                cluster: Some(cluster.to_owned()),
            },
        })
    }

    /// Objects without a namespace: of every member, and of the primary, which has what belongs to no member.
    fn union(&self, resource: &ResourceRequest) -> Outcome {
        let limits = scope::limits(self.shard, resource);
        let legs = self
            .holders()
            .map(|cluster| {
                let mut leg = self.placed_leg(cluster, limits.clone())?;
                leg.filter = self.distrust(cluster, resource);
                Ok(leg)
            })
            .collect::<Result<Vec<_>, _>>()?;
        self.common_version(resource, &legs)?;
        let unique = legs.len() > 1;
        let fan = self.over_all(legs, Some(&self.shard.primary_cluster), unique)?;
        Ok((Rule::ClusterScoped, fan.into()))
    }

    /// For a member that is not known (yet) to serve a kind that has no namespaces elsewhere: where it has some after
    /// all, only those of the shard. No part of the share: nothing is dropped of what the others say is there.
    fn distrust(&self, cluster: &str, resource: &ResourceRequest) -> Option<NamespaceFilter> {
        let kinds = self.route.kinds;
        if scope::never_namespaced(resource) || kinds.serves(cluster, &resource.group, &resource.resource) == Some(true)
        {
            return None;
        }
        let index = self.shard.members.iter().position(|member| &*member.cluster == cluster);
        let reach = index.and_then(|index| self.shard.reach(index));
        let own = reach.map_or_else(|| NamespaceFilter::only(Names::default()), |reach| reach.filter.clone());
        Some(own.with_placeless())
    }

    /// Where objects without a namespace may be: the primary first.
    pub(super) fn holders(&self) -> impl Iterator<Item = &str> {
        let primary = &*self.shard.primary_cluster;
        let others = self.members().filter(move |cluster| *cluster != primary);
        let primary = std::iter::once(primary).filter(|cluster| !self.is_withdrawn(cluster));
        primary.chain(others)
    }

    /// The members of the shard but those that were withdrawn.
    pub(super) fn members(&self) -> impl Iterator<Item = &str> {
        let members = self.shard.members.iter().map(|member| &*member.cluster);
        members.filter(|cluster| !self.is_withdrawn(cluster))
    }

    fn is_withdrawn(&self, cluster: &str) -> bool {
        self.route.snapshot.withdrawn.contains(cluster)
    }

    /// An answer over all members, and over the primary where that counts, too: those that were withdrawn are named.
    fn over_all(&self, legs: Vec<FanLeg>, primary: Option<&Arc<str>>, unique: bool) -> Result<FanOut, Refusal> {
        let members = self.shard.members.iter().map(|member| &member.cluster);
        let asked = members.chain(primary).filter(|cluster| self.is_withdrawn(cluster));
        let withdrawn: BTreeSet<_> = asked.cloned().collect();
        Ok(FanOut {
            withdrawn: withdrawn.into_iter().collect(),
            ..self.fan_out(legs, unique)?
        })
    }

    /// A leg whose namespace the path has said, or that has none.
    pub(super) fn placed_leg(&self, cluster: &str, limits: Option<Selector>) -> Result<FanLeg, Refusal> {
        let share = Share {
            namespaces: None,
            selector: limits,
        };
        self.leg(cluster, share)
    }

    /// A leg over all namespaces of a member.
    fn share_leg(
        &self,
        (member, reach): (&Member, &Reach),
        resource: &ResourceRequest,
        scope: Option<Scope>,
        limits: &Selector,
    ) -> Result<FanLeg, Refusal> {
        let labels = scope::agents_labels(self.shard, limits);
        let finer = scope::finer(self.shard, limits);
        let finer = (!finer.is_everything()).then_some(finer);
        let said = labels.is_sayable().then(|| labels.selector());
        let mut filter = reach.filter.clone().with_labels(labels);
        if resource.is("", "namespaces") {
            filter = filter.of_names();
        } else if scope.is_none() {
            // Nobody has said where its objects live: if they have no namespace, dropping them would look like a delete.
            filter = filter.with_placeless();
        }
        let share = Share {
            namespaces: (!filter.is_everything()).then_some(filter),
            selector: finer,
        };
        let leg = self.leg(&member.cluster, share)?;
        let snapshot = self.route.snapshot;
        let coverage = snapshot.coverage(&member.cluster, &resource.group, &resource.resource);
        Ok(self.chosen_by_labels(leg, reach, said, coverage))
    }

    /// The leg, with the share as a selector where labels say it. `said`: the agents' labels that limits demand.
    fn chosen_by_labels(
        &self,
        mut leg: FanLeg,
        reach: &Reach,
        said: Option<Selector>,
        coverage: Option<&Coverage>,
    ) -> FanLeg {
        let Some(namespaces) = &leg.share.namespaces else {
            return leg;
        };
        let own = leg.share.selector.clone().unwrap_or_else(Selector::everything);
        if namespaces.is_nothing() {
            let nothing = Selector::nothing().and(&own);
            leg.by_labels = Some(digest(&nothing));
            leg.forward.rewrite.selector = Some(nothing);
            leg.filter = None;
            return leg;
        }
        let said = said.ok_or(Unlabelled::Unsayable);
        let selector = match reach.selector.clone().and_then(|reach| Ok(reach.and(&said?).and(&own))) {
            Ok(selector) => selector,
            Err(why) => {
                leg.unlabelled = Some(why);
                return leg;
            }
        };
        let nothing = selector.is_nothing();
        leg.by_labels = (nothing || scope::labelling(self.shard, coverage, namespaces)).then(|| digest(&selector));
        leg.unlabelled = scope::unlabelled(self.shard, coverage, namespaces).filter(|_| !nothing);
        if leg.unlabelled.is_none() {
            leg.forward.rewrite.selector = Some(selector);
            leg.filter = None;
        }
        leg
    }

    /// A leg that is filtered by the router.
    fn leg(&self, cluster: &str, share: Share) -> Result<FanLeg, Refusal> {
        let mut forward = self.route.whatever_state(cluster, Rewrite::default())?;
        forward.traffic = Traffic::collection(self.verb() == Verb::Watch);
        forward.rewrite.selector.clone_from(&share.selector);
        let filter: Option<NamespaceFilter> = share.namespaces.clone();
        Ok(FanLeg {
            held: self.route.cordon_of(&forward),
            forward,
            slot: 0,
            filter,
            share,
            by_labels: None,
            unlabelled: None,
        })
    }

    /// The whole of it. Nobody to ask is said at once.
    pub(super) fn fan_out(&self, mut legs: Vec<FanLeg>, unique: bool) -> Result<FanOut, Refusal> {
        let request = self.route.request;
        if !request.is_read() {
            let fault = Fault::MethodNotAllowed(format!("a collection is not watched by {}", request.method));
            return Err(Refusal {
                rule: Rule::CollectionMethod,
                fault,
            });
        }
        if legs.is_empty() {
            return Err(self.without_members());
        }
        if let Some(leg) = legs.first()
            && let Some(held) = &leg.held
            && legs.iter().all(|leg| leg.held.is_some())
        {
            return Err(self.route.cordoned(held.clone(), leg.cluster()));
        }
        let universe = fanout::universe(
            self.shard,
            &self.view.key.home_cluster,
            self.route.snapshot,
            &mut legs,
            unique,
        );
        fanout::room(&universe, legs.len()).map_err(|fault| Refusal {
            rule: Rule::SeveralMembers,
            fault,
        })?;
        let watch = self.verb() == Verb::Watch;
        let only_member = !unique && self.is_only_member(&legs);
        Ok(FanOut {
            legs,
            universe,
            watch,
            unavailable: self.shard.unavailable,
            unique,
            fence: watch && self.shard.write_fence,
            only_member,
            left: None,
            unowned: None,
            withdrawn: Vec::new(),
        })
    }

    /// Whether whatever the caller has read of this collection in 24 hours is of its one member. Which namespaces a version
    /// speaks of it does not say, so over all of them only if no list of them is kept; nor which life of a member that was
    /// restored, nor whose a cluster-scoped kind was before another member became the primary.
    fn is_only_member(&self, legs: &[FanLeg]) -> bool {
        let [leg] = legs else { return false };
        let resource = self.route.request.resource.as_ref();
        let namespace = resource.and_then(|resource| resource.namespace.as_deref());
        let whole = leg.share == Share::default();
        let first_life = !leg.forward.target.was_restored();
        whole
            && first_life
            && self
                .route
                .snapshot
                .is_only_member(&self.shard.config, leg.cluster(), namespace)
    }

    /// As namespaced, objects of some members would be missing; as a union, some would be shown that are not the shard's.
    fn common_scope(&self, resource: &ResourceRequest) -> Result<(), Refusal> {
        let gr = (&*resource.group, &*resource.resource);
        match self.route.kinds.scope_conflict(self.holders(), gr) {
            None => Ok(()),
            Some(message) => Err(Refusal {
                rule: Rule::ScopeConflict,
                fault: Fault::BadRequest(message),
            }),
        }
    }

    /// A version that only some of the members have would leave out the others' objects without a word.
    fn common_version(&self, resource: &ResourceRequest, legs: &[FanLeg]) -> Result<(), Refusal> {
        if legs.len() < 2 {
            return Ok(());
        }
        let clusters: Vec<_> = legs.iter().map(|leg| leg.cluster().clone()).collect();
        let gvr = (
            resource.group.as_str(),
            resource.version.as_str(),
            resource.resource.as_str(),
        );
        match self.route.kinds.version_conflict(&clusters, gvr) {
            None => Ok(()),
            Some(message) => Err(Refusal {
                rule: Rule::VersionConflict,
                fault: Fault::BadRequest(message),
            }),
        }
    }
}
