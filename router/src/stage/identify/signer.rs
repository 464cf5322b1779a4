//! Signs tokens as a member's API server does, with keys made on the spot: for tests.

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rcgen::{KeyPair, RsaKeySize};
use serde_json::Value;

/// A member's signing key.
pub(crate) struct Signer {
    pub(super) key: EncodingKey,
    pub(super) algorithm: Algorithm,
    pub(super) kid: &'static str,
}

impl Signer {
    pub(crate) fn ec(kid: &'static str) -> Self {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        Self {
            key: EncodingKey::from_ec_der(&key.serialize_der()),
            algorithm: Algorithm::ES256,
            kid,
        }
    }

    pub(crate) fn rsa(kid: &'static str) -> Self {
        let key = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
        // PKCS#8 of a 2048-bit key: 26 bytes of wrapping, then the PKCS#1 that jsonwebtoken wants.
        Self {
            key: EncodingKey::from_rsa_der(&key.serialize_der()[26..]),
            algorithm: Algorithm::RS256,
            kid,
        }
    }

    pub(crate) fn jwk(&self) -> String {
        let mut jwk = Jwk::from_encoding_key(&self.key, self.algorithm).unwrap();
        jwk.common.key_id = Some(self.kid.to_owned());
        serde_json::to_string(&jwk).unwrap()
    }

    pub(crate) fn sign(&self, claims: &Value) -> String {
        let header = Header {
            kid: Some(self.kid.to_owned()),
            ..Header::new(self.algorithm)
        };
        jsonwebtoken::encode(&header, claims, &self.key).unwrap()
    }
}
