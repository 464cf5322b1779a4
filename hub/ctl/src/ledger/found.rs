//! What lies of the ledger in the hub's namespace, and what of it is missing or damaged. Called by `show` and `adopt`.

use std::collections::BTreeMap;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, ListParams};
use portolan_crds::labels::{CONFIG_MAP_LEDGER, LABEL_LEDGER, SYSTEM_NAMESPACE};
use portolan_crds::ledger::{Chunk, Content, Phase, Record, Root};

/// ConfigMaps of one page.
const PAGE: u32 = 100;

/// What lies in the hub's namespace.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Records by the name of their ConfigMap.
    pub(crate) records: BTreeMap<String, Record>,
    /// Names of what is missing or cannot be read, and why.
    pub(crate) damaged: BTreeMap<String, String>,
    /// resourceVersions of all that is there, by name.
    pub(crate) versions: BTreeMap<String, String>,
}

impl Found {
    pub(crate) async fn read(hub: &Client) -> anyhow::Result<Self> {
        let maps = Api::<ConfigMap>::namespaced(hub.clone(), SYSTEM_NAMESPACE);
        let mut found = Self::default();
        let mut params = ListParams::default().labels(LABEL_LEDGER).limit(PAGE);
        loop {
            let page = maps
                .list(&params)
                .await
                .context("cannot list the ledger's ConfigMaps")?;
            page.items.into_iter().for_each(|map| found.add(map));
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                break;
            }
        }
        found.look_for_missing();
        Ok(found)
    }

    fn add(&mut self, map: ConfigMap) {
        let name = map.metadata.name.unwrap_or_default();
        self.versions
            .insert(name.clone(), map.metadata.resource_version.unwrap_or_default());
        match Record::decode(&name, &map.data.unwrap_or_default()) {
            Ok(record) => drop(self.records.insert(name, record)),
            Err(error) => drop(self.damaged.insert(name, error.to_string())),
        }
    }

    /// What the root does not list does not count, and what it lists must be there.
    fn look_for_missing(&mut self) {
        let Some((_, root)) = self.root() else {
            if !self.versions.is_empty() {
                let missing = self.damaged.entry(CONFIG_MAP_LEDGER.to_owned());
                missing.or_insert_with(|| "is missing".to_owned());
            }
            return;
        };
        let listed = root.objects();
        let missing: Vec<_> = listed
            .iter()
            .filter(|name| !self.versions.contains_key(*name))
            .cloned()
            .collect();
        let is_listed = |name: &String| name == CONFIG_MAP_LEDGER || listed.contains(name);
        self.records.retain(|name, _| is_listed(name));
        self.damaged.retain(|name, _| is_listed(name));
        self.damaged
            .extend(missing.into_iter().map(|name| (name, "is missing".to_owned())));
        let contents = self.records.values().map(|record| &record.content);
        if let Some(reason) = self.root().and_then(|(_, root)| root.check(contents).err()) {
            self.damaged.insert(CONFIG_MAP_LEDGER.to_owned(), reason);
        }
    }

    pub(crate) fn root(&self) -> Option<(&Record, &Root)> {
        let record = self.records.get(CONFIG_MAP_LEDGER)?;
        match &record.content {
            Content::Root(root) => Some((record, root)),
            _ => None,
        }
    }

    /// Whether a hub can start from it.
    pub(crate) fn is_whole(&self) -> bool {
        self.damaged.is_empty() && self.root().is_some_and(|(_, root)| root.phase != Phase::Begun)
    }

    pub(crate) fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.records.values().filter_map(|record| match &record.content {
            Content::Chunk(chunk) => Some(chunk),
            _ => None,
        })
    }

    /// The highest view revision that any record tells.
    pub(crate) fn view_revision(&self) -> u64 {
        let revisions = self.records.values().map(|record| record.view_revision);
        revisions.max().unwrap_or_default()
    }

    /// The highest term that any record tells.
    pub(crate) fn term(&self) -> u64 {
        let terms = self.records.values().map(|record| record.term);
        terms.max().unwrap_or_default()
    }
}
