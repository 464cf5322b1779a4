//! The modules of one target (a library, a program, an integration test), reached from its root file as rustc does it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::lex::tokens;
use crate::scan::{Declared, Facts, Named, scan};

/// A module's path from the root of its target; empty for the root.
pub type ModulePath = Vec<String>;

/// One module outside of tests.
#[derive(Debug, Default)]
pub struct Module {
    /// The file its text is in.
    pub file: PathBuf,
    /// What its code names.
    pub paths: Vec<Named>,
    /// Items it defines.
    pub items: BTreeSet<String>,
}

/// The modules of a target and all files that make it.
#[derive(Debug, Default)]
pub struct Tree {
    /// Modules outside of tests.
    pub modules: BTreeMap<ModulePath, Module>,
    /// Every file reached, those of tests and included ones too.
    pub files: BTreeSet<PathBuf>,
    /// Words of code outside of tests.
    pub words: BTreeSet<String>,
    /// Words of test code.
    pub test_words: BTreeSet<String>,
    /// Files that a `mod` names and that are not there.
    pub missing: Vec<String>,
}

/// Reads the target whose root is `file`.
pub fn read(file: &Path) -> Tree {
    let mut tree = Tree::default();
    let folder = file.parent().map(Path::to_path_buf).unwrap_or_default();
    tree.file(file, &folder, &ModulePath::new(), false);
    tree
}

impl Tree {
    /// Reads one file, whose module is `path` and whose children's files are in `folder`.
    fn file(&mut self, file: &Path, folder: &Path, path: &[String], test: bool) {
        let Ok(source) = fs::read_to_string(file) else {
            self.missing.push(file.display().to_string());
            return;
        };
        self.files.insert(file.to_path_buf());
        let facts = scan(&tokens(&source), test);
        self.words.extend(facts.words.iter().cloned());
        self.test_words.extend(facts.test_words.iter().cloned());
        for included in &facts.included {
            self.include(&file.with_file_name("").join(included));
        }
        if !test {
            self.note(file, path, &facts);
        }
        for declared in facts.modules.iter().filter(|declared| declared.elsewhere) {
            let (child, folder) = place(declared, file, folder);
            let path = [path, &declared.inside, std::slice::from_ref(&declared.name)].concat();
            self.file(&child, &folder, &path, test || declared.test);
        }
    }

    /// Only the words of a generated file are read: it names nothing of ours.
    fn include(&mut self, file: &Path) {
        if let Ok(source) = fs::read_to_string(file) {
            self.words.extend(scan(&tokens(&source), false).words);
        }
        self.files.insert(file.to_path_buf());
    }

    /// Keeps what a file that is no test says of its module and of those nested in it.
    pub(crate) fn note(&mut self, file: &Path, path: &[String], facts: &Facts) {
        self.at(file, path, &[]);
        for nested in facts.modules.iter().filter(|nested| !nested.elsewhere && !nested.test) {
            let inside = [nested.inside.as_slice(), std::slice::from_ref(&nested.name)].concat();
            self.at(file, path, &inside);
        }
        for named in &facts.paths {
            self.at(file, path, &named.inside).paths.push(named.clone());
        }
        for (inside, item) in &facts.items {
            self.at(file, path, inside).items.insert(item.clone());
        }
    }

    fn at(&mut self, file: &Path, path: &[String], inside: &[String]) -> &mut Module {
        let module = self.modules.entry([path, inside].concat()).or_default();
        module.file = file.to_path_buf();
        module
    }
}

/// The file of a module that `parent` declares, and the folder of its children's; `folder` is that of the parent's children.
fn place(declared: &Declared, parent: &Path, folder: &Path) -> (PathBuf, PathBuf) {
    if let Some(named) = &declared.file {
        let file = parent.with_file_name("").join(named);
        let folder = file.with_file_name("");
        return (file, folder);
    }
    let folder = declared
        .inside
        .iter()
        .fold(folder.to_path_buf(), |folder, name| folder.join(name));
    let within = folder.join(&declared.name);
    let old = within.join("mod.rs");
    let file = if old.exists() { old } else { within.with_extension("rs") };
    (file, within)
}
