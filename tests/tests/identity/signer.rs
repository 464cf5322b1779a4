//! ServiceAccount tokens made by hand: with a cluster's real key, with a key of nobody's, with claims as a test wants them.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rcgen::KeyPair;
use rcgen::PublicKeyData as _;
use serde_json::{Value, json};

/// A signing key and the name it goes by.
pub(crate) struct Signer {
    key: EncodingKey,
    algorithm: Algorithm,
    pub(crate) kid: String,
    public_pem: String,
}

impl Signer {
    /// A new P-256 key; its `kid` is what an API server calls it.
    pub(crate) fn new() -> Self {
        let pair = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let spki = pair.subject_public_key_info();
        Self {
            key: EncodingKey::from_ec_der(&pair.serialize_der()),
            algorithm: Algorithm::ES256,
            kid: key_id(&spki),
            public_pem: pair.public_key_pem(),
        }
    }

    /// The RSA key that a testbed's cluster signs with.
    pub(crate) fn of_cluster(folder: &Path) -> Self {
        let pem = std::fs::read_to_string(folder.join("pki/service-account.key")).unwrap();
        let pair = KeyPair::from_pem(&pem).unwrap();
        let spki = pair.subject_public_key_info();
        Self {
            // PKCS#8 of a 2048-bit key: 26 bytes of wrapping, then the PKCS#1 that jsonwebtoken wants.
            key: EncodingKey::from_rsa_der(&pair.serialize_der()[26..]),
            algorithm: Algorithm::RS256,
            kid: key_id(&spki),
            public_pem: pair.public_key_pem(),
        }
    }

    pub(crate) fn sign(&self, claims: &Value) -> String {
        self.sign_as(&self.kid, claims)
    }

    /// With this key, under that name.
    pub(crate) fn sign_as(&self, kid: &str, claims: &Value) -> String {
        let header = Header {
            kid: Some(kid.to_owned()),
            ..Header::new(self.algorithm)
        };
        jsonwebtoken::encode(&header, claims, &self.key).unwrap()
    }

    /// HS256 with the public key as its secret, which everybody knows.
    pub(crate) fn confused(&self, claims: &Value) -> String {
        let header = Header {
            kid: Some(self.kid.clone()),
            ..Header::new(Algorithm::HS256)
        };
        jsonwebtoken::encode(&header, claims, &EncodingKey::from_secret(self.public_pem.as_bytes())).unwrap()
    }

    /// `alg: none` and no signature.
    pub(crate) fn unsigned(&self, claims: &Value) -> String {
        let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let header = json!({"alg": "none", "typ": "JWT", "kid": self.kid});
        format!("{}.{}.", part(header), part(claims.clone()))
    }
}

/// As Kubernetes names keys: the hash of the public key.
fn key_id(spki: &[u8]) -> String {
    let digest = rustls::crypto::aws_lc_rs::default_provider()
        .cipher_suites
        .iter()
        .find_map(|suite| match suite {
            rustls::SupportedCipherSuite::Tls13(suite) if suite.common.hash_provider.output_len() == 32 => {
                Some(suite.common.hash_provider.hash(spki))
            }
            _ => None,
        })
        .unwrap();
    URL_SAFE_NO_PAD.encode(digest.as_ref())
}

/// The claims of a token, to be changed and signed again.
pub(crate) fn claims_of(token: &str) -> Value {
    let claims = token.trim().split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap()
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}
