//! A member's key, and what is signed by it.

/// Signs tokens as a member's API server does.
pub(crate) struct Signer {
    key: jsonwebtoken::EncodingKey,
    kid: &'static str,
}

impl Signer {
    pub(crate) fn new(kid: &'static str) -> Self {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        Self {
            key: jsonwebtoken::EncodingKey::from_ec_der(&key.serialize_der()),
            kid,
        }
    }

    pub(crate) fn jwk(&self) -> String {
        let mut jwk = jsonwebtoken::jwk::Jwk::from_encoding_key(&self.key, jsonwebtoken::Algorithm::ES256).unwrap();
        jwk.common.key_id = Some(self.kid.to_owned());
        serde_json::to_string(&jwk).unwrap()
    }

    pub(crate) fn sign(&self, claims: &serde_json::Value) -> String {
        let header = jsonwebtoken::Header {
            kid: Some(self.kid.to_owned()),
            ..jsonwebtoken::Header::new(jsonwebtoken::Algorithm::ES256)
        };
        jsonwebtoken::encode(&header, claims, &self.key).unwrap()
    }

    /// What an agent shows on the stream of this nonce.
    pub(crate) fn proof(&self, nonce: &str) -> String {
        let audience = portolan_crds::labels::proof_audience(nonce);
        self.sign(
            &serde_json::json!({"sub": "system:serviceaccount:portolan-system:portolan-proof", "aud": [audience]}),
        )
    }
}
