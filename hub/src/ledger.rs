//! The durable ledger: what `compile` decides about ownership lies in ConfigMaps of the hub's namespace before any router
//! is told of it, so that a hub that starts anew knows who holds what, and never has to guess.
//!
//! `store` reads and writes, `stored` is one ConfigMap, `records` says what has to be written (pure), `import` takes over what statuses said before
//! there were ledgers (pure). Formats are in `portolan_crds::ledger`. Callers: `app` opens, `distribute` commits.

mod error;
mod import;
mod records;
mod store;
mod stored;
#[cfg(test)]
mod tests;

pub(crate) use error::LedgerError;
pub(crate) use store::{Store, incarnation};
