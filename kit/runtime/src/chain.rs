//! An error with its causes in one line: for log fields, `/readyz` and messages to people.

use std::error::Error;
use std::fmt;

/// Displays an error, then each of its causes after a colon. A cause that the text before it already ends with is left
/// out: errors that are transparent, or that print their source themselves, would say it twice.
#[derive(Debug, Clone, Copy)]
pub struct Chain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.0.to_string();
        f.write_str(&said)?;
        for cause in std::iter::successors(self.0.source(), |&cause| cause.source()) {
            let cause = cause.to_string();
            if !said.ends_with(&cause) {
                write!(f, ": {cause}")?;
                said = cause;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thiserror::Error;

    #[derive(Debug, Error)]
    enum Outer {
        #[error("outer")]
        Silent(#[source] Inner),
        #[error("outer: {0}")]
        Saying(#[source] Inner),
        #[error(transparent)]
        Transparent(#[from] Inner),
    }

    #[derive(Debug, Error)]
    #[error("inner")]
    struct Inner(#[source] std::fmt::Error);

    #[test]
    fn every_cause_is_told_once() {
        let (inner, root) = (|| Inner(fmt::Error), fmt::Error.to_string());
        assert_eq!(
            Chain(&Outer::Silent(inner())).to_string(),
            format!("outer: inner: {root}")
        );
        assert_eq!(
            Chain(&Outer::Saying(inner())).to_string(),
            format!("outer: inner: {root}")
        );
        assert_eq!(Chain(&Outer::from(inner())).to_string(), format!("inner: {root}"));
    }
}
