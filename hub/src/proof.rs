//! Does a member really sign by a key that it publishes? It shows a token that the key signed over the hub's nonce.
//!
//! Whoever publishes a key without this could take the key that another member will sign by tomorrow. The token is of a
//! ServiceAccount that nobody but the agent may have tokens of, or any tenant of another member could lend one; and for an
//! audience that no API server has, so it is good for nothing else. Its times do not matter: the nonce is of one stream.
//! Pure but for the nonce. Caller: agent sessions.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use portolan_crds::labels::{SERVICE_ACCOUNT_PROOF, SYSTEM_NAMESPACE, proof_audience};
use portolan_crds::names::service_account_user;
use portolan_runtime::hex;
use portolan_wire::v1;
use serde::Deserialize;
use thiserror::Error;

use crate::jwks::{self, JwksError};

/// Random, of one stream.
#[derive(Debug, Clone)]
pub(crate) struct Nonce(String);

impl Nonce {
    pub(crate) fn new() -> Self {
        Self(hex(rand::random::<[u8; 32]>()))
    }

    pub(crate) fn challenge(&self) -> v1::KeyChallenge {
        v1::KeyChallenge { nonce: self.0.clone() }
    }
}

/// Why a proof does not hold.
#[derive(Debug, Error)]
pub(crate) enum ProofError {
    #[error(transparent)]
    Keys(#[from] JwksError),
    #[error("it is no token that an API server signs")]
    NotAToken,
    #[error("none of the published keys has signed it")]
    Unsigned,
    #[error("it is not a token of ServiceAccount {SYSTEM_NAMESPACE}/{SERVICE_ACCOUNT_PROOF} for this stream's nonce")]
    Another,
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    aud: Vec<String>,
}

/// The key that signed the proof, and all that are published.
pub(crate) fn proven(shown: &v1::SigningKeys, nonce: &Nonce) -> Result<(String, Vec<String>), ProofError> {
    let published = jwks::parse(&shown.jwks)?;
    let header = jsonwebtoken::decode_header(&shown.proof).map_err(|_| ProofError::NotAToken)?;
    let named = published
        .iter()
        .filter_map(|text| Some((text, serde_json::from_str::<Jwk>(text).ok()?)));
    let mut named = named.filter(|(_, key)| key.common.key_id == header.kid && fits(key, header.alg));
    let (key, claims) = named
        .find_map(|(text, key)| Some((text.clone(), signed(&shown.proof, &key, header.alg)?)))
        .ok_or(ProofError::Unsigned)?;
    let account = service_account_user(SYSTEM_NAMESPACE, SERVICE_ACCOUNT_PROOF);
    if claims.sub != account || claims.aud != [proof_audience(&nonce.0)] {
        return Err(ProofError::Another);
    }
    Ok((key, published))
}

fn signed(token: &str, key: &Jwk, algorithm: Algorithm) -> Option<Claims> {
    let mut validation = Validation::new(algorithm);
    validation.validate_exp = false;
    validation.validate_aud = false;
    validation.required_spec_claims.clear();
    let key = DecodingKey::from_jwk(key).ok()?;
    Some(jsonwebtoken::decode::<Claims>(token, &key, &validation).ok()?.claims)
}

/// The algorithms that routers take, by the key and never by the token's own word.
fn fits(key: &Jwk, algorithm: Algorithm) -> bool {
    match (&key.algorithm, algorithm) {
        (AlgorithmParameters::RSA(_), Algorithm::RS256 | Algorithm::RS384 | Algorithm::RS512) => true,
        (AlgorithmParameters::EllipticCurve(key), Algorithm::ES256) => key.curve == EllipticCurve::P256,
        (AlgorithmParameters::EllipticCurve(key), Algorithm::ES384) => key.curve == EllipticCurve::P384,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Signer;

    #[test]
    fn only_the_key_that_signed_for_this_stream_is_proven() {
        let (mine, next) = (Signer::new("a"), Signer::new("b"));
        let nonce = Nonce::new();
        let jwks = format!(r#"{{"keys":[{},{}]}}"#, mine.jwk(), next.jwk());
        let show = |proof: String| {
            let shown = v1::SigningKeys {
                jwks: jwks.clone(),
                proof,
            };
            proven(&shown, &nonce)
        };
        let (key, published) = show(mine.proof(&nonce.0)).unwrap();
        assert_eq!(jwks::thumbprint_of(&key), jwks::thumbprint_of(&mine.jwk()));
        assert_eq!(published.len(), 2);

        assert!(matches!(show(mine.proof("another")), Err(ProofError::Another)));
        let of = |sub: &str| mine.sign(&serde_json::json!({"sub": sub, "aud": [proof_audience(&nonce.0)]}));
        let tenant = of("system:serviceaccount:tenant:portolan-proof");
        assert!(matches!(show(tenant), Err(ProofError::Another)));
        // By a key of the same name that is not published.
        let forged = Signer::new("b").proof(&nonce.0);
        assert!(matches!(show(forged), Err(ProofError::Unsigned)));
        assert!(matches!(show("x.y.z".to_owned()), Err(ProofError::NotAToken)));
    }
}
