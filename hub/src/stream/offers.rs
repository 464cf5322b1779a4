//! What gateways are to be sent, computed once for all that hold the same.
//!
//! All of them may see everything, and but for the moments after a change all hold the same: a thousand sessions would make the
//! same comparison of a whole world, and keep the same names. Pure but for the memory of the last comparisons. Caller: router
//! sessions.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::transaction::{Holding, Transaction};
use crate::acks::Names;
use crate::compile::{Scope, World};

/// Comparisons that are kept: gateways that lag hold what others held one or two worlds ago.
const KEPT: usize = 4;

/// The last comparisons.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    // A mutex: whoever comes first compares while it holds it, and the others, which wake at the same time, wait for that
    // rather than do the same.
    kept: Mutex<VecDeque<Offer>>,
}

/// What leads from one holding to one world.
#[derive(Debug)]
struct Offer {
    before: Names,
    world: Weak<World>,
    transaction: Transaction,
}

impl Offer {
    fn leads_to(&self, world: &Arc<World>) -> bool {
        std::ptr::eq(self.world.as_ptr(), Arc::as_ptr(world))
    }
}

impl Offers {
    /// What to send to a router of this holding.
    pub(super) fn next(&self, holding: &mut Holding, world: &Arc<World>, scope: &Scope) -> Transaction {
        if !matches!(scope, Scope::Everything) || !holding.rejected.is_empty() {
            return holding.next(world, scope);
        }
        let Some(mut transaction) = self.common(holding.held.common(), world) else {
            return holding.next(world, scope);
        };
        transaction.add_own(holding, world, scope);
        transaction
    }

    /// `None`: some of it cannot be sent, which each session notes for itself.
    fn common(&self, before: &Names, world: &Arc<World>) -> Option<Transaction> {
        let mut kept = self.kept.lock();
        if let Some(offer) = find(&kept, before, world) {
            return Some(offer.transaction.clone());
        }
        let mut transaction = Transaction::for_all(before, world);
        if transaction.is_too_large() {
            return None;
        }
        transaction.after = Some(if transaction.is_empty() {
            before.clone()
        } else {
            let after = transaction.applied_to(before);
            // Whoever came by another way to what these come to shares it with them.
            let of_world = kept.iter().filter(|offer| offer.leads_to(world));
            let mut known = of_world.filter_map(|offer| offer.transaction.after.as_ref());
            let same = known.find(|known| ***known == after).cloned();
            same.unwrap_or_else(|| Arc::new(after))
        });
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(Offer {
            before: before.clone(),
            world: Arc::downgrade(world),
            transaction: transaction.clone(),
        });
        Some(transaction)
    }
}

/// What leads from `before` to `world`, if it was compared lately.
fn find<'a>(kept: &'a VecDeque<Offer>, before: &Names, world: &Arc<World>) -> Option<&'a Offer> {
    let to_world = || kept.iter().filter(|offer| offer.leads_to(world));
    let is_shared = |known: &Names| Arc::ptr_eq(known, before);
    let found = to_world().find(|offer| is_shared(&offer.before));
    if found.is_some() {
        return found;
    }
    // Those that come back hold what others hold and share none of it yet. Of whoever does, another holding is another one: a
    // thousand names would be compared, router by router, to find that out.
    let mut known = kept
        .iter()
        .flat_map(|offer| [Some(&offer.before), offer.transaction.after.as_ref()])
        .flatten();
    if known.any(is_shared) {
        return None;
    }
    to_world().find(|offer| offer.before == *before)
}

#[cfg(test)]
mod tests {
    use portolan_wire::v1;

    use super::*;
    use crate::acks::Held;
    use crate::compile::{Compiled, Credentials, Ref};

    fn world(targets: &[(&str, &str)], tokens: &[(&str, &str)]) -> Arc<World> {
        let compiled = |version: &str| Compiled {
            resource: Arc::new(v1::Resource {
                version: version.to_owned(),
                body: None,
            }),
            change: None,
            provisional: false,
        };
        let target = |(name, version): &(&str, &str)| (Ref::Target((*name).to_owned()), compiled(version));
        Arc::new(World {
            resources: targets.iter().map(target).collect(),
            credentials: Credentials::of_member("east", tokens),
            ..World::default()
        })
    }

    fn router(name: &str, held: Held) -> Holding {
        Holding {
            router: name.to_owned(),
            held,
            ..Holding::default()
        }
    }

    #[test]
    fn those_that_come_to_the_same_share_it_and_are_told_what_each_would_be_alone() {
        let offers = Offers::default();
        let tokens = [("a", "of a"), ("b", "of b"), ("c", "of c")];
        let first = world(&[("east", "1"), ("west", "1")], &tokens);
        let second = world(&[("east", "2")], &tokens);
        let held = |version: &str| (Ref::Target("east".to_owned()), version.to_owned());
        let mut routers = [
            router("a", Held::default()),
            router("b", Held::default()),
            router("c", [held("0")].into_iter().collect()),
        ];
        for world in [&first, &second] {
            for router in &mut routers {
                let alone = Transaction::between(router, world, &Scope::Everything);
                let offered = offers.next(router, world, &Scope::Everything);
                let comparable = Transaction {
                    after: None,
                    ..offered.clone()
                };
                assert_eq!(comparable, alone, "{}", router.router);
                router.acked(&offered);
                assert!(Transaction::between(router, world, &Scope::Everything).is_empty());
            }
            let [a, b, c] = &routers;
            assert!(Arc::ptr_eq(a.held.common(), b.held.common()), "computed once");
            assert!(
                Arc::ptr_eq(a.held.common(), c.held.common()),
                "and found to be the same"
            );
        }
        assert!(offers.kept.lock().len() <= KEPT);
    }

    #[test]
    fn those_that_come_back_with_the_same_are_compared_once() {
        let offers = Offers::default();
        let world = world(&[("east", "2")], &[]);
        let held = || [(Ref::Target("east".to_owned()), "1".to_owned())].into_iter().collect();
        for name in ["a", "b", "c"] {
            let mut router = router(name, held());
            let offered = offers.next(&mut router, &world, &Scope::Everything);
            assert_eq!(offered.upserts.len(), 1);
        }
        assert_eq!(offers.kept.lock().len(), 1);
    }

    #[test]
    fn what_one_router_refused_is_kept_from_it_alone() {
        let offers = Offers::default();
        let world = world(&[("east", "bad")], &[]);
        let (mut good, mut strict) = (router("good", Held::default()), router("strict", Held::default()));
        let refusal = ("bad".to_owned(), "no".to_owned());
        strict.rejected.insert(Ref::Target("east".to_owned()), refusal);
        assert_eq!(offers.next(&mut good, &world, &Scope::Everything).upserts.len(), 1);
        assert!(offers.next(&mut strict, &world, &Scope::Everything).is_empty());
    }
}
