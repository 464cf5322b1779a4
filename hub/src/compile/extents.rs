//! What specs without clusters have, each read once, and which have some of the same, each two compared once. Asked by `arbitrate`, run
//! for run about mostly the same specs.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use portolan_crds::ShardingConfigSpec;
use portolan_crds::overlap::{Extent, Labelling};

use crate::settings::Settings;

/// A spec by where it lies.
type Place = *const ShardingConfigSpec;

/// What was asked for in one run.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// With the specs, so that no other comes to lie there.
    extents: HashMap<Key, (Arc<ShardingConfigSpec>, Option<Arc<Extent>>)>,
    met: HashMap<(Key, Key), Option<Arc<str>>>,
}

/// A [`Place`] as a number: it is compared, and never followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key(usize);

/// What one run asks for.
pub(super) struct Extents<'a> {
    settings: &'a Settings,
    last: Known,
    // A RefCell: one run is one thread's.
    now: RefCell<Known>,
}

impl Key {
    fn of(spec: &Arc<ShardingConfigSpec>) -> Self {
        let place: Place = Arc::as_ptr(spec);
        Self(place.addr())
    }
}

impl<'a> Extents<'a> {
    /// `last`: what the run before asked for.
    pub(super) fn new(settings: &'a Settings, last: &mut Known) -> Self {
        Self {
            settings,
            last: std::mem::take(last),
            now: RefCell::default(),
        }
    }

    /// What this run asked for.
    pub(super) fn known(&self) -> Known {
        self.now.take()
    }

    /// What a shard of this spec has; `None`: it has clusters.
    pub(super) fn of(&self, spec: &Arc<ShardingConfigSpec>) -> Option<Arc<Extent>> {
        let key = Key::of(spec);
        let mut now = self.now.borrow_mut();
        let known = now.extents.entry(key).or_insert_with(|| {
            let last = self.last.extents.get(&key);
            last.cloned()
                .unwrap_or_else(|| (spec.clone(), Extent::of(spec).map(Arc::new)))
        });
        known.1.clone()
    }

    /// Some of what shards of these two specs both have, in words.
    pub(super) fn meeting(&self, one: &Arc<ShardingConfigSpec>, other: &Arc<ShardingConfigSpec>) -> Option<Arc<str>> {
        let (ours, theirs) = (self.of(one)?, self.of(other)?);
        let (key, back) = ((Key::of(one), Key::of(other)), (Key::of(other), Key::of(one)));
        let mut now = self.now.borrow_mut();
        if let Some(known) = now.met.get(&key).or_else(|| now.met.get(&back)) {
            return known.clone();
        }
        let last = self.last.met.get(&key).or_else(|| self.last.met.get(&back));
        let met = last.cloned().unwrap_or_else(|| {
            let met = ours.meets(&theirs, labelling(self.settings));
            met.map(|met| met.to_string().into())
        });
        now.met.insert(key, met.clone());
        met
    }
}

/// How agents label objects.
pub(super) fn labelling(settings: &Settings) -> Labelling<'_> {
    Labelling {
        keys: &settings.keys,
        bucketing: settings.bucketing,
    }
}
