//! What `/configz` shows: flags, cluster, what the hub asked for, sizes of what is known. No token, no key.
//!
//! Caller: `app`.

use std::sync::Arc;

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
    pub(crate) config: Config,
    pub(crate) subjects: Subjects,
    pub(crate) settings: watch::Receiver<Option<Arc<Settings>>>,
    pub(crate) identity: watch::Receiver<Option<Arc<AgentIdentity>>>,
}

impl State {
    pub(crate) fn dump(&self) -> Value {
        let identity = self.identity.borrow().clone();
        let coverage = self.subjects.coverage.complete().unwrap_or_default();
        let coverage: serde_json::Map<String, Value> = coverage
            .iter()
            .map(|(kind, fact)| (kind.to_string(), covered(fact)))
            .collect();
        let tokens = self.subjects.tokens.borrow().clone();
        let expires = tokens
            .iter()
            .map(|(router, minted)| (router.name.clone(), json!(minted.expires_unix_seconds)));
        let expires: serde_json::Map<String, Value> = expires.collect();
        json!({
            "flags": self.config,
            "cluster": identity.as_ref().map(|identity| &identity.cluster),
            "hub": identity.as_ref().map(|identity| &identity.origin.hub),
            "settings": self.settings.borrow().as_deref().map(settings),
            "namespaces": self.subjects.namespaces.len(),
            "callers": self.subjects.callers.len(),
            "coverage": coverage,
            "routerTokens": { "expireUnixSeconds": expires },
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
        "labelPrefix": settings.labelling.keys.prefix(),
        "bucketAlgorithm": settings.labelling.bucketing.algorithm(),
        "buckets": settings.labelling.bucketing.buckets(),
        "labelledKinds": settings.kinds.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "callerSelectors": settings.callers.iter()
            .map(|caller| json!({ "namespace": caller.namespace, "selector": caller.selector }))
            .collect::<Vec<_>>(),
    })
}
