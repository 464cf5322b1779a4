//! A leader lock that a caller has renewed, and whether a shard elects its leader by it. Pure.
//!
//! Callers of two shards may each lead by a lock of their own. Whoever leads by a lock that is not its present shard's may be a
//! second leader there, until that lock has run out (`docs/semantics.md#leader-election`). Hub and router must agree on which those
//! are.

/// A lock, or another Lease, in its caller's own namespace of a member cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HeldLock {
    /// The member cluster in which it lies.
    pub cluster: String,
    /// `leases`, or a resource of the core group.
    pub resource: String,
    /// Its name there.
    pub name: String,
    /// It had the name by which the caller's shard elects its leader, which is another one in the member.
    pub of_election: bool,
}

/// Where callers of one home cluster find the locks of their shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Election<'a> {
    /// Where they run.
    pub home: &'a str,
    /// Where the shard's locks lie; the home cluster of a shard that has no primary.
    pub primary: &'a str,
    /// The lock's name there, see [`crate::lease_name`]; `None`: the shard names none, and Leases are at home under their own names.
    pub lock: Option<&'a str>,
}

impl HeldLock {
    /// Whether callers of this election would find this very lock by the name by which it was renewed.
    pub fn is_of(&self, election: &Election<'_>) -> bool {
        if self.of_election {
            return election.lock == Some(self.name.as_str()) && self.cluster == election.primary;
        }
        // A Lease of another name may go on at home while it is alive there.
        self.cluster == election.home || election.lock.is_some() && self.cluster == election.primary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_known_by_its_place_whatever_its_shard_is_called_now() {
        let lock = |cluster: &str, name: &str, of_election| HeldLock {
            cluster: cluster.to_owned(),
            resource: "leases".to_owned(),
            name: name.to_owned(),
            of_election,
        };
        let election = Election {
            home: "east",
            primary: "west",
            lock: Some("op---blue"),
        };
        assert!(lock("west", "op---blue", true).is_of(&election));
        assert!(
            !lock("east", "op---blue", true).is_of(&election),
            "before the primary was another"
        );
        assert!(!lock("west", "op---red", true).is_of(&election), "another shard's");
        assert!(!lock("west", "op---blue", false).is_of(&Election {
            primary: "north",
            ..election
        }));
        for cluster in ["east", "west"] {
            assert!(lock(cluster, "other", false).is_of(&election), "of all callers there");
        }
        assert!(!lock("north", "other", false).is_of(&election));
        let unnamed = Election { lock: None, ..election };
        assert!(lock("east", "op", false).is_of(&unnamed) && !lock("west", "op", false).is_of(&unnamed));
        assert!(!lock("west", "op---blue", true).is_of(&unnamed));
    }
}
