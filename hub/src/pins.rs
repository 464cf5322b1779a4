//! What identifies each member for good: its cluster UID, its token-signing keys and its agent's key, pinned at join.
//!
//! One ConfigMap for all members, written with a resourceVersion precondition: "no two members share a UID or a key" is
//! then one atomic write, also with several hubs. Public keys are no secrets. Callers: `enroll` and agent sessions pin,
//! `app` loads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error as KubeError};
use thiserror::Error;
use tokio::sync::Semaphore;

use crate::facts::{Facts, MemberHistory, Pin};
use crate::index::Index;
use crate::jwks;

/// Name of the ConfigMap, in the hub's namespace.
pub(crate) const CONFIG_MAP_PINS: &str = "portolan-pins";
/// Longest UID of a cluster; Kubernetes' own have 36 characters.
const MAX_UID_BYTES: usize = 128;
/// Attempts against concurrent writers before giving up; each loss means that another hub's write went through.
const ATTEMPTS: usize = 5;
/// Between two writings of the members' versions: a hub that starts anew may miss a restore that took back less than this.
const VERSIONS_NOTED_EVERY: Duration = Duration::from_mins(1);

#[derive(Debug, Error)]
pub(crate) enum PinError {
    /// The facts belong to another member, or another cluster has this name. For the caller to see.
    #[error("{0}")]
    Refused(String),
    /// The agent's key is not the pinned one. Says nothing about the member, and so nothing in its status.
    #[error("{0}")]
    Stranger(String),
    #[error("cannot read or write ConfigMap {CONFIG_MAP_PINS}")]
    Kube(#[from] KubeError),
    #[error("ConfigMap {CONFIG_MAP_PINS} is changed too often by others")]
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
        let pins = self
            .api
            .get_opt(CONFIG_MAP_PINS)
            .await?
            .map(|map| decode(&map))
            .unwrap_or_default();
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
            let history = MemberHistory { restores, version };
            Ok(Pin { history, ..before })
        };
        self.update(cluster, change).await
    }

    /// Writes down for ever which versions the members are at: all in one write, at a pace that no agent chooses.
    pub(crate) async fn keep_versions(self) {
        loop {
            tokio::time::sleep(VERSIONS_NOTED_EVERY).await;
            if let Err(error) = self.note_versions().await {
                tracing::warn!(%error, "cannot write down the members' versions");
            }
        }
    }

    async fn note_versions(&self) -> Result<(), PinError> {
        let change = |pins: &mut BTreeMap<String, Pin>| {
            self.index.read(|facts| {
                for (cluster, pin) in pins {
                    let agent = facts.agents.get(cluster).filter(|agent| !agent.owes_restore);
                    let version = agent.map_or(0, |agent| agent.version_read);
                    pin.history.version = pin.history.version.max(version);
                }
            });
            Ok(())
        };
        self.rewrite(change).await.map(drop)
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
            let map = self.api.get_opt(CONFIG_MAP_PINS).await?;
            let mut pins = map.as_ref().map(decode).unwrap_or_default();
            self.index.read(|facts| prune(facts, &mut pins));
            let before = pins.clone();
            change(&mut pins)?;
            let changed = pins != before;
            if changed {
                match self.store(map, &pins).await {
                    Ok(()) => {}
                    Err(KubeError::Api(status)) if status.is_conflict() || status.is_already_exists() => continue,
                    Err(error) => return Err(error.into()),
                }
            }
            self.index.write(|facts| facts.set_pins(pins));
            return Ok(changed);
        }
        Err(PinError::Contended)
    }

    async fn store(&self, before: Option<ConfigMap>, pins: &BTreeMap<String, Pin>) -> Result<(), KubeError> {
        // Of a later release maybe, or mended by somebody: what cannot be read stays as it is until its member joins anew.
        let mut data = before.as_ref().map(unreadable).unwrap_or_default();
        self.index
            .read(|facts| data.retain(|cluster, _| facts.members.contains_key(cluster)));
        data.extend(pins.iter().map(|(cluster, pin)| {
            let text = serde_json::to_string(pin).expect("a pin is plain text");
            (cluster.clone(), text)
        }));
        let data = Some(data);
        if let Some(before) = before {
            let map = ConfigMap { data, ..before };
            self.api.replace(CONFIG_MAP_PINS, &PostParams::default(), &map).await?;
        } else {
            let metadata = ObjectMeta {
                name: Some(CONFIG_MAP_PINS.to_owned()),
                ..ObjectMeta::default()
            };
            let map = ConfigMap {
                metadata,
                data,
                ..ConfigMap::default()
            };
            self.api.create(&PostParams::default(), &map).await?;
        }
        Ok(())
    }
}

fn decode(map: &ConfigMap) -> BTreeMap<String, Pin> {
    let entries = map.data.iter().flatten();
    entries
        .filter_map(|(cluster, text)| match serde_json::from_str(text) {
            Ok(pin) => Some((cluster.clone(), pin)),
            Err(error) => {
                tracing::error!(cluster, %error, "unreadable pin: the member must join anew");
                None
            }
        })
        .collect()
}

fn unreadable(map: &ConfigMap) -> BTreeMap<String, String> {
    let mut entries = map.data.clone().unwrap_or_default();
    entries.retain(|_, text| serde_json::from_str::<Pin>(text).is_err());
    entries
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pin(cluster_uid: &str, key: &str) -> Pin {
        Pin {
            member_uid: format!("object-of-{cluster_uid}"),
            cluster_uid: cluster_uid.to_owned(),
            signing_keys: vec![format!(r#"{{"kty":"RSA","n":"{key}","e":"AQAB"}}"#)],
            agent_keys: Vec::new(),
            history: MemberHistory::default(),
        }
    }

    /// Keys before, what is shown, and keys after.
    type Case<'a> = (&'a [&'a str], AgentKey<'a>, Option<&'a [&'a str]>);

    #[test]
    fn an_agent_has_the_key_that_was_certified_last_and_the_one_before() {
        let with = |keys: &[&str]| Pin {
            agent_keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            ..pin("uid", "k")
        };
        let renewed = AgentKey::Renewed {
            presented: "a",
            issued: "b",
        };
        let cases: [Case<'_>; 9] = [
            (&[], AgentKey::Presented("a"), Some(&["a"])),
            (&["a"], AgentKey::Presented("a"), Some(&["a"])),
            (&["b", "a"], AgentKey::Presented("a"), Some(&["b", "a"])),
            (&["b", "c"], AgentKey::Presented("a"), None),
            (&["b", "a"], AgentKey::Enrolled("c"), Some(&["c"])),
            (&[], renewed, Some(&["b", "a"])),
            (&["a"], renewed, Some(&["b", "a"])),
            (&["c", "a"], renewed, Some(&["b", "a"])),
            (&["b"], renewed, None),
        ];
        for (before, key, after) in cases {
            let keys = agent_keys("east", Some(&with(before)), key);
            assert_eq!(
                keys.ok(),
                after.map(|after| with(after).agent_keys),
                "{before:?} {key:?}"
            );
        }
        assert!(agent_keys("east", None, AgentKey::Presented("a")).is_err());
    }

    /// A ConfigMap that is stored at once and answers its first write late.
    fn slow_first_answer() -> Client {
        let state = Arc::new(parking_lot::Mutex::new((0, None::<serde_json::Value>)));
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let state = state.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
                let (answer, late) = {
                    let mut state = state.lock();
                    if head.method != http::Method::GET {
                        state.0 += 1;
                        let mut map: serde_json::Value = serde_json::from_slice(&body).unwrap();
                        map["metadata"]["resourceVersion"] = state.0.to_string().into();
                        state.1 = Some(map);
                    }
                    (state.1.clone(), head.method != http::Method::GET && state.0 == 1)
                };
                if late {
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                }
                let code = if answer.is_some() { 200 } else { 404 };
                let status =
                    serde_json::json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"});
                let body = kube::client::Body::from(answer.unwrap_or(status).to_string().into_bytes());
                Ok::<_, std::convert::Infallible>(http::Response::builder().status(code).body(body).unwrap())
            }
        });
        Client::new(service, "default")
    }

    fn index_of(members: &[(&str, &Pin)]) -> Arc<Index> {
        let index = Arc::<Index>::default();
        for (cluster, pin) in members {
            let kind = kube::api::ApiResource::erase::<portolan_crds::MemberCluster>(&());
            let spec = serde_json::json!({"spec": {"accept": true}});
            let mut object = kube::api::DynamicObject::new(cluster, &kind).data(spec);
            object.metadata.uid = Some(pin.member_uid.clone());
            index.write(|facts| facts.apply_member(&object));
        }
        index
    }

    #[tokio::test]
    async fn a_pin_that_cannot_be_read_is_not_lost_by_another() {
        const PATH: &str = "/api/v1/namespaces/system/configmaps/portolan-pins";
        let objects = crate::testing::Objects::default();
        let data = serde_json::json!({"west": "of a later release", "gone": "of nobody"});
        let map = serde_json::json!({"metadata": {"name": CONFIG_MAP_PINS, "resourceVersion": "1"}, "data": data});
        objects.lock().insert(PATH.to_owned(), map);
        let (east, west) = (pin("uid-e", "ke"), pin("uid-w", "kw"));
        let index = index_of(&[("east", &east), ("west", &west)]);
        let pins = Pins::new(crate::testing::scripted_api(objects.clone()), "system", index);
        pins.pin("east", &east, AgentKey::Enrolled("e")).await.unwrap();
        let data = objects.lock()[PATH]["data"].clone();
        assert_eq!(data["west"], "of a later release");
        assert_eq!(data["gone"], serde_json::Value::Null);
        assert!(data["east"].as_str().unwrap().contains("uid-e"));
        let long = pin(&"u".repeat(1000), "k");
        assert!(pins.pin("north", &long, AgentKey::Enrolled("n")).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_overwrites_no_later_pin() {
        let (east, west) = (pin("uid-e", "ke"), pin("uid-w", "kw"));
        let index = index_of(&[("east", &east), ("west", &west)]);
        let pins = Pins::new(slow_first_answer(), "system", index.clone());
        let later = async {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            pins.pin("west", &west, AgentKey::Enrolled("w")).await
        };
        let (first, second) = tokio::join!(pins.pin("east", &east, AgentKey::Enrolled("e")), later);
        assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
        let known: Vec<_> = index.read(|facts| facts.pins.keys().cloned().collect());
        assert_eq!(known, ["east", "west"]);
    }

    #[test]
    fn a_cluster_joins_once_and_a_name_stays_with_its_cluster() {
        let pins = BTreeMap::from([
            ("east".to_owned(), pin("uid-e", "ke")),
            ("west".to_owned(), pin("uid-w", "kw")),
        ]);
        assert_eq!(check("east", &pin("uid-e", "ke"), &pins), Ok(()));
        assert_eq!(
            check("east", &pin("uid-e", "rotated"), &pins),
            Ok(()),
            "a member may rotate its keys"
        );
        assert_eq!(check("north", &pin("uid-n", "kn"), &pins), Ok(()));
        let cases = [
            ("east", pin("uid-x", "kx"), "pinned to the cluster with UID uid-e"),
            ("north", pin("uid-w", "kn"), "as west"),
            ("north", pin("uid-n", "kw"), "member west signs by the same"),
            ("east", pin("uid-e", "kw"), "member west signs by the same"),
        ];
        for (cluster, wanted, text) in cases {
            let refusal = check(cluster, &wanted, &pins).unwrap_err();
            assert!(refusal.contains(text), "{refusal}");
        }
    }
}
