//! A release that a person does not wait for any more: annotation [`FORCE_RELEASE`] of the ShardingConfig that lets go.
//!
//! It names pairs with their epochs, so that it is said once and holds for no later release; and why. It stays on the object
//! until somebody writes another one: with the API server's audit log it is the record of who did what. Callers: the hub reads
//! it, `portolanctl shards force` writes it.
//!
//! [`FORCE_RELEASE`]: crate::labels::FORCE_RELEASE

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::names::is_dns_label;

/// Of a reason, in bytes.
const MAX_REASON: usize = 500;
/// Pairs in one annotation.
pub const FORCED_MAX: usize = 200;

/// `CLUSTER/NAMESPACE@EPOCH[,...]: REASON`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForcedRelease {
    /// Cluster, namespace and the epoch that is being released.
    pub pairs: BTreeSet<(String, String, u64)>,
    /// For whoever looks.
    pub reason: String,
}

impl FromStr for ForcedRelease {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (pairs, reason) = text
            .split_once(": ")
            .ok_or("it is CLUSTER/NAMESPACE@EPOCH[,...]: REASON")?;
        let reason = reason.trim();
        if reason.is_empty() || reason.len() > MAX_REASON {
            return Err(format!("the reason has 1 to {MAX_REASON} bytes"));
        }
        let pairs = pairs.split(',').map(|one| pair(one.trim()));
        let pairs = pairs.collect::<Result<BTreeSet<_>, _>>()?;
        if pairs.len() > FORCED_MAX {
            return Err(format!(
                "{} pairs, and {FORCED_MAX} at most are forced at once",
                pairs.len()
            ));
        }
        Ok(Self {
            pairs,
            reason: reason.to_owned(),
        })
    }
}

fn pair(text: &str) -> Result<(String, String, u64), String> {
    let parsed = text.split_once('/').and_then(|(cluster, rest)| {
        let (namespace, epoch) = rest.split_once('@')?;
        let is_named = is_dns_label(namespace) && !cluster.is_empty();
        is_named.then_some((cluster.to_owned(), namespace.to_owned(), epoch.parse().ok()?))
    });
    parsed.ok_or_else(|| format!("{text:?} is not CLUSTER/NAMESPACE@EPOCH"))
}

impl fmt::Display for ForcedRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (cluster, namespace, epoch)) in self.pairs.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{cluster}/{namespace}@{epoch}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_what_it_writes_and_refuses_the_rest() {
        let text = "east/ns-a@3,west/ns-b@1: gateway-2 is gone: its node burnt";
        let forced: ForcedRelease = text.parse().unwrap();
        assert_eq!(forced.to_string(), text);
        assert!(forced.pairs.contains(&("east".to_owned(), "ns-a".to_owned(), 3)));
        assert_eq!(forced.reason, "gateway-2 is gone: its node burnt");
        for bad in [
            "",
            "east/ns-a@3",
            "east/ns-a@3: ",
            "east/ns-a: why",
            "ns-a@3: why",
            "/ns-a@3: why",
            "east/ns-a@x: why",
            "east/N_S@3: why",
            ": why",
        ] {
            assert!(bad.parse::<ForcedRelease>().is_err(), "{bad}");
        }
    }
}
