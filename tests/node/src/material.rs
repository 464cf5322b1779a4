//! The ConfigMaps and Secrets that a Pod refers to, as they are now.

use std::collections::BTreeMap;

use anyhow::Result;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client};

/// The data of one ConfigMap or Secret.
pub(crate) type Data = BTreeMap<String, Vec<u8>>;

/// Whose data: the two kinds differ in nothing else that counts here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reference {
    ConfigMap(String),
    Secret(String),
}

/// What was found of a set of references; what is not here does not exist.
#[derive(Debug, Default)]
pub(crate) struct Material(BTreeMap<Reference, Data>);

impl Material {
    /// Asks for each. The error is the API server's, and never that something does not exist.
    pub(crate) async fn fetch(
        client: &Client,
        namespace: &str,
        references: impl IntoIterator<Item = Reference>,
    ) -> Result<Self> {
        let mut found = BTreeMap::new();
        for reference in references {
            if found.contains_key(&reference) {
                continue;
            }
            let data = match &reference {
                Reference::ConfigMap(name) => {
                    let map = Api::<ConfigMap>::namespaced(client.clone(), namespace)
                        .get_opt(name)
                        .await?;
                    map.map(of_config_map)
                }
                Reference::Secret(name) => {
                    let secret = Api::<Secret>::namespaced(client.clone(), namespace)
                        .get_opt(name)
                        .await?;
                    secret.map(of_secret)
                }
            };
            if let Some(data) = data {
                found.insert(reference, data);
            }
        }
        Ok(Self(found))
    }

    /// All data of one object. `None`: it does not exist, and need not.
    pub(crate) fn all(&self, reference: &Reference, optional: bool) -> Result<Option<&Data>, String> {
        match self.0.get(reference) {
            None if !optional => Err(format!("{reference} not found")),
            found => Ok(found),
        }
    }

    /// One key of an object. `None`: there is none, and need not be.
    pub(crate) fn key(&self, reference: &Reference, key: &str, optional: bool) -> Result<Option<&Vec<u8>>, String> {
        let Some(data) = self.all(reference, optional)? else {
            return Ok(None);
        };
        match data.get(key) {
            None if !optional => Err(format!("couldn't find key {key} in {reference}")),
            found => Ok(found),
        }
    }
}

impl FromIterator<(Reference, Data)> for Material {
    fn from_iter<T: IntoIterator<Item = (Reference, Data)>>(all: T) -> Self {
        Self(all.into_iter().collect())
    }
}

impl std::fmt::Display for Reference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ConfigMap(name) => write!(f, "configmap {name:?}"),
            Self::Secret(name) => write!(f, "secret {name:?}"),
        }
    }
}

fn of_config_map(map: ConfigMap) -> Data {
    let texts = map
        .data
        .into_iter()
        .flatten()
        .map(|(key, text)| (key, text.into_bytes()));
    let bytes = map.binary_data.into_iter().flatten().map(|(key, bytes)| (key, bytes.0));
    texts.chain(bytes).collect()
}

fn of_secret(secret: Secret) -> Data {
    secret
        .data
        .into_iter()
        .flatten()
        .map(|(key, bytes)| (key, bytes.0))
        .collect()
}
