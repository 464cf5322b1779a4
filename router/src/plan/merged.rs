//! `/…`: the caller's shard as if it were one cluster, for everything that one member can answer (design 4).
//!
//! What several members would have to answer together is refused with a Status that says so; it is never answered with
//! one member's part.

use portolan_crds::selector::Selector;

use super::{BodyRule, Change, Forward, Guard, Refusal, Rewrite, Route, Rule, scope};
use crate::classify::{ResourceRequest, Verb};
use crate::fault::Fault;
use crate::snapshot::{Binding, Caller, CallerView, Enforcement, GrantState, LeaseName, Member, Shard};

type Outcome = Result<(Rule, Forward), Refusal>;

/// Groups whose objects are questions to an API server.
const REVIEWS: [&str; 2] = ["authorization.k8s.io", "authentication.k8s.io"];
/// Where Kubernetes puts events of objects that have no namespace.
const CLUSTER_EVENTS_NAMESPACE: &str = "default";

pub(super) fn plan(route: &Route<'_>) -> Outcome {
    let view = match route.caller {
        Caller::Pod(view) => view,
        Caller::Person { user, .. } => {
            let message = format!("{user} is a person, and people have no merged view: use /clusters/<member>/");
            return Err(Refusal::forbidden(Rule::NoMergedView, message));
        }
    };
    let Binding::One(shard) = &view.binding else {
        return Err(unbound(view));
    };
    let merged = Merged { route, view, shard };
    match &route.request.resource {
        None => merged.primary(Rule::NonResource),
        Some(resource) if REVIEWS.contains(&resource.group.as_str()) => merged.primary(Rule::Review),
        Some(resource) => merged.resource(resource),
    }
}

/// A caller that no shard, or more than one, claims.
pub(super) fn unbound(view: &CallerView) -> Refusal {
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
        Binding::None | Binding::One(_) => Refusal::forbidden(
            Rule::NoShard,
            format!("{caller} is in no shard: no ShardingConfig selects it"),
        ),
    }
}

struct Merged<'a> {
    route: &'a Route<'a>,
    view: &'a CallerView,
    shard: &'a Shard,
}

impl Merged<'_> {
    fn primary(&self, rule: Rule) -> Outcome {
        Ok((rule, self.route.to(&self.shard.primary_cluster, Rewrite::default())?))
    }

    fn verb(&self) -> Verb {
        self.route.request.verb
    }

    fn resource(&self, resource: &ResourceRequest) -> Outcome {
        let Some(namespace) = &resource.namespace else {
            return self.without_namespace(resource);
        };
        let lease = self
            .shard
            .lease
            .as_ref()
            .filter(|_| resource.is("coordination.k8s.io", "leases") && **namespace == *self.view.namespace);
        match lease {
            Some(lease) if resource.name.as_ref() == Some(&lease.client) => self.election(lease),
            Some(lease) if self.verb() == Verb::Create && resource.name.is_none() => {
                // Only the body tells whether this is the leader-election Lease.
                let (rule, mut forward) = self.namespaced(resource, namespace)?;
                forward.election = Some(Box::new(self.election(lease)?.1));
                Ok((rule, forward))
            }
            _ => self.namespaced(resource, namespace),
        }
    }

    fn election(&self, lease: &LeaseName) -> Outcome {
        if self.verb() == Verb::Watch {
            let message = format!("watching Lease {} is not served yet: get it instead", lease.client);
            return Err(Refusal {
                rule: Rule::LeaderElection,
                fault: Fault::MethodNotAllowed(message),
            });
        }
        let rewrite = Rewrite {
            lease: Some(lease.clone()),
            ..Rewrite::default()
        };
        Ok((
            Rule::LeaderElection,
            self.route.to(&self.shard.primary_cluster, rewrite)?,
        ))
    }

    /// A namespace in the path: who owns it?
    fn namespaced(&self, resource: &ResourceRequest, namespace: &str) -> Outcome {
        if let Some((member, grant)) = self.shard.owner(namespace) {
            if grant.state == GrantState::Releasing && !self.route.request.is_read() {
                let config = &self.shard.config;
                let message = format!(
                    "namespace {namespace} of member cluster {} is leaving shard {config}: it can be read, not written",
                    member.cluster
                );
                return Err(Refusal::forbidden(Rule::Releasing, message));
            }
            return Ok((
                Rule::OwnedNamespace,
                self.limited(&member.cluster, resource, Some(namespace))?,
            ));
        }
        if *namespace == *self.view.namespace {
            return Ok((
                Rule::OwnNamespace,
                self.route.to(&self.view.key.home_cluster, Rewrite::default())?,
            ));
        }
        let records = matches!(self.verb(), Verb::Create | Verb::Update | Verb::Patch);
        if scope::is_event(resource) && records && namespace == CLUSTER_EVENTS_NAMESPACE {
            return self.primary(Rule::ClusterScopedEvent);
        }
        self.outside(resource, namespace)
    }

    fn outside(&self, resource: &ResourceRequest, namespace: &str) -> Outcome {
        let config = &self.shard.config;
        let owner = self.shard.members.iter().find_map(|member| {
            let target = self.route.snapshot.targets.get(&member.cluster)?;
            Some((member, target.namespace_owners.get(namespace)?))
        });
        let whose = match owner {
            Some((member, owner)) => format!("it belongs to shard {owner} in member cluster {}", member.cluster),
            None => "no shard owns it in the member clusters of this one".to_owned(),
        };
        let message = format!("namespace {namespace} is outside shard {config}: {whose}");
        if self.shard.enforcement == Enforcement::Enforce {
            return Err(Refusal::forbidden(Rule::OutsideRefused, message));
        }
        let home = &self.view.key.home_cluster;
        let fallback = if self.shard.member(home).is_some() {
            home
        } else {
            &self.shard.primary_cluster
        };
        let cluster = owner.map_or(fallback, |(member, _)| &member.cluster);
        let mut forward = self.limited(cluster, resource, Some(namespace))?;
        forward.warning = Some(message);
        Ok((Rule::OutsideAudited, forward))
    }

    /// No namespace in the path: cluster-scoped, or a collection over all namespaces.
    fn without_namespace(&self, resource: &ResourceRequest) -> Outcome {
        let member = match self.shard.members.as_slice() {
            [member] => member,
            [] => {
                let message = format!("shard {} has no member cluster", self.shard.config);
                let fault = Fault::Unavailable {
                    message,
                    cluster: None,
                    sent: false,
                };
                return Err(Refusal {
                    rule: Rule::NoTarget,
                    fault,
                });
            }
            several => return Err(self.several(resource, several)),
        };
        let collection = matches!(self.verb(), Verb::List | Verb::Watch) && !resource.named_by_path;
        if collection && (!scope::cluster_scoped(resource) || resource.is("", "namespaces")) {
            return Ok((Rule::AllNamespaces, self.all_namespaces(member, resource)?));
        }
        Ok((Rule::ClusterScoped, self.limited(&member.cluster, resource, None)?))
    }

    fn several(&self, resource: &ResourceRequest, members: &[Member]) -> Refusal {
        let config = &self.shard.config;
        let names = members
            .iter()
            .map(|member| &*member.cluster)
            .collect::<Vec<_>>()
            .join(", ");
        if self.verb() == Verb::Create && resource.is("", "namespaces") {
            let message = format!(
                "a Namespace could go to several member clusters of shard {config} ({names}): choosing one by the annotation {} is not served yet; create it through /clusters/<member>/api/v1/namespaces",
                self.shard.label_keys.cluster()
            );
            return Refusal {
                rule: Rule::AmbiguousNamespace,
                fault: Fault::BadRequest(message),
            };
        }
        let message = format!(
            "{} {} spans several member clusters of shard {config} ({names}): merged answers over several members are not served yet; ask namespace by namespace, or one member by /clusters/<member>/",
            self.verb().as_str(),
            resource.kind(),
        );
        Refusal {
            rule: Rule::SeveralMembers,
            fault: Fault::MethodNotAllowed(message),
        }
    }

    /// List or watch over all namespaces of the shard's one member.
    fn all_namespaces(&self, member: &Member, resource: &ResourceRequest) -> Result<Forward, Refusal> {
        if let Some(namespace) = member.unlabelled.as_ref().filter(|_| !member.all_namespaces) {
            let message = format!(
                "namespace {namespace} of member cluster {} is never labelled, so a collection over all namespaces would miss it: ask namespace by namespace",
                member.cluster
            );
            return Err(Refusal {
                rule: Rule::LabelsIncomplete,
                fault: Fault::MethodNotAllowed(message),
            });
        }
        let namespaces = self.shard.namespace_selector(member).cloned().unwrap_or_default();
        let limits = scope::limits(self.shard, resource, None).unwrap_or_default();
        self.collection(&member.cluster, resource, namespaces.and(&limits))
    }

    /// A collection, narrowed by a selector whose labels must be complete.
    fn collection(&self, cluster: &str, resource: &ResourceRequest, selector: Selector) -> Result<Forward, Refusal> {
        let mut forward = self.route.to(cluster, Rewrite::default())?;
        scope::require_labels(self.shard, &forward.target, resource, &selector)?;
        forward.rewrite.selector = (!selector.is_everything()).then_some(selector);
        Ok(forward)
    }

    /// A request to one member, with the limits of the resource applied: collections are narrowed, single objects judged.
    fn limited(&self, cluster: &str, resource: &ResourceRequest, namespace: Option<&str>) -> Result<Forward, Refusal> {
        let Some(selector) = scope::limits(self.shard, resource, namespace) else {
            self.bind(resource, namespace)?;
            return self.route.to(cluster, Rewrite::default());
        };
        if matches!(self.verb(), Verb::List | Verb::Watch | Verb::DeleteCollection) {
            return self.collection(cluster, resource, selector);
        }
        let forward = self.route.to(cluster, Rewrite::default())?;
        match self.shard.enforcement {
            Enforcement::Audit => Ok(self.audited(forward, resource, &selector)),
            Enforcement::Enforce => self.judged(forward, resource, selector),
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
            && scope::limits(self.shard, &pods, namespace).is_some();
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
    fn judged(&self, mut forward: Forward, resource: &ResourceRequest, selector: Selector) -> Result<Forward, Refusal> {
        if selector.is_nothing() {
            return Err(Refusal::forbidden(Rule::OutsideRefused, self.outside_limits(resource)));
        }
        let result = scope::without_reserved(self.shard, &selector);
        let shard = self.shard.config.to_string();
        let object = describe(resource);
        forward.body_rule = change(self.verb(), resource)
            .filter(|_| !result.is_everything())
            .map(|change| BodyRule {
                selector: result,
                change,
                object: object.clone(),
                shard: shard.clone(),
            });
        if resource.named_by_path {
            scope::require_labels(self.shard, &forward.target, resource, &selector)?;
            let cluster = forward.target.cluster.to_string();
            forward.guard = Some(Guard {
                path: object_path(resource),
                selector,
                object,
                shard,
                cluster,
            });
        }
        Ok(forward)
    }
}

/// `pods ns-a/p`, `deployments.apps in ns-a`, `nodes n`.
fn describe(resource: &ResourceRequest) -> String {
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
    let built_in = built_in(&resource.group);
    match (verb, resource.subresource.as_deref()) {
        (Verb::Create | Verb::Update, None) => Some(Change::Whole),
        (Verb::Patch, None) => Some(Change::Patch),
        // A Scale is another object.
        (_, Some("scale")) => None,
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

fn built_in(group: &str) -> bool {
    !group.contains('.') || group.ends_with(".k8s.io")
}

/// The object's own path, built from what was read so that judged and changed object are the same.
fn object_path(resource: &ResourceRequest) -> String {
    let encode = |text: &str| percent_encoding::utf8_percent_encode(text, SEGMENT).to_string();
    let mut path = if resource.group.is_empty() {
        "/api".to_owned()
    } else {
        format!("/apis/{}", encode(&resource.group))
    };
    let mut push = |segment: &str| {
        path.push('/');
        path.push_str(&encode(segment));
    };
    push(&resource.version);
    if let Some(namespace) = resource.namespace.as_ref().filter(|_| !resource.is("", "namespaces")) {
        push("namespaces");
        push(namespace);
    }
    push(&resource.resource);
    resource.name.iter().for_each(|name| push(name));
    path
}

/// What a path segment must not contain as it is.
const SEGMENT: &percent_encoding::AsciiSet = &percent_encoding::CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'/')
    .add(b'<')
    .add(b'>')
    .add(b'?');
