//! The table of allowed arrows of one crate, and what is wrong with it or with the crate.
//!
//! One row per module, lowest first; a module may import only what stands above it, so that no table can hold a circle:
//!
//! ```text
//! layers: value decision        (folders of the crate whose modules have rows of their own)
//!
//! value::fault                  # why it imports what it does
//! decision::plan                # refuses with faults
//!     value::{fault, object}
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use crate::arrows::Arrow;
use crate::tree::Tree;

/// What the root of a crate is called here.
const ROOT: &str = "crate";

/// The rows of one file in `arrows/`.
#[derive(Debug, Default)]
pub struct Table {
    /// Where it stands, for messages.
    pub file: String,
    /// Folders of the crate that are layers, lowest first; other modules stand above them all.
    pub layers: Vec<String>,
    /// Its rows, lowest module first.
    pub rows: Vec<Row>,
}

/// One module and what it may import.
#[derive(Debug, Default, Clone)]
pub struct Row {
    /// Its path in the crate.
    pub module: String,
    /// Why it imports what it does.
    pub why: String,
    /// Modules above it.
    pub imports: Vec<String>,
    /// Counted from 1.
    pub line: usize,
}

impl Table {
    /// Reads a table. Lines that begin with `#` are remarks.
    pub fn parse(file: &str, text: &str) -> Self {
        let mut table = Self {
            file: file.to_owned(),
            ..Self::default()
        };
        for (at, line) in text.lines().enumerate() {
            let (content, why) = line.split_once('#').unwrap_or((line, ""));
            if content.trim().is_empty() {
                continue;
            }
            if let Some(layers) = content.strip_prefix("layers:") {
                table.layers = layers.split_whitespace().map(str::to_owned).collect();
            } else if !content.starts_with(char::is_whitespace) {
                table.rows.push(Row {
                    module: content.trim().to_owned(),
                    why: why.trim().to_owned(),
                    imports: Vec::new(),
                    line: at + 1,
                });
            } else if let Some(row) = table.rows.last_mut() {
                row.imports.extend(names(content.trim()));
            }
        }
        table
    }

    /// The row that a module belongs to: its layer and name, or its top-level module.
    pub fn node(&self, path: &[String]) -> String {
        match path {
            [] => ROOT.to_owned(),
            [layer, module, ..] if self.layers.contains(layer) => format!("{layer}::{module}"),
            [module, ..] => module.clone(),
        }
    }

    /// What is wrong: with the table itself, with modules that have no row, with arrows that it does not allow, and with
    /// those that it allows and nobody uses. Each with its file and line.
    pub fn problems(&self, tree: &Tree, arrows: &[Arrow], root: &Path) -> Vec<String> {
        let modules: BTreeSet<_> = tree.modules.keys().filter(|path| !path.is_empty()).collect();
        let nodes: BTreeSet<_> = modules.iter().map(|path| self.node(path)).collect();
        let mut problems = self.own_problems(&nodes);
        let rows: BTreeMap<_, _> = self.rows.iter().map(|row| (row.module.as_str(), row)).collect();
        // The file of a layer that only lists its modules needs no row.
        let bare = |node: &String| self.layers.contains(node) && tree.modules[&vec![node.clone()]].items.is_empty();
        for node in nodes
            .iter()
            .filter(|node| !rows.contains_key(node.as_str()) && !bare(node))
        {
            problems.push(format!("{}: {node} has no row", self.file));
        }
        let mut used = BTreeSet::new();
        for arrow in arrows.iter().filter(|arrow| !arrow.from.is_empty()) {
            let (from, to) = (self.node(&arrow.from), self.node(&arrow.to));
            let allowed = rows.get(from.as_str()).is_some_and(|row| row.imports.contains(&to));
            // Once for each file: the first line shows what it is.
            let told = used.contains(&(from.clone(), to.clone(), &arrow.file));
            if from != to && !allowed && !told {
                let place = arrow.file.strip_prefix(root).unwrap_or(&arrow.file).display();
                let Arrow { line, written, .. } = arrow;
                let file = &self.file;
                problems.push(format!(
                    "{place}:{line}: {from} imports {to} ({written}), which {file} does not allow"
                ));
            }
            used.insert((from, to, &arrow.file));
        }
        let used: BTreeSet<_> = used.iter().map(|(from, to, _)| (from.as_str(), to.as_str())).collect();
        for Row {
            module, imports, line, ..
        } in &self.rows
        {
            for import in imports
                .iter()
                .filter(|import| !used.contains(&(module.as_str(), import.as_str())))
            {
                problems.push(format!(
                    "{}:{line}: {module} no longer imports {import}: take it out",
                    self.file
                ));
            }
        }
        problems
    }

    /// Rows without a reason, of no module, twice, out of the layers' order, or that import what does not stand above.
    fn own_problems(&self, nodes: &BTreeSet<String>) -> Vec<String> {
        let mut problems = Vec::new();
        let mut above = BTreeSet::new();
        let mut highest = 0;
        for row in &self.rows {
            let Row { module, line, .. } = row;
            let mut say = |what: String| problems.push(format!("{}:{line}: {module} {what}", self.file));
            if row.why.is_empty() {
                say("has no reason".to_owned());
            }
            if !nodes.contains(module) {
                say("is no module of the crate".to_owned());
            }
            let layer = self.layer(module);
            if layer < highest {
                say("stands under a higher layer".to_owned());
            }
            highest = highest.max(layer);
            for import in row.imports.iter().filter(|import| !above.contains(import.as_str())) {
                say(format!("may not import {import}, which does not stand above it"));
            }
            if !above.insert(module.as_str()) {
                say("has two rows".to_owned());
            }
        }
        problems
    }

    fn layer(&self, module: &str) -> usize {
        let first = module.split("::").next().unwrap_or(module);
        self.layers
            .iter()
            .position(|layer| layer == first)
            .unwrap_or(self.layers.len())
    }

    /// The table as the arrows that stand would have it, reasons and order kept where rows are: to copy rows from.
    pub fn printed(&self, tree: &Tree, arrows: &[Arrow]) -> String {
        let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for path in tree.modules.keys().filter(|path| !path.is_empty()) {
            imports.entry(self.node(path)).or_default();
        }
        for arrow in arrows.iter().filter(|arrow| !arrow.from.is_empty()) {
            let (from, to) = (self.node(&arrow.from), self.node(&arrow.to));
            if from != to {
                imports.entry(from).or_default().insert(to);
            }
        }
        let place = |module: &str| self.rows.iter().position(|row| row.module == module);
        let mut text = String::new();
        let mut told = BTreeSet::new();
        while let Some(next) = imports
            .keys()
            .filter(|module| !told.contains(*module))
            .min_by_key(|module| {
                let open = imports[*module].iter().filter(|import| !told.contains(*import)).count();
                (
                    self.layer(module),
                    open,
                    place(module).unwrap_or(usize::MAX),
                    imports[*module].len(),
                )
            })
            .cloned()
        {
            let why = place(&next).map_or("?", |at| self.rows[at].why.as_str());
            let _ = writeln!(text, "{next:<20} # {why}");
            text += &grouped(&imports[&next], &self.layers);
            told.insert(next);
        }
        text
    }
}

/// `a, layer::{b, c}` as `a`, `layer::b`, `layer::c`.
fn names(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut layer = "";
    for part in text.split([',', ' ']).filter(|part| !part.is_empty()) {
        let (head, name) = part
            .split_once("::{")
            .map_or((layer, part), |(head, name)| (head, name));
        let last = name.ends_with('}');
        let name = name.trim_end_matches('}');
        found.push(if head.is_empty() {
            name.to_owned()
        } else {
            format!("{head}::{name}")
        });
        layer = if last { "" } else { head };
    }
    found
}

/// Imports as a row has them, one line for each layer.
fn grouped(imports: &BTreeSet<String>, layers: &[String]) -> String {
    let mut text = String::new();
    for layer in layers {
        let prefix = format!("{layer}::");
        let inside: Vec<_> = imports
            .iter()
            .filter_map(|import| import.strip_prefix(&prefix))
            .collect();
        if !inside.is_empty() {
            let _ = writeln!(text, "    {layer}::{{{}}}", inside.join(", "));
        }
    }
    let rest: Vec<_> = imports
        .iter()
        .filter(|import| !import.contains("::"))
        .map(String::as_str)
        .collect();
    if !rest.is_empty() {
        let _ = writeln!(text, "    {}", rest.join(", "));
    }
    text
}

#[cfg(test)]
mod tests;
