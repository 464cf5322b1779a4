//! Routers that a member vouches for: Pods of its router ServiceAccount, known by the word of its agent alone.
//!
//! A router is sent the views and tokens of all members, so that whoever may vouch for one may act in all of them as the
//! routers may. No member gets that by joining: the hub names those that do, none by default, and only for as long as
//! they are members. Callers: `enroll` (first and renewed certificates), router sessions.

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_crds::names::is_dns_subdomain;
use tonic::Status;

use crate::index::Index;
use crate::standing::standing;

/// Between cluster and Pod in a router's name. Routers with a bootstrap token have names without it.
const SEPARATOR: char = '.';

/// The members that may vouch for routers. Clones share the index.
#[derive(Debug, Clone)]
pub(crate) struct Vouched {
    index: Arc<Index>,
    members: Arc<BTreeSet<String>>,
}

impl Vouched {
    pub(crate) fn new(index: Arc<Index>, members: impl IntoIterator<Item = String>) -> Self {
        Self {
            index,
            members: Arc::new(members.into_iter().collect()),
        }
    }

    /// The name of the router in Pod `pod`; `None` if no Pod has such a name.
    pub(crate) fn name(cluster: &str, pod: &str) -> Option<String> {
        let name = format!("{cluster}{SEPARATOR}{pod}");
        // Together they may be longer than the name of an object.
        (is_dns_subdomain(pod) && is_dns_subdomain(&name)).then_some(name)
    }

    /// Whether a member vouched for the router of this name.
    pub(crate) fn is_name(name: &str) -> bool {
        name.contains(SEPARATOR)
    }

    /// Whether the router of this name may go on: it is no member's, or of one that may vouch and is a member still.
    pub(crate) fn check_router(&self, name: &str) -> Result<(), Status> {
        name.split_once(SEPARATOR)
            .map_or(Ok(()), |(cluster, _)| self.check_member(cluster))
    }

    /// Whether the agent of `cluster` may vouch for routers.
    pub(crate) fn check_member(&self, cluster: &str) -> Result<(), Status> {
        if !self.members.contains(cluster) {
            return Err(Status::permission_denied(
                "boundToken.cluster: this member may not vouch for routers, who act in all members: name it in the hub's \
                 --routers-of, or enrol the router with the token of portolanctl router-token",
            ));
        }
        standing(&self.index, cluster).map(drop)
    }
}
