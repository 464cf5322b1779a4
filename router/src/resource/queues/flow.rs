//! Whose request it is, and which queues it may stand in.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::LazyLock;

use ahash::RandomState;

use crate::value::snapshot::{Caller, CallerId};

/// How names are hashed, another way in each process: nobody can choose one that falls together with another's.
static NAMES: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Queues of one class: with hands of six, two tenants have all six in common once in 75 million.
pub(super) const QUEUES: usize = 64;
/// Queues that a tenant may stand in.
pub(super) const HAND: usize = 6;

/// A tenant and one of its callers, as hashes: two that fall together share, which harms nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Flow {
    pub(super) tenant: u64,
    pub(super) caller: u64,
}

impl Flow {
    /// The router's own questions.
    pub(crate) const OWN: Self = Self { tenant: 0, caller: 0 };

    pub(crate) fn of(caller: &Caller) -> Self {
        Self {
            tenant: NAMES.hash_one(caller.tenant()),
            caller: NAMES.hash_one(CallerId::of(caller)),
        }
    }

    #[cfg(test)]
    pub(crate) fn numbered(tenant: u64, caller: u64) -> Self {
        Self { tenant, caller }
    }
}

fn hash(what: &impl Hash) -> u64 {
    let mut hash = DefaultHasher::new();
    what.hash(&mut hash);
    hash.finish()
}

/// The tenant's queues, all different. `seed`: of this process, so that nobody can choose whose queues to stand in.
pub(super) fn hand(tenant: u64, seed: u64) -> [usize; HAND] {
    let mut rest = hash(&(seed, tenant));
    let mut cards = [0; HAND];
    for dealt in 0..HAND {
        // Each draw is one of those that are left: 64·63·62·61·60·59 is less than 2^36.
        let left = (QUEUES - dealt) as u64;
        let mut card = usize::try_from(rest % left).unwrap_or_default();
        rest /= left;
        // Counted among those that were not dealt yet.
        let mut before = cards;
        let before = &mut before[..dealt];
        before.sort_unstable();
        for &taken in before.iter() {
            card += usize::from(card >= taken);
        }
        cards[dealt] = card;
    }
    cards
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hand_has_different_queues_and_tenants_have_different_hands() {
        let mut often = [0_u32; QUEUES];
        let mut alike = 0;
        for tenant in 0..2_000 {
            let mut cards = hand(tenant, 7);
            assert_eq!(cards, hand(tenant, 7), "always the same");
            for &card in &cards {
                often[card] += 1;
            }
            cards.sort_unstable();
            assert!(cards.windows(2).all(|two| two[0] < two[1]), "{cards:?}");
            let mut next = hand(tenant + 1, 7);
            next.sort_unstable();
            alike += u32::from(next == cards);
        }
        assert_eq!(alike, 0);
        let (least, most) = (often.iter().min().unwrap(), often.iter().max().unwrap());
        assert!(*least > 120 && *most < 260, "about 187 each: {least} to {most}");
        assert_ne!(hand(1, 7), hand(1, 8), "another process deals otherwise");
    }
}
