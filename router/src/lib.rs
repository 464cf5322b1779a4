//! The Portolan router: one endpoint for an operator, many member clusters behind it.
//!
//! # Data path
//!
//! One request, from its connection to the end of its answer. The words are the module names, and each stage is plain
//! functions over the answer of the one before.
//!
//! 1. `accept`: connection, TLS (HTTP/2 or HTTP/1.1 by ALPN), the client certificate if there is one; one tracked task
//!    per connection, a bound on everything an unknown client can do.
//! 2. `edge`: span, in-flight permit, deadline; [`snapshot::SnapshotStore::load`] **once**: that `Arc` rules the request
//!    to its end, but that a write is planned again when a swap comes before it leaves. A panic in a stage is this
//!    request's 500. What ends by itself is over at the deadline, read or not.
//! 3. [`classify`]: method, path, query, headers → [`classify::ApiRequest`], as the API server itself reads them; path
//!    tricks are refused here.
//! 4. `identify`: who asks → [`snapshot::Caller`]; a bound token of exactly one member, or a person's certificate of the
//!    hub CA; unknown → 401, in no shard or two → 403.
//! 5. [`plan`]: (caller, request, snapshot) → [`plan::Plan`]: forward to one member, fan out over members for one
//!    collection, answer here, or refuse. Pure, and every routing rule is in it.
//! 6. `access`: what the plan needs asked first: the hub about people, a member about acting as somebody else. For merged
//!    collections each time a member is asked.
//! 7. `dispatch`: looks at labels and bodies where the plan says so, takes a place in the bulkheads, asks the `breaker`,
//!    and sends over `upstream` (pooled HTTP/2) or `upgrade` (a byte tunnel over HTTP/1.1). Retries what was never sent,
//!    and reads; never a write that left. One client span per leg.
//!    `fanout` instead, for a LIST or WATCH of the merged view: asks each member of the plan through `dispatch`, leg by leg,
//!    and makes one answer of theirs with the pure core of `portolan_merge` while it is read. It keeps what clients may
//!    come back with: cursors are stateless, raw versions of ended watches are remembered for minutes. A leg of a watch
//!    that ends is connected again, with the credentials of the then current snapshot. Answers to the caller's writes wait
//!    until its open watches have shown them (`fanout::fence`).
//!    [`discovery`] instead, for what members serve: united from copies of their own documents.
//! 8. [`rewrite`] and [`lease`], called by `dispatch`: selector, names and headers of the request as the member shall see
//!    it, and back. Pure.
//! 9. [`reply`]: the member's answer streams out as it comes; a [`fault::Fault`] becomes a Kubernetes `Status`, here and
//!    nowhere else.
//!    After each swap `recheck` plans what is still running anew, and ends what would be planned otherwise; merged watches
//!    go on under their new plan.
//! 10. Completion record: metrics and one access line, in every case (`edge`).
//!
//! # Control path
//!
//! `enroll` gets and renews this router's certificate. `subscribe` follows the hub's stream: a transaction is checked
//! whole by [`snapshot::build`], swapped in at once, acked or nacked by entry, and written to the last-good file
//! (`state`), from which a restart without the hub serves on. [`args`] → [`app`] → `main` start it all, `admin` and
//! `metrics` show it.

pub(crate) mod accept;
pub(crate) mod admin;
pub mod app;
pub mod args;
pub(crate) mod decision;
pub(crate) mod edge;
pub(crate) mod resource;
pub(crate) mod stage;
pub(crate) mod value;
