//! Versions that may have been sent: a superset of what was put in, in bounded memory.
//!
//! Each member counts for itself, and its versions stand close together: a few spans tell members apart whose numbers are
//! of other magnitudes. What was once in stays in. Callers: `sent`, [`crate::resume`].

/// Spans that are kept apart; 128 bytes.
const MOST: usize = 8;

/// Closed spans of versions, ascending and apart from each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spans(Vec<(u64, u64)>);

impl Spans {
    /// Whether the version may be one that was put in. Never wrong when it says no.
    pub(crate) fn has(&self, version: u64) -> bool {
        let at = self.0.partition_point(|(_, high)| *high < version);
        self.0.get(at).is_some_and(|(low, _)| *low <= version)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Puts a version in.
    pub(crate) fn insert(&mut self, version: u64) {
        self.cover(version, version);
    }

    /// Puts in all that is in `other`.
    pub(crate) fn unite(&mut self, other: &Self) {
        for (low, high) in &other.0 {
            self.cover(*low, *high);
        }
    }

    fn cover(&mut self, low: u64, high: u64) {
        let from = self.0.partition_point(|(_, end)| *end < low);
        let to = self.0.partition_point(|(begin, _)| *begin <= high);
        let touched = self.0.get(from..to).unwrap_or_default();
        let low = touched.first().map_or(low, |(begin, _)| low.min(*begin));
        let high = touched.last().map_or(high, |(_, end)| high.max(*end));
        self.0.splice(from..to.max(from), [(low, high)]);
        if self.0.len() > MOST {
            self.close_narrowest_gap();
        }
    }

    fn close_narrowest_gap(&mut self) {
        let gaps = self.0.windows(2).enumerate();
        let narrowest = gaps.min_by_key(|(_, pair)| pair[1].0 - pair[0].1);
        if let Some((at, _)) = narrowest {
            let (_, end) = self.0.remove(at + 1);
            self.0[at].1 = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_put_in_is_in_and_memory_is_bounded(
            versions in prop::collection::vec(prop_oneof![0_u64..100, 1_000_000_u64..1_000_100, any::<u64>()], 0..60),
            others in prop::collection::vec(0_u64..200, 0..20),
        ) {
            let (mut spans, mut more) = (Spans::default(), Spans::default());
            for version in &versions {
                spans.insert(*version);
            }
            for version in &others {
                more.insert(*version);
            }
            spans.unite(&more);
            prop_assert!(versions.iter().chain(&others).all(|version| spans.has(*version)));
            prop_assert!(spans.0.len() <= MOST);
            prop_assert!(spans.0.iter().all(|(low, high)| low <= high));
            prop_assert!(spans.0.windows(2).all(|pair| pair[0].1 < pair[1].0));
        }
    }

    #[test]
    fn members_of_other_magnitudes_are_told_apart() {
        let mut spans = Spans::default();
        assert!(spans.is_empty() && !spans.has(0));
        for step in 0..1_000 {
            spans.insert(5_000 + 3 * step);
            spans.insert(1_000_000 + 70 * step);
        }
        assert!(spans.has(5_003) && spans.has(1_069_930));
        assert!(!spans.has(4_999) && !spans.has(8_000) && !spans.has(900_000) && !spans.has(1_069_931));
    }
}
