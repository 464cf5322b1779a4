//! What may enter the dependency tree, by the words of `deny.toml` (licences, bans, sources), and that nothing in it is
//! unused. It needs nothing but cargo, so `make lint` runs it; `make audit` asks cargo-deny too, which knows advisories.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use portolan_structure::licence::is_met;
use portolan_structure::manifest::{self, Package, packages, strings, workspace};
use portolan_structure::tree::{self, Tree};

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[test]
fn licences_are_allowed() {
    let policy = policy();
    let allowed = strings(&policy, "licenses", "allow");
    let exceptions = exceptions(&policy);
    let mut problems = Vec::new();
    let mut excepted = BTreeSet::new();
    for (name, licence) in tree() {
        let mut allowed = allowed.clone();
        if let Some(more) = exceptions.get(&name) {
            excepted.insert(name.clone());
            allowed.extend(more.iter().cloned());
        }
        if !is_met(&licence, &allowed) {
            problems.push(format!("{name}: {licence:?} is not allowed by deny.toml"));
        }
    }
    for name in exceptions.keys().filter(|name| !excepted.contains(*name)) {
        problems.push(format!("deny.toml has an exception for {name}, which is not there"));
    }
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

#[test]
fn nothing_banned_is_there() {
    let policy = policy();
    let bans = policy
        .lines()
        .filter_map(|line| line.trim().strip_prefix("{ name = \""));
    let bans: Vec<_> = bans.filter_map(|rest| rest.split('"').next()).collect();
    assert!(!bans.is_empty());
    let found: Vec<_> = tree()
        .into_keys()
        .filter(|name| bans.contains(&name.as_str()))
        .collect();
    assert!(found.is_empty(), "banned by deny.toml: {found:?}");
}

#[test]
fn all_comes_from_the_default_registry() {
    let lock = manifest::read(&workspace().join("Cargo.lock"));
    let sources = lock.lines().filter_map(|line| line.strip_prefix("source = "));
    let foreign: Vec<_> = sources.filter(|source| source.trim_matches('"') != CRATES_IO).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}

#[test]
fn no_dependency_is_unused() {
    let mut problems = Vec::new();
    let mut wanted = BTreeSet::new();
    for package in packages() {
        let trees =
            |roots: &[_]| -> Vec<Tree> { roots.iter().map(|root| tree::read(&workspace().join(root))).collect() };
        let (own, tests) = (trees(&package.roots), trees(&package.tests));
        let words: BTreeSet<_> = own.iter().flat_map(|tree| &tree.words).collect();
        let test_words: BTreeSet<_> = own
            .iter()
            .flat_map(|tree| &tree.test_words)
            .chain(tests.iter().flat_map(|tree| tree.words.iter().chain(&tree.test_words)))
            .collect();
        problems.extend(unused(&package, &package.dependencies, &words, "dependencies"));
        problems.extend(unused(
            &package,
            &package.dev_dependencies,
            &test_words,
            "dev-dependencies",
        ));
        wanted.extend(package.dependencies);
        wanted.extend(package.dev_dependencies);
    }
    let shared = manifest::keys("".as_ref(), "workspace.dependencies");
    let idle = shared.iter().filter(|name| !wanted.contains(*name));
    problems.extend(idle.map(|name| format!("Cargo.toml: no package takes {name}")));
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

fn unused(package: &Package, names: &[String], words: &BTreeSet<&String>, table: &str) -> Vec<String> {
    let file = package.folder.join("Cargo.toml");
    let idle = names.iter().filter(|name| !words.contains(&name.replace('-', "_")));
    idle.map(|name| format!("{}: [{table}] has {name}, which its code does not name", file.display()))
        .collect()
}

/// Every package that any feature, platform or test takes, with its licence.
fn tree() -> BTreeMap<String, String> {
    let arguments = "tree --locked --workspace --all-features --target all --edges normal,build,dev --prefix none";
    let output = Command::new(env!("CARGO"))
        .args(arguments.split(' '))
        .args(["--format", "{p}|{l}"])
        .current_dir(workspace())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("cargo prints text");
    let packages = text
        .lines()
        .filter_map(|line| line.trim_end_matches(" (*)").split_once('|'));
    packages
        .map(|(package, licence)| {
            (
                package.split(' ').next().unwrap_or(package).to_owned(),
                licence.to_owned(),
            )
        })
        .collect()
}

fn policy() -> String {
    manifest::read(&workspace().join("deny.toml"))
}

/// `[[licenses.exceptions]]`: what single crates may have beyond the list.
fn exceptions(policy: &str) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut name = String::new();
    for (key, value) in manifest::entries(policy, "licenses.exceptions") {
        let mut words = value.split('"').skip(1).step_by(2).map(str::to_owned);
        match key {
            "crate" => name = words.next().unwrap_or_default(),
            "allow" => found.entry(name.clone()).or_default().extend(words),
            _ => {}
        }
    }
    found
}
