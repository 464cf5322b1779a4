//! What stands for a container image: a program of this machine, by the image's name in Pods.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};

/// The program of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Absolute path of what is run if a container has no `command`.
    pub program: PathBuf,
    /// What it is run with if a container has neither `command` nor `args`.
    pub args: Vec<String>,
}

/// Images by the name that Pods call them by, word for word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Images(BTreeMap<String, Image>);

impl Images {
    /// No images.
    pub fn new() -> Self {
        Self::default()
    }

    /// And this one: `program` may be relative to the working folder.
    pub fn with(mut self, name: &str, program: impl Into<PathBuf>) -> Self {
        let program = program.into();
        let program = std::path::absolute(&program).unwrap_or(program);
        let args = Vec::new();
        self.0.insert(name.to_owned(), Image { program, args });
        self
    }

    /// And those of another table.
    pub fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// Reads `NAME=PROGRAM`.
    pub fn parse(text: &str) -> Result<Self> {
        // A name may hold a digest, but no equals sign.
        let (name, program) = text.split_once('=').context("write it as NAME=PROGRAM")?;
        Ok(Self::new().with(name, program))
    }

    /// The image that Pods call `name`.
    pub(crate) fn find(&self, name: &str) -> Option<&Image> {
        self.0.get(name)
    }

    /// All names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_word_for_word() {
        let images = Images::parse("registry.example.com:5000/op:1.0=/bin/op").unwrap();
        let images = images.and(Images::new().with("busybox", "/bin/sh"));
        assert_eq!(
            images.find("registry.example.com:5000/op:1.0").unwrap().program,
            PathBuf::from("/bin/op")
        );
        assert_eq!(images.find("op:1.0"), None);
        assert_eq!(images.names().count(), 2);
        assert!(Images::parse("op").is_err());
    }
}
