//! A rotation of the hub's CA as a ConfigMap of the hub tells it: what a person wants, and what the hub says to that.
//!
//! `portolanctl ca rotate` writes what is wanted; the hub takes that out when it is done or refused, and keeps the rest up to
//! date while there are two CAs. No key is in it, nor any certificate.

use std::collections::BTreeMap;

const WANTED: &str = "wanted";
const DROP_ABSENT: &str = "dropAbsent";
const PHASE: &str = "phase";
const WAITING: &str = "waiting";
const REFUSED: &str = "refused";

/// `data` of ConfigMap `portolan-ca-rotation`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaRotation {
    /// The step that somebody wants and that the hub has not answered: `begin`, `issue`, `finish` or `abort`.
    pub wanted: Option<String>,
    /// Who is not connected is not waited for: it has to enrol anew.
    pub drop_absent: bool,
    /// How far it is: `one` CA; `both` trusted, the old one issues; the `new` one issues, both trusted.
    pub phase: String,
    /// Whom the next step waits for, and why: a line each.
    pub waiting: Vec<String>,
    /// Why the last step that was wanted was not taken.
    pub refused: Option<String>,
}

impl CaRotation {
    /// Reads it. What is not known is left out.
    pub fn from_data(data: &BTreeMap<String, String>) -> Self {
        let text = |key: &str| data.get(key).filter(|text| !text.is_empty()).cloned();
        Self {
            wanted: text(WANTED),
            drop_absent: text(DROP_ABSENT).is_some_and(|text| text == "true"),
            phase: text(PHASE).unwrap_or_default(),
            waiting: text(WAITING)
                .map(|text| text.lines().map(str::to_owned).collect())
                .unwrap_or_default(),
            refused: text(REFUSED),
        }
    }

    /// Writes it.
    pub fn to_data(&self) -> BTreeMap<String, String> {
        let drop_absent = if self.drop_absent { "true" } else { "" };
        let texts = [
            (WANTED, self.wanted.clone().unwrap_or_default()),
            (DROP_ABSENT, drop_absent.to_owned()),
            (PHASE, self.phase.clone()),
            (WAITING, self.waiting.join("\n")),
            (REFUSED, self.refused.clone().unwrap_or_default()),
        ];
        let said = texts.into_iter().filter(|(_, text)| !text.is_empty());
        said.map(|(key, text)| (key.to_owned(), text)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let all = CaRotation {
            wanted: Some("issue".to_owned()),
            drop_absent: true,
            phase: "both".to_owned(),
            waiting: vec!["agent east".to_owned(), "router gateway".to_owned()],
            refused: Some("no".to_owned()),
        };
        for one in [all, CaRotation::default()] {
            assert_eq!(CaRotation::from_data(&one.to_data()), one);
        }
    }
}
