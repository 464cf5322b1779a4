//! Rotation of the hub's CA: takes the steps that a person wants, when they can be taken, and tells whom they wait for.
//!
//! What is wanted comes by a ConfigMap that the hub looks at every second (`portolan_crds::rotation`); how far it is stands in
//! the CA's Secret, so that a hub that restarts goes on. A certificate is issued by the new CA only when all that have one to
//! verify trust it, and the old CA is dropped only when nobody has a certificate of it: each agent and router that the hub
//! knows, or each that is connected if a person says so. Not here: people and operators' Pods, who cannot be asked. Caller:
//! `app`.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error as KubeError};
use portolan_crds::labels::CONFIG_MAP_CA_ROTATION;
use portolan_crds::rotation::CaRotation;
use portolan_runtime::Chain;
use portolan_wire::identity::Identity;
use thiserror::Error;

use crate::ca::{self, Authorities, CaError, Phase, Step, StepError, Waits};
use crate::index::Index;

/// Between two looks. One small read: nobody rotates so often that a watch would pay.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Between two looks of a replica that follows, at a Secret that changes once in years.
const FOLLOW_EVERY: Duration = Duration::from_secs(5);
/// As many are named that a step waits for; of more it is said how many.
const MAX_NAMED: usize = 100;

#[derive(Debug, Error)]
enum RotationError {
    #[error("cannot read or write ConfigMap {CONFIG_MAP_CA_ROTATION}")]
    Kube(#[from] KubeError),
    #[error(transparent)]
    Ca(#[from] CaError),
}

/// Takes the steps.
pub(crate) struct Rotation {
    client: Client,
    namespace: String,
    index: Arc<Index>,
    ca: Arc<Authorities>,
}

/// Takes over what another replica has done to the CA, until dropped: this one answers the API server by it.
pub(crate) async fn follow(client: Client, namespace: String, ca: Arc<Authorities>) {
    loop {
        tokio::time::sleep(FOLLOW_EVERY).await;
        if let Err(error) = catch_up(&client, &namespace, &ca).await {
            tracing::warn!(error = %Chain(&error), "it is not known whether the CA is another one");
        }
    }
}

/// Takes over what another replica has done to the CA.
pub(crate) async fn catch_up(client: &Client, namespace: &str, ca: &Authorities) -> Result<(), CaError> {
    match ca::changed(client, namespace, &ca.current()).await? {
        Some(roots) => ca.apply(&roots),
        None => Ok(()),
    }
}

impl Rotation {
    pub(crate) fn new(client: Client, namespace: &str, index: Arc<Index>, ca: Arc<Authorities>) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            index,
            ca,
        }
    }

    /// Looks until cancelled.
    pub(crate) async fn run(self) {
        let mut failing = false;
        loop {
            let outcome = self.look().await;
            if let Err(error) = &outcome
                && !failing
            {
                tracing::warn!(error = %Chain(error), "the rotation of the CA does not go on");
            }
            failing = outcome.is_err();
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Takes the step that is wanted, if one is, and writes how far it is if that is news.
    pub(crate) async fn look(&self) -> Result<(), impl std::error::Error + use<>> {
        let api = Api::<ConfigMap>::namespaced(self.client.clone(), &self.namespace);
        let present = api.get_opt(CONFIG_MAP_CA_ROTATION).await?;
        if present.is_none() && self.ca.current().phase() == Phase::One {
            return Ok::<_, RotationError>(());
        }
        // Of two hubs that overlap the other may have gone on.
        catch_up(&self.client, &self.namespace, &self.ca).await?;
        let data = present.as_ref().and_then(|map| map.data.clone()).unwrap_or_default();
        let before = CaRotation::from_data(&data);
        let refused = match &before.wanted {
            Some(wanted) => self.take(wanted, before.drop_absent).await?,
            None => before.refused,
        };
        let now = CaRotation {
            wanted: None,
            drop_absent: false,
            phase: self.ca.current().phase().word().to_owned(),
            waiting: self.waiting(false),
            refused,
        };
        let now = now.to_data();
        if now == data {
            return Ok(());
        }
        let metadata = present.as_ref().map_or_else(
            || ObjectMeta {
                name: Some(CONFIG_MAP_CA_ROTATION.to_owned()),
                ..ObjectMeta::default()
            },
            |present| present.metadata.clone(),
        );
        let map = ConfigMap {
            metadata,
            data: Some(now),
            ..ConfigMap::default()
        };
        let params = PostParams::default();
        let written = match present {
            Some(_) => api.replace(CONFIG_MAP_CA_ROTATION, &params, &map).await,
            None => api.create(&params, &map).await,
        };
        match written {
            // Somebody wants something else by now: the next look sees it.
            Err(KubeError::Api(status)) if status.code == 409 => Ok(()),
            outcome => Ok(outcome.map(drop)?),
        }
    }

    /// Takes a step; returns why it is not taken, for whoever wants it.
    async fn take(&self, wanted: &str, drop_absent: bool) -> Result<Option<String>, CaError> {
        let Some(step) = Step::from_word(wanted) else {
            return Ok(Some(format!("this hub knows no step {wanted:?} of a rotation")));
        };
        let phase = self.ca.current().phase();
        if matches!((step, phase), (Step::Issue, Phase::Both) | (Step::Finish, Phase::New)) {
            let waiting = self.waiting(drop_absent);
            if !waiting.is_empty() {
                return Ok(Some(format!("it waits for {}", waiting.join(", "))));
            }
        }
        let roots = match ca::advance(&self.client, &self.namespace, (phase, step)).await {
            Ok(roots) => roots,
            Err(StepError::Refused(why)) => return Ok(Some(why)),
            Err(StepError::Ca(error)) => return Err(error),
        };
        // In memory first: who reads what is published is served by it at once.
        self.ca.apply(&roots)?;
        let current = self.ca.current();
        ca::publish(&self.client, &self.namespace, current.bundle()).await?;
        if current.phase() != phase {
            tracing::info!(
                wanted,
                phase = current.phase().word(),
                "a step of the rotation of the CA"
            );
        }
        Ok(None)
    }

    /// Whom the next step waits for; `connected`: of those that are connected.
    fn waiting(&self, connected: bool) -> Vec<String> {
        let phase = self.ca.current().phase();
        if phase == Phase::One {
            return Vec::new();
        }
        let known: Vec<_> = self.index.read(|facts| {
            let joined = facts.members.keys().filter(|name| facts.joined(name).is_some());
            let agents = joined.map(|name| Identity::Agent(name.clone()));
            let routers = facts.routers.keys().map(|name| Identity::Router(name.clone()));
            agents.chain(routers).collect()
        });
        let mut lines: Vec<_> = known
            .iter()
            .filter_map(|identity| {
                let waits = self.ca.waits_for(identity)?;
                (waits != Waits::Away || !connected).then(|| line(identity, waits))
            })
            .collect();
        if lines.len() > MAX_NAMED {
            let more = lines.split_off(MAX_NAMED).len();
            lines.push(format!("{more} more"));
        }
        lines
    }
}

fn line(identity: &Identity, waits: Waits) -> String {
    let who = match identity {
        Identity::Agent(cluster) => format!("agent {cluster}"),
        Identity::Router(name) => format!("router {name}"),
        Identity::Person { user, .. } => user.clone(),
    };
    let why = match waits {
        Waits::Away => "is not connected",
        Waits::Deaf => "is of a release that cannot be told, upgrade it",
        Waits::Trust => "has not taken over yet which CAs to trust",
        Waits::Certificate => "has a certificate of the old CA",
    };
    format!("{who} ({why})")
}

#[cfg(test)]
mod tests;
