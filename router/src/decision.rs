//! Decisions, pure: what becomes of a request, and how it is rewritten for a member and back.

pub(crate) mod injection;
pub(crate) mod lease;
pub(crate) mod plan;
pub(crate) mod policy;
pub(crate) mod replica;
pub(crate) mod rewrite;
