//! Words and values: what every layer above speaks of. Pure: no IO, no clock, no task.

pub(crate) mod check;
pub(crate) mod classify;
pub(crate) mod code;
pub(crate) mod document;
pub(crate) mod event_boundary;
pub(crate) mod fault;
pub(crate) mod hashed;
pub(crate) mod injection;
pub(crate) mod kinds;
pub(crate) mod media;
pub(crate) mod object;
pub(crate) mod policy;
pub(crate) mod review;
pub(crate) mod snapshot;
pub(crate) mod traffic;
pub(crate) mod yaml;
