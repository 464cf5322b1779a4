//! Takes over what statuses said of a hub that kept no ledger. Done once, when there is none.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_crds::ledger::{Chunk, LockInForce, Pair, PairFence, Slot};
use portolan_crds::{ClusterShardStatus, Contention, OperatorName, ShardName, json_bytes};
use thiserror::Error;

use crate::compile::{Accepted, Ledger, State};
use crate::facts::{Facts, ShardObject};

/// Why a status cannot stand in for a ledger.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("there is no ledger, and the status of ShardingConfig {shard} {reason}")]
pub(crate) struct ImportError {
    shard: ShardName,
    reason: Reason,
}

#[derive(Debug, Error, PartialEq, Eq)]
enum Reason {
    #[error("was written by a hub that kept one")]
    Newer,
    #[error("names {named} of the {all} namespaces that it has in {cluster}")]
    Truncated { cluster: String, named: usize, all: i64 },
    #[error("has an accepted spec that cannot be read: {0}")]
    Unreadable(String),
}

/// What was in force as far as statuses tell, if they tell all. A shard that is being deleted has nothing in force and still
/// has what routers have not let go of.
pub(super) fn import(facts: &Facts, incarnation: &str) -> Result<State, ImportError> {
    let mut state = State {
        incarnation: incarnation.to_owned(),
        ..State::default()
    };
    let mut chunks = BTreeMap::new();
    let mut view_revision = 0;
    for (name, shard) in &facts.shards {
        let refuse = |reason| ImportError {
            shard: name.clone(),
            reason,
        };
        if shard.status.view_revision.is_some() {
            return Err(refuse(Reason::Newer));
        }
        let accepted = accepted(shard).map_err(refuse)?;
        if accepted.is_none() && !shard.deleting {
            continue;
        }
        for cluster in &shard.status.clusters {
            let named = cluster.namespaces.len();
            if i64::try_from(named).is_ok_and(|named| named < cluster.namespace_count) {
                let (cluster, all) = (cluster.name.clone(), cluster.namespace_count);
                return Err(refuse(Reason::Truncated { cluster, named, all }));
            }
            let chunk = chunks
                .entry(cluster.name.clone())
                .or_insert_with(|| Chunk::new(&cluster.name, Slot::WHOLE));
            add(chunk, (name, cluster), &mut view_revision);
        }
        if let Some(accepted) = accepted.filter(|_| !shard.deleting) {
            state.accepted.insert(name.clone(), accepted);
        }
    }
    state.ledger = Arc::new(Ledger::restore(
        Contention::Fleet,
        chunks.into_values(),
        view_revision,
        false,
    ));
    Ok(state)
}

/// Adds what a shard's status says that it has in one member.
fn add(chunk: &mut Chunk, (shard, told): (&ShardName, &ClusterShardStatus), view_revision: &mut u64) {
    let everybody = OperatorName::default();
    for namespace in &told.namespaces {
        let generation = told.generations.get(namespace);
        let owner_count = generation.and_then(|told| u64::try_from(*told).ok()).unwrap_or(1);
        // Of several that say so, the last owner has it: the other status was not written any more.
        let known = chunk.pairs.get(namespace).and_then(|known| known.get(&everybody));
        if known.is_some_and(|known| known.owner_count >= owner_count) {
            continue;
        }
        *view_revision += 1;
        let pair = Pair {
            fence: PairFence::default(),
            owner: Some(shard.clone()),
            owner_count,
            view_revision: *view_revision,
            releasing: false,
        };
        chunk.add(namespace, everybody.clone(), pair);
    }
}

fn accepted(shard: &ShardObject) -> Result<Option<Accepted>, Reason> {
    let Some(told) = &shard.status.accepted else {
        return Ok(None);
    };
    let spec = told.decode().map_err(|error| Reason::Unreadable(error.to_string()))?;
    Ok(Some(Accepted {
        uid: shard.uid.clone(),
        generation: told.generation,
        bytes: json_bytes(&spec),
        spec: Arc::new(spec),
        lock: LockInForce::default(),
        withheld: Vec::new(),
    }))
}
