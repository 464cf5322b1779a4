//! API types of Portolan, their validation, and the pure rules that hub, agent and router must agree on.
//!
//! No IO, no clocks, no async. The feature `schema` adds the OpenAPI schemas and the kinds themselves (kube derives), such
//! as `ShardingConfig`, for the hub and `crdgen`; a router does with the specs.
#![warn(missing_docs)]

pub mod circuit_breaker;
pub mod cluster;
pub mod condition;
#[cfg(feature = "schema")]
pub mod definitions;
pub mod duration;
pub mod fair;
pub mod fault_injection;
pub mod held;
pub mod labels;
pub mod ledger;
pub mod names;
pub mod operator;
pub mod overlap;
pub mod partition;
pub mod policy;
pub mod rotation;
pub mod router;
#[cfg(feature = "schema")]
mod schema;
pub mod selector;
pub mod separation;
pub mod shard;
pub mod sharding;
pub mod validate;

#[cfg(feature = "schema")]
pub use circuit_breaker::CircuitBreaker;
pub use circuit_breaker::{CircuitBreakerSpec, CircuitBreakerStatus, PolicyReason};
pub use cluster::*;
pub use condition::{ConditionReason, ConditionType, Finding, set_condition};
pub use duration::Duration;
#[cfg(feature = "schema")]
pub use fault_injection::FaultInjection;
pub use fault_injection::{FaultInjectionSpec, FaultInjectionStatus};
pub use held::{Election, HeldLock};
pub use labels::{LabelKeys, system_namespace};
pub use names::{GroupResource, NameError, ShardName, leader_election_name, lease_name};
pub use operator::{Contention, OPERATORS_MAX, OperatorName};
pub use router::*;
pub use selector::{Operator, Requirement, Selector, SelectorError};
pub use shard::{BucketAlgorithm, Bucketing};
pub use sharding::*;
pub use validate::{
    Problem, Reason, accepted_reason, validate_circuit_breaker, validate_fault_injection, validate_member,
    validate_sharding,
};
