//! A member's token-signing keys: reading a JWKS document and telling keys apart (RFC 7517, RFC 7638).
//!
//! Pure. Keys are kept as the JSON they came as, without what is not a public parameter; two keys are the same if their
//! thumbprints are, which are over the decoded numbers: a member could publish another's key in another spelling, and
//! routers, who find out, would then trust neither. Callers: enrolment and agent sessions (pinning), `compile`.

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use portolan_runtime::hex;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// A JWKS document is some kilobytes; nobody may make us parse more.
const MAX_BYTES: usize = 256 * 1024;
/// A cluster has one signing key, during rotation a few.
const MAX_KEYS: usize = 32;
/// Texts of all keys of a cluster, and of one: an RSA key of 8192 bits has one and a half kilobytes. The pins of several
/// members share an object, which etcd takes a megabyte of.
const MAX_TEXTS_BYTES: usize = 16 * 1024;
const MAX_TEXT_BYTES: usize = 2 * 1024;
/// Kubernetes' own have 43 characters.
const MAX_KID_BYTES: usize = 256;
/// Parameters that matter for verifying; private ones are never among them.
const KEPT: [&str; 9] = ["kty", "kid", "alg", "use", "n", "e", "crv", "x", "y"];

/// Reads every spelling that some reader of keys might take, so that all of them are one key.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// What is wrong with a JWKS document.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum JwksError {
    #[error("jwks has {0} bytes, more than {MAX_BYTES}")]
    TooLarge(usize),
    #[error("jwks is no JSON object with a list \"keys\": send the member's /openid/v1/jwks document")]
    NotAKeySet,
    #[error("jwks has {0} keys: expected 1 to {MAX_KEYS}")]
    Count(usize),
    #[error("jwks key {0} is larger than {MAX_TEXT_BYTES} bytes, or its kid than {MAX_KID_BYTES}")]
    KeyTooLarge(usize),
    #[error("the keys of jwks have {0} bytes, more than {MAX_TEXTS_BYTES}")]
    KeysTooLarge(usize),
    #[error("jwks key {0} has no readable public RSA, EC or OKP parameters")]
    NotAKey(usize),
}

/// The public keys of a document, one canonical JSON text each, sorted.
pub(crate) fn parse(document: &str) -> Result<Vec<String>, JwksError> {
    if document.len() > MAX_BYTES {
        return Err(JwksError::TooLarge(document.len()));
    }
    let value: Value = serde_json::from_str(document).map_err(|_| JwksError::NotAKeySet)?;
    let keys = value["keys"].as_array().ok_or(JwksError::NotAKeySet)?;
    if keys.is_empty() || keys.len() > MAX_KEYS {
        return Err(JwksError::Count(keys.len()));
    }
    let mut texts = Vec::new();
    for (index, key) in keys.iter().enumerate() {
        thumbprint(key).ok_or(JwksError::NotAKey(index))?;
        let kept: Map<String, Value> = KEPT
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), key.get(*name)?.clone())))
            .collect();
        let kid = key["kid"].as_str().map_or(0, str::len);
        let text = Value::Object(kept).to_string();
        if text.len() > MAX_TEXT_BYTES || kid > MAX_KID_BYTES {
            return Err(JwksError::KeyTooLarge(index));
        }
        texts.push(text);
    }
    texts.sort();
    texts.dedup();
    let bytes = texts.iter().map(String::len).sum();
    if bytes > MAX_TEXTS_BYTES {
        return Err(JwksError::KeysTooLarge(bytes));
    }
    Ok(texts)
}

/// Whether a pin may hold all of these keys.
pub(crate) fn have_room(keys: &[String]) -> bool {
    keys.len() <= MAX_KEYS && keys.iter().map(String::len).sum::<usize>() <= MAX_TEXTS_BYTES
}

/// What tells a key from others (hex of SHA-256 over its numbers), from its JSON text; `None` if it is none.
pub(crate) fn thumbprint_of(key: &str) -> Option<String> {
    thumbprint(&serde_json::from_str(key).ok()?)
}

fn thumbprint(key: &Value) -> Option<String> {
    let kind = key["kty"].as_str()?;
    let (curve, numbers): (&str, &[&str]) = match kind {
        "RSA" => ("", &["n", "e"]),
        "EC" => (key["crv"].as_str()?, &["x", "y"]),
        "OKP" => (key["crv"].as_str()?, &["x"]),
        _ => return None,
    };
    let mut hash = Sha256::new();
    hash.update(format!("{kind}\0{curve}\0"));
    for name in numbers {
        let bytes = LENIENT.decode(key[*name].as_str()?).ok()?;
        // A leading zero does not change the number.
        let number: Vec<_> = bytes.into_iter().skip_while(|byte| *byte == 0).collect();
        if number.is_empty() {
            return None;
        }
        hash.update(format!("{}\0", number.len()));
        hash.update(&number);
    }
    Some(hex(hash.finalize()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RSA: &str = r#"{"kty":"RSA","kid":"a","alg":"RS256","use":"sig","n":"AQAB","e":"AQAB","d":"private"}"#;

    #[test]
    fn keys_lose_what_is_private_and_keep_their_identity() {
        let keys = parse(&format!(r#"{{"keys":[{RSA}]}}"#)).unwrap();
        assert_eq!(keys.len(), 1);
        assert!(!keys[0].contains("private"));
        assert_eq!(thumbprint_of(&keys[0]), thumbprint_of(RSA));
        let renamed = RSA.replace(r#""kid":"a""#, r#""kid":"b""#);
        assert_eq!(
            thumbprint_of(&renamed),
            thumbprint_of(RSA),
            "a key by another kid is the same key"
        );
    }

    #[test]
    fn a_key_in_another_spelling_is_the_same_key() {
        let rsa = |n: &str, e: &str| thumbprint_of(&json!({"kty": "RSA", "n": n, "e": e}).to_string());
        let own = rsa("q80", "AQAB");
        assert!(own.is_some());
        for (n, e) in [("AKvN", "AQAB"), ("q80=", "AQAB"), ("q81", "AQAB"), ("q80", "AAEAAQ")] {
            assert_eq!(rsa(n, e), own, "{n} {e}");
        }
        assert_ne!(rsa("q8w", "AQAB"), own);
        for (n, e) in [("", "AQAB"), ("AAAA", "AQAB"), ("not base64!", "AQAB"), ("q80", "A")] {
            assert_eq!(rsa(n, e), None, "{n} {e}");
        }
    }

    #[test]
    fn one_member_leaves_room_for_the_pins_of_all_others() {
        let keys = |count: usize, n: usize, kid: usize| {
            let key = |index: usize| {
                let n = "q".repeat(n) + &format!("{index:02}");
                json!({"kty": "RSA", "kid": "k".repeat(kid), "alg": "RS256", "use": "sig", "n": n, "e": "AQAB"})
            };
            let keys: Vec<_> = (0..count).map(key).collect();
            parse(&json!({"keys": keys}).to_string())
        };
        // 2048 bits, as most have, and the largest in use.
        assert_eq!(keys(32, 340, 43).unwrap().len(), 32);
        assert_eq!(keys(4, 1364, 43).unwrap().len(), 4);
        assert_eq!(keys(1, 2048, 43), Err(JwksError::KeyTooLarge(0)));
        assert_eq!(keys(1, 340, 257), Err(JwksError::KeyTooLarge(0)));
        assert!(matches!(keys(32, 1364, 43), Err(JwksError::KeysTooLarge(_))));
    }

    #[test]
    fn what_is_no_key_set_is_refused() {
        for bad in ["", "[]", "{}", r#"{"keys":1}"#] {
            assert_eq!(parse(bad), Err(JwksError::NotAKeySet), "{bad}");
        }
        assert_eq!(parse(r#"{"keys":[]}"#), Err(JwksError::Count(0)));
        assert_eq!(
            parse(r#"{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}"#),
            Err(JwksError::NotAKey(0))
        );
    }
}
