//! Table events: members send their columns in a stream's first event only, the client must see one set of columns once.
//!
//! The first leg that sends columns decides them; other legs' cells are put under the columns of the same name. People
//! watch Tables, so this may decode the event and write it anew.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::columns::{self, Alignment, Row, json};

/// The columns of the client's stream, and whether the client was told them.
#[derive(Debug)]
pub(super) struct SentColumns {
    columns: columns::Columns,
    sent: bool,
}

/// Under which of the client's columns one leg's cells go.
#[derive(Debug, Default)]
pub(super) struct LegColumns {
    /// Boxed: next to no watch is of Tables.
    alignment: Option<Box<Alignment>>,
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: Table<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Table<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    column_definitions: Option<&'a RawValue>,
    #[serde(borrow)]
    rows: Option<Vec<Row<'a>>>,
}

impl SentColumns {
    pub(super) fn new(cluster: bool) -> Self {
        Self {
            columns: columns::Columns::new(cluster, false),
            sent: false,
        }
    }

    /// From here on rows lose their objects.
    pub(super) fn hide_objects(&mut self) {
        self.columns.hide_objects();
    }

    /// Learns a leg's columns from an event that is not passed on.
    pub(super) fn read(&mut self, columns: &mut LegColumns, frame: &[u8]) {
        if let Ok(event) = serde_json::from_slice::<Event<'_>>(frame) {
            self.learn(columns, event.object.column_definitions);
        }
    }

    /// An event as the client is to see it, as `kind` if that is given. `None`: it is no Table event.
    pub(super) fn align(
        &mut self,
        columns: &mut LegColumns,
        cluster: &str,
        frame: &[u8],
        kind: Option<&'static str>,
    ) -> Option<Bytes> {
        let event: Event<'_> = serde_json::from_slice(frame).ok()?;
        let table = event.object;
        self.learn(columns, table.column_definitions)?;
        let (kind, object_kind) = (json(kind.unwrap_or(&event.kind)), json(&table.kind));
        let api_version = json(&table.api_version);
        let mut line =
            format!(r#"{{"type":{kind},"object":{{"kind":{object_kind},"apiVersion":{api_version}"#).into_bytes();
        if let Some(metadata) = table.metadata {
            line.extend_from_slice(br#","metadata":"#);
            line.extend_from_slice(metadata.get().as_bytes());
        }
        line.extend_from_slice(br#","columnDefinitions":"#);
        if !self.sent && self.columns.names().next().is_some() {
            self.sent = true;
            self.columns.write(&mut line);
        } else {
            line.extend_from_slice(b"null");
        }
        line.extend_from_slice(br#","rows":["#);
        for (index, row) in table.rows.iter().flatten().enumerate() {
            if index > 0 {
                line.push(b',');
            }
            let untold = Alignment::untold(row.cells.len());
            let alignment = columns.alignment.as_deref().unwrap_or(&untold);
            row.write(&self.columns, alignment, cluster, &mut line);
        }
        line.extend_from_slice(b"]}}\n");
        Some(line.into())
    }

    fn learn(&mut self, columns: &mut LegColumns, definitions: Option<&RawValue>) -> Option<()> {
        let Some(definitions) = definitions else {
            return Some(());
        };
        let alignment = self.columns.align(definitions.get().as_bytes())?;
        // Of an empty set nothing follows.
        if self.columns.names().next().is_some() && !alignment.is_empty() {
            self.columns.close();
            columns.alignment = Some(Box::new(alignment));
        }
        Some(())
    }

    /// The cells of an object whose content nobody has any more.
    pub(super) fn stub(&self, name: &str) -> serde_json::Value {
        let cell = |column: &str| match column {
            "Name" => serde_json::Value::from(name),
            _ => serde_json::Value::Null,
        };
        let cluster = self.columns.with_cluster().then_some(serde_json::Value::Null);
        self.columns.names().map(cell).chain(cluster).collect()
    }
}

impl LegColumns {
    /// Forgets the leg's columns: a stream that begins anew tells them again.
    pub(super) fn reset(&mut self) {
        self.alignment = None;
    }
}
