//! Columns of Tables, aligned by name: members of different versions have different ones.
//!
//! The first member's columns come first, what later ones have beyond that is added behind them until the client has been
//! told, CLUSTER last. A row's cells follow their columns; a cell that a member does not have is `<none>`, as kubectl
//! prints what is not set. `list` uses it for merged Tables and `watch` for rows of events.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// What stands in a column that the row's member does not know.
const NONE: &str = r#""<none>""#;
/// Shown with `-o wide` only.
const CLUSTER: &str = r#"{"name":"Cluster","type":"string","format":"","description":"The member cluster that holds the object.","priority":1}"#;

/// The columns of a merged Table.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    columns: Vec<Column>,
    cluster: bool,
    hide_objects: bool,
    closed: bool,
}

#[derive(Debug)]
struct Column {
    name: String,
    definition: Box<RawValue>,
}

/// Where each merged column is in one member's rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Alignment {
    cells: Vec<Option<usize>>,
    same: bool,
}

#[derive(Deserialize)]
struct ColumnName {
    #[serde(default)]
    name: String,
}

impl Alignment {
    /// The alignment of a member that has told no columns: its cells as they stand.
    pub(crate) fn untold(cells: usize) -> Self {
        Self {
            cells: (0..cells).map(Some).collect(),
            same: true,
        }
    }

    /// Whether the member has none of the columns.
    pub(crate) fn is_empty(&self) -> bool {
        self.cells.iter().all(Option::is_none)
    }
}

impl Columns {
    /// No columns yet. `cluster`: with a CLUSTER column. `hide_objects`: rows lose their objects.
    pub(crate) fn new(cluster: bool, hide_objects: bool) -> Self {
        Self {
            columns: Vec::new(),
            cluster,
            hide_objects,
            closed: false,
        }
    }

    /// Rows lose their objects from here on.
    pub(crate) fn hide_objects(&mut self) {
        self.hide_objects = true;
    }

    /// The client is told the columns so far: what later members have beyond them is left out.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// Names of the members' own columns, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|column| &*column.name)
    }

    /// Whether the column CLUSTER follows the members' own.
    pub(crate) fn with_cluster(&self) -> bool {
        self.cluster
    }

    /// Aligns a member's `columnDefinitions` (JSON array or `null`) and adds those that are new. Of columns of one name the
    /// first is the first's. `None`: they cannot be read.
    pub(crate) fn align(&mut self, definitions: &[u8]) -> Option<Alignment> {
        let theirs: Option<Vec<Box<RawValue>>> = serde_json::from_slice(definitions).ok()?;
        let theirs = theirs.unwrap_or_default();
        let count = theirs.len();
        let mut cells = vec![None; self.columns.len()];
        for (index, definition) in theirs.into_iter().enumerate() {
            let ColumnName { name } = serde_json::from_str(definition.get()).ok()?;
            let free = |(at, column): (usize, &Column)| column.name == name && cells.get(at) == Some(&None);
            if let Some(at) = self.columns.iter().enumerate().position(free) {
                cells[at] = Some(index);
            } else if !self.closed {
                self.columns.push(Column { name, definition });
                cells.push(Some(index));
            }
        }
        let same = cells.len() == count && cells.iter().enumerate().all(|(at, cell)| *cell == Some(at));
        Some(Alignment { cells, same })
    }

    /// The merged `columnDefinitions`.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let cluster = self.cluster.then_some(CLUSTER);
        join(
            out,
            self.columns.iter().map(|column| column.definition.get()).chain(cluster),
        );
    }

    /// A row's cells in merged order. `cluster`: whose row it is.
    pub(crate) fn write_cells(&self, alignment: &Alignment, cells: &[&RawValue], cluster: &str, out: &mut Vec<u8>) {
        // Columns that were added by later members are not in an earlier alignment, and cells may come before any columns.
        let count = self.columns.len().max(alignment.cells.len());
        let merged = (0..count).map(|at| {
            let cell = alignment.cells.get(at).copied().flatten().and_then(|at| cells.get(at));
            cell.map_or(NONE, |cell| cell.get())
        });
        let cluster = self.cluster.then(|| json(cluster));
        join(out, merged.chain(cluster.as_deref()));
    }

    /// Whether rows of this member may stay as they are.
    pub(crate) fn keeps_rows(&self, alignment: &Alignment) -> bool {
        alignment.same && alignment.cells.len() == self.columns.len() && !self.cluster && !self.hide_objects
    }
}

fn join<'a>(out: &mut Vec<u8>, values: impl Iterator<Item = &'a str>) {
    out.push(b'[');
    for (index, value) in values.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(value.as_bytes());
    }
    out.push(b']');
}

/// JSON of something that cannot fail to be JSON.
pub(crate) fn json(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// A Table's row, its parts where they stand.
#[derive(Debug, Deserialize)]
pub(crate) struct Row<'a> {
    /// The cells in the member's order.
    #[serde(borrow)]
    pub(crate) cells: Vec<&'a RawValue>,
    /// The row's conditions, if there are any.
    #[serde(borrow)]
    pub(crate) conditions: Option<&'a RawValue>,
    /// The object, its metadata, or nothing (`includeObject`).
    #[serde(borrow)]
    pub(crate) object: Option<&'a RawValue>,
}

impl Row<'_> {
    /// The row with merged cells.
    pub(crate) fn write(&self, columns: &Columns, alignment: &Alignment, cluster: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(br#"{"cells":"#);
        columns.write_cells(alignment, &self.cells, cluster, out);
        let object = self.object.filter(|_| !columns.hide_objects);
        for (name, value) in [("conditions", self.conditions), ("object", object)] {
            if let Some(value) = value {
                out.extend_from_slice(format!(r#","{name}":"#).as_bytes());
                out.extend_from_slice(value.get().as_bytes());
            }
        }
        out.push(b'}');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(columns: &Columns, alignment: &Alignment, cells: &str) -> String {
        let row: Row<'_> = serde_json::from_str(cells).unwrap();
        let mut out = Vec::new();
        row.write(columns, alignment, "east", &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn cells_follow_their_columns() {
        let mut columns = Columns::new(true, false);
        let east = columns.align(br#"[{"name":"Name"},{"name":"Age"}]"#).unwrap();
        let west = columns
            .align(br#"[{"name":"Age"},{"name":"New"},{"name":"Name"}]"#)
            .unwrap();
        let none = columns.align(b"null").unwrap();
        let mut definitions = Vec::new();
        columns.write(&mut definitions);
        let names: Vec<ColumnName> = serde_json::from_slice(&definitions).unwrap();
        let names: Vec<_> = names.iter().map(|column| &*column.name).collect();
        assert_eq!(names, ["Name", "Age", "New", "Cluster"]);
        assert_eq!(
            cells(&columns, &east, r#"{"cells":["a",1]}"#),
            r#"{"cells":["a",1,"<none>","east"]}"#
        );
        assert_eq!(
            cells(&columns, &west, r#"{"cells":["2d",{"x":1},"b"],"object":{"o":[]}}"#),
            r#"{"cells":["b","2d",{"x":1},"east"],"object":{"o":[]}}"#
        );
        assert_eq!(
            cells(&columns, &none, r#"{"cells":[]}"#),
            r#"{"cells":["<none>","<none>","<none>","east"]}"#
        );
        assert!(columns.align(b"[3]").is_none());
    }

    #[test]
    fn columns_of_one_name_keep_their_order() {
        let mut columns = Columns::new(false, false);
        let twice = br#"[{"name":"A"},{"name":"A"}]"#;
        let first = columns.align(twice).unwrap();
        let second = columns.align(twice).unwrap();
        assert!(columns.keeps_rows(&first) && columns.keeps_rows(&second));
        assert_eq!(
            cells(&columns, &second, r#"{"cells":[1,2],"conditions":[]}"#),
            r#"{"cells":[1,2],"conditions":[]}"#
        );
        columns.align(br#"[{"name":"B"}]"#).unwrap();
        assert!(!columns.keeps_rows(&first));
        columns.close();
        columns.align(br#"[{"name":"C"}]"#).unwrap();
        assert_eq!(columns.names().collect::<Vec<_>>(), ["A", "A", "B"]);
    }
}
