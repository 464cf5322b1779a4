//! What one router must be sent: the difference between a world and what it holds. Pure.

use std::collections::BTreeMap;

use portolan_wire::v1;
use portolan_wire::v1::router_update::Kind;
use prost::Message as _;

use crate::compile::{Ref, World};

/// Largest resource that is offered. Routers end a stream with a message of twice that, and would do so each time they
/// come back: none of them would learn anything more.
const MAX_RESOURCE_BYTES: usize = 32 * 1024 * 1024;

/// Resources that go and come, of one run.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Transaction {
    pub(super) run: u64,
    pub(super) upserts: Vec<(Ref, v1::Resource)>,
    pub(super) removals: Vec<Ref>,
    /// The router ends up with exactly the world's views. What it still holds by courtesy of missing facts, or has refused,
    /// makes this false, and then the run does not count as seen: nothing is proved to be released. Targets and
    /// credentials grant no namespace, so they have no say.
    pub(super) whole: bool,
}

/// A router, as far as the difference is concerned.
#[derive(Debug, Clone, Default)]
pub(super) struct Holding {
    pub(super) held: BTreeMap<Ref, String>,
    /// Versions it refused: the same content is not offered twice.
    pub(super) rejected: BTreeMap<Ref, (String, String)>,
}

impl Transaction {
    pub(super) fn between(holding: &Holding, world: &World) -> Self {
        let mut transaction = Self {
            run: world.state.run,
            whole: true,
            ..Self::default()
        };
        for (name, compiled) in &world.resources {
            let version = &compiled.resource.version;
            let held = holding.held.get(name);
            if held == Some(version) {
                continue;
            }
            let refused = holding
                .rejected
                .get(name)
                .is_some_and(|(refused, _)| refused == version);
            if refused || (compiled.provisional && held.is_some()) {
                transaction.whole &= !name.is_view();
                continue;
            }
            transaction.upserts.push((name.clone(), compiled.resource.clone()));
        }
        for name in holding.held.keys().filter(|name| !world.resources.contains_key(name)) {
            if world.is_gone(name) {
                transaction.removals.push(name.clone());
            } else {
                transaction.whole &= !name.is_view();
            }
        }
        transaction
    }

    pub(super) fn is_empty(&self) -> bool {
        self.upserts.is_empty() && self.removals.is_empty()
    }

    /// The same, answered by a refusal: whether the run counts as seen all the same.
    pub(super) fn refused(self, nack: &v1::Nack) -> Self {
        let names = nack
            .rejected
            .iter()
            .filter_map(|rejected| Ref::from_wire(rejected.r#ref.as_ref()?));
        let views_stand = nack.rest_applied && !names.into_iter().any(|name| name.is_view());
        Self {
            whole: self.whole && views_stand,
            ..self
        }
    }

    /// The messages that carry it. Views that go are named before the targets they use, and come after them.
    pub(super) fn messages(&self, nonce: u64, traceparent: &str) -> Vec<v1::RouterUpdate> {
        let removed = self.removals.iter().rev().map(|name| Kind::Removed(name.to_wire()));
        let upserted = self
            .upserts
            .iter()
            .map(|(_, resource)| Kind::Resource(resource.clone()));
        let commit = Kind::Commit(v1::Commit {
            nonce,
            traceparent: traceparent.to_owned(),
        });
        let kinds = removed.chain(upserted).chain([commit]);
        kinds.map(|kind| v1::RouterUpdate { kind: Some(kind) }).collect()
    }
}

impl Holding {
    /// What to send, without what no router could read: that counts as refused, and its name and reason are told.
    pub(super) fn next(&mut self, world: &World) -> Transaction {
        let transaction = Transaction::between(self, world);
        let too_large: Vec<_> = transaction
            .upserts
            .iter()
            .filter(|(_, resource)| resource.encoded_len() > MAX_RESOURCE_BYTES)
            .map(|(name, resource)| (name.clone(), resource.version.clone()))
            .collect();
        if too_large.is_empty() {
            return transaction;
        }
        for (name, version) in too_large {
            let reason = format!("it has more than {MAX_RESOURCE_BYTES} bytes, and is not sent");
            tracing::error!(entry = %name.to_wire().name, reason, "an entry is kept from a router");
            self.rejected.insert(name, (version, reason));
        }
        Transaction::between(self, world)
    }

    /// The router took all of it.
    pub(super) fn acked(&mut self, transaction: &Transaction) {
        self.take(transaction, &BTreeMap::new());
    }

    /// The router refused entries, and took the rest or nothing. False if that changes nothing: the same would be offered
    /// again, and refused again.
    pub(super) fn nacked(&mut self, transaction: &Transaction, nack: &v1::Nack) -> bool {
        let named = nack
            .rejected
            .iter()
            .filter_map(|rejected| Some((Ref::from_wire(rejected.r#ref.as_ref()?)?, rejected.reason.clone())));
        let mut reasons: BTreeMap<_, _> = named.collect();
        if reasons.is_empty() && !nack.rest_applied {
            // It does not say which: offering the same again would never end.
            let all = transaction
                .upserts
                .iter()
                .map(|(name, _)| (name.clone(), "refused with its transaction".to_owned()));
            reasons = all.collect();
        }
        if nack.rest_applied {
            self.take(transaction, &reasons);
        }
        let mut progress = nack.rest_applied;
        for (name, resource) in &transaction.upserts {
            if let Some(reason) = reasons.get(name) {
                self.rejected
                    .insert(name.clone(), (resource.version.clone(), reason.clone()));
                progress = true;
            }
        }
        progress
    }

    fn take(&mut self, transaction: &Transaction, but: &BTreeMap<Ref, String>) {
        for name in &transaction.removals {
            self.held.remove(name);
            self.rejected.remove(name);
        }
        for (name, resource) in transaction.upserts.iter().filter(|(name, _)| !but.contains_key(name)) {
            self.held.insert(name.clone(), resource.version.clone());
            self.rejected.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::Compiled;

    fn target(cluster: &str) -> Ref {
        Ref::Target(cluster.to_owned())
    }

    fn view(home: &str) -> Ref {
        Ref::View {
            home: home.to_owned(),
            pod_uid: "p".to_owned(),
        }
    }

    fn world(resources: &[(Ref, &str, bool)]) -> World {
        let compiled = |version: &str, provisional| Compiled {
            resource: v1::Resource {
                version: version.to_owned(),
                body: None,
            },
            provisional,
        };
        let resources = resources
            .iter()
            .map(|(name, version, provisional)| (name.clone(), compiled(version, *provisional)));
        World {
            resources: resources.collect(),
            ..World::default()
        }
    }

    fn holding(held: &[(Ref, &str)]) -> Holding {
        let held = held.iter().map(|(name, version)| (name.clone(), (*version).to_owned()));
        Holding {
            held: held.collect(),
            rejected: BTreeMap::new(),
        }
    }

    #[test]
    fn only_differences_are_sent_and_an_ack_settles_them() {
        let world = world(&[(target("east"), "2", false), (target("west"), "1", false)]);
        let mut router = holding(&[(target("east"), "1"), (target("west"), "1"), (target("gone"), "1")]);
        let transaction = Transaction::between(&router, &world);
        assert_eq!(transaction.upserts.len(), 1);
        assert_eq!(transaction.removals, [target("gone")]);
        assert!(transaction.whole);
        assert!(matches!(
            transaction.messages(7, "t").last().unwrap().kind,
            Some(Kind::Commit(v1::Commit { nonce: 7, .. }))
        ));
        router.acked(&transaction);
        assert!(Transaction::between(&router, &world).is_empty());
    }

    #[test]
    fn missing_facts_take_nothing_away() {
        let mut world = world(&[(target("east"), "thin", true)]);
        world.unknown.homes.insert("east".to_owned());
        world.unknown.credentials.insert("east".to_owned());
        let router = holding(&[
            (target("east"), "full"),
            (Ref::Credential("east".to_owned()), "c"),
            (view("east"), "v"),
            (view("west"), "v"),
        ]);
        let transaction = Transaction::between(&router, &world);
        assert!(
            transaction.upserts.is_empty(),
            "a provisional target replaces no full one"
        );
        assert_eq!(transaction.removals, [view("west")]);
        assert!(!transaction.whole, "its release of anything is not proved");
        let viewless = holding(&[(target("east"), "full"), (Ref::Credential("east".to_owned()), "c")]);
        assert!(
            Transaction::between(&viewless, &world).whole,
            "targets and credentials grant no namespace"
        );
        let fresh = Transaction::between(&Holding::default(), &world);
        assert_eq!(fresh.upserts.len(), 1, "who has nothing gets what there is");
    }

    #[test]
    fn what_was_refused_is_not_offered_again() {
        let world = world(&[(target("east"), "1", false), (view("east"), "bad", false)]);
        let nack = |rest_applied| v1::Nack {
            nonce: 1,
            rejected: vec![v1::Rejected {
                r#ref: Some(view("east").to_wire()),
                version: "bad".to_owned(),
                reason: "no".to_owned(),
            }],
            rest_applied,
        };
        let mut router = Holding::default();
        let transaction = Transaction::between(&router, &world);
        assert!(router.nacked(&transaction, &nack(false)));
        let again = Transaction::between(&router, &world);
        assert_eq!(
            again.upserts.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            [&target("east")]
        );
        assert!(!again.whole);
        assert!(router.nacked(&transaction, &nack(true)));
        assert!(Transaction::between(&router, &world).is_empty());
        assert_eq!(router.rejected[&view("east")], ("bad".to_owned(), "no".to_owned()));
        let mut vague = Holding::default();
        assert!(vague.nacked(&transaction, &v1::Nack::default()));
        assert!(
            Transaction::between(&vague, &world).is_empty(),
            "an unnamed refusal does not loop"
        );
        let removal = Transaction {
            removals: vec![target("gone")],
            ..Transaction::default()
        };
        let refused = v1::Rejected {
            r#ref: Some(target("gone").to_wire()),
            ..v1::Rejected::default()
        };
        let nack = v1::Nack {
            rejected: vec![refused],
            ..v1::Nack::default()
        };
        assert!(!router.nacked(&removal, &nack), "nor does a refused removal");
        assert!(!router.nacked(&removal, &v1::Nack::default()));
    }

    #[test]
    fn what_no_router_could_read_is_kept_back_and_told() {
        let mut world = world(&[(target("east"), "1", false), (target("west"), "1", false)]);
        let ca_pem = "x".repeat(MAX_RESOURCE_BYTES);
        let body = v1::Target {
            ca_pem,
            ..Default::default()
        };
        let east = world.resources.get_mut(&target("east")).unwrap();
        east.resource.body = Some(v1::resource::Body::Target(body));
        let mut router = Holding::default();
        let transaction = router.next(&world);
        let offered: Vec<_> = transaction.upserts.iter().map(|(name, _)| name).collect();
        assert_eq!(offered, [&target("west")], "the others are told all the same");
        assert!(router.rejected[&target("east")].1.contains("bytes"));
        router.acked(&transaction);
        assert!(router.next(&world).is_empty());
    }

    #[test]
    fn names_round_trip() {
        for name in [target("east"), Ref::Credential("east".to_owned()), view("east")] {
            assert_eq!(Ref::from_wire(&name.to_wire()), Some(name));
        }
        assert_eq!(Ref::from_wire(&v1::ResourceRef::default()), None);
    }
}
