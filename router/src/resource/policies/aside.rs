//! For how long, and how many at most, state is kept of rules that hold nobody here any more.

/// How long a rule is laid aside, in nanoseconds: longer than a rollout that changes labels back and forth.
pub(super) const ASIDE: u64 = 600_000_000_000;
/// Most rules that are laid aside, of a caller, and of those that routers share: as many as are judged without being slower.
pub(super) const MOST_ASIDE: usize = 1_024;
