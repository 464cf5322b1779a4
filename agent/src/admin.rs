//! What `/configz` shows: flags, cluster, what the hub asked for, sizes of what is known. No token, no key.
//!
//! Caller: `app`.

use std::sync::Arc;

use parking_lot::RwLock;
use portolan_wire::v1 as wire;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::args::Config;
use crate::join::identity::AgentIdentity;
use crate::report::Subjects;
use crate::settings::Settings;

/// Readers of everything that is shown. Clones are the same.
#[derive(Clone)]
pub(crate) struct State {
    config: Config,
    subjects: Subjects,
    settings: watch::Receiver<Option<Arc<Settings>>>,
    // A lock: written once, read at each request of the page.
    joined: Arc<RwLock<Option<Joined>>>,
}

#[derive(Clone)]
struct Joined {
    cluster: String,
    hub: String,
}

impl State {
    pub(crate) fn new(config: Config, subjects: Subjects, settings: watch::Receiver<Option<Arc<Settings>>>) -> Self {
        Self {
            config,
            subjects,
            settings,
            joined: Arc::default(),
        }
    }

    pub(crate) fn joined(&self, identity: &AgentIdentity) {
        *self.joined.write() = Some(Joined {
            cluster: identity.cluster.clone(),
            hub: identity.origin.hub.clone(),
        });
    }

    pub(crate) fn dump(&self) -> Value {
        let joined = self.joined.read().clone();
        let coverage = self.subjects.coverage.complete().unwrap_or_default();
        let coverage: serde_json::Map<String, Value> = coverage
            .iter()
            .map(|(kind, fact)| (kind.to_string(), covered(fact)))
            .collect();
        let expires = self
            .subjects
            .tokens
            .borrow()
            .as_ref()
            .map(|minted| minted.expires_unix_seconds);
        json!({
            "flags": self.config,
            "cluster": joined.as_ref().map(|joined| &joined.cluster),
            "hub": joined.as_ref().map(|joined| &joined.hub),
            "settings": self.settings.borrow().as_deref().map(settings),
            "namespaces": self.subjects.namespaces.len(),
            "callers": self.subjects.callers.len(),
            "coverage": coverage,
            "routerToken": { "expiresUnixSeconds": expires },
            "allowed": self.subjects.allowed.borrow().as_ref().map(|allowed| json!({
                "serviceAccounts": allowed.service_accounts,
                "users": allowed.users,
            })),
        })
    }
}

fn covered(fact: &Arc<wire::CoverageFact>) -> Value {
    json!({ "labelled": fact.labelled, "total": fact.total, "complete": fact.complete })
}

fn settings(settings: &Settings) -> Value {
    json!({
        "labelPrefix": settings.labeling.keys.prefix(),
        "bucketAlgorithm": settings.labeling.bucketing.algorithm(),
        "buckets": settings.labeling.bucketing.buckets(),
        "labelledKinds": settings.kinds.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "callerSelectors": settings.callers.iter()
            .map(|caller| json!({ "namespace": caller.namespace, "selector": caller.selector }))
            .collect::<Vec<_>>(),
    })
}
