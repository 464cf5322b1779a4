//! Questions about rights that only somebody else can answer. Asked for by `plan`, answered by `access`.

use crate::value::classify::Impersonation;

/// Something to ask before a request may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Check {
    /// May this person use the explicit view of this member? Asked of the hub.
    HubProxy {
        /// The person.
        user: String,
        /// Their groups.
        groups: Vec<String>,
        /// The member.
        cluster: String,
    },
    /// May the caller act as the user it names? Asked of the member, one SubjectAccessReview per attribute of
    /// [`Impersonation::attributes`].
    Impersonate {
        /// The member.
        cluster: String,
        /// Who asks, as the member knows it.
        user: String,
        /// Groups of who asks, as the member would see them.
        groups: Vec<String>,
        /// Whom it wants to act as.
        wanted: Impersonation,
    },
    /// May this user do it, by the RBAC of this member? Asked where the request itself is sent to none that would say so.
    Resource {
        /// The member.
        cluster: String,
        /// The user, with all the groups that the member would give.
        user: Impersonation,
        /// What it wants to do.
        wanted: Attributes,
    },
}

/// What somebody wants to do with a resource, as authorizers of API servers are asked. Empty is none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Attributes {
    pub(crate) verb: String,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Attributes {
    /// What is answered to `user`, who may not, in the words of an API server.
    pub(crate) fn forbidden(&self, user: &str, reason: &str) -> String {
        let Self {
            verb,
            group,
            resource,
            namespace,
            ..
        } = self;
        let kind = if group.is_empty() {
            resource.clone()
        } else {
            format!("{resource}.{group}")
        };
        let object = if self.name.is_empty() {
            kind
        } else {
            format!("{kind} {:?}", self.name)
        };
        let resource = if self.subresource.is_empty() {
            resource.clone()
        } else {
            format!("{resource}/{}", self.subresource)
        };
        let place = if namespace.is_empty() {
            " at the cluster scope".to_owned()
        } else {
            format!(" in the namespace {namespace:?}")
        };
        let reason = if reason.is_empty() {
            String::new()
        } else {
            format!(": {reason}")
        };
        format!(
            "{object} is forbidden: User {user:?} cannot {verb} resource {resource:?} in API group {group:?}{place}{reason}"
        )
    }
}
