//! How many objects agents count, by kind and bucket.

use std::collections::BTreeMap;

use portolan_crds::GroupResource;
use portolan_wire::v1;

use super::AgentReport;

/// Most objects that count of one pair of cluster and bucket, whatever its agent says. No API server holds much more in all;
/// it bounds what a member that lies weighs beside the others.
pub(crate) const MAX_COUNTED: u32 = 1_000_000;

/// Objects of each kind that its agent has counted, by bucket.
pub(crate) type Counts = BTreeMap<GroupResource, Box<[u32]>>;

/// What an agent says of one kind, each figure at most [`MAX_COUNTED`].
pub(crate) fn counted(by_bucket: &[u64]) -> Box<[u32]> {
    let figures = by_bucket.iter();
    figures
        .map(|count| u32::try_from(*count).unwrap_or(MAX_COUNTED).min(MAX_COUNTED))
        .collect()
}

impl AgentReport {
    /// Whether the agent has counted all kinds that it labels.
    pub(crate) fn has_counted(&self) -> bool {
        let kinds = self.coverage.iter().flatten();
        self.coverage.as_ref().is_some_and(|kinds| !kinds.is_empty())
            && kinds.into_iter().all(|(kind, _)| self.counts.contains_key(kind))
    }

    /// Objects of all kinds in each of so many buckets of `rule`, where there are any. `None`: not all kinds are counted, or
    /// not by this rule.
    pub(crate) fn objects(&self, rule: &v1::LabelRule, buckets: u16) -> Option<BTreeMap<u16, u64>> {
        let kinds = self.coverage.as_ref().filter(|kinds| !kinds.is_empty())?;
        let mut objects = BTreeMap::<u16, u64>::new();
        for (kind, coverage) in kinds {
            let of_kind = self.counts.get(kind)?;
            if coverage.rule.as_ref() != Some(rule) || of_kind.len() != usize::from(buckets) {
                return None;
            }
            for (bucket, count) in (0..buckets).zip(of_kind.iter()).filter(|(_, count)| **count > 0) {
                *objects.entry(bucket).or_default() += u64::from(*count);
            }
        }
        for count in objects.values_mut() {
            *count = (*count).min(MAX_COUNTED.into());
        }
        Some(objects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(prefix: &str) -> v1::LabelRule {
        v1::LabelRule {
            prefix: prefix.to_owned(),
            bucketing: None,
        }
    }

    fn report(kinds: &[(&str, &[u64])]) -> AgentReport {
        let mut report = AgentReport::default();
        for (name, by_bucket) in kinds {
            let kind = GroupResource::new("", *name);
            let coverage = v1::KindCoverage {
                rule: Some(rule("p/")),
                ..v1::KindCoverage::default()
            };
            report.coverage.get_or_insert_default().insert(kind.clone(), coverage);
            if !by_bucket.is_empty() {
                report.counts.insert(kind, counted(by_bucket));
            }
        }
        report
    }

    #[test]
    fn a_cluster_is_counted_once_all_its_kinds_are() {
        let both = report(&[("pods", &[1, 0]), ("services", &[2, 0])]);
        assert_eq!(both.objects(&rule("p/"), 2), Some(BTreeMap::from([(0, 3)])));
        assert!(both.has_counted());
        assert_eq!(both.objects(&rule("another/"), 2), None);
        assert_eq!(both.objects(&rule("p/"), 3), None, "of another number of buckets");
        for unknown in [report(&[]), report(&[("pods", &[1, 0]), ("services", &[])])] {
            assert!(unknown.objects(&rule("p/"), 2).is_none() && !unknown.has_counted());
        }
        let lies = report(&[("pods", &[u64::MAX, 0]), ("services", &[u64::MAX, 7])]);
        let most = BTreeMap::from([(0, MAX_COUNTED.into()), (1, 7)]);
        assert_eq!(lies.objects(&rule("p/"), 2), Some(most));
    }
}
