//! What the last run found out, and by what: the next one judges anew only what has changed since.
//!
//! Derived from what the runs were given, and not needed: without it the same is decided, only later, and every test of this
//! folder compares the two. All that a run looks at must be among what is compared here. Of one [`Settings`](super::Settings).
//! Caller: `distribute` keeps one; plans have none.

use super::arbitrate::Judgements;
use super::extents::Known;
use super::wanted::Asked;

/// What the last run found out.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memo {
    /// What specs ask for.
    pub(super) asked: Asked,
    /// What came of that in each cluster.
    pub(super) judgements: Judgements,
    /// What specs without clusters have, and which have some of the same.
    pub(super) extents: Known,
}
