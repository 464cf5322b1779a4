//! What images that people install say of themselves, and how large they may be.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, bail};

/// Bytes that no image holds more of, so that a Node has it within seconds.
const MOST: u64 = 35_000_000;
/// Percent that an image may grow by before somebody has to look at it.
const GROWTH: u64 = 5;

/// Of what an image was made. Two of the same are the same, byte by byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Release {
    /// Of the program: `0.1.0`.
    pub version: String,
    /// The commit.
    pub revision: String,
    /// Where the source is, if that is to be said: a URL.
    pub source: Option<String>,
    /// Seconds since 1970: of the commit, not of the build.
    pub created: i64,
}

impl Release {
    /// As RFC 3339 has it.
    pub(super) fn created(&self) -> Result<String> {
        let time = jiff::Timestamp::from_second(self.created);
        let time = time.with_context(|| format!("{} is no time in seconds since 1970", self.created))?;
        Ok(time.to_string())
    }

    /// By the names of <https://github.com/opencontainers/image-spec/blob/main/annotations.md>.
    pub(super) fn labels(&self, title: &str) -> Result<BTreeMap<String, String>> {
        let created = self.created()?;
        let mut labels = vec![
            ("title", title),
            ("version", &self.version),
            ("revision", &self.revision),
            ("licenses", "Apache-2.0"),
            ("created", &created),
        ];
        labels.extend(self.source.iter().map(|source| ("source", source.as_str())));
        let named = labels
            .into_iter()
            .map(|(name, value)| (format!("org.opencontainers.image.{name}"), value.to_owned()));
        Ok(named.collect())
    }
}

/// The size of each image when somebody last looked at it, in bytes: a line each, `portolan-hub amd64 23456789`; `#` begins a comment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes(BTreeMap<(String, String), u64>);

/// An image that is larger than it may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Growth {
    name: String,
    size: u64,
    known: Option<u64>,
}

impl Sizes {
    /// Reads them; the error names the line.
    pub fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let sizes = lines.map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
            [name, architecture, size] => {
                let size = size
                    .parse()
                    .with_context(|| format!("{line:?}: not a number of bytes"))?;
                Ok(((name.to_owned(), architecture.to_owned()), size))
            }
            _ => bail!("{line:?} is not IMAGE ARCHITECTURE BYTES"),
        });
        Ok(Self(sizes.collect::<Result<_>>()?))
    }

    /// Whether the image `name` may have this size on this machine's architecture. One that is not listed may be as large as any.
    pub fn check(&self, name: &str, size: u64) -> Result<(), Growth> {
        let key = (name.to_owned(), super::architecture().to_owned());
        let known = self.0.get(&key).copied();
        if size > MOST || known.is_some_and(|known| size * 100 > known * (100 + GROWTH)) {
            return Err(Growth {
                name: name.to_owned(),
                size,
                known,
            });
        }
        Ok(())
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, size, known } = self;
        match known {
            _ if *size > MOST => write!(to, "{name} has {size} bytes, and no image may have more than {MOST}"),
            Some(known) => write!(
                to,
                "{name} has {size} bytes, more than {GROWTH} % over the {known} that are recorded; if that is meant, record \
                 `{name} {} {size}`",
                super::architecture()
            ),
            None => write!(to, "{name} has {size} bytes"),
        }
    }
}

impl std::error::Error for Growth {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_by_more_than_a_twentieth_is_told() {
        let text = format!(
            "# sizes\n\na {arch} 1000000\nb {arch} 34500000\na other 1\n",
            arch = crate::image::architecture()
        );
        let sizes = Sizes::parse(&text).unwrap();
        assert_eq!(sizes.check("a", 1_050_000), Ok(()));
        let grown = sizes.check("a", 1_050_001).unwrap_err().to_string();
        assert!(grown.contains("record `a ") && grown.contains(" 1050001`"), "{grown}");
        assert_eq!(sizes.check("new", MOST), Ok(()));
        for name in ["b", "new"] {
            let large = sizes.check(name, MOST + 1).unwrap_err().to_string();
            assert!(large.contains("no image may have more than 35000000"), "{large}");
        }
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        for bad in ["a amd64", "a amd64 many", "a amd64 1 2"] {
            assert!(format!("{:#}", Sizes::parse(bad).unwrap_err()).contains(bad), "{bad}");
        }
    }
}
