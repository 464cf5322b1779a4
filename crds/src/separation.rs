//! The switch of a ledger of before to owners of each operator, as a ConfigMap of the hub tells it: that somebody wants it, and what the
//! hub says to that.
//!
//! `portolanctl shards separate --yes` writes that it is wanted; the hub takes that out when it has switched, or refuses.

use std::collections::BTreeMap;

const WANTED: &str = "wanted";
const REFUSED: &str = "refused";
const YES: &str = "true";

/// `data` of ConfigMap `portolan-separation`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Separation {
    /// Somebody wants it, and the hub has not answered.
    pub wanted: bool,
    /// What the hub waits for, and did not switch for when it was wanted last: a line each.
    pub refused: Vec<String>,
}

impl Separation {
    /// Reads it. What is not known is left out.
    pub fn from_data(data: &BTreeMap<String, String>) -> Self {
        let refused = data.get(REFUSED).map(String::as_str).unwrap_or_default();
        Self {
            wanted: data.get(WANTED).is_some_and(|text| text == YES),
            refused: refused.lines().map(str::to_owned).collect(),
        }
    }

    /// Writes it.
    pub fn to_data(&self) -> BTreeMap<String, String> {
        let wanted = if self.wanted { YES } else { "" };
        let texts = [(WANTED, wanted.to_owned()), (REFUSED, self.refused.join("\n"))];
        let said = texts.into_iter().filter(|(_, text)| !text.is_empty());
        said.map(|(key, text)| (key.to_owned(), text)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let all = Separation {
            wanted: true,
            refused: vec!["router a".to_owned(), "router b".to_owned()],
        };
        for one in [all, Separation::default()] {
            assert_eq!(Separation::from_data(&one.to_data()), one);
        }
    }
}
