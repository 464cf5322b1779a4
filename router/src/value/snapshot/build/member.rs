//! Members of the wire, checked: the way to each, its identity, its coverage, the token for it.

use std::sync::Arc;

use portolan_crds::labels::system_namespace;
use portolan_crds::names::{service_account_of, service_account_user};
use portolan_runtime::Secret;
use portolan_wire::protocol::MAX_NODE_NAMES;
use portolan_wire::v1;

use super::shard::label_rule;
use super::{BuildError, bad, cluster};
use crate::value::snapshot::{Coverage, Credential, Endpoint, Kinds, MemberIdentity, NodeNames, Target, keys};

pub(super) fn target(wire: &v1::Target, version: &str) -> Result<Target, BuildError> {
    let endpoints = wire.endpoints.iter().map(endpoint).collect::<Result<Vec<_>, _>>()?;
    if endpoints.is_empty() {
        return Err(bad("endpoints", "at least one is needed"));
    }
    let breaker = wire.breaker.clone().unwrap_or_default();
    if !(0.0..=1.0).contains(&breaker.failure_ratio) {
        return Err(bad(
            "breaker.failure_ratio",
            format!("{} is not between 0 and 1", breaker.failure_ratio),
        ));
    }
    Ok(Target {
        cluster: cluster("cluster", &wire.cluster)?,
        version: version.to_owned(),
        cluster_uid: wire.cluster_uid.clone(),
        endpoints,
        ca_pem: wire.ca_pem.clone(),
        cordoned: wire.cordoned,
        breaker,
    })
}

pub(super) fn identity(wire: &v1::MemberIdentity) -> Result<MemberIdentity, BuildError> {
    for key in &wire.signing_keys {
        keys::check(key).map_err(|error| bad("signing_keys", error))?;
    }
    let accounts = wire.allowed_service_accounts.iter();
    let accounts = accounts.filter_map(|account| account.split_once('/'));
    let accounts = accounts.filter(|(namespace, _)| !system_namespace(namespace));
    let accounts = accounts.map(|(namespace, name)| service_account_user(namespace, name));
    let accounts = accounts.filter(|user| service_account_of(user).is_some());
    // A ServiceAccount is allowed as such alone.
    let people = wire
        .allowed_users
        .iter()
        .filter(|user| service_account_of(user).is_none());
    Ok(MemberIdentity {
        signing_keys: wire.signing_keys.clone(),
        allowed: accounts.chain(people.cloned()).collect(),
        clock_agrees: wire.clock_agrees,
    })
}

pub(super) fn coverage(wire: &v1::Coverage) -> Kinds {
    let mut kinds = Kinds::default();
    let unconfirmed = Arc::new(wire.unconfirmed.iter().cloned().collect());
    for kind in &wire.kinds {
        let facts = Coverage {
            complete: kind.complete,
            labelled: kind.labelled,
            total: kind.total,
            rule: kind.rule.as_ref().and_then(label_rule),
            at_admission: kind.at_admission,
            unconfirmed: Arc::clone(&unconfirmed),
        };
        let of_group = kinds.entry(kind.group.clone()).or_default();
        of_group.insert(kind.resource.clone(), facts);
    }
    kinds
}

pub(super) fn nodes(wire: &v1::Nodes) -> NodeNames {
    let names = wire.names.clone().unwrap_or_default();
    NodeNames {
        digests: names.digests.into_iter().take(MAX_NODE_NAMES).collect(),
        more: names.more,
    }
}

fn endpoint(wire: &v1::Endpoint) -> Result<Endpoint, BuildError> {
    if wire.url.contains('@') {
        // Not repeated: what stands before the '@' is a password.
        return Err(bad("endpoints[].url", "must not carry user information"));
    }
    let refuse = |problem: &str| bad("endpoints[].url", format!("{:?} {problem}", wire.url));
    let url: http::Uri = wire.url.parse().map_err(|_| refuse("is not a URL"))?;
    if url.scheme_str() != Some("https") || url.host().is_none_or(str::is_empty) {
        return Err(refuse("must be https://host[:port]"));
    }
    if !matches!(url.path(), "" | "/") || url.query().is_some() {
        return Err(refuse("must not have a path or query"));
    }
    let name = &wire.tls_server_name;
    Ok(Endpoint {
        url,
        tls_server_name: (!name.is_empty()).then(|| name.clone()),
    })
}

pub(super) fn credential(wire: &v1::Credential) -> Result<Credential, BuildError> {
    // A token that cannot stand in a header would fail every request of that member.
    if wire.token.is_empty() || !wire.token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(bad("token", "is empty or cannot stand in an HTTP header"));
    }
    if wire.identity.is_empty() {
        return Err(bad("identity", "is missing"));
    }
    let bearer = Secret::from(wire.token.as_str()).bearer();
    Ok(Credential {
        cluster: cluster("cluster", &wire.cluster)?,
        identity: wire.identity.as_str().into(),
        bearer: bearer.map_err(|error| bad("token", error))?,
        expires_unix_seconds: wire.expires_unix_seconds,
    })
}
