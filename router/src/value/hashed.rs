//! Maps and sets into which each request looks. Their hash is keyed, so that nobody chooses names that collide, as that of the standard
//! library; for short names it costs a third.

use ahash::RandomState;

pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;
pub(crate) type HashSet<T> = std::collections::HashSet<T, RandomState>;
