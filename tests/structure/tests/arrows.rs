//! Who may import whom: inside each crate by the tables in `arrows/`, which are edited by hand, and between the crates by
//! the table here. Nobody imports in a circle.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use portolan_structure::arrows::{arrows, circles};
use portolan_structure::manifest::{packages, workspace};
use portolan_structure::table::Table;
use portolan_structure::tree::{self, Tree};

/// What each package may import of the others. Programs never import each other; what two need goes to a library.
const PACKAGES: [(&str, &[&str]); 15] = [
    ("portolan-crds", &[]),
    ("portolan-runtime", &[]),
    ("portolan-wire", &["portolan-crds", "portolan-runtime"]),
    ("portolan-election", &["portolan-runtime"]),
    ("portolan-merge", &["portolan-crds"]),
    (
        "portolan-router",
        &["portolan-crds", "portolan-merge", "portolan-runtime", "portolan-wire"],
    ),
    (
        "portolan-hub",
        &[
            "portolan-crds",
            "portolan-election",
            "portolan-runtime",
            "portolan-wire",
        ],
    ),
    ("portolan-ctl", &["portolan-crds", "portolan-runtime", "portolan-wire"]),
    (
        "portolan-agent",
        &[
            "portolan-crds",
            "portolan-election",
            "portolan-runtime",
            "portolan-wire",
        ],
    ),
    ("portolan-structure", &[]),
    ("portolan-testbed", &[]),
    // The agent is started inside a test, against a scripted hub.
    (
        "portolan-tests",
        &[
            "portolan-agent",
            "portolan-crds",
            "portolan-runtime",
            "portolan-testbed",
            "portolan-wire",
        ],
    ),
    ("portolan-fuzz", &["portolan-merge"]),
    // The protocol in its own words, so that it is judged by itself.
    ("portolan-model", &[]),
    ("greeting-operator", &[]),
];

#[test]
fn packages_import_only_what_the_table_allows() {
    let mut problems = Vec::new();
    let own: BTreeSet<_> = packages().into_iter().map(|package| package.name).collect();
    for package in packages() {
        let Some((_, allowed)) = PACKAGES.iter().find(|(name, _)| *name == package.name) else {
            problems.push(format!("{} has no row", package.name));
            continue;
        };
        let all = package.dependencies.iter().chain(&package.dev_dependencies);
        let imports: BTreeSet<_> = all.filter(|name| own.contains(*name)).map(String::as_str).collect();
        let allowed: BTreeSet<_> = allowed.iter().copied().collect();
        if imports != allowed {
            let file = package.folder.join("Cargo.toml");
            let name = &package.name;
            problems.push(format!(
                "{}: {name} imports {imports:?}, its row says {allowed:?}",
                file.display()
            ));
        }
    }
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

#[test]
fn modules_import_only_what_the_tables_allow() {
    let mut problems = Vec::new();
    let mut files = BTreeSet::new();
    for (file, tree) in tables() {
        let text = fs::read_to_string(workspace().join(&file)).unwrap_or_default();
        let table = Table::parse(&file, &text);
        problems.extend(table.problems(&tree, &arrows(&tree), &workspace()));
        files.insert(file);
    }
    for entry in fs::read_dir(workspace().join(FOLDER)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let file = format!("{FOLDER}/{name}");
        if !files.contains(&file) {
            problems.push(format!("{file} is the table of no crate"));
        }
    }
    let advice = "Allow it there with a reason, or move what both need below both.";
    assert!(problems.is_empty(), "\n{}\n{advice}\n", problems.join("\n"));
}

#[test]
fn siblings_import_each_other_in_no_circle() {
    let mut problems = Vec::new();
    for package in packages() {
        for root in package.roots.iter().chain(&package.tests) {
            let tree = tree::read(&workspace().join(root));
            let arrows = arrows(&tree);
            for (parent, circle) in circles(&arrows) {
                let parent = parent.join("::");
                problems.push(format!(
                    "{}: modules of `crate::{parent}` import each other:",
                    package.name
                ));
                for arrow in circle {
                    let file = arrow.file.strip_prefix(workspace()).unwrap_or(&arrow.file).display();
                    let (from, to) = (arrow.from.join("::"), arrow.to.join("::"));
                    problems.push(format!(
                        "  {file}:{}: {from} imports {to} ({})",
                        arrow.line, arrow.written
                    ));
                }
            }
        }
    }
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

/// Prints the tables as the code would have them, to copy rows from: `-- --ignored --nocapture`.
#[test]
#[ignore = "prints, proves nothing"]
fn print_tables() {
    for (file, tree) in tables() {
        let text = fs::read_to_string(workspace().join(&file)).unwrap_or_default();
        println!(
            "=== {file}\n{}",
            Table::parse(&file, &text).printed(&tree, &arrows(&tree))
        );
    }
}

const FOLDER: &str = "tests/structure/arrows";

/// Each library or program of more than one module: the file of its table, its modules.
fn tables() -> Vec<(String, Tree)> {
    let mut found = Vec::new();
    for package in packages() {
        for root in &package.roots {
            let tree = tree::read(&workspace().join(root));
            let modules = tree.modules.keys().filter(|path| path.len() == 1).count();
            if modules > 1 {
                let file = format!("{FOLDER}/{}.txt", table_name(&package.name, root));
                found.push((file, tree));
            }
        }
    }
    found
}

/// `hub` for `portolan-hub`, `bench` for the program `portolan-bench` of another package.
fn table_name<'a>(package: &'a str, root: &'a Path) -> &'a str {
    let folder = root.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    let name = folder.filter(|name| *name != "src").unwrap_or(package);
    name.strip_prefix("portolan-").unwrap_or(name)
}
