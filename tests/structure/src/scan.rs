//! One source file: the modules it declares, the items it defines and the paths it names, in code that is no test.
//!
//! Paths are read wherever they stand (imports, expressions, types, macro arguments), braces of imports unfolded.

use std::collections::BTreeSet;

use crate::lex::{Kind, Token};

/// `mod name;` or `mod name { … }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// The module it stands in, from the file's own module: empty unless modules are nested in this file.
    pub inside: Vec<String>,
    /// Its name.
    pub name: String,
    /// Its text is in another file.
    pub elsewhere: bool,
    /// The file that a `path` attribute names.
    pub file: Option<String>,
    /// It is compiled for tests only, or stands in such a module.
    pub test: bool,
}

/// A path, as written, that begins with `crate`, `self` or `super`, or that is imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The module it stands in, from the file's own module.
    pub inside: Vec<String>,
    /// Its segments; the last is `*` if all of a module is imported.
    pub path: Vec<String>,
    /// The name it has here if it is imported.
    pub import: Option<String>,
    /// Counted from 1.
    pub line: usize,
}

/// What stands in one file.
#[derive(Debug, Default)]
pub struct Facts {
    /// Modules, those of tests included.
    pub modules: Vec<Declared>,
    /// Paths outside of tests.
    pub paths: Vec<Named>,
    /// Names of items outside of tests, each with the module it stands in.
    pub items: Vec<(Vec<String>, String)>,
    /// Files that `include!` brings in.
    pub included: Vec<String>,
    /// Words outside of tests.
    pub words: BTreeSet<String>,
    /// Words of tests.
    pub test_words: BTreeSet<String>,
}

/// Reads a file. `test` says that all of it is.
pub fn scan(tokens: &[Token<'_>], test: bool) -> Facts {
    let mut scanner = Scanner {
        tokens,
        at: 0,
        braces: Vec::new(),
        test,
        file: None,
        facts: Facts::default(),
    };
    while scanner.at < tokens.len() {
        scanner.step();
    }
    scanner.facts
}

struct Scanner<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
    /// The open braces, each with the module that it opens, if it does.
    braces: Vec<Option<String>>,
    /// What stands here is for tests only.
    test: bool,
    /// The file that the `path` attribute of the next module names.
    file: Option<String>,
    facts: Facts,
}

impl Scanner<'_> {
    fn is(&self, ahead: usize, text: &str) -> bool {
        self.tokens.get(self.at + ahead).is_some_and(|token| token.is(text))
    }

    fn text(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", |token| token.text)
    }

    fn inside(&self) -> Vec<String> {
        self.braces.iter().flatten().cloned().collect()
    }

    fn step(&mut self) {
        if self.is(0, "#") {
            self.attribute();
        } else if self.is(0, "pub") && self.is(1, "(") {
            self.at += 2;
            self.skip_to_close();
        } else if self.is(0, "{") {
            self.braces.push(None);
            self.at += 1;
        } else if self.is(0, "}") {
            self.braces.pop();
            self.at += 1;
        } else if self.is(0, "mod") && (self.is(2, ";") || self.is(2, "{")) {
            self.module();
        } else if self.is(0, "use") && !self.is(1, "<") {
            self.at += 1;
            self.tree(&[], true);
        } else if self.is(0, "include") && self.is(1, "!") && self.is(2, "(") {
            self.facts.included.push(self.text(3).to_owned());
            self.at += 2;
        } else {
            self.word();
        }
    }

    /// A word that opens no import: the name of an item, the first segment of a path, or neither.
    fn word(&mut self) {
        const ITEMS: [&str; 8] = ["struct", "enum", "fn", "trait", "type", "const", "static", "union"];
        let token = self.tokens[self.at];
        if token.kind == Kind::Word {
            self.note_word(token.text);
            let rooted = ["crate", "self", "super"].contains(&token.text);
            if rooted && self.is(1, ":") && self.is(2, ":") {
                self.tree(&[], false);
                return;
            }
            let in_module = self.braces.iter().all(Option::is_some);
            if ITEMS.contains(&token.text) && in_module && !self.test {
                let name = self.text(1).to_owned();
                self.facts.items.push((self.inside(), name));
            }
        }
        self.at += 1;
    }

    fn note_word(&mut self, word: &str) {
        let words = if self.test {
            &mut self.facts.test_words
        } else {
            &mut self.facts.words
        };
        if !words.contains(word) {
            words.insert(word.to_owned());
        }
    }

    fn module(&mut self) {
        let name = self.text(1).to_owned();
        let elsewhere = self.is(2, ";");
        self.facts.modules.push(Declared {
            inside: self.inside(),
            name: name.clone(),
            elsewhere,
            file: self.file.take(),
            test: self.test,
        });
        if !elsewhere {
            self.braces.push(Some(name));
        }
        self.at += 3;
    }

    /// `#[…]` or `#![…]`. What `cfg(test)` stands on is read as test code.
    fn attribute(&mut self) {
        let inner = self.is(1, "!");
        let start = self.at + 1 + usize::from(inner);
        if !self.tokens.get(start).is_some_and(|token| token.is("[")) {
            self.at += 1;
            return;
        }
        self.at = start + 1;
        self.skip_to_close();
        let body = &self.tokens[start + 1..self.at - 1];
        for token in body.iter().filter(|token| token.kind == Kind::Word) {
            self.note_word(token.text);
        }
        if let [key, _, file] = body
            && key.is("path")
        {
            self.file = Some(file.text.to_owned());
        }
        if !is_cfg_test(body) || self.test {
            return;
        }
        if inner {
            self.test = true;
            while self.at < self.tokens.len() {
                self.step();
            }
        } else {
            self.test_item();
        }
    }

    /// Reads the item, statement or field that stands here as test code.
    fn test_item(&mut self) {
        const BRACED: [&str; 6] = ["mod", "fn", "impl", "struct", "enum", "trait"];
        let depth = self.braces.len();
        self.test = true;
        let mut braced = false;
        let mut round = 0_usize;
        let mut assigned = false;
        while let Some(token) = self.tokens.get(self.at).copied() {
            braced |= BRACED.iter().any(|word| token.is(word));
            assigned |= ["use", "let", "const", "static", "="].iter().any(|word| token.is(word));
            let flat = self.braces.len() == depth && round == 0;
            if flat && (token.is("}") || token.is(")") || token.is(",") && !braced) {
                break;
            }
            if token.is("(") || token.is("[") {
                round += 1;
            } else if token.is(")") || token.is("]") {
                round = round.saturating_sub(1);
            }
            let semicolon = flat && (token.is(";") || self.is_import_or_file_module());
            self.step();
            let closed = token.is("}") && self.braces.len() == depth && round == 0 && (braced || !assigned);
            if semicolon || closed {
                break;
            }
        }
        self.test = false;
    }

    /// What stands here is read as one step up to and with its semicolon.
    fn is_import_or_file_module(&self) -> bool {
        self.is(0, "use") || (self.is(0, "mod") && self.is(2, ";"))
    }

    /// The path, or the tree of an import, that begins here, after `prefix`.
    fn tree(&mut self, prefix: &[String], import: bool) {
        let mut path = prefix.to_vec();
        let line = self.tokens.get(self.at).map_or(0, |token| token.line);
        while let Some(token) = self.tokens.get(self.at).copied() {
            if token.is("{") && import {
                self.branches(&path);
                return;
            }
            if token.kind != Kind::Word && !(token.is("*") && import) {
                break;
            }
            if token.is("as") {
                self.at += 2;
                let name = self.tokens[self.at - 1].text.to_owned();
                self.name(path, Some(name), line);
                return;
            }
            self.note_word(token.text);
            path.push(token.text.to_owned());
            self.at += 1;
            if self.is(0, ":") && self.is(1, ":") {
                self.at += 2;
            } else if !self.is(0, "as") || !import {
                break;
            }
        }
        let own = path.last().cloned().filter(|_| import);
        self.name(path, own, line);
    }

    fn branches(&mut self, prefix: &[String]) {
        self.at += 1;
        while self.at < self.tokens.len() && !self.is(0, "}") {
            if self.is(0, ",") {
                self.at += 1;
            } else {
                self.tree(prefix, true);
            }
        }
        self.at += 1;
    }

    fn name(&mut self, mut path: Vec<String>, mut import: Option<String>, line: usize) {
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
            import = import.map(|name| {
                if name == "self" {
                    path.last().cloned().unwrap_or_default()
                } else {
                    name
                }
            });
        }
        if !self.test && !path.is_empty() {
            self.facts.paths.push(Named {
                inside: self.inside(),
                path,
                import,
                line,
            });
        }
    }

    /// Moves past the bracket that closes the one just passed.
    fn skip_to_close(&mut self) {
        let mut depth = 1_usize;
        while depth > 0 && self.at < self.tokens.len() {
            if self.is(0, "(") || self.is(0, "[") {
                depth += 1;
            } else if self.is(0, ")") || self.is(0, "]") {
                depth -= 1;
            }
            self.at += 1;
        }
    }
}

/// `cfg(test)`, or `cfg(all(…))` with `test` among its terms.
fn is_cfg_test(body: &[Token<'_>]) -> bool {
    let has = |word| body.iter().any(|token| token.is(word));
    body.first().is_some_and(|token| token.is("cfg")) && has("test") && !has("not") && !has("any")
}

#[cfg(test)]
mod tests;
