//! Stages with IO, in the order in which a request passes them; see the crate's own page.

pub(crate) mod admit;
pub(crate) mod discovery;
pub(crate) mod dispatch;
pub(crate) mod fanout;
pub(crate) mod identify;
pub(crate) mod inject;
pub(crate) mod preflight;
pub(crate) mod replan;
pub(crate) mod reply;
