//! Routers that a cluster vouches for: Pods of its router ServiceAccount, known by the word of the member's agent alone, or of the
//! hub's own API server.
//!
//! A router is sent the views and tokens of all members, so that whoever may vouch for one may act in all of them as the
//! routers may. No member gets that by joining: the hub names those that do, none by default, and only for as long as
//! they are members. Callers: `enroll` (first and renewed certificates), router sessions.

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_crds::labels::HUB_CLUSTER;
use portolan_crds::names::is_dns_subdomain;
use tonic::Status;

use crate::index::Index;
use crate::standing::standing;

/// Between cluster and Pod in a router's name. Routers with a bootstrap token have names without it.
const SEPARATOR: char = '.';

/// The clusters that may vouch for routers. Clones share the index.
#[derive(Debug, Clone)]
pub(crate) struct Vouched {
    index: Arc<Index>,
    clusters: Arc<BTreeSet<String>>,
}

impl Vouched {
    pub(crate) fn new(index: Arc<Index>, clusters: impl IntoIterator<Item = String>) -> Self {
        Self {
            index,
            clusters: Arc::new(clusters.into_iter().collect()),
        }
    }

    /// The name of the router in Pod `pod`; `None` if no Pod has such a name.
    pub(crate) fn name(cluster: &str, pod: &str) -> Option<String> {
        let name = format!("{cluster}{SEPARATOR}{pod}");
        // Together they may be longer than the name of an object.
        (is_dns_subdomain(pod) && is_dns_subdomain(&name)).then_some(name)
    }

    /// Whether a cluster vouched for the router of this name.
    pub(crate) fn is_name(name: &str) -> bool {
        name.contains(SEPARATOR)
    }

    /// Whether the router of this name may go on: no cluster vouched for it, or one that may, and that is a member still.
    pub(crate) fn check_router(&self, name: &str) -> Result<(), Status> {
        name.split_once(SEPARATOR)
            .map_or(Ok(()), |(cluster, _)| self.check_member(cluster))
    }

    /// Whether `cluster` may vouch for routers: by its agent, or by the hub's own API server.
    pub(crate) fn check_member(&self, cluster: &str) -> Result<(), Status> {
        if !self.clusters.contains(cluster) {
            return Err(Status::permission_denied(
                "boundToken.cluster: this cluster may not vouch for routers, who act in all members: name it in the hub's \
                 --routers-of, or enrol the router with the token of portolanctl router-token",
            ));
        }
        if cluster == HUB_CLUSTER {
            return Ok(());
        }
        standing(&self.index, cluster).map(drop)
    }
}
