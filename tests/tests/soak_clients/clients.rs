//! All clients under test, and the one form in which each tells what it holds and what it was told.

mod rust;

use std::collections::BTreeMap;

use anyhow::Context as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use portolan_tests::watch::Held;
use serde::Deserialize;

use self::rust::Watcher;
use crate::ground::{Ground, ROAMING};
use crate::ledger::Moment;

/// Clients end and resume their watches after so long; they would ask for minutes.
const WATCH_SECONDS: u32 = 4;

/// What one client tells when it is asked.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Report {
    /// Family and what it asks for.
    pub(crate) name: String,
    /// Plural.
    pub(crate) resource: String,
    /// Empty for all.
    pub(crate) namespace: String,
    items: Vec<Item>,
    /// What it was told or found to be gone since it was last asked.
    pub(crate) gone: Vec<Gone>,
    /// How often it was answered a list, or a list by stream.
    pub(crate) lists: u64,
    /// 410s by message.
    pub(crate) expired: BTreeMap<String, u64>,
}

/// One object.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Item {
    key: String,
    uid: String,
    rv: String,
}

/// One object that is gone.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Gone {
    pub(crate) key: String,
    pub(crate) uid: String,
    pub(crate) at: Moment,
}

impl Report {
    pub(crate) fn held(&self) -> Held {
        let items = self.items.iter();
        items
            .map(|item| (item.key.clone(), (item.uid.clone(), item.rv.clone())))
            .collect()
    }
}

/// Running until dropped.
pub(crate) struct Clients {
    watchers: Vec<Watcher>,
}

impl Clients {
    pub(crate) async fn start(ground: &Ground) -> anyhow::Result<Self> {
        let config = config(ground).await?;
        Ok(Self {
            watchers: rust::all(&config, ROAMING)?,
        })
    }

    pub(crate) fn report(&self) -> Vec<Report> {
        self.watchers.iter().map(Watcher::report).collect()
    }
}

async fn config(ground: &Ground) -> anyhow::Result<kube::Config> {
    let kubeconfig = Kubeconfig::read_from(&ground.kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    config.context("a kubeconfig")
}
