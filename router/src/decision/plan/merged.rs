//! `/…`: the caller's shard as if it were one cluster (`docs/semantics.md#planning`). Here: whose a request is by its
//! namespace, leases, reviews and events.
//!
//! What several members would have to do together is refused with a Status that says so; it is never done in one of them.

use std::sync::Arc;

use portolan_crds::selector::Selector;

use super::forward::unavailable;
use super::{Absent, FanLeg, FanOut, Forward, Left, Plan, Refusal, Rewrite, Route, Rule, scope};
use crate::value::classify::{ApiRequest, ResourceRequest, Verb};
use crate::value::fault::Fault;
use crate::value::kinds::Scope;
use crate::value::review;
use crate::value::snapshot::{Binding, Caller, CallerView, Enforcement, Grant, GrantState, Member, Shard};
use crate::value::traffic::Traffic;

pub(super) type Outcome = Result<(Rule, Plan), Refusal>;

/// Groups whose objects are questions to an API server.
const REVIEWS: [&str; 2] = ["authorization.k8s.io", "authentication.k8s.io"];
/// Where Kubernetes puts events of objects that have no namespace.
pub(super) const CLUSTER_EVENTS_NAMESPACE: &str = "default";

pub(super) fn plan(route: &Route<'_>) -> Outcome {
    let view = match route.caller {
        Caller::Pod(view) => view,
        Caller::Person { user, .. } => {
            let message = format!("{user} is a person, and people have no merged view: use /clusters/<member>/");
            return Err(Refusal::forbidden(Rule::NoMergedView, message));
        }
    };
    let Binding::One(shard) = &view.binding else {
        return Err(unbound(view, route.request));
    };
    let merged = Merged { route, view, shard };
    merged.leads_nowhere_else()?;
    match &route.request.resource {
        None => merged.without_resource(),
        Some(resource) if review::Kind::of(route.request.verb, resource).is_some() => {
            Ok((Rule::Review, merged.review()))
        }
        Some(resource) if REVIEWS.contains(&resource.group.as_str()) => merged.primary(Rule::Review),
        Some(resource) => merged.but_of_one_node(resource, || merged.resource(resource)),
    }
}

/// A caller that no shard, or more than one, claims.
pub(super) fn unbound(view: &CallerView, request: &ApiRequest) -> Refusal {
    let caller = format!(
        "Pod {}/{} of member cluster {}",
        view.namespace, view.pod, view.key.home_cluster
    );
    match &view.binding {
        Binding::Several(configs) => {
            let message = format!(
                "{caller} is in several shards ({}): it must match exactly one",
                configs.join(", ")
            );
            Refusal::forbidden(Rule::SeveralShards, message)
        }
        Binding::Unknown { config, missing } => Refusal {
            rule: Rule::ShardNotTold,
            fault: unavailable(
                Traffic::of(request),
                format!("{caller} is of shard {config}, which this router cannot serve yet: {missing}"),
                None,
            ),
        },
        Binding::None | Binding::One(_) => Refusal::forbidden(
            Rule::NoShard,
            format!("{caller} is in no shard: no ShardingConfig selects it"),
        ),
    }
}

pub(super) struct Merged<'a> {
    pub(super) route: &'a Route<'a>,
    pub(super) view: &'a CallerView,
    pub(super) shard: &'a Shard,
}

/// Where a namespace is.
pub(super) struct Located<'a> {
    rule: Rule,
    pub(super) cluster: &'a str,
    /// Let through by `Audit`.
    warning: Option<String>,
}

impl Merged<'_> {
    /// Where objects of the kind live in the members that may have some; `None` if they have not said (yet).
    pub(super) fn scope_of(&self, resource: &ResourceRequest) -> Option<Scope> {
        if scope::never_namespaced(resource) {
            return Some(Scope::Cluster);
        }
        let (group, kinds) = (resource.group.as_str(), self.route.kinds);
        let gr = (group, resource.resource.as_str());
        if !kinds.is_served(self.holders(), gr) {
            self.route.unknown_kind.set(true);
        }
        // A newer Kubernetes may have cluster-scoped kinds that the tables lack.
        kinds.scope(self.holders(), gr).or_else(|| scope::scope_by_group(group))
    }
}

impl Merged<'_> {
    /// A caller that leads another shard, as far as it knows, must not write beside the leader of this one. Reviews change nothing.
    fn leads_nowhere_else(&self) -> Result<(), Refusal> {
        let Some(held) = &self.view.held_elsewhere else {
            return Ok(());
        };
        let request = self.route.request;
        let group = request.resource.as_ref().map(|resource| resource.group.as_str());
        if request.is_read() || group.is_some_and(|group| REVIEWS.contains(&group)) {
            return Ok(());
        }
        let CallerView {
            namespace, pod, key, ..
        } = self.view;
        let message = format!(
            "Pod {namespace}/{pod} of member cluster {} has changed its shard to {} and may take itself for the leader of the one \
             before: {}; until that has run out it can read, not write",
            key.home_cluster, self.shard.config, held.reason
        );
        Err(Refusal {
            rule: Rule::ShardChanged,
            fault: Fault::TooManyRequests {
                message,
                retry_after_seconds: 1,
                cluster: None,
            },
        })
    }

    fn primary(&self, rule: Rule) -> Outcome {
        Ok((
            rule,
            self.route.to(&self.shard.primary_cluster, Rewrite::default())?.into(),
        ))
    }

    /// The shard, to be kept.
    pub(super) fn bound(&self) -> Option<Arc<Shard>> {
        match &self.view.binding {
            Binding::One(shard) => Some(shard.clone()),
            _ => None,
        }
    }

    /// The body tells which of these members answers.
    fn review(&self) -> Plan {
        let mut clusters: Vec<Arc<str>> = self.holders().map(Arc::from).collect();
        let home = &self.view.key.home_cluster;
        if !clusters.contains(home) {
            clusters.push(home.clone());
        }
        Plan::Review(clusters)
    }

    pub(super) fn verb(&self) -> Verb {
        self.route.request.verb
    }

    pub(super) fn collects(&self) -> bool {
        matches!(self.verb(), Verb::List | Verb::Watch)
    }

    fn resource(&self, resource: &ResourceRequest) -> Outcome {
        let Some(namespace) = &resource.namespace else {
            if self.collects() {
                let itself = self.cluster_itself(resource);
                return itself.unwrap_or_else(|| self.everywhere(resource));
            }
            return self.without_namespace(resource);
        };
        if let Some(planned) = self.lock(resource, namespace) {
            return planned;
        }
        self.no_candidate(resource, namespace)?;
        if self.collects() {
            return self.within(resource, namespace);
        }
        match self.single(resource, namespace) {
            Err(Refusal {
                rule: Rule::OutsideRefused,
                fault: Fault::Forbidden(message),
            }) if !self.owns(namespace) && !self.is_anothers(namespace) => {
                if resource.is("", "namespaces") {
                    self.unowned_namespace(resource, namespace, message)
                } else {
                    self.unowned(resource, namespace, message)
                }
            }
            single => single.map(|(rule, forward)| (rule, forward.into())),
        }
    }

    /// One object, or a create, in a namespace.
    pub(super) fn single(&self, resource: &ResourceRequest, namespace: &str) -> Result<(Rule, Forward), Refusal> {
        let located = self.locate(resource, namespace)?;
        let mut forward = match located.rule {
            Rule::OwnNamespace | Rule::ClusterScopedEvent | Rule::OtherLease | Rule::WellKnown => {
                self.route.to(located.cluster, Rewrite::default())?
            }
            _ => self.limited(located.cluster, resource, Some(namespace))?,
        };
        forward.warning = located.warning.or(forward.warning);
        Ok((located.rule, forward))
    }

    /// A collection of one namespace: one leg on its owner.
    fn within(&self, resource: &ResourceRequest, namespace: &str) -> Outcome {
        let located = match self.locate(resource, namespace) {
            Err(Refusal {
                rule: Rule::OutsideRefused,
                fault: Fault::Forbidden(message),
            }) => return self.handed_over(resource, namespace, message),
            located => located?,
        };
        let limits = match located.rule {
            Rule::OwnNamespace | Rule::OtherLease | Rule::WellKnown => None,
            _ => self.limits(resource, Some(namespace)),
        };
        let mut leg: FanLeg = self.placed_leg(located.cluster, limits)?;
        leg.forward.warning = located.warning;
        leg.forward.rewrite.shown = self.shown(resource, namespace, located.cluster);
        if located.rule == Rule::ClusterScopedEvent {
            leg.forward.rewrite.fields = Some(scope::without_namespace(resource));
        }
        let mut fan = self.fan_out(vec![leg], false)?;
        fan.only_member &= match located.rule {
            // Of what is another shard's this one's ownership says nothing.
            Rule::OutsideAudited | Rule::ClusterScopedEvent | Rule::WellKnown => false,
            Rule::OwnedNamespace | Rule::OtherLease => !self.was_read_elsewhere(namespace, located.cluster),
            _ => true,
        };
        Ok((located.rule, fan.into()))
    }

    /// Whether the caller may have read the namespace in another member before it was the shard's: its own, which is home's
    /// then, and under `Audit` any.
    fn was_read_elsewhere(&self, namespace: &str, cluster: &str) -> bool {
        let home = &*self.view.key.home_cluster;
        let whole = self.shard.members.iter().any(|member| member.all_namespaces);
        let audited = self.shard.enforcement == Enforcement::Audit && !whole;
        let own = *namespace == *self.view.namespace && home != cluster;
        own || audited && self.holders().any(|other| other != cluster)
    }

    /// A refusal empties no cache: who has objects of a namespace that left the shard is first told that there are none, in
    /// the words of the member that it left, or of another one while that is cordoned or gone. So is everybody of one that is nowhere.
    fn handed_over(&self, resource: &ResourceRequest, namespace: &str, message: String) -> Outcome {
        let is_anothers = self.is_anothers(namespace);
        let Some((cluster, departed)) = self.shard.departed(namespace) else {
            if is_anothers {
                return Err(Refusal::forbidden(Rule::OutsideRefused, message));
            }
            return self.unowned(resource, namespace, message);
        };
        let nothing = |cluster| self.placed_leg(cluster, Some(Selector::nothing()));
        let mut others = self.shard.members.iter().map(|member| &member.cluster);
        let leg = match nothing(cluster) {
            Ok(leg) if leg.held.is_none() => Ok(leg),
            refused => others
                .find_map(|other| nothing(other).ok().filter(|leg| leg.held.is_none()))
                .map_or(refused, Ok),
        }?;
        let unowned = if is_anothers {
            None
        } else {
            let unowned = self.question(resource, namespace, message.clone(), Absent::Nothing);
            unowned.ok().map(Box::new)
        };
        let left = Left {
            revision: departed.view_revision,
            message,
        };
        let fan = FanOut {
            only_member: false,
            left: Some(left),
            unowned,
            ..self.fan_out(vec![leg], false)?
        };
        Ok((Rule::HandedOver, fan.into()))
    }

    /// A namespace in the path: where is it?
    fn locate(&self, resource: &ResourceRequest, namespace: &str) -> Result<Located<'_>, Refusal> {
        let at = |rule, cluster| {
            let warning = None;
            Ok(Located { rule, cluster, warning })
        };
        if self.electing(resource, namespace).is_some() {
            return at(Rule::OtherLease, &self.shard.primary_cluster);
        }
        if let Some((member, grant)) = self.owner(namespace) {
            if grant.pair.state == GrantState::Releasing && !self.route.request.is_read() {
                let config = &self.shard.config;
                let message = format!(
                    "namespace {namespace} of member cluster {} is leaving shard {config}: it can be read, not written",
                    member.cluster
                );
                return Err(Refusal::forbidden(Rule::Releasing, message));
            }
            return at(Rule::OwnedNamespace, &member.cluster);
        }
        if *namespace == *self.view.namespace {
            return at(Rule::OwnNamespace, &self.view.key.home_cluster);
        }
        let told = self.collects() || matches!(self.verb(), Verb::Create | Verb::Update | Verb::Patch);
        if scope::is_event(resource) && told && namespace == CLUSTER_EVENTS_NAMESPACE {
            return at(Rule::ClusterScopedEvent, &self.shard.primary_cluster);
        }
        if let Some(cluster) = self.well_known(resource, namespace) {
            return at(Rule::WellKnown, cluster);
        }
        self.outside(namespace)
    }

    /// Whether the namespace is the shard's: what is refused then is refused by the limits.
    fn owns(&self, namespace: &str) -> bool {
        self.owner(namespace).is_some()
    }

    /// The member that has the namespace for the shard. What is gone and is leaving is nowhere to whoever writes: its member has nothing
    /// of it. Under `Audit` it would be written all the same, without a grant.
    fn owner(&self, namespace: &str) -> Option<(&Member, Grant)> {
        let reads = self.route.request.is_read() || self.shard.enforcement == Enforcement::Audit;
        let is_there = |grant: &Grant| !(grant.pair.vacant && grant.pair.state == GrantState::Releasing);
        self.shard
            .owner(namespace)
            .filter(|(_, grant)| reads || is_there(grant))
    }

    pub(super) fn outside(&self, namespace: &str) -> Result<Located<'_>, Refusal> {
        let config = &self.shard.config;
        let (snapshot, members) = (self.route.snapshot, &self.shard.members);
        let owner = members.iter().find_map(|member| {
            let owner = snapshot.contender(self.shard.operator(), &member.cluster, namespace)?;
            Some((&member.cluster, owner))
        });
        // Whose it is another operator's shard has no say in, but where it is.
        let has_any = |cluster: &&Arc<str>| snapshot.owners(cluster, namespace).next().is_some();
        let there = owner.map(|(cluster, _)| cluster);
        let there = there.or_else(|| members.iter().map(|member| &member.cluster).find(has_any));
        let whose = match owner {
            Some((cluster, owner)) => {
                let owner = owner.told_in(config.namespace());
                format!("it belongs to {owner} in member cluster {cluster}")
            }
            None if there.is_some() => {
                format!("no shard of its operator owns it in the member clusters that {config} spans")
            }
            None => format!("no shard owns it in the member clusters that {config} spans"),
        };
        let message = format!("namespace {namespace} is outside shard {config}: {whose}");
        if self.shard.enforcement == Enforcement::Enforce {
            self.route.lacks_grant.set(true);
            return Err(Refusal::forbidden(Rule::OutsideRefused, message));
        }
        let home = &self.view.key.home_cluster;
        let fallback = if self.shard.member(home).is_some() {
            home
        } else {
            &self.shard.primary_cluster
        };
        Ok(Located {
            rule: Rule::OutsideAudited,
            cluster: there.unwrap_or(fallback),
            warning: Some(message),
        })
    }

    /// All members were withdrawn.
    pub(super) fn without_members(&self) -> Refusal {
        let message = format!(
            "the member clusters of shard {} were withdrawn (spec.accept of their MemberClusters is false)",
            self.shard.config
        );
        Refusal::forbidden(Rule::Withdrawn, message)
    }

    /// A shard without members owns nothing, so nothing can be asked. An informer would list anew after a 503.
    pub(super) fn memberless(&self) -> Refusal {
        let message = format!("shard {} has no member cluster", self.shard.config);
        Refusal {
            rule: Rule::NoTarget,
            fault: unavailable(Traffic::of(self.route.request), message, None),
        }
    }
}
