//! The Portolan router: one endpoint for an operator, many member clusters behind it.
//!
//! # Layers
//!
//! Arrows point one way; a test holds the table of those that are allowed (`tests/structure`).
//!
//! | layer | what lives there |
//! | --- | --- |
//! | `value` | words and values that all others speak of: faults, classified requests, kinds, traffic classes, the snapshot |
//! | `decision` | pure decisions: `plan`, `rewrite`, `lease` |
//! | `resource` | what requests share and what outlives them: `upstream`, `breaker`, `queues`, `access`, the link to the hub |
//! | `stage` | stages with IO, in the order below |
//! | `edge` | one request from its head to the end of its answer |
//! | wiring | `app`, `accept`, `admin`, `args`, `main` |
//!
//! # Data path
//!
//! One request, from its connection to the end of its answer. The words are the module names:
//! `accept → classify → identify → plan → admit → preflight → dispatch or fan out → reply`.
//!
//! 1. `accept`: connection, TLS (HTTP/2 or HTTP/1.1 by ALPN), the client certificate if there is one; one tracked task
//!    per connection, a bound on everything an unknown client can do.
//! 2. `edge`: span, deadline, completion record; the routing of the moment (`resource::routing`: snapshot, kinds,
//!    connections) is loaded **once**: that `Arc` rules the request to its end, but that a write is planned again when a
//!    swap comes before it leaves. A panic in a stage is this request's 500. What ends by itself is over at the deadline,
//!    read or not.
//! 3. `value::classify`: method, path, query, headers → `ApiRequest`, as the API server itself reads them; path tricks are
//!    refused here.
//! 4. `stage::identify`: who asks → `Caller`; a bound token of exactly one member, or a person's certificate of the hub CA;
//!    unknown → 401, in no shard or two → 403.
//! 5. `decision::plan`: (caller, request, snapshot) → `Plan`: forward to one member, fan out over members for one
//!    collection, answer here, or refuse. Pure, and every routing rule is in it.
//! 6. `stage::admit`: the one place where a request waits or is turned away before the first byte of its body is read:
//!    ordered faults, limits, the caller's bytes and bulkhead, then bytes and permits of all; before a caller is known, bounds
//!    on arrivals and on token reviews. Ordered faults of watches that run are `stage::inject`'s, which wraps their bodies.
//! 7. `stage::preflight`: what the plan needs to know before anything is sent: access reviews, labels of the object, who
//!    holds it, rules on the body, the election's Lease.
//! 8. `stage::dispatch`: asks the `breaker`, and sends over `upstream` (pooled HTTP/2) or `upgrade` (a byte tunnel over
//!    HTTP/1.1). Retries reads, never a write. One client span per leg.
//!    `stage::fanout` instead, for a LIST or WATCH of the merged view: asks each member of the plan through `dispatch`, leg
//!    by leg, and makes one answer of theirs with the pure core of `portolan_merge` while it is read. It keeps what clients
//!    may come back with: cursors are stateless, raw versions of ended watches are remembered for minutes. A leg of a watch
//!    that ends is connected again, with the then current routing. Answers to the caller's writes wait
//!    until its open watches have shown them (`fanout::fence`).
//!    `stage::discovery` instead, for what members serve: united from copies of their own documents.
//! 9. `decision::rewrite` and `decision::lease`, called by `dispatch`: selector, names and headers of the request as the
//!    member shall see it, and back. Pure.
//! 10. `stage::reply`: the member's answer streams out as it comes; a `Fault` becomes a Kubernetes `Status`, here and
//!     nowhere else. After each swap `stage::replan` plans what is still running anew, and ends what would be planned
//!     otherwise; merged watches go on under their new plan.
//! 11. Completion record: metrics and one access line, in every case (`edge`).
//!
//! # Control path
//!
//! `resource::enroll` gets and renews this router's certificate. `resource::subscribe` follows the hub's stream: a
//! transaction is checked whole by `value::snapshot::build`, swapped in at once, acked or nacked by entry, and written to the
//! last-good file (`resource::state`), from which a restart without the hub serves on. [`args`] → [`app`] → `main` start it
//! all, `admin` shows it. What counts something owns its metrics; `app` hands the registry down.

pub(crate) mod accept;
pub(crate) mod admin;
pub mod app;
pub mod args;
pub(crate) mod decision;
pub(crate) mod edge;
pub(crate) mod resource;
pub(crate) mod stage;
pub(crate) mod value;
