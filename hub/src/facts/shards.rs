//! ShardingConfigs as they were read. What can be said of a spec alone is found out once for each, where it is read: compiles, which
//! follow every fact, go by it.

use std::sync::Arc;

use jiff::Timestamp;
use portolan_crds::ledger::SPEC_BYTES_MAX;
use portolan_crds::validate::brief;
use portolan_crds::{
    ConditionReason, ForcedRelease, Problem, ShardName, ShardingConfigSpec, ShardingConfigStatus, accepted_reason,
    json_bytes, validate_sharding,
};

/// A ShardingConfig object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ShardObject {
    pub(crate) uid: String,
    pub(crate) generation: i64,
    pub(crate) created: Timestamp,
    /// The object was deleted and stays until routers have let go of what the shard has: it wants nothing any more.
    pub(crate) deleting: bool,
    /// Whether the object has the hub's finalizer.
    pub(crate) has_finalizer: bool,
    /// UID of the ShardingConfig that controls it: its root.
    pub(crate) root: Option<String>,
    /// The present spec, or why it cannot be read.
    pub(crate) spec: Result<Arc<ShardingConfigSpec>, String>,
    /// Why the spec cannot be in force, whatever is around it.
    pub(crate) flaw: Option<Flaw>,
    /// What the spec weighs, in bytes of JSON.
    pub(crate) bytes: usize,
    /// Releases that a person does not wait for any more, or why that cannot be read.
    pub(crate) forced: Option<Result<ForcedRelease, String>>,
    pub(crate) status: ShardingConfigStatus,
}

/// What is wrong with a spec by itself, in the words of condition `Accepted`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flaw {
    pub(crate) reason: ConditionReason,
    pub(crate) message: String,
}

impl ShardObject {
    /// Takes a spec, and finds out what can be said of it alone.
    pub(crate) fn take_spec(&mut self, name: &ShardName, spec: Result<Arc<ShardingConfigSpec>, String>) {
        self.bytes = spec.as_ref().map_or(0, |spec| json_bytes(&**spec));
        self.flaw = flaw(name, &spec, self.bytes);
        self.spec = spec;
    }

    /// Takes the spec of `before`, and what is known of it.
    pub(crate) fn keep_spec_of(&mut self, before: &Self) {
        self.generation = before.generation;
        self.spec.clone_from(&before.spec);
        self.flaw.clone_from(&before.flaw);
        self.bytes = before.bytes;
    }
}

fn flaw(name: &ShardName, spec: &Result<Arc<ShardingConfigSpec>, String>, bytes: usize) -> Option<Flaw> {
    let spec = match spec {
        Ok(spec) => spec,
        Err(message) => {
            return Some(Flaw {
                reason: ConditionReason::Invalid,
                message: format!("spec: {message}"),
            });
        }
    };
    if bytes > SPEC_BYTES_MAX {
        return Some(Flaw {
            reason: ConditionReason::TooMuch,
            message: format!("spec: has {bytes} bytes of JSON, at most {SPEC_BYTES_MAX} can be kept: use selectors"),
        });
    }
    let mut problems = validate_sharding(name.name(), name.namespace(), spec);
    problems.retain(Problem::refuses);
    (!problems.is_empty()).then(|| Flaw {
        reason: accepted_reason(&problems),
        message: brief(&problems),
    })
}
