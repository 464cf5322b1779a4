//! Bootstrap tokens: one Secret each, one subject, one key, an end.
//!
//! The text is `<id>.<secret>`; the Secret is named by the id and holds only a hash of the secret half. A token is spent
//! on the first public key it sees by an update with a resourceVersion precondition, and goes on serving that key, so
//! that a lost answer can be asked for again. Caller: `enroll`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret as KubeSecret;
use kube::api::{Api, PostParams};
use kube::{Client, Error as KubeError};
use portolan_crds::labels::{SECRET_BOOTSTRAP_PREFIX, SECRET_TYPE_BOOTSTRAP};
use portolan_runtime::{Secret, hex};
use portolan_wire::subscription::Subscription;
use sha2::{Digest, Sha256};
use thiserror::Error;

const ID_LENGTH: usize = 6;
const SECRET_MIN: usize = 16;
/// Nobody may make us hash more.
const SECRET_MAX: usize = 256;

#[derive(Debug, Error)]
pub(crate) enum TokenError {
    /// Deliberately one text for unknown, malformed and wrong: it helps nobody to guess.
    #[error(
        "bootstrapToken: unknown bootstrap token: make a new one with portolanctl join (agents) or router-token (routers)"
    )]
    Unknown,
    #[error(
        "bootstrapToken: this bootstrap token expired at {0}: make a new one with portolanctl join (agents) or router-token (routers)"
    )]
    Expired(Timestamp),
    #[error(
        "bootstrapToken: this bootstrap token was used with another key already, and serves only that one: \
         make a new one with portolanctl join (agents) or router-token (routers)"
    )]
    Spent,
    #[error("Secret {secret}: {field} {problem}: make a new token with portolanctl join")]
    Malformed {
        secret: String,
        field: &'static str,
        problem: &'static str,
    },
    #[error("cannot read or write Secret {secret}")]
    Kube {
        secret: String,
        #[source]
        source: KubeError,
    },
}

/// Whom a token is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Subject {
    Agent {
        cluster: String,
    },
    Router {
        name: String,
        sans: Vec<String>,
        subscription: Subscription,
    },
}

/// A token whose secret half was right.
#[derive(Debug)]
pub(crate) struct Proof {
    pub(crate) subject: Subject,
    secret: KubeSecret,
    name: String,
    spent_on: Option<String>,
    /// Uid of the Router object that was made for it.
    pub(crate) router_uid: Option<String>,
}

/// The Secrets with tokens.
#[derive(Clone)]
pub(crate) struct Tokens {
    api: Api<KubeSecret>,
}

impl Tokens {
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
        }
    }

    /// Finds and checks a token. Spends nothing.
    pub(crate) async fn check(&self, token: &Secret, now: Timestamp) -> Result<Proof, TokenError> {
        let (id, secret_half) = split(token.expose()).ok_or(TokenError::Unknown)?;
        let name = format!("{SECRET_BOOTSTRAP_PREFIX}{id}");
        let secret = self.api.get_opt(&name).await.map_err(|source| TokenError::Kube {
            secret: name.clone(),
            source,
        })?;
        read(secret.ok_or(TokenError::Unknown)?, name, secret_half, now)
    }

    /// Binds the token to `key` (see [`key_hash`]), unless it is bound to it already.
    pub(crate) async fn spend(&self, proof: &mut Proof, key: &str) -> Result<(), TokenError> {
        match &proof.spent_on {
            Some(spent_on) if spent_on == key => return Ok(()),
            Some(_) => return Err(TokenError::Spent),
            None => {}
        }
        self.note(proof, "spent-on", key).await
    }

    /// Remembers the Router object that was made for the token: once that is gone, it makes no other.
    pub(crate) async fn note_router(&self, proof: &mut Proof, uid: &str) -> Result<(), TokenError> {
        if proof.router_uid.as_deref() == Some(uid) {
            return Ok(());
        }
        self.note(proof, "router-uid", uid).await
    }

    async fn note(&self, proof: &mut Proof, key: &str, value: &str) -> Result<(), TokenError> {
        let mut secret = proof.secret.clone();
        let data = secret.data.get_or_insert_default();
        data.insert(key.to_owned(), ByteString(value.as_bytes().to_vec()));
        match self.api.replace(&proof.name, &PostParams::default(), &secret).await {
            Ok(written) => {
                proof.secret = written;
                Ok(())
            }
            // Somebody was faster. If it was the same key, the caller's next attempt finds it spent on that.
            Err(KubeError::Api(status)) if status.is_conflict() => Err(TokenError::Spent),
            Err(source) => Err(TokenError::Kube {
                secret: proof.name.clone(),
                source,
            }),
        }
    }
}

/// What a token is spent on: hex SHA-256 of a SubjectPublicKeyInfo.
pub(crate) fn key_hash(spki_der: &[u8]) -> String {
    hex(Sha256::digest(spki_der))
}

fn split(token: &str) -> Option<(&str, &str)> {
    let plain = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    let (id, secret) = token.trim().split_once('.')?;
    let fits = id.len() == ID_LENGTH && (SECRET_MIN..=SECRET_MAX).contains(&secret.len());
    (fits && plain(id) && plain(secret)).then_some((id, secret))
}

fn read(secret: KubeSecret, name: String, secret_half: &str, now: Timestamp) -> Result<Proof, TokenError> {
    if secret.type_.as_deref() != Some(SECRET_TYPE_BOOTSTRAP) {
        return Err(TokenError::Unknown);
    }
    let data = secret.data.clone().unwrap_or_default();
    let hash = Secret::new(hex(Sha256::digest(secret_half)));
    if !hash.ct_eq(text(&data, "token-hash").unwrap_or_default()) {
        return Err(TokenError::Unknown);
    }
    // From here on the caller has shown the secret, and may be told what is wrong.
    let malformed = |field, problem| TokenError::Malformed {
        secret: name.clone(),
        field,
        problem,
    };
    let expires = text(&data, "expires").ok_or_else(|| malformed("expires", "is missing"))?;
    let expires: Timestamp = expires
        .parse()
        .map_err(|_| malformed("expires", "is no RFC 3339 time"))?;
    if expires <= now {
        return Err(TokenError::Expired(expires));
    }
    // No dots: those are in the names of routers that a member vouches for (`vouched`).
    let name_of_subject = text(&data, "name").filter(|name| portolan_crds::names::is_dns_label(name));
    let named = name_of_subject.ok_or_else(|| malformed("name", "is missing or no DNS label"))?;
    let subject = match text(&data, "kind").as_deref() {
        Some("agent") => Subject::Agent { cluster: named },
        Some("router") => Subject::Router {
            name: named,
            sans: text(&data, "sans").map(|sans| words(&sans)).unwrap_or_default(),
            subscription: text(&data, "subscription")
                .and_then(|scopes| Subscription::from_scopes(words(&scopes).iter().map(String::as_str)).ok())
                .ok_or_else(|| malformed("subscription", "is missing or no subscription"))?,
        },
        _ => return Err(malformed("kind", "must be agent or router")),
    };
    Ok(Proof {
        subject,
        spent_on: text(&data, "spent-on"),
        router_uid: text(&data, "router-uid"),
        secret,
        name,
    })
}

fn words(list: &str) -> Vec<String> {
    list.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

fn text(data: &BTreeMap<String, ByteString>, key: &str) -> Option<String> {
    String::from_utf8(data.get(key)?.0.clone()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: &str = "0123456789abcdef";

    fn secret(fields: &[(&str, &str)]) -> KubeSecret {
        let hash = hex(Sha256::digest(HALF.as_bytes()));
        let mut data = BTreeMap::from([
            ("kind".to_owned(), "agent".to_owned()),
            ("name".to_owned(), "east".to_owned()),
            ("token-hash".to_owned(), hash),
            ("expires".to_owned(), "2030-01-01T00:00:00Z".to_owned()),
        ]);
        data.extend(
            fields
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned())),
        );
        KubeSecret {
            type_: Some(SECRET_TYPE_BOOTSTRAP.to_owned()),
            data: Some(
                data.into_iter()
                    .map(|(key, value)| (key, ByteString(value.into_bytes())))
                    .collect(),
            ),
            ..KubeSecret::default()
        }
    }

    fn check(secret: KubeSecret, half: &str) -> Result<Subject, String> {
        let now = "2029-01-01T00:00:00Z".parse().unwrap();
        read(secret, "s".to_owned(), half, now)
            .map(|proof| proof.subject)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn tokens_name_their_subject() {
        assert_eq!(check(secret(&[]), HALF), Ok(Subject::Agent { cluster: "east".into() }));
        let router = secret(&[
            ("kind", "router"),
            ("name", "gateway"),
            ("sans", "a.example, 10.0.0.1,"),
            ("subscription", "shard:ops/a,shard:ops/b"),
        ]);
        let sans = vec!["a.example".to_owned(), "10.0.0.1".to_owned()];
        assert_eq!(
            check(router, HALF),
            Ok(Subject::Router {
                name: "gateway".into(),
                sans,
                subscription: Subscription::from_scopes(["shard:ops/a", "shard:ops/b"]).unwrap(),
            })
        );
    }

    #[test]
    fn bad_tokens_are_refused_with_the_fix() {
        let untyped = KubeSecret {
            type_: Some("Opaque".into()),
            ..secret(&[])
        };
        let cases = [
            (secret(&[]), "0123456789abcdeg", "unknown bootstrap token"),
            (untyped, HALF, "unknown bootstrap token"),
            (
                secret(&[("expires", "2028-01-01T00:00:00Z")]),
                HALF,
                "expired at 2028-01-01T00:00:00Z",
            ),
            (secret(&[("expires", "soon")]), HALF, "expires is no RFC 3339 time"),
            (secret(&[("kind", "king")]), HALF, "kind must be agent or router"),
            (secret(&[("name", "Not A Name")]), HALF, "name is missing"),
            (secret(&[("kind", "router")]), HALF, "subscription is missing"),
        ];
        for (secret, half, text) in cases {
            let error = check(secret, half).unwrap_err();
            assert!(error.contains(text) && error.contains("portolanctl"), "{error}");
        }
    }

    #[test]
    fn text_of_a_token() {
        assert_eq!(split("abc123.0123456789abcdef"), Some(("abc123", "0123456789abcdef")));
        for bad in [
            "",
            "abc123",
            "abc12.0123456789abcdef",
            "abc123.short",
            "ABC123.0123456789abcdef",
            "abc123.0123456789abcde/",
        ] {
            assert_eq!(split(bad), None, "{bad}");
        }
    }
}
