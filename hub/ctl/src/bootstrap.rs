//! Bootstrap tokens: one subject, one use, expiring. The hub keeps a hash only. Called by join, router-token and dev.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use portolan_crds::labels;
use rand::RngExt as _;
use sha2::{Digest as _, Sha256};

use crate::cli::RouterTokenArgs;
use crate::connect::connect;

const SECRET_TYPE: &str = "ctrlmesh.kusionstack.io/bootstrap-token";
const ID_LENGTH: usize = 6;
/// 32 characters of 36 are 165 bits.
const SECRET_LENGTH: usize = 32;
const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// Whom a bootstrap token lets enrol.
pub(crate) enum Subject<'a> {
    /// The agent of this member cluster.
    Agent(&'a str),
    /// This router; its certificate may carry these names.
    Router { name: &'a str, sans: &'a [String] },
}

/// Makes a token on the hub and returns its text, which is told once.
pub(crate) async fn create(hub: &Client, subject: &Subject<'_>, ttl: Duration) -> anyhow::Result<String> {
    let (id, secret) = (random(ID_LENGTH), random(SECRET_LENGTH));
    let mut data = BTreeMap::from([
        ("token-hash".to_owned(), hex(&Sha256::digest(secret.as_bytes()))),
        ("expires".to_owned(), (Timestamp::now() + ttl).to_string()),
    ]);
    let name = match subject {
        Subject::Agent(cluster) => {
            data.insert("kind".into(), "agent".into());
            *cluster
        }
        Subject::Router { name, sans } => {
            data.insert("kind".into(), "router".into());
            data.insert("sans".into(), sans.join(","));
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
        type_: Some(SECRET_TYPE.into()),
        string_data: Some(data),
        ..Default::default()
    };
    let secrets: Api<Secret> = Api::namespaced(hub.clone(), labels::SYSTEM_NAMESPACE);
    secrets.create(&PostParams::default(), &object).await.with_context(|| {
        format!("cannot keep the bootstrap token of {name} on the hub; has `portolanctl install` been run?")
    })?;
    Ok(format!("{id}.{secret}"))
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
        },
        args.token_ttl,
    )
    .await?;
    println!("{token}");
    Ok(())
}

fn random(length: usize) -> String {
    let mut rng = rand::rng();
    (0..length)
        .map(|_| char::from(ALPHABET[rng.random_range(0..ALPHABET.len())]))
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_random_and_of_the_alphabet() {
        let (one, other) = (random(SECRET_LENGTH), random(SECRET_LENGTH));
        assert_ne!(one, other);
        assert!(one.bytes().all(|byte| ALPHABET.contains(&byte)) && one.len() == SECRET_LENGTH);
    }
}
