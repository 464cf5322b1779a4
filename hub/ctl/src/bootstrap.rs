//! Bootstrap tokens: one subject, one use, expiring. The hub keeps a hash only. Called by join, router-token and dev.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, PostParams, Preconditions};
use kube::{Client, ResourceExt as _};
use portolan_crds::labels;
use portolan_runtime::hex;
use portolan_wire::subscription::Subscription;
use rand::RngExt as _;
use sha2::{Digest as _, Sha256};

use crate::cli::RouterTokenArgs;
use crate::connect::connect;

const ID_LENGTH: usize = 6;
/// 32 characters of 36 are 165 bits.
const SECRET_LENGTH: usize = 32;
const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// Tokens that are over are kept for a while, so that who comes late is told that it expired.
const KEPT_EXPIRED: SignedDuration = SignedDuration::from_hours(24);

/// Whom a bootstrap token lets enrol.
pub(crate) enum Subject<'a> {
    /// The agent of this member cluster.
    Agent(&'a str),
    /// This router; its certificate may carry these names, and says this subscription.
    Router {
        name: &'a str,
        sans: &'a [String],
        subscription: &'a Subscription,
    },
}

/// Makes a token on the hub and returns its text, which is told once.
pub(crate) async fn create(hub: &Client, subject: &Subject<'_>, ttl: Duration) -> anyhow::Result<String> {
    let (id, secret) = (random(ID_LENGTH), random(SECRET_LENGTH));
    let mut data = BTreeMap::from([
        ("token-hash".to_owned(), hex(Sha256::digest(&secret))),
        ("expires".to_owned(), (Timestamp::now() + ttl).to_string()),
    ]);
    let name = match subject {
        Subject::Agent(cluster) => {
            data.insert("kind".into(), "agent".into());
            *cluster
        }
        Subject::Router {
            name,
            sans,
            subscription,
        } => {
            data.insert("kind".into(), "router".into());
            data.insert("sans".into(), sans.join(","));
            data.insert("subscription".into(), subscription.scopes().join(","));
            *name
        }
    };
    data.insert("name".into(), name.to_owned());
    let object = Secret {
        metadata: ObjectMeta {
            name: Some(format!("{}{id}", labels::SECRET_BOOTSTRAP_PREFIX)),
            namespace: Some(labels::SYSTEM_NAMESPACE.into()),
            ..Default::default()
        },
        type_: Some(labels::SECRET_TYPE_BOOTSTRAP.into()),
        string_data: Some(data),
        ..Default::default()
    };
    let secrets: Api<Secret> = Api::namespaced(hub.clone(), labels::SYSTEM_NAMESPACE);
    secrets.create(&PostParams::default(), &object).await.with_context(|| {
        format!("cannot keep the bootstrap token of {name} on the hub; has `portolanctl install` been run?")
    })?;
    // One is made for each join; who may make some may not be allowed to list them, and the new one is good all the same.
    let _ = delete_expired(&secrets).await;
    Ok(format!("{id}.{secret}"))
}

async fn delete_expired(secrets: &Api<Secret>) -> kube::Result<()> {
    let now = Timestamp::now();
    let tokens = ListParams::default().fields(&format!("type={}", labels::SECRET_TYPE_BOOTSTRAP));
    for token in secrets
        .list(&tokens)
        .await?
        .items
        .iter()
        .filter(|token| is_over(token, now))
    {
        let this_one = Preconditions {
            uid: token.metadata.uid.clone(),
            resource_version: None,
        };
        let params = DeleteParams::default().preconditions(this_one);
        secrets.delete(&token.name_any(), &params).await?;
    }
    Ok(())
}

/// Whether a token has been over for long enough. What is no token, or says no end, stays.
fn is_over(token: &Secret, now: Timestamp) -> bool {
    let expires = token.data.as_ref().and_then(|data| data.get("expires"));
    let expires = expires.and_then(|text| str::from_utf8(&text.0).ok()?.parse::<Timestamp>().ok());
    token.type_.as_deref() == Some(labels::SECRET_TYPE_BOOTSTRAP)
        && token.name_any().starts_with(labels::SECRET_BOOTSTRAP_PREFIX)
        && expires.is_some_and(|expires| now.duration_since(expires) > KEPT_EXPIRED)
}

pub(crate) async fn run_router_token(args: &RouterTokenArgs) -> anyhow::Result<()> {
    if !portolan_crds::names::is_dns_label(&args.name) {
        bail!(
            "router name {:?} is no DNS label: lower-case letters, digits and '-'",
            args.name
        );
    }
    let hub = connect("the hub", args.hub.hub_kubeconfig.as_deref()).await?;
    let token = create(
        &hub.client,
        &Subject::Router {
            name: &args.name,
            sans: &args.sans,
            subscription: &subscription_of(args),
        },
        args.token_ttl,
    )
    .await?;
    println!("{token}");
    Ok(())
}

fn subscription_of(args: &RouterTokenArgs) -> Subscription {
    match &args.caller {
        Some(caller) => Subscription::Caller(caller.clone()),
        None if args.shards.is_empty() => Subscription::Everything,
        None => Subscription::Shards(args.shards.iter().cloned().collect()),
    }
}

fn random(length: usize) -> String {
    let mut rng = rand::rng();
    (0..length)
        .map(|_| char::from(ALPHABET[rng.random_range(0..ALPHABET.len())]))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn tokens_that_are_long_over_are_deleted() {
        let token = |name: &str, type_: &str, hours: i64| {
            let expires = Timestamp::now() + SignedDuration::from_hours(hours);
            let expires = k8s_openapi::ByteString(expires.to_string().into_bytes());
            let name = format!("{}{name}", labels::SECRET_BOOTSTRAP_PREFIX);
            json!({"metadata": {"name": name}, "type": type_, "data": {"expires": expires}})
        };
        let items = [
            token("long", labels::SECRET_TYPE_BOOTSTRAP, -25),
            token("just", labels::SECRET_TYPE_BOOTSTRAP, -23),
            token("good", labels::SECRET_TYPE_BOOTSTRAP, 1),
            token("other", "Opaque", -25),
        ];
        let deleted = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = deleted.clone();
        let hub = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let answer = match (request.method().as_str(), request.uri().path().rsplit('/').next()) {
                ("GET", _) => json!({"metadata": {}, "items": items}),
                ("DELETE", Some(name)) => {
                    assert_eq!(name, format!("{}long", labels::SECRET_BOOTSTRAP_PREFIX));
                    count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    json!({"kind": "Status", "status": "Success"})
                }
                _ => json!({"metadata": {"name": "new"}}),
            };
            let body = kube::client::Body::from(answer.to_string().into_bytes());
            std::future::ready(Ok::<_, std::convert::Infallible>(http::Response::new(body)))
        });
        let hub = Client::new(hub, "default");
        let made = create(&hub, &Subject::Agent("east"), Duration::from_mins(1)).await;
        assert!(made.is_ok());
        assert_eq!(deleted.load(std::sync::atomic::Ordering::Relaxed), 1);
    }

    #[test]
    fn tokens_are_random_and_of_the_alphabet() {
        let (one, other) = (random(SECRET_LENGTH), random(SECRET_LENGTH));
        assert_ne!(one, other);
        assert!(one.bytes().all(|byte| ALPHABET.contains(&byte)) && one.len() == SECRET_LENGTH);
    }
}
