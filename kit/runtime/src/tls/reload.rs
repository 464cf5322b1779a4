//! Follows certificate, key and CA files: what cert-manager or the kubelet writes takes effect by itself.
//!
//! Polls and compares contents: mounted Secrets are swapped by symlink, which file events and mtimes tell badly.
//! A bad new file never replaces a good one: it is warned of once, counted, and tried again when it changes.
//! Callers: `app.rs` of every program that is given files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use sha2::{Digest, Sha256};
use tokio::time::MissedTickBehavior;

use super::TlsError;
use super::identity::{Identity, IdentityStore};
use super::trust::TrustStore;
use crate::files::{self, FileError};
use crate::secret::Secret;
use crate::tasks::Tasks;

/// Between two looks at the files. The kubelet itself takes up to a minute to project a changed Secret.
pub const DEFAULT_RELOAD_PERIOD: Duration = Duration::from_secs(5);

/// Where a certificate chain and its key are, both PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityFiles {
    /// The certificate and its chain, PEM.
    pub cert: PathBuf,
    /// The private key, PEM.
    pub key: PathBuf,
}

/// Where a CA bundle is, PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaFile(pub PathBuf);

impl IdentityFiles {
    /// Reads certificate and key once.
    pub fn load(&self) -> Result<Identity, TlsError> {
        identity(&[files::read(&self.cert)?, files::read(&self.key)?])
    }

    /// Reads both now, where an error is one of startup, and follows them from then on.
    pub fn follow(&self, tasks: &Tasks, period: Duration) -> Result<Arc<IdentityStore>, TlsError> {
        let store = IdentityStore::empty();
        let mut follower = self.follower(&store);
        follower.first()?;
        follower.spawn("tls-identity-reload", tasks, period);
        Ok(store)
    }

    fn follower(&self, store: &Arc<IdentityStore>) -> Follower {
        let (rejected, store) = (store.rejected.clone(), store.clone());
        let apply = move |contents: &[Vec<u8>]| {
            store.set(identity(contents)?);
            Ok(())
        };
        Follower {
            paths: vec![self.cert.clone(), self.key.clone()],
            last: None,
            apply: Box::new(apply),
            rejected,
        }
    }
}

impl CaFile {
    /// Reads the bundle once.
    pub fn load(&self) -> Result<Arc<TrustStore>, TlsError> {
        TrustStore::from_pem(&text(&files::read(&self.0)?)?)
    }

    /// Reads the bundle now, where an error is one of startup, and follows it from then on.
    pub fn follow(&self, tasks: &Tasks, period: Duration) -> Result<Arc<TrustStore>, TlsError> {
        let store = self.load()?;
        let mut follower = self.follower(&store);
        follower.first()?;
        follower.spawn("tls-ca-reload", tasks, period);
        Ok(store)
    }

    fn follower(&self, store: &Arc<TrustStore>) -> Follower {
        let (rejected, store) = (store.rejected.clone(), store.clone());
        let apply = move |contents: &[Vec<u8>]| store.set_pem(&text(&contents[0])?);
        Follower {
            paths: vec![self.0.clone()],
            last: None,
            apply: Box::new(apply),
            rejected,
        }
    }
}

type Apply = Box<dyn Fn(&[Vec<u8>]) -> Result<(), TlsError> + Send + Sync>;

/// Files that are one configuration together: a change of any is a change of all.
struct Follower {
    paths: Vec<PathBuf>,
    last: Option<Seen>,
    apply: Apply,
    rejected: Counter,
}

/// What the last look found, so that only a change is acted on, and warned of.
#[derive(PartialEq)]
enum Seen {
    /// A digest: contents would be a second copy of a private key.
    Contents([u8; 32]),
    Unreadable(String),
}

impl Follower {
    /// The look at startup, whose failure the caller reports.
    fn first(&mut self) -> Result<(), TlsError> {
        let contents = self.read()?;
        self.last = Some(Seen::Contents(digest(&contents)));
        (self.apply)(&contents)
    }

    fn spawn(mut self, name: &'static str, tasks: &Tasks, period: Duration) {
        let token = tasks.token();
        tasks.spawn(name, async move {
            let mut ticks = tokio::time::interval(period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while token.run_until_cancelled(ticks.tick()).await.is_some() {
                // A few kilobytes from a memory-backed volume: not worth a blocking thread.
                self.look();
            }
        });
    }

    fn look(&mut self) {
        let (seen, outcome) = match self.read() {
            Ok(contents) => {
                let seen = Seen::Contents(digest(&contents));
                if self.last.as_ref() == Some(&seen) {
                    return;
                }
                (seen, (self.apply)(&contents))
            }
            Err(error) => (Seen::Unreadable(error.to_string()), Err(error.into())),
        };
        if self.last.as_ref() == Some(&seen) {
            return;
        }
        self.last = Some(seen);
        match outcome {
            Ok(()) => tracing::info!(files = ?self.paths, "loaded TLS material"),
            Err(error) => {
                self.rejected.inc();
                let error = &error as &dyn std::error::Error;
                tracing::warn!(files = ?self.paths, error, "cannot use new TLS material, keeping the old");
            }
        }
    }

    fn read(&self) -> Result<Vec<Vec<u8>>, FileError> {
        self.paths.iter().map(files::read).collect()
    }
}

fn identity(contents: &[Vec<u8>]) -> Result<Identity, TlsError> {
    Identity::from_pem(&text(&contents[0])?, &Secret::new(text(&contents[1])?))
}

fn text(bytes: &[u8]) -> Result<String, TlsError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| TlsError::Pem("not UTF-8".to_owned()))
}

fn digest(contents: &[Vec<u8>]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for part in contents {
        hasher.update(part.len().to_be_bytes());
        hasher.update(part);
    }
    hasher.finalize().into()
}
