//! Resources: what requests share and what outlives them. Each is owned by one type that is built by `app`.

pub(crate) mod access;
pub(crate) mod alone;
pub(crate) mod breaker;
pub(crate) mod bulkhead;
pub(crate) mod catch_up;
pub(crate) mod ended;
pub(crate) mod enroll;
pub(crate) mod fair;
mod following;
pub(crate) mod grants;
pub(crate) mod held;
pub(crate) mod injected;
pub(crate) mod keyed;
pub(crate) mod load;
pub(crate) mod locks;
pub(crate) mod policies;
pub(crate) mod question;
pub(crate) mod queues;
pub(crate) mod replicas;
pub(crate) mod reviewed;
pub(crate) mod routing;
pub(crate) mod state;
pub(crate) mod subscribe;
pub(crate) mod upstream;
pub(crate) mod whereabouts;
pub(crate) mod writes;
