//! The queues before one member: who may ask it now, who waits, and who is told to come again.
//!
//! In the manner of API Priority and Fairness (KEP-1040): each tenant is dealt a hand of queues, its requests take the one
//! with the least in it, and queues are served by the time that what they sent has taken of the member. So whoever floods a
//! member waits behind itself. Four classes, each with queues of its own: Leases go at once, then legs of watches that run,
//! then single requests, then lists; a class that is below its part is served before those above it, so that none starves.
//! The rules are pure (`core`); `shared` adds lock, clock and wake-ups. One per member (`upstream`). Callers: `dispatch`,
//! which takes a seat for each leg; and `admit`, which lets single requests come as far as there is room for them (`room`). Not
//! here: bounds of callers and of all (`admit`, with `bulkhead` and `fair`).

mod bounds;
mod class;
mod core;
mod flow;
mod metrics;
mod room;
mod shared;
#[cfg(test)]
mod tests;

pub(crate) use self::class::Class;
pub(crate) use self::core::Crowd;
pub(crate) use self::flow::Flow;
pub(crate) use self::metrics::{QueueKind, QueueMetrics, Vain};
pub(crate) use self::room::Room;
pub(crate) use self::shared::{Queues, Seat, Turn};
