//! What the pages for people name is there: links and their anchors, files, tests, `make` targets and flags.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use portolan_structure::manifest::{self, packages, workspace};
use portolan_structure::markdown::{self, Page};
use portolan_structure::tree;

/// All pages, by their paths from the workspace's root.
fn pages() -> BTreeMap<PathBuf, Page> {
    let top = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/BENCHMARKS.md"].map(PathBuf::from);
    let docs = fs::read_dir(workspace().join("docs")).expect("the folder of documents");
    let docs = docs.map(|entry| Path::new("docs").join(entry.expect("its entry").file_name()));
    let read = |path: PathBuf| (path.clone(), markdown::read(&manifest::read(&workspace().join(path))));
    top.into_iter().chain(docs).map(read).collect()
}

/// What is wrong with the code of the pages, by `wrong`.
fn check_code(wrong: impl Fn(&str) -> Option<String>) {
    let mut problems = Vec::new();
    for (path, page) in pages() {
        for (line, code) in page.code {
            let told = wrong(&code).map(|what| format!("{}:{line}: `{code}`: {what}", path.display()));
            problems.extend(told);
        }
    }
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

#[test]
fn links_lead_somewhere() {
    let pages = pages();
    let mut problems = Vec::new();
    for (path, page) in &pages {
        for (line, link) in page.links.iter().filter(|(_, link)| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                path.clone()
            } else {
                beside(path, file)
            };
            let there = workspace().join(&target).exists();
            let anchored = anchor.is_empty() || pages.get(&target).is_some_and(|page| page.anchors.contains(anchor));
            if !there || !anchored {
                problems.push(format!("{}:{line}: {link} leads nowhere", path.display()));
            }
        }
    }
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

/// `link` as seen from the folder of `page`.
fn beside(page: &Path, link: &str) -> PathBuf {
    let mut path = page.with_file_name("");
    for part in Path::new(link) {
        if part == ".." {
            path.pop();
        } else {
            path.push(part);
        }
    }
    path
}

/// A path from the workspace's root; what follows a `*`, a `<placeholder>` or a `#` is open.
#[test]
fn files_are_there() {
    let tests = tests();
    check_code(|code| {
        let (first, rest) = code.split_once('/')?;
        let is_top = !first.is_empty() && workspace().join(first).is_dir() && !code.contains([' ', ':']);
        let is_path = is_top && (!tests.contains_key(first) || rest.contains(['/', '.']));
        let fixed = code.split('#').next().unwrap_or(code).split('/');
        let fixed: PathBuf = fixed.take_while(|part| !part.contains(['*', '<'])).collect();
        // What a build makes is here, and not in a fresh clone.
        (is_path && (first == "target" || !workspace().join(fixed).exists())).then(|| "no such file".to_owned())
    });
}

/// `suite/name` or `crate/name` in the documents names a test.
#[test]
fn tests_are_there() {
    let tests = tests();
    check_code(|code| {
        let (suite, name) = code.split_once('/')?;
        let is_name = !name.is_empty()
            && name
                .chars()
                .all(|letter| letter.is_ascii_lowercase() || "_0123456789".contains(letter));
        let names = tests.get(suite).filter(|_| is_name)?;
        let is_folder = workspace().join(code).exists();
        (!is_folder && !names.contains(name)).then(|| "no such test".to_owned())
    });
}

/// The words of each crate's code and of each end-to-end suite's, by its short name.
fn tests() -> BTreeMap<String, BTreeSet<String>> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages() {
        let short = package.name.trim_start_matches("portolan-").to_owned();
        for root in &package.roots {
            all.entry(short.clone())
                .or_default()
                .extend(tree::read(&workspace().join(root)).test_words);
        }
        for root in &package.tests {
            let suite = if root.ends_with("main.rs") {
                root.parent().unwrap_or(root)
            } else {
                root
            };
            let suite = suite.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let words = tree::read(&workspace().join(root));
            let words = words.test_words.into_iter().chain(words.words);
            let of = if short == "tests" { suite } else { short.clone() };
            all.entry(of).or_default().extend(words);
        }
    }
    all
}

#[test]
fn make_targets_are_there() {
    let makefile = manifest::read(&workspace().join("Makefile"));
    let targets = makefile.lines().filter_map(|line| line.split_once(':'));
    let targets: BTreeSet<&str> = targets.map(|(target, _)| target).collect();
    check_code(|code| {
        let named = code.strip_prefix("make ")?.split_whitespace();
        let named = named.take_while(|word| *word != "#" && !word.contains('='));
        let unknown: Vec<_> = named.filter(|word| !targets.contains(word)).collect();
        (!unknown.is_empty()).then(|| format!("no target {}", unknown.join(", ")))
    });
}

/// A flag is a field of `clap`'s, or named by a string.
#[test]
fn flags_are_there() {
    let (mut words, mut source) = (BTreeSet::new(), String::new());
    for root in packages().iter().flat_map(|package| &package.roots) {
        let tree = tree::read(&workspace().join(root));
        words.extend(tree.words);
        source.extend(tree.files.iter().map(|file| manifest::read(file)));
    }
    let is_known = |flag: &str| words.contains(&flag.replace('-', "_")) || source.contains(&format!("\"{flag}\""));
    let others = ["cargo ", "helm "];
    check_code(|code| {
        let flags = code
            .split([' ', '=', '[', ']', '|'])
            .filter_map(|word| word.strip_prefix("--"));
        let unknown: Vec<_> = flags.filter(|flag| !flag.is_empty() && !is_known(flag)).collect();
        (!unknown.is_empty() && !others.iter().any(|other| code.starts_with(other)))
            .then(|| format!("no flag {}", unknown.join(", ")))
    });
}
