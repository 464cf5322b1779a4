//! Maps and sets into which requests look. Their hash is keyed by a random number, as that of the standard library is, so that nobody
//! chooses names that collide; for short names it costs less.

use ahash::RandomState;

/// As [`std::collections::HashMap`].
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;
/// As [`std::collections::HashSet`].
pub(crate) type HashSet<T> = std::collections::HashSet<T, RandomState>;
