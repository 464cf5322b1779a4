//! Many members' answers to one collection request, made into one.
//!
//! Pure: bytes and frames in, bytes and decisions out. No sockets, no clocks, no tasks, so that what a client's cache ends
//! up with can be proved over simulated members before anything is wired (`tests/`), fuzzed (`fuzz/`) and soaked. The
//! router's `fanout` feeds it; nothing here knows of HTTP.
//!
//! [`cursor`]: the merged resourceVersion. [`token`]: the merged continue token. [`query`]: what a collection request asks
//! for, and what each member is asked. [`filter`]: which namespaces are the caller's. [`list`]: bodies of lists → one list.
//! [`watch`]: event streams → one stream. [`resume`]: what ended streams had sent. [`wire`]: protobuf fields, walked.
//! [`discovery`] and [`openapi`]: what members serve, as one server's documents.

mod columns;
pub mod cursor;
pub mod discovery;
pub mod filter;
pub mod list;
pub mod object_meta;
pub mod openapi;
pub mod query;
pub mod resume;
pub mod token;
pub mod watch;
pub mod wire;
