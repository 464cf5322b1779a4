//! Discovery and OpenAPI of the merged view: what the members of a shard serve, as if one API server served it.
//!
//! Groups, versions and resources are the union over the members, verbs what all that serve a resource allow, the order
//! the primary's. What each member serves is also kept as [`Kinds`], for whoever must know a kind beyond its path: `plan`
//! (its scope), `fanout` (who serves it at all), ownerReferences (kind → resource).

pub mod kinds;

pub use self::kinds::{Kinds, Scope};
