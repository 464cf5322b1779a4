//! Which member answers a review: the one of the namespace that it asks about, of the object, of whom it is about, or all together
//! (`docs/semantics.md#reviews`).
//!
//! A request is planned as a review by its path ([`Rule::Review`](super::Rule)); once the body has arrived, it is planned here by what that
//! asks. Pure: `edge` gathers the body, sends, and says no where nobody can be asked. Caller: `edge`.

use std::cell::Cell;
use std::sync::Arc;

use super::Candidate;
use super::choose::{By, Choose, Decides, Holder};
use super::forward::{Refusal, Route};
use super::merged::Merged;
use super::{Forward, Rewrite, scope, single};
use crate::value::check::Attributes;
use crate::value::classify::{ApiRequest, ResourceRequest};
use crate::value::fault::Fault;
use crate::value::kinds::{Kinds, Scope};
use crate::value::review::About;
use crate::value::snapshot::{Binding, Caller, Snapshot};

/// Who is to answer.
#[derive(Debug, Clone)]
pub(crate) enum Reviewed {
    /// This member.
    One(Part),
    /// The member that has the object.
    Holder(Box<Choose>),
    /// All of these: a yes is one of all.
    All(Vec<Part>),
    /// The router: what it asks about is outside the shard.
    Outside(String),
}

/// One member that is to be asked, or why it cannot be.
pub(crate) type Part = Result<Box<Forward>, Fault>;

/// What is known of whom a review is about.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    /// The member that authenticated the user of the review through this router.
    pub(crate) authenticated_by: Option<Arc<str>>,
    /// The member whose key signed the token.
    pub(crate) signed_by: Option<Arc<str>>,
}

/// What a review was planned with.
#[derive(Clone, Copy)]
pub(crate) struct ReviewRequest<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) asked: &'a ApiRequest,
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) kinds: &'a Kinds,
}

/// Who answers a review, and whether the namespace is outside only as far as this router was told. `about`: what it asks, if that
/// can be read.
pub(crate) fn review(
    request: ReviewRequest<'_>,
    about: Option<&About>,
    known: &Known,
) -> Result<(Reviewed, bool), Fault> {
    let ReviewRequest {
        caller,
        asked,
        snapshot,
        kinds,
    } = request;
    let (unknown_kind, lacks_grant) = (Cell::new(false), Cell::new(false));
    let route = Route {
        caller,
        request: asked,
        snapshot,
        kinds,
        unknown_kind: &unknown_kind,
        lacks_grant: &lacks_grant,
    };
    let Caller::Pod(view) = caller else {
        return Err(Fault::Internal("a review of a person has no merged plan".to_owned()));
    };
    let Binding::One(shard) = &view.binding else {
        return Err(super::merged::unbound(view, asked).fault);
    };
    let merged = Merged {
        route: &route,
        view,
        shard,
    };
    Ok((merged.reviewed(about, known), lacks_grant.get()))
}

impl Merged<'_> {
    fn reviewed(&self, about: Option<&About>, known: &Known) -> Reviewed {
        let home = &*self.view.key.home_cluster;
        let primary = &*self.shard.primary_cluster;
        match about {
            // It says what is wrong with it.
            None => self.by(primary),
            Some(About::Token(_)) => {
                let signer = known.signed_by.as_deref().filter(|signer| self.knows(signer));
                self.by(signer.unwrap_or(primary))
            }
            Some(About::NonResource(_)) => {
                let authenticator = known.authenticated_by.as_deref().filter(|member| self.knows(member));
                self.by(authenticator.unwrap_or(home))
            }
            Some(About::Rules(namespace)) if namespace.is_empty() => self.by(primary),
            Some(About::Rules(namespace)) => self.of_namespace(&ResourceRequest::default(), namespace),
            Some(About::Resource(wanted)) => self.of_resource(wanted),
        }
    }

    /// Whether a member may be asked about its own: one of the shard, the home or the primary.
    fn knows(&self, cluster: &str) -> bool {
        let mut known = self
            .members()
            .chain([&*self.view.key.home_cluster, &*self.shard.primary_cluster]);
        known.any(|one| one == cluster)
    }

    fn of_resource(&self, wanted: &Attributes) -> Reviewed {
        let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let resource = ResourceRequest {
            group: wanted.group.clone(),
            version: wanted.version.clone(),
            resource: wanted.resource.clone(),
            subresource: given(&wanted.subresource),
            namespace: given(&wanted.namespace),
            name: given(&wanted.name),
            named_by_path: !wanted.name.is_empty(),
        };
        match (&resource.namespace, &resource.name) {
            (None, Some(name)) if resource.is("", "namespaces") => self.of_namespace(&resource, name),
            (Some(namespace), _) => self.of_namespace(&resource, namespace),
            (None, Some(_)) if self.scope_of(&resource) == Some(Scope::Cluster) => self.of_object(resource),
            (None, _) => self.of_all(),
        }
    }

    fn of_namespace(&self, resource: &ResourceRequest, namespace: &str) -> Reviewed {
        let primary = &*self.shard.primary_cluster;
        if namespace.is_empty() {
            return self.of_all();
        }
        if self.electing(resource, namespace).is_some() || self.is_lock(resource, namespace) {
            return self.by(primary);
        }
        if let Some((member, _)) = self.shard.owner(namespace) {
            return self.by(&member.cluster);
        }
        if *namespace == *self.view.namespace {
            return self.by(&self.view.key.home_cluster);
        }
        match self.outside(namespace) {
            Ok(located) => self.by(located.cluster),
            Err(_) if scope::is_event(resource) && namespace == super::merged::CLUSTER_EVENTS_NAMESPACE => {
                self.by(primary)
            }
            Err(refusal) => Reviewed::Outside(refusal.fault.to_string()),
        }
    }

    /// An object without a namespace: whoever has it, else the primary.
    fn of_object(&self, mut resource: ResourceRequest) -> Reviewed {
        let holders: Vec<&str> = self.holders().collect();
        let mut versions = holders.iter().filter_map(|cluster| {
            let served = self.route.kinds.member(cluster)?;
            served.get(&resource.group, &resource.resource)?.versions.first()
        });
        let is_said = !resource.version.is_empty() && resource.version != "*";
        let version = versions.next().cloned().filter(|_| !is_said);
        match version {
            Some(version) => resource.version = version,
            None if is_said => {}
            None => return self.of_all(),
        }
        resource.subresource = None;
        // Its parts came in a body.
        if resource.unfit_part().is_some() {
            return self.of_all();
        }
        let candidates: Result<Vec<Candidate>, Refusal> = holders
            .iter()
            .map(|cluster| {
                let forward = self.route.whatever_state(cluster, Rewrite::default())?;
                let held = self.route.cordon_of(&forward);
                Ok(Candidate { forward, held })
            })
            .collect();
        let holder = Holder {
            path: resource.object_path(),
            object: single::describe(&resource),
            writes: false,
            one_of: false,
            replicated: false,
            decides: Decides::Place,
            unasked: None,
            placing: None,
        };
        match candidates {
            Ok(candidates) if candidates.len() > 1 => Reviewed::Holder(Box::new(Choose {
                candidates,
                by: By::Holder(holder),
            })),
            Ok(_) => self.of_all(),
            Err(refusal) => Reviewed::One(Err(refusal.fault)),
        }
    }

    /// What concerns no member in particular.
    fn of_all(&self) -> Reviewed {
        Reviewed::All(self.holders().map(|cluster| self.part(cluster)).collect())
    }

    fn by(&self, cluster: &str) -> Reviewed {
        Reviewed::One(self.part(cluster))
    }

    fn part(&self, cluster: &str) -> Part {
        let forward = self.route.to(cluster, Rewrite::default());
        forward.map(Box::new).map_err(|refusal| refusal.fault)
    }
}
