//! A delta of an agent, applied to what is known of its subject. Pure. Callers: `agents`, `callers`.

use std::collections::BTreeMap;

use super::Change;

/// Applies a delta; the first one makes the subject known, also when it is empty.
pub(super) fn fold<K: Ord, V: PartialEq>(
    slot: &mut Option<BTreeMap<K, V>>,
    reset: bool,
    upserted: impl IntoIterator<Item = (K, V)>,
    removed: impl IntoIterator<Item = K>,
) -> Change {
    let mut changed = slot.is_none();
    let map = slot.get_or_insert_default();
    if reset {
        let fresh: BTreeMap<K, V> = upserted.into_iter().collect();
        changed |= *map != fresh;
        *map = fresh;
    } else {
        for (key, value) in upserted {
            if map.get(&key) != Some(&value) {
                changed = true;
                map.insert(key, value);
            }
        }
    }
    for key in removed {
        changed |= map.remove(&key).is_some();
    }
    if changed { Change::Compile } else { Change::Nothing }
}
