//! An operator to be upgraded by its canary: the control planes, a node that runs its Pods, what it is given to do, and what
//! can be seen of it. Suite `canary` and the demo's step do the upgrade.

mod work;
mod world;

pub use self::work::{Owners, Work};
pub use self::world::{BAD, NEW, OLD, Place, TRIED, Version, World};

/// The shard that is the canary, `namespace/name`.
pub const CANARY: &str = "operators/greetings-0-canary";
/// The root, `namespace/name`.
pub const ROOT: &str = "operators/greetings";
