//! One object, or a create, in one member: what the limits of the shard make of it.
//!
//! Under `Enforce` an object of a limited resource must be the shard's as it is and as it becomes ([`LabelCheck`], [`BodyRule`]); `Audit`
//! warns where the namespace alone tells that it is outside. Callers: `merged` and `clusterwide`, once the member is known.

use std::borrow::Cow;

use portolan_crds::selector::Selector;

use super::merged::Merged;
use super::{BodyRule, Change, Forward, LabelCheck, Need, Refusal, Rewrite, Rule, scope};
use crate::value::classify::{ResourceRequest, Verb};
use crate::value::snapshot::Enforcement;

impl Merged<'_> {
    /// A request to one member, with the limits of the resource applied: `deletecollection` is narrowed, single objects
    /// are checked.
    pub(super) fn limited(
        &self,
        cluster: &str,
        resource: &ResourceRequest,
        namespace: Option<&str>,
    ) -> Result<Forward, Refusal> {
        let forward = self.route.to(cluster, Rewrite::default())?;
        self.limit(forward, resource, namespace)
    }

    /// The limits, applied to a request whose member is known.
    pub(super) fn limit(
        &self,
        mut forward: Forward,
        resource: &ResourceRequest,
        namespace: Option<&str>,
    ) -> Result<Forward, Refusal> {
        let Some(selector) = self.limits(resource, namespace) else {
            self.bind(resource, namespace)?;
            return Ok(forward);
        };
        if self.verb() == Verb::DeleteCollection {
            forward.rewrite.selector = Some(selector);
            return Ok(forward);
        }
        match self.shard.enforcement {
            Enforcement::Audit => Ok(self.audited(forward, resource, &selector)),
            Enforcement::Enforce => self.checked(forward, resource, selector),
        }
    }

    /// What the limits demand of the object, as far as its namespace has not settled it.
    pub(super) fn limits(&self, resource: &ResourceRequest, namespace: Option<&str>) -> Option<Selector> {
        match namespace {
            Some(namespace) => scope::limits_within(self.shard, resource, namespace),
            None => scope::limits(self.shard, resource),
        }
    }

    /// A Binding names its Pod in the body: where Pods are limited, their own `/binding` shows which one it is.
    fn bind(&self, resource: &ResourceRequest, namespace: Option<&str>) -> Result<(), Refusal> {
        let pods = ResourceRequest {
            resource: "pods".to_owned(),
            ..ResourceRequest::default()
        };
        let unseen = resource.is("", "bindings")
            && self.shard.enforcement == Enforcement::Enforce
            && self.limits(&pods, namespace).is_some();
        if !unseen {
            return Ok(());
        }
        let config = &self.shard.config;
        let message = format!("shard {config} limits pods: bind them by POST to pods/<name>/binding");
        Err(Refusal::forbidden(Rule::OutsideRefused, message))
    }

    /// Without looking at the object only its namespace can tell that it is outside.
    fn audited(&self, mut forward: Forward, resource: &ResourceRequest, selector: &Selector) -> Forward {
        if selector.is_nothing() {
            forward.warning = Some(self.outside_limits(resource));
        }
        forward
    }

    fn outside_limits(&self, resource: &ResourceRequest) -> String {
        format!(
            "{} is outside the limits of shard {}",
            describe(resource),
            self.shard.config
        )
    }

    /// A single object under `Enforce`: what it is before, and what it becomes, must be the shard's.
    fn checked(
        &self,
        mut forward: Forward,
        resource: &ResourceRequest,
        selector: Selector,
    ) -> Result<Forward, Refusal> {
        if selector.is_nothing() {
            return Err(Refusal::forbidden(Rule::OutsideRefused, self.outside_limits(resource)));
        }
        let result = scope::finer(self.shard, &selector);
        let shard = self.shard.config.to_string();
        let object = describe(resource);
        if resource.named_by_path {
            forward.needs.push(Need::Labels(LabelCheck {
                path: connected(resource, self.verb()).object_path(),
                selector,
                connects: connects(resource, self.verb()),
                object: object.clone(),
                shard: shard.clone(),
            }));
        }
        if let Some(change) = change(self.verb(), resource).filter(|_| !result.is_everything()) {
            forward.needs.push(Need::Body(BodyRule {
                selector: result,
                change,
                object,
                shard,
            }));
        }
        Ok(forward)
    }
}

/// `pods ns-a/p`, `deployments.apps in ns-a`, `nodes n`.
pub(super) fn describe(resource: &ResourceRequest) -> String {
    let kind = resource.kind();
    match (&resource.namespace, &resource.name) {
        (Some(_), Some(name)) if resource.is("", "namespaces") => format!("{kind} {name}"),
        (Some(namespace), Some(name)) => format!("{kind} {namespace}/{name}"),
        (Some(namespace), None) => format!("{kind} in {namespace}"),
        (None, Some(name)) => format!("{kind} {name}"),
        (None, None) => kind,
    }
}

/// How the body of a request becomes the object; `None` if no label can change by it.
fn change(verb: Verb, resource: &ResourceRequest) -> Option<Change> {
    let built_in = resource.is_built_in();
    match (verb, resource.subresource.as_deref()) {
        (Verb::Create | Verb::Update, None) => Some(Change::Whole),
        (Verb::Patch, None) => Some(Change::Patch),
        // A Scale is another object, and of a Pod's object these take one field each [read in 1.36: dropNonEphemeralContainerUpdates,
        // dropNonPodResizeUpdates]: a client that sends no labels removes none.
        (_, Some("scale")) => None,
        (_, Some("ephemeralcontainers" | "resize")) if resource.is("", "pods") => None,
        // [read in 1.36: assignPod copies the Binding's labels over the Pod's].
        (Verb::Create, Some("binding")) if resource.is("", "pods") => Some(Change::Over),
        // Kubernetes' own kinds take labels from a body for `/status` and its like [run: a PUT of pods/status without
        // labels removes them]; custom resources do not.
        (Verb::Update, Some(_)) if built_in => Some(Change::Whole),
        (Verb::Update, Some("status")) => Some(Change::Status),
        (Verb::Patch, Some(subresource)) if built_in || subresource == "status" => Some(Change::Patch),
        _ => None,
    }
}

/// Whether a request is for what runs behind the object.
fn connects(resource: &ResourceRequest, verb: Verb) -> bool {
    let subresource = resource.subresource.as_deref();
    verb == Verb::Proxy || matches!(subresource, Some("attach" | "exec" | "portforward" | "proxy"))
}

/// The object that a request connects through: API servers read `[scheme:]name[:port]` before `proxy`
/// (`SplitSchemeNamePort` of apimachinery). What is none of these stays as it is, and is no object's name.
pub(super) fn connected(resource: &ResourceRequest, verb: Verb) -> Cow<'_, ResourceRequest> {
    let proxies = verb == Verb::Proxy || resource.subresource.as_deref() == Some("proxy");
    let parts: Vec<&str> = resource.name.iter().flat_map(|name| name.split(':')).collect();
    match parts.as_slice() {
        [name, _] | [_, name, _] if proxies => Cow::Owned(ResourceRequest {
            name: Some((*name).to_owned()),
            ..resource.clone()
        }),
        _ => Cow::Borrowed(resource),
    }
}
