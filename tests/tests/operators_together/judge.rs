//! Who wrote what, and whether it was its own: the writes that members were asked for, as their audit logs have them, held against whose
//! each namespace was by the ledger. Pure; its own tests are below.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::operators::Operator;
use crate::places::HOME;

/// Since 1970.
pub(crate) type Micros = i64;

/// Between a change of the ledger and its being seen here.
const SEEN_WITHIN: Micros = 2_000_000;

pub(crate) fn now() -> Micros {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Micros::try_from(since.as_micros()).unwrap_or(Micros::MAX)
}

/// A time in which a shard has a namespace, by the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Epoch {
    pub(crate) shard: String,
    pub(crate) number: u64,
    /// When the grant was seen.
    pub(crate) opened: Micros,
    /// When it was seen that it is to be released.
    pub(crate) closed: Option<Micros>,
}

/// A write that a member was asked for by an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) namespace: String,
    /// `group/plural`.
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) verb: String,
    /// As whom the router acted.
    pub(crate) account: String,
    /// By what the router says of the caller.
    pub(crate) shard: Option<String>,
    pub(crate) epoch: Option<u64>,
    pub(crate) asked: Micros,
    pub(crate) answered: Micros,
    pub(crate) code: u64,
    /// The member's, if it is an error.
    pub(crate) message: String,
}

impl Write {
    fn is_taken(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// Refused by policy `portolan-fence`.
    pub(crate) fn is_fenced_off(&self) -> bool {
        self.code == 403 && self.message.contains("portolan-fence")
    }
}

/// All that is wrong with the writes of one operator in one namespace; in the order in which they were answered.
pub(crate) fn judge(operator: &Operator, epochs: &[Epoch], writes: &[Write]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut highest: Option<(u64, Micros)> = None;
    for write in writes {
        let what = || {
            let Write {
                verb,
                kind,
                namespace,
                name,
                ..
            } = write;
            format!(
                "{} {verb} {kind} {namespace}/{name} of epoch {:?}",
                write.shard.as_deref().unwrap_or("nobody"),
                write.epoch
            )
        };
        let own = epochs
            .iter()
            .filter(|epoch| Some(&epoch.shard) == write.shard.as_ref() && Some(epoch.number) == write.epoch);
        if write.is_fenced_off() {
            let stays_open = |epoch: &Epoch| {
                epoch.opened <= write.asked && epoch.closed.is_none_or(|closed| closed > write.answered + SEEN_WITHIN)
            };
            if own.clone().any(stays_open) {
                wrong.push(format!(
                    "refused, and its epoch was open: {}: {}",
                    what(),
                    write.message
                ));
            }
        }
        if !write.is_taken() {
            continue;
        }
        if !operator.writes.contains(&write.kind.as_str()) {
            wrong.push(format!("no work of its own: {}", what()));
        }
        if own.clone().next().is_none() {
            wrong.push(format!("of no epoch that the ledger has: {}", what()));
        }
        let Some(epoch) = write.epoch else { continue };
        match highest {
            Some((number, answered)) if epoch < number && answered < write.asked => {
                wrong.push(format!("late, one of epoch {number} was written before: {}", what()));
            }
            Some((number, _)) if epoch <= number => {}
            _ => highest = Some((epoch, write.answered)),
        }
    }
    wrong
}

impl Operator {
    /// Whether the router acted as its account.
    pub(crate) fn wrote(&self, write: &Write) -> bool {
        write.account == format!("system:serviceaccount:{HOME}:{}", self.name)
    }
}

/// A write that a router has answered by 403, 429 or 5xx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) shard: String,
    pub(crate) namespace: String,
    pub(crate) status: u64,
    pub(crate) asked: Micros,
    pub(crate) answered: Micros,
    /// The whole access line.
    pub(crate) line: String,
}

/// Writes of one operator in one namespace that were refused, by 403 or 429, to the shard that had it all the while.
pub(crate) fn refused_to_owner(epochs: &[Epoch], refusals: &[Refusal]) -> Vec<String> {
    let is_owners = |refusal: &&Refusal| {
        epochs.iter().any(|epoch| {
            epoch.shard == refusal.shard
                && epoch.opened + SEEN_WITHIN < refusal.asked
                && epoch
                    .closed
                    .is_none_or(|closed| closed > refusal.answered + SEEN_WITHIN)
        })
    };
    let refused = refusals.iter().filter(|refusal| refusal.status < 500).filter(is_owners);
    refused
        .map(|refusal| format!("refused, and the namespace was its own: {}", refusal.line))
        .collect()
}

/// What a lock says at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) holder: String,
    pub(crate) renewed: Micros,
    pub(crate) lasts: Micros,
}

/// Holders that came before the one before them was over, of each lock; a lock's records are in their order.
pub(crate) fn twice(locks: &BTreeMap<String, Vec<Held>>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (lock, records) in locks {
        for pair in records.windows(2) {
            let [before, after] = pair else { continue };
            let released = before.holder.is_empty() || after.holder.is_empty();
            if !released && before.holder != after.holder && after.renewed < before.renewed + before.lasts {
                wrong.push(format!("{lock}: {after:?} leads, and {before:?} is not over"));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::{GREETINGS, ROLLOUTS};

    const NORMAL: &str = "greetings-1-normal";
    const CANARY: &str = "greetings-0-canary";

    fn epochs() -> Vec<Epoch> {
        let epoch = |shard: &str, number, opened, closed| Epoch {
            shard: shard.to_owned(),
            number,
            opened,
            closed,
        };
        vec![
            epoch(NORMAL, 3, 0, Some(10_000_000)),
            epoch(CANARY, 5, 20_000_000, None),
        ]
    }

    /// Of a ConfigMap, in the second that follows.
    fn write(shard: &str, epoch: u64, second: Micros, code: u64) -> Write {
        Write {
            namespace: "shop-0".to_owned(),
            kind: "/configmaps".to_owned(),
            name: "shop".to_owned(),
            verb: "patch".to_owned(),
            account: "system:serviceaccount:operators:greetings".to_owned(),
            shard: Some(shard.to_owned()),
            epoch: Some(epoch),
            asked: second * 1_000_000,
            answered: (second + 1) * 1_000_000,
            code,
            message: if code == 403 {
                "'portolan-fence' denied request".to_owned()
            } else {
                String::new()
            },
        }
    }

    fn found(writes: &[Write]) -> usize {
        judge(&GREETINGS, &epochs(), writes).len()
    }

    #[test]
    fn owners_write_one_after_the_other() {
        assert_eq!(
            found(&[
                write(NORMAL, 3, 1, 200),
                write(NORMAL, 3, 9, 200),
                write(CANARY, 5, 21, 201)
            ]),
            0
        );
        // They were under way together.
        assert_eq!(found(&[write(CANARY, 5, 21, 201), write(NORMAL, 3, 21, 200)]), 0);
    }

    #[test]
    fn what_is_not_its_own_is_wrong() {
        for (what, writes) in [
            ("late", [write(CANARY, 5, 21, 200), write(NORMAL, 3, 23, 200)]),
            (
                "another's epoch",
                [write(CANARY, 5, 21, 200), write(NORMAL, 5, 22, 200)],
            ),
            (
                "an epoch of nobody",
                [write(NORMAL, 3, 1, 200), write(NORMAL, 4, 2, 200)],
            ),
        ] {
            assert_eq!(found(&writes), 1, "{what}");
        }
        let mut foreign = write(NORMAL, 3, 1, 200);
        foreign.kind = "apps/statefulsets".to_owned();
        assert_eq!(found(&[foreign]), 1);
        let mut bare = write(NORMAL, 3, 1, 200);
        bare.epoch = None;
        assert_eq!(found(&[bare]), 1);
    }

    #[test]
    fn refusals_are_of_epochs_that_are_over() {
        for (what, write, wrong) in [
            ("it was to be released", write(NORMAL, 3, 12, 403), 0),
            ("that was seen late", write(NORMAL, 3, 8, 403), 0),
            ("it was open", write(NORMAL, 3, 5, 403), 1),
            ("it is open", write(CANARY, 5, 30, 403), 1),
            ("its grant was not seen", write(CANARY, 5, 19, 403), 0),
        ] {
            assert_eq!(found(&[write]), wrong, "{what}");
        }
    }

    #[test]
    fn owners_are_not_refused() {
        for (what, shard, status, second, wrong) in [
            ("it had it", NORMAL, 429, 5, 1),
            ("it has it", CANARY, 403, 30, 1),
            ("its member was away", CANARY, 503, 30, 0),
            ("it was to be released", NORMAL, 429, 9, 0),
            ("it was another's", NORMAL, 403, 30, 0),
            ("routers had not heard of it", CANARY, 403, 21, 0),
        ] {
            let refusal = Refusal {
                shard: shard.to_owned(),
                namespace: "shop-0".to_owned(),
                status,
                asked: second * 1_000_000,
                answered: (second + 1) * 1_000_000,
                line: String::new(),
            };
            assert_eq!(refused_to_owner(&epochs(), &[refusal]).len(), wrong, "{what}");
        }
    }

    #[test]
    fn a_lock_has_one_leader() {
        let held = |holder: &str, renewed| Held {
            holder: holder.to_owned(),
            renewed,
            lasts: 15,
        };
        for (records, wrong) in [
            (vec![held("a", 0), held("a", 2), held("b", 17)], 0),
            (vec![held("a", 0), held("", 2), held("b", 3)], 0),
            (vec![held("a", 0), held("a", 2), held("b", 16)], 1),
        ] {
            assert_eq!(twice(&[("lock".to_owned(), records)].into()).len(), wrong);
        }
    }

    #[test]
    fn writes_are_of_who_is_acted_as() {
        assert!(GREETINGS.wrote(&write(CANARY, 5, 21, 200)));
        assert!(!ROLLOUTS.wrote(&write(CANARY, 5, 21, 200)));
    }
}
