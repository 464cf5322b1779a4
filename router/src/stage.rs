//! Stages with IO, in the order in which a request passes them; see the crate's own page.

pub(crate) mod dispatch;
pub(crate) mod fanout;
pub(crate) mod identify;
pub(crate) mod recheck;
pub(crate) mod reply;
pub(crate) mod upgrade;
