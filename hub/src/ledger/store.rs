//! Reads and writes the ledger's ConfigMaps. Its one owner is `distribute`.
//!
//! Each write has a resourceVersion and the hub's *term*, which a hub that begins to lead raises in the root before it reads what
//! there is. After each write, and before anybody is told of it, it looks whether the root has its term still: what an earlier
//! hub wrote and was told to anybody lay there when the later one read it, and what it writes later nobody is told of. Records
//! come before the root that lists them, and what the root does not list does not count: a hub that dies in between has changed
//! nothing. A record that is neither as this hub left it nor of another hub was changed by hand: the hub ends rather than
//! write over it or go on without it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Preconditions};
use portolan_crds::Contention;
use portolan_crds::labels::{CONFIG_MAP_LEDGER, LABEL_LEDGER};
use portolan_crds::ledger::{Content, CursorFormat, Phase, Record, RecordError, Root};
use tokio::time::Instant;

use super::error::{LedgerError, damaged, failed};
use super::import::import;
use super::records::{Authors, Batch, Earlier, Unsaved, finish_switch, state};
use super::stored::{Stored, put};
use crate::compile::{Ledger, State};
use crate::index::Index;
use crate::metrics::Metrics;
use crate::writer::{self, WriteError};

/// No chunk is written more often.
const WRITE_PERIOD: Duration = Duration::from_millis(50);
/// Records of one commit that are not written by then are left for the next: distribution waits meanwhile.
const COMMIT_WITHIN: Duration = Duration::from_secs(10);
/// All records must be taken over within this time at the start, when nothing waits.
const TAKE_OVER_WITHIN: Duration = Duration::from_mins(5);
/// What may be written in the long run of what follows from no author's edits, which have budgets of their own (`index`): an agent
/// that tells another inventory every second must not fill etcd, which keeps old versions for minutes.
const BYTES_PER_SECOND: u32 = 256 * 1024;
/// Beyond that rate for this long, no commit begins: all namespaces of a large member may come in one.
const BURST: Duration = Duration::from_mins(1);
/// ConfigMaps of one page of the list at the start: some six megabytes.
const PAGE: u32 = 100;

/// The ledger's ConfigMaps, as this hub left them.
pub(crate) struct Store {
    api: Api<ConfigMap>,
    /// Knows whose edits what is written follows from.
    index: Arc<Index>,
    metrics: Metrics,
    term: u64,
    /// The root as it was written last: what it lists counts.
    root: Root,
    /// The ConfigMaps as they lie there, by name.
    stored: BTreeMap<String, Stored>,
    /// Checksums of what writes would have left of which nobody knows whether they went through, by name.
    uncertain: BTreeMap<String, String>,
    /// The state that was to be stored last, and of what it is not known that it is.
    asked: State,
    earlier: Earlier,
    pending: Unsaved,
    last_write: Option<Instant>,
    /// The time until which [`BYTES_PER_SECOND`] would have taken to write what follows from no author's edits.
    paid_at: Instant,
}

/// What the ConfigMaps say, by name. What is not listed does not count, whether or not it can be read.
type Records = BTreeMap<String, Result<Record, RecordError>>;

impl Store {
    /// Reads the ledger and raises its term, to `at_least` that, or begins one with what statuses of before say. To be done once
    /// `index` is complete.
    pub(crate) async fn open(
        client: Client,
        namespace: &str,
        index: &Arc<Index>,
        (metrics, at_least): (Metrics, u64),
    ) -> Result<(Self, State), LedgerError> {
        let mut store = Self {
            api: Api::namespaced(client, namespace),
            index: index.clone(),
            metrics,
            term: at_least.max(1),
            root: Root::default(),
            stored: BTreeMap::new(),
            uncertain: BTreeMap::new(),
            asked: State::default(),
            earlier: Earlier::default(),
            pending: Unsaved::default(),
            last_write: None,
            paid_at: Instant::now(),
        };
        let records = store.read().await?;
        store.root = store.root_of(&records)?;
        let state = if store.root.phase == Phase::Begun {
            store.begin(index).await?
        } else {
            store.take_over().await?
        };
        Ok((store, state))
    }

    /// Writes what of `next` is not stored. Afterwards a hub that starts anew begins with `next`; after an error with any
    /// mixture of it and what was stored before, neither of which takes a pair from anybody who was told of it.
    pub(crate) async fn commit(&mut self, next: &State) -> Result<(), LedgerError> {
        self.pending.extend(Unsaved::between(&self.asked, next));
        self.earlier.follow(&self.asked, next);
        self.asked = next.clone();
        self.resolve().await?;
        let Batch {
            contents,
            root,
            authors,
        } = Batch::new(next, &self.root, &self.pending, &self.earlier);
        if contents.is_empty() && root == self.root {
            return Ok(());
        }
        if let Some(last) = self.last_write.replace(Instant::now()) {
            tokio::time::sleep_until(last + WRITE_PERIOD).await;
            self.last_write = Some(Instant::now());
        }
        let by = Instant::now() + COMMIT_WITHIN;
        self.write(contents, by).await?;
        if root == self.root {
            self.check().await?;
        } else {
            self.write(vec![(Content::Root(root.clone()), authors)], by).await?;
            let unlisted = &self.root.objects() - &root.objects();
            self.root = root;
            self.delete(unlisted).await;
        }
        self.pending = Unsaved::default();
        Ok(())
    }

    /// Of this hub: each that begins to lead has a higher one.
    pub(crate) fn term(&self) -> u64 {
        self.term
    }

    /// Whether the next commit may begin.
    pub(crate) fn is_due(&self) -> bool {
        self.paid_at <= Instant::now() + BURST
    }

    /// The highest view revision that may be stored.
    pub(crate) fn view_revision(&self) -> u64 {
        self.asked.ledger.view_revision()
    }

    /// The life of the ledger that was to be stored last.
    pub(crate) fn incarnation(&self) -> &str {
        &self.asked.incarnation
    }

    /// The format of cursors that was to be stored last.
    pub(crate) fn cursor_format(&self) -> CursorFormat {
        self.asked.cursor_format
    }

    /// Fails if another hub has started since.
    pub(crate) async fn check(&mut self) -> Result<(), LedgerError> {
        let checksum = self.stored.get(CONFIG_MAP_LEDGER).map(|stored| stored.checksum.clone());
        let uncertain = self.uncertain.entry(CONFIG_MAP_LEDGER.to_owned());
        uncertain.or_insert(checksum.unwrap_or_default());
        self.resolve().await
    }

    /// A ledger that is not filled yet: with what statuses say.
    async fn begin(&mut self, index: &Index) -> Result<State, LedgerError> {
        let mut state = index.read(|facts| import(facts, &incarnation()))?;
        if state.is_empty() {
            // No router was ever told of anything, by whatever hub.
            state.cursor_format = CursorFormat::Two;
            state.ledger = Arc::new(Ledger::restore(Contention::Operator, [], 0, false));
        }
        self.root = Root {
            incarnation: state.incarnation.clone(),
            key: incarnation(),
            confirmed: true,
            ..Root::default()
        };
        self.write(
            vec![(Content::Root(self.root.clone()), Authors::new())],
            Instant::now() + TAKE_OVER_WITHIN,
        )
        .await?;
        self.commit(&state).await?;
        tracing::info!(
            incarnation = state.incarnation,
            shards = state.accepted.len(),
            "began a ledger"
        );
        Ok(state)
    }

    /// A ledger that is there: the root's term first, so that no other hub tells of anything new any more.
    async fn take_over(&mut self) -> Result<State, LedgerError> {
        let by = Instant::now() + TAKE_OVER_WITHIN;
        self.raise(by).await?;
        let mut records = self.read().await?;
        let revisions = records.values().flatten().map(|record| record.view_revision);
        let view_revision = revisions.max().unwrap_or_default();
        if let Some(Ok(root)) = records.remove(CONFIG_MAP_LEDGER) {
            self.check_term(CONFIG_MAP_LEDGER, &root)?;
        }
        let mut listed = Vec::new();
        for name in self.root.objects() {
            let missing = || damaged(&name, "is missing, and the ledger lists it");
            let record = records.remove(&name).ok_or_else(missing)?;
            listed.push(record.map_err(|error| damaged(&name, error))?.content);
        }
        let mut state =
            state(&self.root, listed.clone(), view_revision).map_err(|reason| damaged(CONFIG_MAP_LEDGER, reason))?;
        (self.asked, self.earlier) = (state.clone(), Earlier::read(&listed));
        if !self.root.confirmed {
            self.rewrite(listed, by).await?;
        }
        self.paid_at = Instant::now();
        // What is not as it lies there is written with the first commit.
        if finish_switch(&mut state) {
            tracing::info!("namespaces have an owner of each operator: the hub of before had not written all of it");
        }
        // What cannot be read may be somebody's copy.
        records.retain(|_, record| record.is_ok());
        self.delete(records.into_keys().collect()).await;
        tracing::info!(
            incarnation = state.incarnation,
            term = self.term,
            view_revision,
            shards = state.accepted.len(),
            "took the ledger over"
        );
        Ok(state)
    }

    /// Writes the root with this hub's term.
    async fn raise(&mut self, by: Instant) -> Result<(), LedgerError> {
        let root = vec![(Content::Root(self.root.clone()), Authors::new())];
        self.write(root, by).await.map_err(overtaken)
    }

    /// Writes all that hubs of before wrote, which look at the records that they write alone.
    async fn rewrite(&mut self, listed: Vec<Content>, by: Instant) -> Result<(), LedgerError> {
        let contents = listed.into_iter().map(|content| (content, Authors::new())).collect();
        self.write(contents, by).await.map_err(overtaken)?;
        self.root.confirmed = true;
        self.raise(by).await
    }

    /// All records, and how they lie there.
    async fn read(&mut self) -> Result<Records, LedgerError> {
        // A record that is gone since the last time would be replaced at its old version for ever.
        self.stored.clear();
        let mut records = Records::new();
        let mut params = ListParams::default().labels(LABEL_LEDGER).limit(PAGE);
        loop {
            let page = self
                .api
                .list(&params)
                .await
                .map_err(|error| failed("list", "*", error))?;
            for map in &page.items {
                let name = map.metadata.name.clone().unwrap_or_default();
                let (stored, record) = Stored::read(&name, map);
                self.stored.insert(name.clone(), stored);
                records.insert(name, record);
            }
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(records);
            }
        }
    }

    /// What is listed, by a term that is higher than all there are.
    fn root_of(&mut self, records: &Records) -> Result<Root, LedgerError> {
        let terms = records.values().flatten().map(|record| record.term);
        self.term = terms.map(|term| term + 1).max().unwrap_or_default().max(self.term);
        match records.get(CONFIG_MAP_LEDGER) {
            Some(Err(error)) => Err(damaged(CONFIG_MAP_LEDGER, error)),
            Some(Ok(Record {
                content: Content::Root(root),
                ..
            })) => Ok(root.clone()),
            _ if records.is_empty() => Ok(Root::default()),
            _ => Err(damaged(
                CONFIG_MAP_LEDGER,
                "is missing, and others of the ledger are there",
            )),
        }
    }

    fn record(&self, content: Content) -> Record {
        Record {
            term: self.term,
            view_revision: self.asked.ledger.view_revision(),
            content,
        }
    }

    /// Writes all that can be written and does not lie there already; fails if anything could not. A conflict is looked into
    /// at once; after the first write that was not answered in time, or when the time is up, no other is waited for.
    async fn write(&mut self, contents: Vec<(Content, Authors)>, by: Instant) -> Result<(), LedgerError> {
        let mut writes = Vec::new();
        for (content, authors) in contents {
            let record = self.record(content);
            let (name, data) = (record.object_name(), record.encode());
            let stored = Stored::new(&record, &data);
            let before = self.stored.get(&name);
            if before.is_some_and(|before| before.checksum == stored.checksum) && !self.uncertain.contains_key(&name) {
                continue;
            }
            let resource_version = before.map(|before| before.resource_version.clone());
            let bytes = data.values().map(String::len).sum();
            self.uncertain.insert(name.clone(), stored.checksum.clone());
            let (api, object) = (self.api.clone(), name.clone());
            let write = async move { put(&api, &object, data, resource_version).await };
            writes.push(((name, stored, bytes, authors), write));
        }
        let mut failure = None;
        let mut writes = std::pin::pin!(writer::all(writes));
        loop {
            let Ok(next) = tokio::time::timeout_at(by, writes.next()).await else {
                let name = self.uncertain.keys().next().cloned().unwrap_or_default();
                failure = Some(LedgerError::Late { name });
                break;
            };
            let Some(((name, stored, bytes, authors), outcome)) = next else {
                break;
            };
            self.pay(bytes, &authors);
            self.metrics.ledger.count(outcome.is_ok());
            match outcome {
                Ok(resource_version) => {
                    self.uncertain.remove(&name);
                    let stored = Stored {
                        resource_version,
                        ..stored
                    };
                    self.stored.insert(name, stored);
                }
                Err(WriteError::Kube(error)) => failure = Some(failed("write", &name, error)),
                Err(WriteError::Late) => {
                    failure = Some(LedgerError::Late { name });
                    break;
                }
            }
        }
        match failure {
            None => Ok(()),
            Some(failure) => {
                if failure.is_conflict() {
                    self.resolve().await?;
                }
                Err(failure)
            }
        }
    }

    /// What was written, or tried: each author owes its part of what follows from its edits, and the rest is everybody's.
    fn pay(&mut self, bytes: usize, authors: &Authors) {
        let (now, part) = (Instant::now().into_std(), bytes / authors.len().max(1));
        let charged = authors
            .iter()
            .filter(|author| self.index.charge(author, part, now))
            .count();
        let bytes = if charged == authors.len() && charged > 0 {
            0
        } else {
            bytes - part * charged
        };
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.paid_at = self.paid_at.max(Instant::now()) + Duration::from_secs(1) * bytes / BYTES_PER_SECOND;
    }

    /// Finds out what became of writes of which that is not known, and by whom.
    async fn resolve(&mut self) -> Result<(), LedgerError> {
        let by = Instant::now() + COMMIT_WITHIN;
        for (name, attempted) in self.uncertain.clone() {
            let map = tokio::time::timeout_at(by, self.api.get_opt(&name)).await;
            let map = map.map_err(|_| LedgerError::Late { name: name.clone() })?;
            let map = map.map_err(|error| failed("read", &name, error))?;
            let before = self.stored.get(&name);
            match map {
                None if before.is_some() => return Err(self.edited(&name, "deleted").await),
                None => {}
                Some(map) => {
                    let (stored, record) = Stored::read(&name, &map);
                    let record = record.map_err(|error| damaged(&name, error))?;
                    self.check_term(&name, &record)?;
                    // Of this term nobody else writes: a write that was given up may be carried out late.
                    let ours = record.term == self.term || stored.checksum == attempted;
                    if !ours && before.is_some_and(|before| !before.may_become(&stored)) {
                        return Err(self.edited(&name, "changed").await);
                    }
                    if let Content::Root(root) = record.content {
                        self.root = root;
                    }
                    self.stored.insert(name.clone(), stored);
                }
            }
            self.uncertain.remove(&name);
        }
        Ok(())
    }

    fn check_term(&self, name: &str, record: &Record) -> Result<(), LedgerError> {
        if record.term <= self.term {
            return Ok(());
        }
        Err(LedgerError::Superseded {
            name: name.to_owned(),
            ours: self.term,
            theirs: record.term,
        })
    }

    /// What is not as this hub left it: by a later hub, if the root says that there is one.
    async fn edited(&self, name: &str, what: &'static str) -> LedgerError {
        let root = self.api.get_opt(CONFIG_MAP_LEDGER).await.ok().flatten();
        let root = root.and_then(|root| Stored::read(CONFIG_MAP_LEDGER, &root).1.ok());
        let superseded = root.and_then(|root| self.check_term(CONFIG_MAP_LEDGER, &root).err());
        superseded.unwrap_or_else(|| LedgerError::Edited {
            name: name.to_owned(),
            what,
        })
    }

    /// Deletes what is listed no more. What stays does not count, and goes at the next start.
    async fn delete(&mut self, names: BTreeSet<String>) {
        for name in names {
            let Some(stored) = self.stored.remove(&name) else {
                continue;
            };
            let params = DeleteParams::default().preconditions(Preconditions {
                resource_version: Some(stored.resource_version),
                uid: None,
            });
            if let Err(error) = self.api.delete(&name, &params).await {
                tracing::debug!(name, %error, "cannot delete a record that is listed no more");
            }
        }
    }
}

/// Nothing was granted yet: all of it is read anew.
fn overtaken(error: LedgerError) -> LedgerError {
    match error {
        LedgerError::Edited { name, what } => LedgerError::Overtaken { name, what },
        error => error,
    }
}

/// A new name of a ledger's life, or its key.
pub(crate) fn incarnation() -> String {
    format!("{:032x}", rand::random::<u128>())
}
