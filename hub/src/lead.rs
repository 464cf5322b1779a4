//! Which of the hub's replicas leads: the one that holds Lease `portolan-hub` and renews it each second.
//!
//! That two never act as one hub is by the ledger's term. Callers: `app`, which leads or follows; `splice` and `stream`, by what they
//! are told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use portolan_crds::labels::{
    ANNOTATION_HUB_ADDRESS, ANNOTATION_HUB_POD, ANNOTATION_HUB_SETTINGS, ANNOTATION_ROUTERS_KNOWN, LEASE_HUB,
};
use portolan_election::{Candidate, Leads, Terms};
use tokio::sync::Mutex;

use self::rollout::Rollout;
use crate::acks::Acks;
use crate::index::Index;

mod announce;
mod rollout;

pub(crate) use announce::announce;
pub(crate) use portolan_election::Pulse;

/// A Lease that nobody renewed for this long has run out.
const RUNS_OUT_AFTER: Duration = Duration::from_secs(3);
/// A hub that has not looked for this long whether it leads may have slept, while its Lease ran out.
pub(crate) const FRESH_FOR: Duration = Duration::from_millis(2500);
const TERMS: Terms = Terms {
    lease: LEASE_HUB,
    runs_out_after: RUNS_OUT_AFTER,
    renew_every: Duration::from_secs(1),
    look_every: Duration::from_millis(250),
    fresh_for: FRESH_FOR,
};

/// Whether a replica leads, or whom it follows.
pub(crate) type Role = portolan_election::Role<Leader>;

/// One replica's part in the election.
pub(crate) type Election = portolan_election::Election<Replica>;

/// A replica, what it tells the next one of routers once it leads, and what it is told of them while it follows.
pub(crate) struct Replica {
    /// What the Lease says once it leads.
    this: Leader,
    acks: Arc<Acks>,
    index: Arc<Index>,
    // A mutex: looked at between two looks at the Lease, by the election alone.
    rollout: Mutex<Rollout>,
}

/// In its Pod, if it has one, it leads in place of one of an earlier template of its Deployment that has other settings.
pub(crate) fn election(
    client: Client,
    namespace: &str,
    this: Leader,
    (acks, index): (Arc<Acks>, Arc<Index>),
) -> Election {
    let pod = this.pod.clone();
    let replica = Replica {
        this,
        acks,
        index,
        rollout: Mutex::new(Rollout::new(client.clone(), namespace, pod)),
    };
    Election::new(client, namespace, TERMS, replica)
}

/// What a replica that leads says to others, and by what right.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mandate {
    /// Goes with every transaction and order.
    pub(crate) term: u64,
    pub(crate) pulse: Pulse,
}

/// The replica that leads, as its Lease tells of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Leader {
    /// Another one with each start of the program.
    pub(crate) identity: String,
    /// `host:port` at which other replicas reach it; none: it has not told any.
    pub(crate) address: Option<String>,
    /// The Pod that it runs in, if it has told any.
    pub(crate) pod: Option<String>,
    /// Values of the flags that replicas must agree on, by flag.
    pub(crate) settings: BTreeMap<String, String>,
}

impl Leads for Leader {
    fn identity(&self) -> &str {
        &self.identity
    }

    fn read(identity: String, annotations: &BTreeMap<String, String>) -> Self {
        let settings = annotations.get(ANNOTATION_HUB_SETTINGS);
        let settings = settings.and_then(|text| serde_json::from_str(text).ok());
        Self {
            identity,
            address: annotations.get(ANNOTATION_HUB_ADDRESS).cloned(),
            pod: annotations.get(ANNOTATION_HUB_POD).cloned(),
            settings: settings.unwrap_or_default(),
        }
    }
}

impl Candidate for Replica {
    type Leader = Leader;

    fn identity(&self) -> &str {
        &self.this.identity
    }

    fn annotations(&self) -> BTreeMap<String, String> {
        let known_for = self.acks.known_for(self.index.read(|facts| facts.router_gone));
        self.this.annotations(known_for)
    }

    /// Those that agree with the one before come first.
    fn patience(&self, leader: &Leader) -> Duration {
        let differs = leader.differs(&self.this.settings);
        differs.map_or(Duration::ZERO, |_| RUNS_OUT_AFTER)
    }

    fn ran_as(&self, leader: &Leader) -> bool {
        self.this.address.is_some() && self.this.address == leader.address
    }

    fn heard(&self, annotations: &BTreeMap<String, String>) {
        let told = annotations.get(ANNOTATION_ROUTERS_KNOWN);
        let seconds = told.and_then(|told| told.parse().ok()).unwrap_or_default();
        self.acks.inherit_known_for(Duration::from_secs(seconds));
    }

    async fn supersedes(&self, leader: &Leader) -> bool {
        let Some(theirs) = leader
            .pod
            .as_deref()
            .filter(|_| leader.differs(&self.this.settings).is_some())
        else {
            return false;
        };
        self.rollout.lock().await.replaces(theirs).await
    }
}

impl Leader {
    /// `known_for`: in that time no router acted that has no Router object.
    fn annotations(&self, known_for: Duration) -> BTreeMap<String, String> {
        let settings = serde_json::to_string(&self.settings).unwrap_or_default();
        let told = [(ANNOTATION_HUB_ADDRESS, &self.address), (ANNOTATION_HUB_POD, &self.pod)];
        let told = told
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value.clone()?)));
        let mut annotations = BTreeMap::from([
            (ANNOTATION_HUB_SETTINGS.to_owned(), settings),
            (ANNOTATION_ROUTERS_KNOWN.to_owned(), known_for.as_secs().to_string()),
        ]);
        annotations.extend(told);
        annotations
    }

    /// In what this one's settings are other than `ours`, for people; none: in nothing. A flag that one of the two does not tell of is
    /// none of its release, which an update replaces replica by replica.
    pub(crate) fn differs(&self, ours: &BTreeMap<String, String>) -> Option<String> {
        let lines = ours.iter().filter_map(|(flag, here)| {
            let there = self.settings.get(flag)?;
            (here != there).then(|| format!("{flag} is {here:?} here and {there:?} there"))
        });
        let lines: Vec<_> = lines.collect();
        (!lines.is_empty()).then(|| lines.join(", "))
    }
}

#[cfg(test)]
mod tests;
