//! What the scripted hub tells the router: members, shards, callers and policies, as many as asked for, and the token of the
//! one caller who asks.
//!
//! That caller is the first; its shard has the first hundred members. All others are there for their number: ten callers to a shard
//! with a namespace of its own in the first member, and a shard for each next hundred members. Called by `scripted`.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use portolan_crds::labels::GATEWAY_ACCOUNT;
use portolan_wire::v1;
use portolan_wire::v1::resource::Body;
use rand::distr::{Alphanumeric, SampleString as _};
use serde_json::json;

use super::PERSON;
use crate::hub::TTL;

/// The first member: home of the callers, and primary.
pub(crate) const CLUSTER: &str = "bench";
/// Of a bound ServiceAccount's token, as API servers make them.
pub(crate) const TOKEN_BYTES: usize = 1_024;
const CALLER_NAMESPACE: &str = "operators";
const CALLER: &str = "bench-operator";
const POD: &str = "bench-operator-0";
const POD_UID: &str = "3c0a4b7e-6a56-4b6b-9f3e-1f2d3c4b5a69";
const KEY_ID: &str = "bench-key";
const LABEL_PREFIX: &str = "ctrlmesh.kusionstack.io/";
/// Replicas of each of the other operators.
const CALLERS_OF_A_SHARD: usize = 10;
/// A cursor has room for 180.
const MEMBERS_OF_A_SHARD: usize = 100;

/// How much the hub knows.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    pub(crate) members: usize,
    pub(crate) callers: usize,
    /// They hold the caller who asks.
    pub(crate) policies: Vec<v1::Policy>,
}

impl Default for Content {
    fn default() -> Self {
        Self {
            members: 1,
            callers: 1,
            policies: Vec::new(),
        }
    }
}

/// Where all members are, and whom they know.
pub(super) struct Members<'a> {
    /// Addresses of backends, of which each serves as many members as it takes.
    pub(super) backends: &'a [String],
    pub(super) ca_pem: &'a str,
    /// Key of the first member.
    pub(super) jwk: &'a str,
}

/// The caller's token, filled up to so many bytes, and the key that its member publishes.
pub(super) fn caller_token(bytes: usize) -> anyhow::Result<(String, String)> {
    let key = rcgen::KeyPair::generate()?;
    // An uncompressed point of P-256: 4, x, y.
    let point = key.public_key_raw();
    let coordinate = |range| URL_SAFE_NO_PAD.encode::<&[u8]>(&point[range]);
    let jwk = json!({
        "kty": "EC", "use": "sig", "alg": "ES256", "kid": KEY_ID, "crv": "P-256",
        "x": coordinate(1..33), "y": coordinate(33..65),
    });
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let mut claims = json!({
        "iss": "https://kubernetes.default.svc", "sub": format!("system:serviceaccount:{CALLER_NAMESPACE}:{CALLER}"),
        "aud": ["portolan"], "exp": (now + TTL).as_secs(), "nbf": now.as_secs(),
        "kubernetes.io": {
            "namespace": CALLER_NAMESPACE, "pod": {"name": POD, "uid": POD_UID},
            "serviceaccount": {"name": CALLER, "uid": "8f1f6d0f-8f7b-4c39-8a43-0e8b8f3f4a11"},
        },
    });
    let mut header = Header::new(Algorithm::ES256);
    header.kid = Some(KEY_ID.to_owned());
    let signing = EncodingKey::from_ec_der(&key.serialize_der());
    let mut token = jsonwebtoken::encode(&header, &claims, &signing)?;
    if token.len() < bytes {
        // Four characters of a token carry three bytes; the claim has a name.
        let missing = ((bytes - token.len()) * 3 / 4).saturating_sub(r#","jti":"""#.len());
        // As a signature of RSA looks, which makes up most of a token of an API server.
        let filling: String = (0..missing)
            .map(|_| char::from(rand::random_range(b'0'..=b'z')))
            .collect();
        claims["jti"] = filling.replace('\\', "-").into();
        token = jsonwebtoken::encode(&header, &claims, &signing)?;
    }
    Ok((token, jwk.to_string()))
}

/// All that there is, each under a version of its own.
pub(super) fn resources(content: &Content, members: &Members<'_>) -> Vec<v1::Resource> {
    let policies = &content.policies;
    let named = policies.iter().map(|policy| policy.name.clone()).collect();
    let mut bodies = vec![Body::CallerView(caller(0, named))];
    bodies.extend((1..content.callers).map(|number| Body::CallerView(caller(number, Vec::new()))));
    for number in 1..=operator_of(content.callers.saturating_sub(1)) {
        bodies.extend(other_shard(number));
    }
    for number in 0..content.members {
        bodies.extend(member(number, members));
    }
    let all: Vec<usize> = (0..content.members).collect();
    for (number, members) in all.chunks(MEMBERS_OF_A_SHARD).enumerate() {
        bodies.push(Body::Shard(shard_of(shard_of_members(number), members)));
    }
    bodies.extend(policies.iter().cloned().map(Body::Policy));
    bodies
        .into_iter()
        .enumerate()
        .map(|(number, body)| resource(&format!("bench-{number}"), body))
        .collect()
}

pub(crate) fn resource(version: &str, body: Body) -> v1::Resource {
    v1::Resource {
        version: version.to_owned(),
        body: Some(body),
    }
}

/// Name of a member: the first is the caller's home and the primary.
pub(crate) fn cluster(number: usize) -> String {
    if number == 0 {
        CLUSTER.to_owned()
    } else {
        format!("{CLUSTER}-{number}")
    }
}

fn shard_name(operator: usize) -> String {
    if operator == 0 {
        format!("{CALLER_NAMESPACE}/bench")
    } else {
        format!("{CALLER_NAMESPACE}-{operator}/bench")
    }
}

/// The shard of members by the hundred; the first is the asking caller's.
fn shard_of_members(hundred: usize) -> String {
    if hundred == 0 {
        shard_name(0)
    } else {
        format!("members-{hundred}/bench")
    }
}

/// The operator that a caller is a replica of. The first one has one replica.
fn operator_of(caller: usize) -> usize {
    caller.div_ceil(CALLERS_OF_A_SHARD)
}

/// A caller by number; the first is the one who asks.
pub(crate) fn caller(number: usize, policies: Vec<String>) -> v1::CallerView {
    let operator = operator_of(number);
    let (namespace, pod_uid) = if number == 0 {
        (CALLER_NAMESPACE.to_owned(), POD_UID.to_owned())
    } else {
        let namespace = format!("{CALLER_NAMESPACE}-{operator}");
        (namespace, format!("3c0a4b7e-6a56-4b6b-8000-{number:012}"))
    };
    v1::CallerView {
        home_cluster: CLUSTER.to_owned(),
        pod_uid,
        namespace,
        pod: if number == 0 {
            POD.to_owned()
        } else {
            format!("operator-{number}")
        },
        service_account: CALLER.to_owned(),
        shards: vec![shard_name(operator)],
        created_unix_seconds: None,
        writes_closed: None,
        policies,
    }
}

/// The shard of an operator that never asks: a namespace in the first member.
fn other_shard(operator: usize) -> [Body; 2] {
    let name = shard_name(operator);
    let owned = ownership(CLUSTER, &name, vec![format!("team-{operator}")]);
    [Body::Shard(shard_of(name, &[0])), Body::Ownership(owned)]
}

/// What a shard owns of a member.
fn ownership(cluster: &str, shard: &str, namespaces: Vec<String>) -> v1::Ownership {
    let granted = |namespace| v1::NamespaceGrant {
        namespace,
        owner_count: 1,
        fenced: false,
        vacant: false,
        state: v1::GrantState::Granted.into(),
        view_revision: 1,
    };
    v1::Ownership {
        cluster: cluster.to_owned(),
        shard: shard.to_owned(),
        namespaces: namespaces.into_iter().map(granted).collect(),
        ..v1::Ownership::default()
    }
}

/// All of one member. Its pods are labelled, as an agent would have done, and one namespace of its own name is its shard's.
fn member(number: usize, members: &Members<'_>) -> Vec<Body> {
    let cluster = cluster(number);
    let identity = v1::MemberIdentity {
        cluster: cluster.clone(),
        // A key identifies one member only.
        signing_keys: if number == 0 {
            vec![members.jwk.to_owned()]
        } else {
            Vec::new()
        },
        allowed_service_accounts: vec![format!("{CALLER_NAMESPACE}/{CALLER}")],
        allowed_users: vec![PERSON.to_owned()],
        clock_agrees: true,
    };
    let shard = shard_of_members(number / MEMBERS_OF_A_SHARD);
    vec![
        Body::Target(target(number, members)),
        Body::MemberIdentity(identity),
        Body::Coverage(coverage(&cluster)),
        Body::Ownership(ownership(&cluster, &shard, vec![cluster.clone()])),
        Body::Credential(credential(&cluster, &gateway_token())),
    ]
}

fn coverage(cluster: &str) -> v1::Coverage {
    let pods = v1::KindCoverage {
        group: String::new(),
        resource: "pods".to_owned(),
        complete: true,
        labelled: 1,
        total: 1,
        rule: Some(v1::LabelRule {
            prefix: LABEL_PREFIX.to_owned(),
            bucketing: None,
        }),
        at_admission: Some(true),
    };
    v1::Coverage {
        cluster: cluster.to_owned(),
        kinds: vec![pods],
        unconfirmed: Vec::new(),
    }
}

/// As long as what agents mint: it is sent whole with each request.
fn gateway_token() -> String {
    Alphanumeric.sample_string(&mut rand::rng(), TOKEN_BYTES)
}

/// As whom the router asks a member.
pub(crate) fn credential(cluster: &str, token: &str) -> v1::Credential {
    v1::Credential {
        cluster: cluster.to_owned(),
        identity: GATEWAY_ACCOUNT.to_owned(),
        token: token.to_owned(),
        expires_unix_seconds: i64::MAX,
    }
}

fn target(number: usize, members: &Members<'_>) -> v1::Target {
    let backend = &members.backends[number % members.backends.len()];
    v1::Target {
        cluster: cluster(number),
        cluster_uid: format!("0b1c2d3e-0000-4000-8000-{number:012}"),
        endpoints: vec![v1::Endpoint {
            url: format!("https://{backend}"),
            tls_server_name: String::new(),
        }],
        ca_pem: members.ca_pem.to_owned(),
        // The breaker counts as ever, but what is slow because this machine is busy is not taken for a sick member.
        breaker: Some(v1::Breaker {
            min_requests: u32::MAX,
            ..v1::Breaker::default()
        }),
        ..v1::Target::default()
    }
}

fn shard_of(name: String, members: &[usize]) -> v1::Shard {
    let member = |number: &usize| v1::ShardMember {
        cluster: cluster(*number),
        ..v1::ShardMember::default()
    };
    v1::Shard {
        name,
        config_generation: 1,
        primary_cluster: members.first().map(|number| cluster(*number)).unwrap_or_default(),
        explicit_view: true,
        enforcement: v1::Enforcement::Enforce.into(),
        members: members.iter().map(member).collect(),
        label_prefix: LABEL_PREFIX.to_owned(),
        ..v1::Shard::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn tokens_are_as_long_as_asked() {
        let (token, _) = caller_token(1_024).unwrap();
        assert!((1_015..=1_030).contains(&token.len()), "{}", token.len());
        let (short, _) = caller_token(0).unwrap();
        assert!((300..700).contains(&short.len()), "{}", short.len());
    }

    #[test]
    fn everything_is_told_once_and_every_caller_has_a_shard() {
        let content = Content {
            members: 250,
            callers: 35,
            ..Content::default()
        };
        let backends = ["127.0.0.1:1".to_owned()];
        let members = Members {
            backends: &backends,
            ca_pem: "",
            jwk: "{}",
        };
        let all = resources(&content, &members);
        let versions: HashSet<_> = all.iter().map(|resource| &resource.version).collect();
        assert_eq!(versions.len(), all.len());
        let bodies = || all.iter().filter_map(|resource| resource.body.as_ref());
        let shards: HashSet<_> = bodies()
            .filter_map(|body| match body {
                Body::Shard(shard) => Some(shard.name.clone()),
                _ => None,
            })
            .collect();
        let callers: Vec<_> = bodies()
            .filter_map(|body| match body {
                Body::CallerView(caller) => Some(caller),
                _ => None,
            })
            .collect();
        assert_eq!((callers.len(), shards.len()), (35, 7));
        assert!(callers.iter().all(|caller| shards.contains(&caller.shards[0])));
        assert_eq!(bodies().filter(|body| matches!(body, Body::Target(_))).count(), 250);
    }
}
