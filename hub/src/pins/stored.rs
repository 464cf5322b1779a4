//! The ConfigMaps that pins lie in, as one value that is changed by one write.
//!
//! All changes are made in the *head*, with a resourceVersion precondition. When it is full, what it has goes into *pages*, and the
//! head begins anew with the change: an entry of the head counts, whatever the pages say. So two hubs never decide on different
//! states, and a hub that dies in between has changed nothing. All are read by one list, which the API server answers as of one
//! moment; an earlier release knows the head alone, which is all there is as long as it has room.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use kube::{Client, Error as KubeError};
use portolan_crds::labels::LABEL_PINS;
use sha2::{Digest, Sha256};

/// Name of the head, in the hub's namespace. Those of pages begin with it.
pub(crate) const CONFIG_MAP_PINS: &str = "portolan-pins";
/// Most bytes of the head: half of what a ConfigMap takes.
const HEAD_MAX_BYTES: usize = 512 * 1024;
/// A member's page follows from its name. With the most that a member may publish each has room for sixty members, with what they
/// publish in fact for seven hundred.
const PAGES: u8 = 64;

/// Texts by member cluster.
pub(super) type Entries = BTreeMap<String, String>;

/// The ConfigMaps as they were at one moment.
#[derive(Debug, Default)]
pub(super) struct Stored {
    head: Option<ConfigMap>,
    pages: BTreeMap<String, ConfigMap>,
}

/// How a write went.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Written,
    /// Another hub was faster, or the head is ready for the change now: to be read and decided on anew.
    Again,
}

/// How many entries there are.
pub(crate) async fn count(client: &Client, namespace: &str) -> Result<usize, KubeError> {
    let stored = Stored::read(&Api::namespaced(client.clone(), namespace)).await?;
    Ok(stored.entries().len())
}

impl Stored {
    pub(super) async fn read(api: &Api<ConfigMap>) -> Result<Self, KubeError> {
        let maps = api.list(&ListParams::default().labels(LABEL_PINS)).await?.items;
        let mut stored = Self::default();
        for map in maps {
            match map.metadata.name.as_deref() {
                Some(CONFIG_MAP_PINS) => stored.head = Some(map),
                Some(name) if is_page(name) => {
                    stored.pages.insert(name.to_owned(), map);
                }
                _ => {}
            }
        }
        if stored.head.is_none() {
            // Of an earlier release, which gave it no label and made no pages.
            stored.head = api.get_opt(CONFIG_MAP_PINS).await?;
        }
        Ok(stored)
    }

    /// What counts of each member.
    pub(super) fn entries(&self) -> Entries {
        let pages = self
            .pages
            .values()
            .flat_map(|page| page.data.clone().unwrap_or_default());
        let mut entries: Entries = pages.collect();
        entries.extend(data(self.head.as_ref()));
        entries
    }

    /// Puts `changes` in the place of what was there. Of the members that are not `kept` what is at hand goes.
    pub(super) async fn write(
        &self,
        api: &Api<ConfigMap>,
        changes: Entries,
        kept: impl Fn(&str) -> bool,
    ) -> Result<Outcome, KubeError> {
        let mut head = data(self.head.as_ref());
        head.retain(|cluster, _| kept(cluster));
        let mut next = head.clone();
        next.extend(changes.clone());
        if bytes(&next) <= HEAD_MAX_BYTES {
            return put(api, self.head.as_ref(), CONFIG_MAP_PINS, next).await;
        }
        if !self.head.as_ref().is_some_and(is_labelled) {
            // Before there is any page: who reads by the label finds all.
            return match put(api, self.head.as_ref(), CONFIG_MAP_PINS, head).await? {
                Outcome::Written | Outcome::Again => Ok(Outcome::Again),
            };
        }
        let mut full: BTreeMap<String, Entries> = BTreeMap::new();
        for (cluster, text) in head {
            full.entry(page_of(&cluster)).or_default().insert(cluster, text);
        }
        // Each of them, also one that has it all: who writes an older head over it must find that it has changed.
        for (name, more) in full {
            let before = self.pages.get(&name);
            let mut page = data(before);
            page.retain(|cluster, _| kept(cluster));
            page.extend(more);
            if put(api, before, &name, page).await? == Outcome::Again {
                return Ok(Outcome::Again);
            }
        }
        put(api, self.head.as_ref(), CONFIG_MAP_PINS, changes).await
    }
}

/// Makes the object, or replaces it as it was read.
async fn put(
    api: &Api<ConfigMap>,
    before: Option<&ConfigMap>,
    name: &str,
    data: Entries,
) -> Result<Outcome, KubeError> {
    let mut map = before.cloned().unwrap_or_else(|| ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    });
    let labels = map.metadata.labels.get_or_insert_default();
    labels.insert(LABEL_PINS.to_owned(), String::new());
    map.data = Some(data);
    let params = PostParams::default();
    let written = match before {
        Some(_) => api.replace(name, &params, &map).await,
        None => api.create(&params, &map).await,
    };
    match written {
        Ok(_) => Ok(Outcome::Written),
        // Gone since: whoever deletes it has restored others maybe.
        Err(KubeError::Api(status)) if status.is_conflict() || status.is_already_exists() || status.is_not_found() => {
            Ok(Outcome::Again)
        }
        Err(error) => Err(error),
    }
}

fn data(map: Option<&ConfigMap>) -> Entries {
    map.and_then(|map| map.data.clone()).unwrap_or_default()
}

fn is_labelled(map: &ConfigMap) -> bool {
    let labels = map.metadata.labels.as_ref();
    labels.is_some_and(|labels| labels.contains_key(LABEL_PINS))
}

/// As etcd counts them, about.
pub(super) fn bytes(entries: &Entries) -> usize {
    entries.iter().map(|(cluster, text)| cluster.len() + text.len()).sum()
}

fn is_page(name: &str) -> bool {
    name.strip_prefix(CONFIG_MAP_PINS)
        .is_some_and(|rest| rest.starts_with('-'))
}

fn page_of(cluster: &str) -> String {
    let page = Sha256::digest(cluster)[0] % PAGES;
    format!("{CONFIG_MAP_PINS}-{page:02}")
}
