//! Many members' answers to one collection request, made into one.
//!
//! Pure: bytes and frames in, bytes and decisions out. No sockets, no clocks, no tasks, so that what a client's cache ends
//! up with can be proved over simulated members before anything is wired (`tests/`), fuzzed (`tests/fuzz`) and soaked. The router's
//! `fanout` feeds it; nothing here knows of HTTP.
//!
//! # How the pieces relate
//! A member's objects have that member's resourceVersion, which means nothing to another member. What a client of the
//! merged view holds instead is a [`cursor`]: one number with a slot for each member, which says how far the client is
//! there. Everything else makes, reads or moves cursors:
//!
//! 1. [`query`] reads what the client asks for, decodes its cursor or its continue [`token`] (a cursor, and the member that
//!    the next page begins with), and says what each member is asked.
//! 2. [`list`] makes one list of the members' bodies. Its resourceVersion is a cursor of all their resourceVersions.
//! 3. [`watch`] makes one stream of the members' streams, from a cursor on. Its bookmarks are cursors. What is in the middle
//!    of its initial events, was lost, or changed with the shard is resynced without the client, where that is possible.
//! 4. [`resume`] knows what open streams, and for some minutes those that ended, sent last, for clients that come back with
//!    the version of an object instead of a cursor.
//!
//! Beside that: [`filter`] tells which namespaces of a member are the caller's, [`object_meta`] reads what an object is
//! without decoding it, [`wire`] walks protobuf; [`discovery`] and [`openapi`] make what members serve into one server's
//! documents.

#![warn(missing_docs)]

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
