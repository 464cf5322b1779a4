//! The merged body: what stands around the items in each form, and what goes between them.

use std::collections::VecDeque;

use bytes::Bytes;

use super::joiner::Joiner;
use super::{ListFormat, MergedMeta, TypeMeta, protobuf};
use crate::columns::{Alignment, Columns, Row, json};

#[derive(Debug)]
pub(super) struct Writer {
    pub(super) format: ListFormat,
    pub(super) columns: Columns,
    joiner: Joiner,
    begun: bool,
    /// Something was written into the array.
    some: bool,
}

impl Writer {
    pub(super) fn new(format: ListFormat, cluster_column: bool, hide_objects: bool) -> Self {
        Self {
            format,
            columns: Columns::new(cluster_column, hide_objects),
            joiner: Joiner::default(),
            begun: false,
            some: false,
        }
    }

    /// JSON and Tables, once.
    pub(super) fn begin(&mut self) {
        if self.format == ListFormat::Protobuf || std::mem::replace(&mut self.begun, true) {
            return;
        }
        let mut begin = br#"{"items":["#.to_vec();
        if self.format == ListFormat::Table {
            begin = br#"{"columnDefinitions":"#.to_vec();
            self.columns.write(&mut begin);
            begin.extend_from_slice(br#","rows":["#);
        }
        self.joiner.put(begin.into());
    }

    /// JSON and Tables: before an item that is not next to the one before it in a member's own list.
    pub(super) fn separate(&mut self) {
        if self.format != ListFormat::Protobuf && std::mem::replace(&mut self.some, true) {
            self.joiner.gathered().extend_from_slice(b",");
        }
    }

    pub(super) fn put(&mut self, bytes: Bytes) {
        self.joiner.put(bytes);
    }

    /// Protobuf: in place of an item that is left out.
    pub(super) fn hollow(&mut self, raw: &[u8], header: usize) {
        protobuf::hollow(self.joiner.gathered(), raw, header);
    }

    pub(super) fn row(&mut self, raw: Bytes, row: &Row<'_>, alignment: &Alignment, cluster: &str) {
        self.separate();
        if self.columns.keeps_rows(alignment) {
            self.joiner.put(raw);
            return;
        }
        let mut out = Vec::with_capacity(raw.len() + 64);
        row.write(&self.columns, alignment, cluster, &mut out);
        self.joiner.put(out.into());
    }

    /// JSON and Tables.
    pub(super) fn finish(&mut self, kind: &TypeMeta, meta: &MergedMeta) {
        self.begin();
        let token = meta
            .continue_
            .as_ref()
            .map(|token| format!(r#","continue":{}"#, json(token)));
        let remaining = meta.remaining.map(|count| format!(r#","remainingItemCount":{count}"#));
        let shard = meta.shard_selector.as_ref();
        let shard = shard.map(|selector| format!(r#","shardInfo":{{"selector":{}}}"#, json(selector)));
        let end = format!(
            "],\"kind\":{},\"apiVersion\":{},\"metadata\":{{\"resourceVersion\":{}{}{}{}}}}}\n",
            json(&kind.kind),
            json(&kind.api_version),
            json(&meta.resource_version),
            token.unwrap_or_default(),
            remaining.unwrap_or_default(),
            shard.unwrap_or_default(),
        );
        self.joiner.put(end.into());
    }

    /// `rest`: bytes of all items. Whether lengths can say it.
    pub(super) fn begin_protobuf(&mut self, kind: &TypeMeta, meta: &MergedMeta, rest: Option<u64>) -> bool {
        let head = rest.and_then(|rest| protobuf::write_head(kind, meta, rest));
        head.is_some_and(|head| {
            self.joiner.put(head.into());
            true
        })
    }

    pub(super) fn finish_protobuf(&mut self) {
        self.joiner.put(Bytes::from_static(protobuf::TAIL));
    }

    pub(super) fn flush(&mut self, out: &mut VecDeque<Bytes>) {
        self.joiner.flush(out);
    }
}
