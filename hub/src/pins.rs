//! What identifies each member for good: its cluster UID, its token-signing keys and its agent's key, pinned at join.
//!
//! Every change is one write with a resourceVersion precondition of one ConfigMap (`stored`): "no two members share a UID or a key"
//! is then decided on all pins as they are, also with several hubs. Public keys are no secrets. Callers: `enroll` and agent sessions
//! pin, `app` loads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use kube::{Client, Error as KubeError};
use thiserror::Error;
use tokio::sync::Semaphore;

use self::stored::{Entries, Outcome, Stored};

use crate::facts::{Facts, MemberHistory, Pin};
use crate::index::Index;
use crate::jwks;

mod stored;

pub(crate) use stored::{CONFIG_MAP_PINS, count};

/// Longest UID of a cluster; Kubernetes' own have 36 characters.
const MAX_UID_BYTES: usize = 128;
/// Attempts against concurrent writers before giving up; each loss means that another hub's write went through.
const ATTEMPTS: usize = 5;
/// Between two writings of the members' versions and silence: a hub that starts anew may miss a restore that took back less than this.
const HISTORY_NOTED_EVERY: Duration = Duration::from_mins(1);
/// Most bytes of the pins whose history is noted at a time; in a large fleet members take turns.
const HISTORY_MAX_BYTES: usize = 256 * 1024;

#[derive(Debug, Error)]
pub(crate) enum PinError {
    /// The facts belong to another member, or another cluster has this name. For the caller to see.
    #[error("{0}")]
    Refused(String),
    /// The agent's key is not the pinned one. Says nothing about the member, and so nothing in its status.
    #[error("{0}")]
    Stranger(String),
    #[error("cannot read or write the ConfigMaps {CONFIG_MAP_PINS}")]
    Kube(#[from] KubeError),
    #[error("the ConfigMaps {CONFIG_MAP_PINS} are changed too often by others")]
    Contended,
}

/// The proof by which an agent shows that it is the member's, with the hashes of its keys.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AgentKey<'a> {
    /// A bootstrap token: this key and no other is the agent's from now on.
    Enrolled(&'a str),
    /// The certificate of a connection, which has this key.
    Presented(&'a str),
    /// The certificate that a renewal replaces, and the key of the new one.
    Renewed { presented: &'a str, issued: &'a str },
}

/// Reads and writes pins, and tells the index.
#[derive(Clone)]
pub(crate) struct Pins {
    api: Api<ConfigMap>,
    index: Arc<Index>,
    // A semaphore of one: the index gets the whole map, and must not get an older one after a newer one.
    turn: Arc<Semaphore>,
}

impl Pins {
    pub(crate) fn new(client: Client, namespace: &str, index: Arc<Index>) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            index,
            turn: Arc::new(Semaphore::new(1)),
        }
    }

    /// Reads all pins into the index. Done once, before anything is compiled.
    pub(crate) async fn load(&self) -> Result<(), KubeError> {
        let pins = decode(&Stored::read(&self.api).await?.entries());
        self.index.write(|facts| facts.set_pins(pins));
        Ok(())
    }

    /// Pins `cluster`, or finds that it is pinned just so, or refuses. The agent's keys follow from `key`. Of the signing keys
    /// that `wanted` publishes those stay that were proven before; new ones come by [`Pins::prove`].
    pub(crate) async fn pin(&self, cluster: &str, wanted: &Pin, key: AgentKey<'_>) -> Result<(), PinError> {
        let change = |before: Option<&Pin>| {
            let agent_keys = agent_keys(cluster, before, key)?;
            let same = before.filter(|before| before.cluster_uid == wanted.cluster_uid);
            Ok(Pin {
                agent_keys,
                signing_keys: same
                    .map(|before| still_published(before, &wanted.signing_keys))
                    .unwrap_or_default(),
                history: same.map(|before| before.history).unwrap_or_default(),
                ..wanted.clone()
            })
        };
        self.update(cluster, change).await
    }

    /// Moves the pin on to the key that is about to be certified.
    pub(crate) async fn renew(&self, cluster: &str, presented: &str, issued: &str) -> Result<(), PinError> {
        let change = |before: Option<&Pin>| {
            let agent_keys = agent_keys(cluster, before, AgentKey::Renewed { presented, issued })?;
            let before = before.cloned().ok_or_else(|| stranger(cluster))?;
            Ok(Pin { agent_keys, ..before })
        };
        self.update(cluster, change).await
    }

    /// Takes a signing key that the member has proven to sign by, beside those it has: of those that are published no longer
    /// some tokens may be about, so they go only for want of room.
    pub(crate) async fn prove(&self, cluster: &str, proven: &str, published: &[String]) -> Result<(), PinError> {
        let change = |before: Option<&Pin>| {
            let before = before.cloned().ok_or_else(|| stranger(cluster))?;
            let print = jwks::thumbprint_of(proven);
            if before
                .signing_keys
                .iter()
                .any(|known| jwks::thumbprint_of(known) == print)
            {
                return Ok(before);
            }
            let mut signing_keys = before.signing_keys.clone();
            signing_keys.push(proven.to_owned());
            if !jwks::have_room(&signing_keys) {
                signing_keys = still_published(&before, published);
                signing_keys.push(proven.to_owned());
            }
            signing_keys.sort();
            Ok(Pin { signing_keys, ..before })
        };
        self.update(cluster, change).await
    }

    /// Counts a restore of a member, whose etcd is at `version` again.
    pub(crate) async fn note_restore(&self, cluster: &str, version: u64) -> Result<(), PinError> {
        let change = |before: Option<&Pin>| {
            let before = before.cloned().ok_or_else(|| stranger(cluster))?;
            let restores = before.history.restores + 1;
            let history = MemberHistory {
                restores,
                version,
                ..before.history
            };
            Ok(Pin { history, ..before })
        };
        self.update(cluster, change).await
    }

    /// Writes down for ever which versions the members are at, and which are not heard: at a pace that no agent chooses.
    pub(crate) async fn keep_history(self) {
        let mut last = String::new();
        loop {
            tokio::time::sleep(HISTORY_NOTED_EVERY).await;
            match self.note_history(&last, Timestamp::now().as_second()).await {
                Ok(noted) => last = noted,
                Err(error) => {
                    tracing::warn!(%error, "cannot write down the members' versions, and which are not heard");
                }
            }
        }
    }

    /// Of the members behind `last` and then from the first one on; the last one that there was room for, in one write.
    async fn note_history(&self, last: &str, now_unix_seconds: i64) -> Result<String, PinError> {
        let turn = self.index.read(|facts| turn(&facts.pins, last));
        let change = |pins: &mut BTreeMap<String, Pin>| {
            let those = pins.iter_mut().filter(|(cluster, _)| turn.contains(cluster));
            self.index.read(|facts| note(facts, those, now_unix_seconds));
            Ok(())
        };
        self.rewrite(change).await?;
        Ok(turn.last().cloned().unwrap_or_default())
    }

    async fn update(
        &self,
        cluster: &str,
        change: impl Fn(Option<&Pin>) -> Result<Pin, PinError>,
    ) -> Result<(), PinError> {
        let change = |pins: &mut BTreeMap<String, Pin>| {
            let wanted = change(pins.get(cluster))?;
            check(cluster, &wanted, pins).map_err(PinError::Refused)?;
            pins.insert(cluster.to_owned(), wanted);
            Ok(())
        };
        if self.rewrite(change).await? {
            tracing::info!(cluster, "pinned");
        }
        Ok(())
    }

    /// Changes the pins, and tells the index; whether there was anything to write.
    async fn rewrite(
        &self,
        change: impl Fn(&mut BTreeMap<String, Pin>) -> Result<(), PinError>,
    ) -> Result<bool, PinError> {
        let _turn = self.turn.acquire().await.expect("never closed");
        for _ in 0..ATTEMPTS {
            let stored = Stored::read(&self.api).await?;
            let mut pins = decode(&stored.entries());
            self.index.read(|facts| prune(facts, &mut pins));
            let before = pins.clone();
            change(&mut pins)?;
            let changed = pins != before;
            if changed && self.store(&stored, &before, &pins).await? == Outcome::Again {
                continue;
            }
            self.index.write(|facts| facts.set_pins(pins));
            return Ok(changed);
        }
        Err(PinError::Contended)
    }

    /// Of a later release maybe, or mended by somebody: what cannot be read stays as it is until its member joins anew.
    async fn store(
        &self,
        stored: &Stored,
        before: &BTreeMap<String, Pin>,
        pins: &BTreeMap<String, Pin>,
    ) -> Result<Outcome, KubeError> {
        let changed = pins.iter().filter(|(cluster, pin)| before.get(*cluster) != Some(*pin));
        let changes = changed.map(|(cluster, pin)| (cluster.clone(), encode(pin))).collect();
        let known: Vec<_> = self.index.read(|facts| facts.members.keys().cloned().collect());
        let is_known = |cluster: &str| known.binary_search_by(|known| known.as_str().cmp(cluster)).is_ok();
        stored.write(&self.api, changes, is_known).await
    }
}

/// The members whose versions are noted next, in the order of their turns.
fn turn(pins: &BTreeMap<String, Pin>, last: &str) -> Vec<String> {
    let after = pins.iter().filter(|(cluster, _)| cluster.as_str() > last);
    let again = pins.iter().filter(|(cluster, _)| cluster.as_str() <= last);
    let mut room = HISTORY_MAX_BYTES;
    let fitting = after.chain(again).take_while(|(cluster, pin)| {
        let left = room.checked_sub(cluster.len() + encode(pin).len());
        room = left.unwrap_or_default();
        left.is_some()
    });
    fitting.map(|(cluster, _)| cluster.clone()).collect()
}

fn encode(pin: &Pin) -> String {
    serde_json::to_string(pin).expect("a pin is plain text")
}

fn decode(entries: &Entries) -> BTreeMap<String, Pin> {
    entries
        .iter()
        .filter_map(|(cluster, text)| match serde_json::from_str(text) {
            Ok(pin) => Some((cluster.clone(), pin)),
            Err(error) => {
                tracing::error!(cluster, %error, "unreadable pin: the member must join anew");
                None
            }
        })
        .collect()
}

/// Forgets members that are gone or were replaced by an object of the same name.
fn prune(facts: &Facts, pins: &mut BTreeMap<String, Pin>) {
    pins.retain(|cluster, pin| {
        facts
            .members
            .get(cluster)
            .is_some_and(|member| member.uid == pin.member_uid)
    });
}

/// The keys that are the agent's from now on, or why this one is not. The name in a certificate alone says too little: one
/// of an agent that was replaced names the same cluster.
fn agent_keys(cluster: &str, before: Option<&Pin>, key: AgentKey<'_>) -> Result<Vec<String>, PinError> {
    let (presented, issued) = match key {
        AgentKey::Enrolled(issued) => return Ok(vec![issued.to_owned()]),
        AgentKey::Presented(presented) => (presented, None),
        AgentKey::Renewed { presented, issued } => (presented, Some(issued)),
    };
    let known = &before.ok_or_else(|| stranger(cluster))?.agent_keys;
    if !known.is_empty() && !known.iter().any(|known| known == presented) {
        return Err(stranger(cluster));
    }
    match issued {
        Some(issued) if issued != presented => Ok(vec![issued.to_owned(), presented.to_owned()]),
        None if !known.is_empty() => Ok(known.clone()),
        _ => Ok(vec![presented.to_owned()]),
    }
}

/// The keys of a pin that are still among those published.
pub(crate) fn still_published(pin: &Pin, published: &[String]) -> Vec<String> {
    let published: Vec<_> = published.iter().filter_map(|key| jwks::thumbprint_of(key)).collect();
    let is_published = |key: &&String| jwks::thumbprint_of(key).is_some_and(|print| published.contains(&print));
    pin.signing_keys.iter().filter(is_published).cloned().collect()
}

fn stranger(cluster: &str) -> PinError {
    PinError::Stranger(format!(
        "the certificate's key is not the one that the agent of cluster {cluster} enrolled or renewed with last: \
         if this is its agent, run portolanctl join for {cluster} again"
    ))
}

/// Whether `wanted` may be pinned for `cluster`. The text names what is in the way and the fix.
fn check(cluster: &str, wanted: &Pin, pins: &BTreeMap<String, Pin>) -> Result<(), String> {
    if wanted.cluster_uid.len() > MAX_UID_BYTES {
        return Err("member.clusterUid: that is no UID of a namespace".to_owned());
    }
    if let Some(pin) = pins.get(cluster)
        && pin.cluster_uid != wanted.cluster_uid
    {
        return Err(format!(
            "member.clusterUid: MemberCluster {cluster} is pinned to the cluster with UID {}, this one has UID {}: \
             delete the MemberCluster and join again to replace the cluster",
            pin.cluster_uid, wanted.cluster_uid
        ));
    }
    let prints: Vec<_> = wanted
        .signing_keys
        .iter()
        .filter_map(|key| jwks::thumbprint_of(key))
        .collect();
    for (other, pin) in pins.iter().filter(|(other, _)| *other != cluster) {
        if pin.cluster_uid == wanted.cluster_uid {
            return Err(format!(
                "member.clusterUid: the cluster with UID {} is a member already, as {other}: \
                 a cluster joins once; delete MemberCluster {other} first, or use it",
                wanted.cluster_uid
            ));
        }
        let theirs = pin.signing_keys.iter().filter_map(|key| jwks::thumbprint_of(key));
        if theirs.into_iter().any(|print| prints.contains(&print)) {
            return Err(format!(
                "member {other} signs by the same token-signing key, so tokens would not tell which cluster they are \
                 from, and it is {other}'s: give the cluster a ServiceAccount signing key of its own"
            ));
        }
    }
    Ok(())
}

/// Moves on what the members' pins say of their versions and of their silence.
fn note<'a>(facts: &Facts, pins: impl Iterator<Item = (&'a String, &'a mut Pin)>, now_unix_seconds: i64) {
    for (cluster, pin) in pins {
        let agent = facts.agents.get(cluster).filter(|agent| !agent.owes_restore);
        let version = agent.map_or(0, |agent| agent.version_read);
        let history = &mut pin.history;
        history.version = history.version.max(version);
        history.silent_at = history.silent_at.max(facts.silent_at(cluster, now_unix_seconds));
    }
}

#[cfg(test)]
mod tests;
