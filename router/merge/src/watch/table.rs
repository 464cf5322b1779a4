//! Table events: members send their columns in a stream's first event only, the client must see one set of columns once.
//!
//! The first leg that sends columns decides them; other legs' cells are put under the columns of the same name. People
//! watch Tables, so this may decode the event and write it anew.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The name of the column that tells the member.
const CLUSTER: &str = "Cluster";
const CLUSTER_COLUMN: &str = r#"{"name":"Cluster","type":"string","format":"","description":"The member cluster that holds the object.","priority":1}"#;

/// What the client knows of the columns.
#[derive(Debug, Default)]
pub(super) struct Columns {
    /// The first leg's definitions as they came, without ours.
    defined: Vec<Column>,
    sent: bool,
    cluster: bool,
}

#[derive(Debug)]
struct Column {
    name: Box<str>,
    raw: Box<RawValue>,
}

/// Where a leg's cells go: for each column of the client, which cell.
#[derive(Debug, Default)]
pub(super) struct Placing {
    cells: Option<Box<[Option<u16>]>>,
}

#[derive(Serialize, Deserialize)]
struct Event<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: Table<'a>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Table<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    metadata: Option<&'a RawValue>,
    #[serde(borrow, default)]
    column_definitions: Option<Vec<Cow<'a, RawValue>>>,
    #[serde(borrow, default)]
    rows: Option<Vec<Row<'a>>>,
}

#[derive(Serialize, Deserialize)]
struct Row<'a> {
    #[serde(borrow, default)]
    cells: Option<Vec<Cow<'a, RawValue>>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    conditions: Option<&'a RawValue>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    object: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
}

impl Columns {
    pub(super) fn new(cluster: bool) -> Self {
        Self {
            cluster,
            ..Self::default()
        }
    }

    /// Learns a leg's columns from an event that is not passed on.
    pub(super) fn read(&mut self, placing: &mut Placing, frame: &[u8]) {
        if let Ok(event) = serde_json::from_slice::<Event<'_>>(frame)
            && let Some(definitions) = event.object.column_definitions.filter(|all| !all.is_empty())
        {
            self.learn(placing, &definitions);
        }
    }

    /// An event as the client is to see it, as `kind` if that is given. `None`: it is no Table event.
    pub(super) fn align(
        &mut self,
        placing: &mut Placing,
        cluster: &str,
        frame: &[u8],
        kind: Option<&'static str>,
    ) -> Option<Bytes> {
        let mut event: Event<'_> = serde_json::from_slice(frame).ok()?;
        if let Some(kind) = kind {
            event.kind = kind.into();
        }
        if let Some(definitions) = event.object.column_definitions.take().filter(|all| !all.is_empty()) {
            self.learn(placing, &definitions)?;
        }
        let cluster = self.cluster.then(|| raw(&cluster.into()));
        for row in event.object.rows.iter_mut().flatten() {
            let mut cells = placing.place(row.cells.take().unwrap_or_default());
            cells.extend(cluster.clone().map(Cow::Owned));
            row.cells = Some(cells);
        }
        if !self.sent && !self.defined.is_empty() {
            self.sent = true;
            event.object.column_definitions = Some(self.definitions());
        }
        let mut line = serde_json::to_vec(&event).ok()?;
        line.push(b'\n');
        Some(line.into())
    }

    fn learn(&mut self, placing: &mut Placing, definitions: &[Cow<'_, RawValue>]) -> Option<()> {
        let names = definitions
            .iter()
            .map(|definition| Some(serde_json::from_str::<Named<'_>>(definition.get()).ok()?.name))
            .collect::<Option<Vec<_>>>()?;
        if self.defined.is_empty() {
            let all = names
                .iter()
                .zip(definitions)
                .filter(|(name, _)| **name != CLUSTER || !self.cluster);
            self.defined = all
                .map(|(name, raw)| Column {
                    name: (**name).into(),
                    raw: raw.clone().into_owned(),
                })
                .collect();
        }
        let cell = |column: &Column| names.iter().position(|name| **name == *column.name);
        placing.cells = Some(
            self.defined
                .iter()
                .map(|column| cell(column).and_then(|index| u16::try_from(index).ok()))
                .collect(),
        );
        Some(())
    }

    fn definitions<'a>(&self) -> Vec<Cow<'a, RawValue>> {
        let ours = self
            .cluster
            .then(|| RawValue::from_string(CLUSTER_COLUMN.to_owned()).ok());
        let defined = self.defined.iter().map(|column| column.raw.clone());
        defined.chain(ours.flatten()).map(Cow::Owned).collect()
    }

    /// The cells of an object whose content nobody has any more.
    pub(super) fn stub(&self, name: &str) -> serde_json::Value {
        let cell = |column: &Column| match &*column.name {
            "Name" => serde_json::Value::from(name),
            _ => serde_json::Value::Null,
        };
        let mut cells: Vec<_> = self.defined.iter().map(cell).collect();
        if self.cluster {
            cells.push(serde_json::Value::Null);
        }
        cells.into()
    }
}

impl Placing {
    /// A stream begins anew: it tells its columns again.
    pub(super) fn reset(&mut self) {
        self.cells = None;
    }

    fn place<'a>(&self, cells: Vec<Cow<'a, RawValue>>) -> Vec<Cow<'a, RawValue>> {
        let Some(places) = &self.cells else {
            return cells;
        };
        let empty = || Cow::Owned(raw(&serde_json::Value::Null));
        let cell = |place: &Option<u16>| place.and_then(|index| cells.get(usize::from(index)).cloned());
        places.iter().map(|place| cell(place).unwrap_or_else(empty)).collect()
    }
}

fn raw(value: &serde_json::Value) -> Box<RawValue> {
    RawValue::from_string(value.to_string()).unwrap_or_default()
}
