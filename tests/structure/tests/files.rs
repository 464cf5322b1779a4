//! Every Rust file of the workspace belongs to a target: what nothing compiles is wrong sooner or later, and nobody sees.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use portolan_structure::manifest::{packages, read, workspace};
use portolan_structure::tree;

#[test]
fn every_file_is_compiled() {
    let mut reached = BTreeSet::new();
    let mut problems = Vec::new();
    for package in packages() {
        for root in package.roots.iter().chain(&package.tests) {
            let tree = tree::read(&workspace().join(root));
            problems.extend(tree.missing.iter().map(|file| format!("{file} is not there")));
            reached.extend(tree.files);
        }
    }
    let mut there = Vec::new();
    walk(&workspace(), &mut there);
    assert!(!there.is_empty());
    let stray = there.iter().filter(|file| !reached.contains(*file));
    problems.extend(stray.map(|file| {
        let file = file.strip_prefix(workspace()).unwrap_or(file);
        format!("{} is in no target: name it by `mod`, or delete it", file.display())
    }));
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

/// All Rust files below `folder` but for what cargo has built. A folder that was there before cargo has no tag of it: `make` lets
/// Go build into `target` first.
fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the workspace") {
        let path = entry.expect("its entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_built = name == "target" || path.join("CACHEDIR.TAG").exists();
        if path.is_dir() && !path.is_symlink() && !name.starts_with('.') && !is_built {
            walk(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The Makefile runs the integration tests of packages that are one or two folders deep, by their names.
#[test]
fn every_integration_test_is_run() {
    let deep: Vec<PathBuf> = packages()
        .into_iter()
        .filter(|package| !package.tests.is_empty() && package.folder.components().count() > 2)
        .map(|package| package.folder)
        .collect();
    assert!(
        deep.is_empty(),
        "OTHERS of the Makefile does not find the tests of {deep:?}"
    );
    let makefile = read(&workspace().join("Makefile"));
    assert!(makefile.contains("*/tests */*/tests"), "and it looks there");
}
