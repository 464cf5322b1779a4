//! `portolanctl dev`: hub, agents and one gateway router as local processes, against any existing clusters.
//!
//! `up` starts and records, the supervisor runs beside the fleet, starts again what ends and keeps tokens fresh; the others
//! read the record (`fleet.json`). It is for trying things: callers get the role `--caller-role` in every member.

pub(crate) mod callers;
pub(crate) mod check;
pub(crate) mod control;
pub(crate) mod created;
pub(crate) mod down;
pub(crate) mod fleet;
pub(crate) mod process;
pub(crate) mod programs;
pub(crate) mod ready;
pub(crate) mod renew;
pub(crate) mod request;
pub(crate) mod status;
pub(crate) mod summary;
pub(crate) mod supervise;
pub(crate) mod token;
pub(crate) mod up;
