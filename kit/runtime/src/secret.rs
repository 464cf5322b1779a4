//! A text that must not be seen: tokens, private keys, passwords.
//!
//! `Secret` has a redacted `Debug`, no `Display` and no `Serialize`, so that it cannot reach a log line,
//! `/configz` or an error by accident; it is wiped from memory when dropped. It does not encrypt anything.
//! Callers: every program, and `pki` and `tls` for private keys.

use std::fmt;

use bytes::Bytes;
use http::HeaderValue;
use http::header::InvalidHeaderValue;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// A text that is redacted, and wiped when it is dropped.
#[derive(Clone, Default)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes a text that must not be seen.
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The text itself. Keep the borrow short and never format it.
    pub fn expose(&self) -> &String {
        &self.0
    }

    /// As the value of an `Authorization` header. Its clones share one text, which is wiped with the last of them.
    pub fn bearer(&self) -> Result<HeaderValue, InvalidHeaderValue> {
        let text = Zeroizing::new(format!("Bearer {}", self.expose()).into_bytes());
        let mut value = HeaderValue::from_maybe_shared(Bytes::from_owner(text))?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// Compares in time that depends on the lengths alone, so that a guess cannot be refined byte by byte.
    pub fn ct_eq(&self, other: impl AsRef<[u8]>) -> bool {
        self.0.as_bytes().ct_eq(other.as_ref()).into()
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.ct_eq(other.expose())
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self::new(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    #[allow(dead_code)] // read by Debug alone, which is the point
    struct Holder {
        name: &'static str,
        token: Secret,
    }

    #[test]
    fn canary_never_shows_in_debug() {
        let holder = Holder {
            name: "agent",
            token: "canary-7f3a".into(),
        };
        for text in [format!("{holder:?}"), format!("{holder:#?}")] {
            assert!(!text.contains("canary"), "{text}");
            assert!(text.contains("[redacted]") && text.contains("agent"), "{text}");
        }
        assert_eq!(holder.token.expose(), "canary-7f3a");
    }

    #[test]
    fn a_bearer_is_sensitive_and_whole() {
        let value = Secret::from("canary-7f3a").bearer().unwrap();
        assert_eq!(value, "Bearer canary-7f3a");
        assert!(value.is_sensitive() && !format!("{value:?}").contains("canary"));
        assert!(Secret::from("a\nb").bearer().is_err());
    }

    #[test]
    fn compares_whole_values() {
        let secret = Secret::from("abc");
        assert!(secret.ct_eq("abc"));
        assert!(!secret.ct_eq("abd") && !secret.ct_eq("ab") && !secret.ct_eq(""));
        assert_eq!(secret, Secret::from("abc"));
        assert_ne!(secret, Secret::from("abd"));
    }
}
