//! A value that must not be seen: tokens, private keys, passwords.
//!
//! `Secret` has a redacted `Debug`, no `Display` and no `Serialize`, so that it cannot reach a log line,
//! `/configz` or an error by accident; it is wiped from memory when dropped. It does not encrypt anything.
//! Callers: every program, and `pki` and `tls` for private keys.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, Zeroizing};

/// A redacted, wiped-on-drop value. As a clap flag, add `hide_env_values = true`: help prints env values.
#[derive(Clone, Default)]
pub struct Secret<T: Zeroize = String>(Zeroizing<T>);

impl<T: Zeroize> Secret<T> {
    /// Takes a value that must not be seen.
    pub fn new(value: T) -> Self {
        Self(Zeroizing::new(value))
    }

    /// The value itself. Keep the borrow short and never format it.
    pub fn expose(&self) -> &T {
        &self.0
    }
}

impl<T: Zeroize + AsRef<[u8]>> Secret<T> {
    /// Compares in time that depends on the lengths alone, so that a guess cannot be refined byte by byte.
    pub fn ct_eq(&self, other: impl AsRef<[u8]>) -> bool {
        self.0.as_ref().ct_eq(other.as_ref()).into()
    }
}

impl<T: Zeroize + AsRef<[u8]>> PartialEq for Secret<T> {
    fn eq(&self, other: &Self) -> bool {
        self.ct_eq(other.0.as_ref())
    }
}

impl<T: Zeroize + AsRef<[u8]>> Eq for Secret<T> {}

impl<T: Zeroize> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl<T: Zeroize> From<T> for Secret<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl From<&str> for Secret<String> {
    fn from(value: &str) -> Self {
        Self::new(value.to_owned())
    }
}

impl FromStr for Secret<String> {
    type Err = Infallible;

    fn from_str(value: &str) -> Result<Self, Self::Err> {
        Ok(value.into())
    }
}

impl<'de, T: Zeroize + Deserialize<'de>> Deserialize<'de> for Secret<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self::new)
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
    fn compares_whole_values() {
        let secret: Secret = "abc".parse().unwrap();
        assert!(secret.ct_eq("abc"));
        assert!(!secret.ct_eq("abd") && !secret.ct_eq("ab") && !secret.ct_eq(""));
        assert_eq!(secret, Secret::from("abc"));
        assert_ne!(Secret::new(vec![1_u8]), Secret::new(vec![2_u8]));
    }

    #[test]
    fn reads_from_json_but_has_no_way_back() {
        let secret: Secret = serde_json::from_str("\"s3\"").unwrap();
        assert!(secret.ct_eq("s3"));
    }
}
