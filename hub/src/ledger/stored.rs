//! One ConfigMap of the ledger as this hub left it, or found it. Caller: `store`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Error as KubeError;
use kube::api::{Api, PostParams};
use portolan_crds::ledger::{Record, RecordError, checksum_of, config_map};

/// A ConfigMap as it lies there.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) resource_version: String,
    pub(super) checksum: String,
    /// Term and view revision of the record; none: it cannot be read.
    pub(super) written: Option<(u64, u64)>,
}

impl Stored {
    /// To be written.
    pub(super) fn new(record: &Record, data: &BTreeMap<String, String>) -> Self {
        Self {
            resource_version: String::new(),
            checksum: checksum_of(data).unwrap_or_default().to_owned(),
            written: Some((record.term, record.view_revision)),
        }
    }

    pub(super) fn read(name: &str, map: &ConfigMap) -> (Self, Result<Record, RecordError>) {
        let empty = BTreeMap::new();
        let data = map.data.as_ref().unwrap_or(&empty);
        let record = Record::decode(name, data);
        let stored = Self {
            resource_version: map.metadata.resource_version.clone().unwrap_or_default(),
            checksum: checksum_of(data).unwrap_or_default().to_owned(),
            written: record.as_ref().ok().map(|record| (record.term, record.view_revision)),
        };
        (stored, record)
    }

    /// Whether it is `next` by no more than a last write of the hub that wrote it, or of one after that: it had begun when this
    /// hub read it, and nobody was told of it.
    pub(super) fn may_become(&self, next: &Self) -> bool {
        let is_later = self
            .written
            .zip(next.written)
            .is_some_and(|(this, next)| next.0 >= this.0 && next.1 >= this.1);
        self.checksum == next.checksum || is_later
    }
}

/// Creates or replaces; returns the new resourceVersion.
pub(super) async fn put(
    api: &Api<ConfigMap>,
    name: &str,
    data: BTreeMap<String, String>,
    resource_version: Option<String>,
) -> Result<String, KubeError> {
    let exists = resource_version.is_some();
    let map = config_map(name, data, resource_version);
    let written = if exists {
        api.replace(name, &PostParams::default(), &map).await?
    } else {
        api.create(&PostParams::default(), &map).await?
    };
    Ok(written.metadata.resource_version.unwrap_or_default())
}
