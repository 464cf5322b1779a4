//! The workspace's packages: their targets and what they depend on, from their `Cargo.toml`s.
//!
//! Reads the TOML that stands there (tables, one entry a line, arrays of strings), not TOML at large.

use std::fs;
use std::path::{Path, PathBuf};

/// One package of the workspace.
#[derive(Debug, Clone)]
pub struct Package {
    /// As cargo names it.
    pub name: String,
    /// Its folder, from the workspace's root.
    pub folder: PathBuf,
    /// Names in `[dependencies]`.
    pub dependencies: Vec<String>,
    /// Names in `[dev-dependencies]`.
    pub dev_dependencies: Vec<String>,
    /// Root files of its library and its programs, from the workspace's root.
    pub roots: Vec<PathBuf>,
    /// Root files of its integration tests and benchmarks, from the workspace's root.
    pub tests: Vec<PathBuf>,
}

/// The folder of the workspace.
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).map(Path::to_path_buf).unwrap_or_default()
}

/// All packages of the workspace, in the order of its manifest.
pub fn packages() -> Vec<Package> {
    let text = read(&workspace().join("Cargo.toml"));
    strings(&text, "workspace", "members")
        .iter()
        .map(|folder| package(Path::new(folder)))
        .collect()
}

/// Names in a table of the manifest at `folder`, as `workspace.dependencies`.
pub fn keys(folder: &Path, table: &str) -> Vec<String> {
    let text = read(&workspace().join(folder).join("Cargo.toml"));
    entries(&text, table)
        .map(|(key, _)| key.split('.').next().unwrap_or(key).to_owned())
        .collect()
}

fn package(folder: &Path) -> Package {
    let text = read(&workspace().join(folder).join("Cargo.toml"));
    let name = entries(&text, "package")
        .find(|(key, _)| *key == "name")
        .map(|(_, value)| quoted(value));
    let targets = |folders: &[&str]| -> Vec<PathBuf> {
        folders
            .iter()
            .flat_map(|sources| roots(&folder.join(sources)))
            .collect()
    };
    let mut own: Vec<PathBuf> = ["src/lib.rs", "src/main.rs", "build.rs"]
        .iter()
        .map(|root| folder.join(root))
        .filter(|root| workspace().join(root).exists())
        .chain(targets(&["src/bin"]))
        .collect();
    let mut tests = targets(&["tests", "benches", "examples"]);
    for (table, roots) in [("bin", &mut own), ("test", &mut tests)] {
        let named = entries(&text, table).filter(|(key, _)| *key == "path");
        roots.extend(named.map(|(_, value)| folder.join(quoted(value))));
        roots.sort();
        roots.dedup();
    }
    Package {
        name: name.unwrap_or_default(),
        folder: folder.to_path_buf(),
        dependencies: keys(folder, "dependencies"),
        dev_dependencies: keys(folder, "dev-dependencies"),
        roots: own,
        tests,
    }
}

/// The targets that cargo finds in a folder: `x.rs` and `x/main.rs`.
fn roots(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(workspace().join(folder)) else {
        return Vec::new();
    };
    let paths = entries.filter_map(|entry| Some(folder.join(entry.ok()?.file_name())));
    let mut found: Vec<_> = paths
        .map(|path| {
            let is_source = path.extension().is_some_and(|extension| extension == "rs");
            if is_source { path } else { path.join("main.rs") }
        })
        .filter(|root| workspace().join(root).exists())
        .collect();
    found.sort();
    found
}

/// The strings of the array `key` in a table of a TOML file.
pub fn strings(text: &str, table: &str, key: &str) -> Vec<String> {
    let mut lines = lines_of(text, table).skip_while(|line| !line.starts_with(&format!("{key} = [")));
    let mut array = String::new();
    for line in lines.by_ref() {
        array.push_str(line);
        if line.ends_with(']') {
            break;
        }
    }
    array.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// `key = value` of each line of a table, or of all tables of that name.
pub fn entries<'a>(text: &'a str, table: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    lines_of(text, table)
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.trim(), value.trim()))
}

fn lines_of<'a>(text: &'a str, table: &'a str) -> impl Iterator<Item = &'a str> {
    let mut inside = false;
    text.lines().map(str::trim).filter(move |line| {
        if line.starts_with('[') && line.ends_with(']') {
            inside = line.trim_matches(['[', ']']) == table;
            return false;
        }
        inside && !line.starts_with('#')
    })
}

fn quoted(value: &str) -> String {
    value.split('"').nth(1).unwrap_or_default().to_owned()
}

/// The text of a file that the workspace cannot be without.
pub fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| unreadable(path, &error))
}

#[allow(clippy::panic, reason = "only tests call this")]
fn unreadable(path: &Path, error: &std::io::Error) -> ! {
    panic!("{}: {error}", path.display())
}
