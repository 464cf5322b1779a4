//! What the router holds of the hub: the resources as they came (for the state file) and the snapshot made of them.
//!
//! One writer: `subscribe`. Applying is synchronous and all or nothing; disk follows behind, except when anything narrows
//! (`narrows`): then it is on disk before the hub hears so ([`HubState::secure`]).

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use portolan_runtime::{Chain, files};
use portolan_wire::protocol::{CURSOR_FORMAT_2, FENCE, HELD_LOCKS, LOCKS, OPERATORS, OWNERSHIP_CHANGES, POLICIES};
use portolan_wire::v1;
use portolan_wire::v1::resource::Body;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::SessionError;
use super::narrows::narrows;
use super::state_file::StateFileHealth;
use super::term::Term;
use crate::resource::ended::EndedFile;
use crate::resource::policies::{SharesFile, ToldShares};
use crate::resource::routing::RoutingStore;
use crate::resource::state::{Kept, StateError, StateFile};
use crate::value::snapshot::build::{Transaction, apply};

/// Between two writes of the state file: a busy fleet commits many times a second, and each write is synced.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// While the hub is away, what it said last of labels counts for this long: restarts of a hub make nobody read anew.
const COVERAGE_HOLDS: Duration = Duration::from_mins(5);
/// Then members follow one after another, as every watch by label is read anew.
const BETWEEN_MEMBERS: Duration = Duration::from_secs(10);
/// Doublings of the pause between two writes after writes that failed: a disk that has room again is found within seconds, as what
/// the hub took away is not acknowledged until then.
const MOST_DOUBLINGS: u32 = 3;
/// Version of what the hub is to tell again: it gives none like that.
const TOLD_AGAIN: &str = "";

/// What the hub has told, and where it goes: into routing and onto the disk.
pub(crate) struct HubState {
    routing: Arc<RoutingStore>,
    file: StateFile,
    shares: SharesFile,
    /// As they came, of what the snapshot was made of. `Arc`: handed to a thread that writes them.
    resources: HashMap<v1::ResourceRef, Arc<v1::Resource>>,
    changed: bool,
    /// Of these the state file may still grant what the hub has taken back.
    unsecured: HashSet<v1::ResourceRef>,
    saved_at: Option<Instant>,
    saving: Option<JoinHandle<Result<(), StateError>>>,
    /// Writes in a row that failed.
    failures: u32,
    health: StateFileHealth,
    /// `None`: the hub is there.
    away: Option<Away>,
    /// What tells of cursors of format 2 is passed over, as routers of before did.
    held_to_format_1: bool,
    /// Another one with each start.
    process: String,
    ended: EndedFile,
    term: Term,
    /// The file by which this router would be known after a restart, of one that is forgotten when it ends.
    forgotten: Option<PathBuf>,
}

/// A hub that is away.
#[derive(Debug, Clone, Copy)]
struct Away {
    /// Its last word, also of one that an earlier process heard.
    heard: SystemTime,
    /// When what it said of the next member's labels does not count any more.
    ages_at: Instant,
}

impl HubState {
    pub(crate) fn new(routing: Arc<RoutingStore>, state_dir: &Path) -> Self {
        let file = StateFile::in_folder(state_dir);
        Self {
            routing,
            file,
            shares: SharesFile::in_folder(state_dir),
            resources: HashMap::new(),
            changed: false,
            unsecured: HashSet::new(),
            saved_at: None,
            saving: None,
            failures: 0,
            health: StateFileHealth::default(),
            away: None,
            held_to_format_1: false,
            process: format!("{:016x}", rand::random::<u64>()),
            ended: EndedFile::in_folder(state_dir),
            term: Term::in_folder(state_dir),
            forgotten: None,
        }
    }

    /// When it ends it is forgotten, and this file is removed.
    pub(crate) fn forgotten_at_end(self, identity: Option<PathBuf>) -> Self {
        Self {
            forgotten: identity,
            ..self
        }
    }

    /// The hub says its term. It is on disk before anything is acknowledged.
    ///
    /// # Errors
    /// A later hub was heard before.
    pub(super) fn hear_term(&mut self, term: u64) -> Result<(), SessionError> {
        let heard = self.term.hear(term);
        heard.map_err(|highest| SessionError::Superseded { theirs: term, highest })
    }

    /// For `RouterHello`.
    pub(super) fn process(&self) -> String {
        self.process.clone()
    }

    /// What the hub and others have of this router's end; true by then, also for a process that comes by its folder.
    pub(super) async fn give_up(&mut self) -> v1::Ended {
        let policies = self.routing.load().policies.clone();
        policies.give_back_shares();
        self.secure_shares().await;
        v1::Ended {
            gave_back_shares: policies.unsecured().is_none(),
            forget: self.forget().await,
        }
    }

    /// Whether nothing is left by which a process with this folder would serve anybody, or be known.
    async fn forget(&mut self) -> bool {
        let Some(identity) = self.forgotten.clone() else {
            return false;
        };
        // A write that runs would bring the file back.
        if let Err(error) = self.saved().await {
            warn_unsaved(&error);
        }
        self.resources.clear();
        self.unsecured.clear();
        self.changed = false;
        let file = self.file.clone();
        let removed = tokio::task::spawn_blocking(move || {
            file.remove()?;
            files::remove(identity)
        });
        match removed.await {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => {
                tracing::warn!(error = %Chain(&error), "this router stays on record: its files cannot be removed");
                false
            }
            Err(error) => {
                tracing::warn!(%error, "the thread that removes files ended");
                false
            }
        }
    }

    /// The hub knows that this process has sent its last write, and that all are answered: the next one with this folder may say so.
    pub(super) async fn leave_ended(&self) {
        let ended = self.ended.clone();
        match tokio::task::spawn_blocking(move || ended.leave()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error = %Chain(&error), "an orderly end was not written down"),
            Err(error) => tracing::warn!(%error, "the thread that writes down an orderly end ended"),
        }
    }

    /// As a router of before format 2 of cursors.
    pub(crate) fn held_to_format_1(self, held_to_format_1: bool) -> Self {
        Self {
            held_to_format_1,
            ..self
        }
    }

    /// Tells there whether the state file is written.
    pub(crate) fn telling(self, health: StateFileHealth) -> Self {
        Self { health, ..self }
    }

    /// For `RouterHello`.
    pub(super) fn capabilities(&self) -> Vec<String> {
        // By the UID of its shard, which that format is told by, the handover of a lock is known from any other.
        let later = [CURSOR_FORMAT_2, LOCKS].into_iter().filter(|_| !self.held_to_format_1);
        let all = later.chain([POLICIES, FENCE, HELD_LOCKS, OPERATORS, OWNERSHIP_CHANGES]);
        all.map(str::to_owned).collect()
    }

    pub(super) fn routing(&self) -> &Arc<RoutingStore> {
        &self.routing
    }

    pub(super) fn generation(&self) -> u64 {
        self.routing.load().snapshot.generation
    }

    /// Serves the state file. False if there is none that can be served. Blocking.
    pub(super) fn load(&mut self) -> bool {
        self.term.load();
        self.routing.load().policies.restore(self.shares.load());
        match self.file.load() {
            Ok(None) => false,
            Ok(Some(kept)) => {
                self.serve_last_good(kept);
                true
            }
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "no last good state");
                false
            }
        }
    }

    fn serve_last_good(&mut self, kept: Kept) {
        let Kept { mut resources, heard } = kept;
        let holds = COVERAGE_HOLDS.saturating_sub(heard.elapsed().unwrap_or_default());
        if holds.is_zero() {
            // No watch runs yet that would have to be asked anew.
            resources.retain(|resource| !matches!(resource.body, Some(Body::Coverage(_))));
        }
        let rejected = self.apply(Transaction {
            upserted: resources,
            removed: Vec::new(),
        });
        self.changed = false;
        let ages_at = Instant::now() + holds;
        self.away = Some(Away { heard, ages_at });
        if !rejected.is_empty() {
            tracing::warn!(?rejected, "the state file holds what this version cannot serve");
        }
        let snapshot = &self.routing.load().snapshot;
        let (callers, members) = (snapshot.callers.len(), snapshot.targets.len());
        tracing::info!(callers, members, "serving the last good state");
    }

    /// Checks all of a transaction, then serves it: one swap. Returns the entries that were refused.
    pub(super) fn apply(&mut self, mut transaction: Transaction) -> Vec<v1::Rejected> {
        if self.held_to_format_1 {
            for resource in &mut transaction.upserted {
                if let Some(Body::Shard(shard)) = &mut resource.body {
                    shard.uid.clear();
                }
            }
        }
        self.away = None;
        for resource in &mut transaction.upserted {
            self.complete(resource);
        }
        let applied = apply(&self.routing.load().snapshot, &transaction);
        self.routing.swap(applied.snapshot);
        self.keep(transaction, &applied.rejected);
        applied.rejected
    }

    /// Puts the Ownership in the place of a change that leads on from the version that is held. Any other is refused as it is.
    fn complete(&self, resource: &mut v1::Resource) {
        let Some(Body::OwnershipChange(change)) = &resource.body else {
            return;
        };
        let held = resource.reference().and_then(|name| self.resources.get(&name));
        let held = held.filter(|held| held.version == change.from);
        if let Some(Body::Ownership(before)) = held.and_then(|held| held.body.as_ref()) {
            let now = change.clone().apply(before);
            resource.body = now.map(Body::Ownership);
        }
    }

    /// This router's shares of limits are others from now on.
    pub(super) async fn reshare(&self, told: ToldShares) {
        self.routing.load().policies.reshare(told);
        self.secure_shares().await;
    }

    /// Writes the shares, if the file has others. Until it has them the hub is told of those, and no more than they say is used:
    /// a router that was killed meanwhile would come back with them. A failure warns, and is tried again with the next report;
    /// until one succeeds after a failure that may have left either, no more is used than both say, and no less is told.
    pub(super) async fn secure_shares(&self) {
        let policies = self.routing.load().policies.clone();
        let Some(told) = policies.unsecured() else { return };
        let (file, saved) = (self.shares.clone(), told.clone());
        match tokio::task::spawn_blocking(move || file.save(&saved)).await {
            Ok(Ok(())) => policies.secured(told),
            Ok(Err(error)) => {
                tracing::warn!(error = %Chain(&error), "shares of limits were not written");
                if error.may_have_replaced() {
                    policies.doubted(&told);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the thread that writes shares of limits ended");
                policies.doubted(&told);
            }
        }
    }

    /// The hub's stream has ended, or there is none yet: what it said last of labels holds for a while.
    pub(super) fn lost_hub(&mut self) {
        if self.away.is_none() {
            self.away = Some(Away {
                heard: SystemTime::now(),
                ages_at: Instant::now() + COVERAGE_HOLDS,
            });
            // The file says when that was.
            self.changed |= !self.resources.is_empty();
        }
    }

    /// Until when what is served was what the hub says; `None` while it is.
    pub(super) fn heard(&self) -> Option<SystemTime> {
        self.away.map(|away| away.heard)
    }

    /// Resolves when [`Self::age_coverage`] is due; never while the hub is there. Safe to drop.
    pub(super) async fn coverage_ages(&self) {
        match self.away {
            Some(away) => tokio::time::sleep_until(away.ages_at).await,
            None => std::future::pending().await,
        }
    }

    /// Forgets what the hub said of one more member's labels, until it says so anew: the watches by them are asked anew, so
    /// members take turns.
    pub(super) fn age_coverage(&mut self) {
        if let Some(away) = &mut self.away {
            away.ages_at = Instant::now() + BETWEEN_MEMBERS;
        }
        let coverage = self.resources.keys();
        let coverage = coverage.filter(|reference| reference.kind() == v1::ResourceKind::Coverage);
        let Some(reference) = coverage.min_by_key(|reference| &reference.name).cloned() else {
            return;
        };
        tracing::warn!(
            cluster = reference.name,
            "the hub is away for too long: what it said of labels does not count any more"
        );
        let aged = Transaction {
            upserted: Vec::new(),
            removed: vec![reference],
        };
        self.routing.swap(apply(&self.routing.load().snapshot, &aged).snapshot);
        self.keep(aged, &[]);
    }

    fn keep(&mut self, transaction: Transaction, rejected: &[v1::Rejected]) {
        for reference in &transaction.removed {
            let before = self.resources.remove(reference);
            if narrows(before.as_deref(), None) {
                self.unsecured.insert(reference.clone());
            }
        }
        for resource in transaction.upserted {
            let Some(reference) = resource.reference() else {
                continue;
            };
            // The last good one of a refused entry stays.
            if !rejected
                .iter()
                .any(|refused| refused.r#ref.as_ref() == Some(&reference))
            {
                if narrows(self.resources.get(&reference).map(Arc::as_ref), Some(&resource)) {
                    self.unsecured.insert(reference.clone());
                }
                self.resources.insert(reference, Arc::new(resource));
            }
        }
        self.changed = true;
    }

    /// For `RouterHello`: the life of the hub's ledger and the view revision in it that this router has seen.
    pub(super) fn seen(&self) -> (String, u64) {
        let (incarnation, view_revision) = self.routing.load().snapshot.seen();
        (incarnation.to_string(), view_revision)
    }

    /// For `RouterHello`. What is not on disk is not held: the hub tells it again, and hears then whether it is.
    pub(super) fn known(&self) -> Vec<v1::KnownResource> {
        let version = |reference: &v1::ResourceRef| {
            let resource = self.resources.get(reference);
            let kept = resource.filter(|_| !self.unsecured.contains(reference));
            kept.map_or(TOLD_AGAIN, |resource| resource.version.as_str())
        };
        let gone = self.unsecured.iter().filter(|gone| !self.resources.contains_key(*gone));
        let known = self.resources.keys().chain(gone).map(|reference| v1::KnownResource {
            r#ref: Some(reference.clone()),
            version: version(reference).to_owned(),
        });
        known.collect()
    }

    /// Resolves when the state file should be written; never while nothing has changed. Safe to drop.
    pub(super) async fn save_due(&self) {
        if !self.changed {
            return std::future::pending().await;
        }
        if let Some(again_at) = self.again_at() {
            tokio::time::sleep_until(again_at).await;
        }
    }

    /// When the next write is due; `None`: there was none.
    fn again_at(&self) -> Option<Instant> {
        let pause = SAVE_INTERVAL * 2_u32.pow(self.failures.min(MOST_DOUBLINGS));
        Some(self.saved_at? + pause)
    }

    /// To be done before anything is acknowledged: killed before its file says so, this router would come back granting what the hub
    /// has taken back. All that is owed goes in one write. False: it is not on disk, which was tried just now or lately.
    pub(super) async fn secure(&mut self) -> bool {
        let is_pausing = || self.failures > 0 && self.again_at().is_some_and(|at| Instant::now() < at);
        if !self.is_secure() && !is_pausing() {
            self.changed = true;
            self.save_if_changed().await;
        }
        self.is_secure()
    }

    /// Whether a restart would grant nothing that the hub has taken back, nor listen to a hub of before.
    pub(super) fn is_secure(&self) -> bool {
        self.unsecured.is_empty() && self.term.is_written()
    }

    /// Writes the state file, and the hub's term. A failure warns: serving does not depend on it.
    pub(super) async fn save_if_changed(&mut self) {
        if !self.term.is_written() {
            self.term.write().await;
        }
        match self.save().await {
            // All that was changed is in the file by now.
            Ok(()) => self.unsecured.clear(),
            Err(error) => warn_unsaved(&error),
        }
        if !self.term.is_written() {
            // As a state file that could not be written: tried again, less and less often, and told of.
            self.changed = true;
            self.failures = self.failures.max(self.term.failures());
            self.health.written(false);
        }
    }

    /// Writes what has changed, after a write that still runs. When dropped the write goes on, and the next call waits for
    /// it: an older state never replaces a newer one.
    async fn save(&mut self) -> Result<(), StateError> {
        if let Err(error) = self.saved().await {
            warn_unsaved(&error);
        }
        if !self.changed {
            return Ok(());
        }
        self.changed = false;
        self.saved_at = Some(Instant::now());
        let (file, resources) = (self.file.clone(), self.resources.values().cloned().collect::<Vec<_>>());
        let heard = self.away.map_or_else(SystemTime::now, |away| away.heard);
        self.saving = Some(tokio::task::spawn_blocking(move || {
            file.save(resources.iter().map(Arc::as_ref), heard)
        }));
        self.saved().await
    }

    async fn saved(&mut self) -> Result<(), StateError> {
        let Some(saving) = &mut self.saving else {
            return Ok(());
        };
        let outcome = saving.await.map_err(StateError::from).flatten();
        self.saving = None;
        // The next transaction may be half a day away: it is tried again without one.
        self.changed |= outcome.is_err();
        self.failures = if outcome.is_err() { self.failures + 1 } else { 0 };
        self.health.written(outcome.is_ok());
        outcome
    }
}

fn warn_unsaved(error: &StateError) {
    tracing::warn!(error = %Chain(error), "the last good state was not written");
}
