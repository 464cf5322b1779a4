//! Who imports whom inside one target: each path that code names, followed to the module that owns what it names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::scan::Named;
use crate::tree::{ModulePath, Tree};

/// One place where a module names what another owns.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrow {
    /// The module that names it.
    pub from: ModulePath,
    /// The module that owns it.
    pub to: ModulePath,
    /// Where it is named.
    pub file: PathBuf,
    /// The line of it.
    pub line: usize,
    /// The path as written.
    pub written: String,
}

/// How many imports of imports are followed; only a circle of them is longer.
const IMPORTS: usize = 16;

/// All arrows between different modules of a target.
pub fn arrows(tree: &Tree) -> Vec<Arrow> {
    let mut found = BTreeSet::new();
    for (from, module) in &tree.modules {
        for named in &module.paths {
            let Some(path) = absolute(tree, from, named) else {
                continue;
            };
            let to = owner(tree, &path, IMPORTS);
            if to != *from {
                found.insert(Arrow {
                    from: from.clone(),
                    to,
                    file: module.file.clone(),
                    line: named.line,
                    written: named.path.join("::"),
                });
            }
        }
    }
    found.into_iter().collect()
}

/// The path from the root of the crate; nothing for what another crate owns.
fn absolute(tree: &Tree, from: &[String], named: &Named) -> Option<Vec<String>> {
    let mut base = from.to_vec();
    let mut rest = named.path.as_slice();
    match rest.first()?.as_str() {
        "crate" => {
            base.clear();
            rest = &rest[1..];
        }
        "self" | "super" => {
            while let Some(first) = rest.first().filter(|first| ["self", "super"].contains(&first.as_str())) {
                if first == "super" {
                    base.pop()?;
                }
                rest = &rest[1..];
            }
        }
        first => {
            let child = [from, &[first.to_owned()]].concat();
            tree.modules.contains_key(&child).then_some(())?;
        }
    }
    base.extend(rest.iter().cloned());
    Some(base)
}

/// The module that owns what `path` names, imports of modules on the way followed.
fn owner(tree: &Tree, path: &[String], imports: usize) -> ModulePath {
    let mut at = ModulePath::new();
    for (position, segment) in path.iter().enumerate() {
        let child = [at.as_slice(), std::slice::from_ref(segment)].concat();
        if tree.modules.contains_key(&child) {
            at = child;
            continue;
        }
        let rest = &path[position + 1..];
        return imported(tree, &at, segment, rest, imports).unwrap_or(at);
    }
    at
}

/// Follows the import that gives `module` the name `segment`, if it does not define it.
fn imported(tree: &Tree, module: &[String], segment: &str, rest: &[String], imports: usize) -> Option<ModulePath> {
    let owned = tree.modules.get(module)?;
    if imports == 0 || owned.items.contains(segment) {
        return None;
    }
    let own = owned
        .paths
        .iter()
        .find(|named| named.import.as_deref() == Some(segment));
    if let Some(path) = own.and_then(|named| absolute(tree, module, named)) {
        return Some(owner(tree, &[path.as_slice(), rest].concat(), imports - 1));
    }
    let globs = owned.paths.iter().filter(|named| named.import.as_deref() == Some("*"));
    globs
        .filter_map(|named| absolute(tree, module, named))
        .map(|mut path| {
            path.pop();
            owner(tree, &path, imports - 1)
        })
        .find(|target| tree.modules[target].items.contains(segment))
}

/// Sibling modules that import each other, directly or by others of them: their parent, and the arrows of the circle.
pub fn circles(arrows: &[Arrow]) -> BTreeMap<ModulePath, Vec<&Arrow>> {
    let mut siblings: BTreeMap<&[String], BTreeMap<(&str, &str), &Arrow>> = BTreeMap::new();
    for arrow in arrows {
        let common = arrow
            .from
            .iter()
            .zip(&arrow.to)
            .take_while(|(from, to)| from == to)
            .count();
        if let (Some(from), Some(to)) = (arrow.from.get(common), arrow.to.get(common)) {
            let parent = siblings.entry(&arrow.from[..common]).or_default();
            parent.entry((from, to)).or_insert(arrow);
        }
    }
    let mut circles = BTreeMap::new();
    for (parent, edges) in siblings {
        let circle: Vec<_> = edges
            .iter()
            .filter(|((from, to), _)| reaches(&edges, to, from))
            .collect();
        if !circle.is_empty() {
            circles.insert(parent.to_vec(), circle.into_iter().map(|(_, arrow)| *arrow).collect());
        }
    }
    circles
}

fn reaches(edges: &BTreeMap<(&str, &str), &Arrow>, from: &str, to: &str) -> bool {
    let mut seen = BTreeSet::from([from]);
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        let next = edges.keys().filter(|(tail, _)| *tail == at).map(|(_, head)| *head);
        open.extend(next.filter(|head| seen.insert(head)));
    }
    seen.contains(to)
}

#[cfg(test)]
mod tests;
