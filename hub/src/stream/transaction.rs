//! What one router must be sent: the difference between a world and what it holds. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_wire::v1;
use portolan_wire::v1::router_update::Kind;
use prost::Message as _;

use crate::acks::{Held, Names};
use crate::compile::{Compiled, Credentials, Ref, Scope, World};

/// Largest resource that is offered. Routers end a stream with a message of twice that, and would do so each time they
/// come back: none of them would learn anything more.
const MAX_RESOURCE_BYTES: usize = 32 * 1024 * 1024;

/// Resources that go and come, of one run.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Transaction {
    pub(super) run: u64,
    pub(super) upserts: Vec<(Ref, Arc<v1::Resource>)>,
    pub(super) removals: Vec<Ref>,
    /// The router ends up with exactly the world's ownership. What it still holds by courtesy of missing facts, or has
    /// refused, makes this false, and then the run does not count as seen: nothing is proved to be released. Other kinds
    /// grant no namespace, so they have no say.
    pub(super) whole: bool,
    /// What routers that hold the same hold in common once they have taken all of it; none: each has to find out.
    pub(super) after: Option<Names>,
    /// Of these it holds what is its own once it has taken all of it; none: that was so before, or has to be found out.
    pub(super) own: Option<Credentials>,
}

/// A router, as far as the difference is concerned.
#[derive(Debug, Clone, Default)]
pub(super) struct Holding {
    /// The router's name.
    pub(super) router: String,
    pub(super) held: Held,
    /// Of these it holds what is its own, and has refused none; none: that has to be found out.
    pub(super) own_of: Option<Credentials>,
    /// Versions it refused: the same content is not offered twice.
    pub(super) rejected: BTreeMap<Ref, (String, String)>,
}

impl Transaction {
    pub(super) fn between(holding: &Holding, world: &World, scope: &Scope) -> Self {
        let mut transaction = Self::at(world);
        for (name, compiled) in scope.resources(world) {
            transaction.offer((name, compiled), holding.held.get(name), holding.rejected.get(name));
        }
        for name in holding.held.common().keys() {
            let told = world.resources.contains_key(name);
            if !(told && scope.sees(name)) {
                transaction.withdraw(name, told, world, scope);
            }
        }
        transaction.add_own(holding, world, scope);
        transaction
    }

    /// What a gateway is told that has refused nothing, beside what is its own.
    pub(super) fn for_all(held: &Names, world: &World) -> Self {
        let mut transaction = Self::at(world);
        // Both are in the order of their names.
        let mut held = held.iter().peekable();
        for (name, compiled) in &world.resources {
            while let Some((gone, _)) = held.next_if(|(held, _)| *held < name) {
                transaction.withdraw(gone, false, world, &Scope::Everything);
            }
            let version = held.next_if(|(held, _)| *held == name).map(|(_, version)| version);
            transaction.offer((name, compiled), version, None);
        }
        for (gone, _) in held {
            transaction.withdraw(gone, false, world, &Scope::Everything);
        }
        transaction
    }

    /// What is of the router and no other.
    pub(super) fn add_own(&mut self, holding: &Holding, world: &World, scope: &Scope) {
        let credentials = &world.credentials;
        if matches!(scope, Scope::Everything) {
            if holding.own_of.as_ref().is_some_and(|known| known.is(credentials)) {
                return;
            }
            self.own = Some(credentials.clone());
        }
        for (name, compiled) in credentials
            .of_router(&holding.router)
            .filter(|(name, _)| scope.sees(name))
        {
            self.offer(
                (name, compiled),
                holding.held.own().get(name),
                holding.rejected.get(name),
            );
        }
        for name in holding.held.own().keys() {
            let told = credentials.get(&holding.router, name).is_some();
            if !(told && scope.sees(name)) {
                self.withdraw(name, told, world, scope);
            }
        }
    }

    fn at(world: &World) -> Self {
        Self {
            run: world.state.run,
            whole: true,
            ..Self::default()
        }
    }

    fn offer(
        &mut self,
        (name, compiled): (&Ref, &Compiled),
        held: Option<&String>,
        rejected: Option<&(String, String)>,
    ) {
        let version = compiled.version();
        if held == Some(version) {
            return;
        }
        let refused = rejected.is_some_and(|(refused, _)| refused == version);
        if refused || (compiled.provisional && held.is_some()) {
            self.whole &= name.owner().is_none();
            return;
        }
        self.upserts.push((name.clone(), compiled.resource.clone()));
    }

    /// `told`: there is something of that name, which the router may not see.
    fn withdraw(&mut self, name: &Ref, told: bool, world: &World, scope: &Scope) {
        if world.is_gone(name) || (told && !scope.is_uncertain(name)) {
            self.removals.push(name.clone());
        } else {
            self.whole &= name.owner().is_none();
        }
    }

    /// Sends nothing new under these names: the router keeps to what it holds, until a removal.
    pub(super) fn withhold(&mut self, is_kept: impl Fn(&Ref) -> bool) {
        let all = self.upserts.len();
        self.upserts.retain(|(name, _)| !is_kept(name));
        if self.upserts.len() < all {
            self.after = None;
        }
    }

    /// Names and versions of whoever held `before` and takes all of it.
    pub(super) fn applied_to(&self, before: &Names) -> BTreeMap<Ref, String> {
        let mut after = BTreeMap::clone(before);
        for name in &self.removals {
            after.remove(name);
        }
        let upserts = self.upserts.iter();
        after.extend(upserts.map(|(name, resource)| (name.clone(), resource.version.clone())));
        after
    }

    /// Whether some of it no router could read.
    pub(super) fn is_too_large(&self) -> bool {
        let mut upserts = self.upserts.iter();
        upserts.any(|(_, resource)| resource.encoded_len() > MAX_RESOURCE_BYTES)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.upserts.is_empty() && self.removals.is_empty()
    }

    /// This transaction as it counts after a refusal: the run is seen all the same unless ownership was refused.
    pub(super) fn refused(self, nack: &v1::Nack) -> Self {
        let names = nack
            .rejected
            .iter()
            .filter_map(|rejected| Ref::from_wire(rejected.r#ref.as_ref()?));
        let whole = self.whole && !names.into_iter().any(|name| name.owner().is_some());
        Self { whole, ..self }
    }

    /// The messages that carry it. What goes is named before what comes.
    pub(super) fn messages(&self, nonce: u64, traceparent: &str) -> Vec<v1::RouterUpdate> {
        let removed = self.removals.iter().map(|name| Kind::Removed(name.to_wire()));
        let upserted = self
            .upserts
            .iter()
            .map(|(_, resource)| Kind::Resource(v1::Resource::clone(resource)));
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
    pub(super) fn next(&mut self, world: &World, scope: &Scope) -> Transaction {
        let transaction = Transaction::between(self, world, scope);
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
        Transaction::between(self, world, scope)
    }

    /// The router took all of it.
    pub(super) fn acked(&mut self, transaction: &Transaction) {
        self.take(transaction, &BTreeMap::new());
    }

    /// The router refused entries, and took the rest. False if it names none that it was sent: what it holds is unclear.
    pub(super) fn nacked(&mut self, transaction: &Transaction, nack: &v1::Nack) -> bool {
        let named = nack
            .rejected
            .iter()
            .filter_map(|rejected| Some((Ref::from_wire(rejected.r#ref.as_ref()?)?, rejected.reason.clone())));
        let reasons: BTreeMap<_, _> = named.collect();
        let alone = Transaction {
            after: None,
            own: None,
            ..transaction.clone()
        };
        self.own_of = None;
        self.take(&alone, &reasons);
        let mut refused = 0;
        for (name, resource) in &transaction.upserts {
            if let Some(reason) = reasons.get(name) {
                let refusal = (resource.version.clone(), reason.clone());
                self.rejected.insert(name.clone(), refusal);
                refused += 1;
            }
        }
        refused > 0 && refused == nack.rejected.len()
    }

    /// `transaction` has an `after` only if nothing is refused.
    fn take(&mut self, transaction: &Transaction, but: &BTreeMap<Ref, String>) {
        // What comes in is looked up among what is common or own by its name.
        let is_taken = |name: &Ref| transaction.after.is_none() || name.is_of_one_router();
        for name in &transaction.removals {
            self.rejected.remove(name);
            if is_taken(name) {
                self.held.remove(name);
            }
        }
        for (name, resource) in transaction.upserts.iter().filter(|(name, _)| !but.contains_key(name)) {
            self.rejected.remove(name);
            if is_taken(name) {
                self.held.insert(name.clone(), resource.version.clone());
            }
        }
        if let Some(after) = &transaction.after {
            self.held.set_common(after.clone());
        }
        if transaction.own.is_some() {
            self.own_of.clone_from(&transaction.own);
        }
    }
}

#[cfg(test)]
mod tests {
    use portolan_wire::subscription::Subscription;

    use super::*;
    use crate::compile::Compiled;

    fn target(cluster: &str) -> Ref {
        Ref::Target(cluster.to_owned())
    }

    fn owned(cluster: &str) -> Ref {
        Ref::Ownership {
            cluster: cluster.to_owned(),
            shard: portolan_crds::ShardName::new("ops", "a").unwrap(),
        }
    }

    fn view(home: &str) -> Ref {
        Ref::View {
            home: home.to_owned(),
            pod_uid: "p".to_owned(),
        }
    }

    fn world(resources: &[(Ref, &str, bool)]) -> World {
        let compiled = |version: &str, provisional| Compiled {
            resource: Arc::new(v1::Resource {
                version: version.to_owned(),
                body: None,
            }),
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
            ..Holding::default()
        }
    }

    #[test]
    fn only_differences_are_sent_and_an_ack_settles_them() {
        let world = world(&[(target("east"), "2", false), (target("west"), "1", false)]);
        let mut router = holding(&[(target("east"), "1"), (target("west"), "1"), (target("gone"), "1")]);
        let transaction = Transaction::between(&router, &world, &Scope::Everything);
        assert_eq!(transaction.upserts.len(), 1);
        assert_eq!(transaction.removals, [target("gone")]);
        assert!(transaction.whole);
        assert!(matches!(
            transaction.messages(7, "t").last().unwrap().kind,
            Some(Kind::Commit(v1::Commit { nonce: 7, .. }))
        ));
        router.acked(&transaction);
        assert!(Transaction::between(&router, &world, &Scope::Everything).is_empty());
    }

    #[test]
    fn missing_facts_take_nothing_away() {
        let mut world = world(&[(owned("east"), "thin", true)]);
        for (kind, cluster) in [
            (v1::ResourceKind::CallerView, "east"),
            (v1::ResourceKind::Credential, "east"),
        ] {
            world.unknown.insert((kind, cluster.to_owned()));
        }
        let router = holding(&[
            (owned("east"), "full"),
            (Ref::gateway_credential("east"), "c"),
            (view("east"), "v"),
            (view("west"), "v"),
        ]);
        let transaction = Transaction::between(&router, &world, &Scope::Everything);
        assert!(
            transaction.upserts.is_empty(),
            "a provisional entry replaces no full one"
        );
        assert_eq!(transaction.removals, [view("west")]);
        assert!(!transaction.whole, "its release of anything is not proved");
        let ownerless = holding(&[(view("east"), "v"), (Ref::gateway_credential("east"), "c")]);
        assert!(
            Transaction::between(&ownerless, &world, &Scope::Everything).whole,
            "views and credentials grant no namespace"
        );
        let fresh = Transaction::between(&Holding::default(), &world, &Scope::Everything);
        assert_eq!(fresh.upserts.len(), 1, "who has nothing gets what there is");
    }

    #[test]
    fn what_is_a_routers_own_is_looked_through_again_once_it_changes_or_was_refused() {
        let tokens = |version: &str| {
            let mut world = world(&[(Ref::gateway_credential("east"), version, false)]);
            let told = world.resources.pop_first().unwrap().1;
            world.credentials = Credentials::of_member("east", [("a".to_owned(), told)].into());
            world
        };
        let mut router = Holding {
            router: "a".to_owned(),
            ..Holding::default()
        };
        let next = |router: &Holding, world: &World| Transaction::between(router, world, &Scope::Everything);
        let first = tokens("1");
        router.acked(&next(&router, &first));
        assert!(next(&router, &first).is_empty() && router.own_of.is_some());
        let second = tokens("2");
        let offered = next(&router, &second);
        let nack = v1::Nack {
            rejected: vec![v1::Rejected {
                r#ref: Some(Ref::gateway_credential("east").to_wire()),
                version: "2".to_owned(),
                reason: "no".to_owned(),
            }],
            ..v1::Nack::default()
        };
        assert!(router.nacked(&offered, &nack) && router.own_of.is_none());
        assert!(next(&router, &second).is_empty(), "it is not offered again");
        assert_eq!(next(&router, &tokens("3")).upserts.len(), 1);
        let gone = World::default();
        assert_eq!(next(&router, &gone).removals, [Ref::gateway_credential("east")]);
    }

    #[test]
    fn what_a_router_may_not_see_is_taken_from_it_unless_nobody_knows_its_shard() {
        let mut world = world(&[(target("east"), "1", false), (owned("east"), "2", false)]);
        let held = holding(&[(target("east"), "1"), (owned("east"), "1")]);
        let subscription = Subscription::from_scopes(["caller:east/ops/p"]).unwrap();
        let transaction = Transaction::between(&held, &world, &Scope::of(&subscription, &world));
        assert_eq!(transaction.removals, [owned("east")], "the way to its home stays");
        assert!(transaction.upserts.is_empty() && transaction.whole);
        world.unknown.insert((v1::ResourceKind::CallerView, "east".to_owned()));
        let transaction = Transaction::between(&held, &world, &Scope::of(&subscription, &world));
        assert!(transaction.is_empty());
        assert!(!transaction.whole, "it is served by what it owned");
    }

    fn refusal(name: &Ref) -> v1::Nack {
        let rejected = v1::Rejected {
            r#ref: Some(name.to_wire()),
            version: "bad".to_owned(),
            reason: "no".to_owned(),
        };
        v1::Nack {
            nonce: 1,
            rejected: vec![rejected],
        }
    }

    #[test]
    fn what_was_refused_is_not_offered_again_and_proves_no_release() {
        let world = world(&[(target("east"), "1", false), (owned("east"), "bad", false)]);
        let mut router = holding(&[(owned("east"), "good")]);
        let transaction = Transaction::between(&router, &world, &Scope::Everything);
        let nack = refusal(&owned("east"));
        assert!(router.nacked(&transaction, &nack));
        let held = |name: &Ref| router.held.get(name).map(String::as_str);
        assert_eq!(held(&owned("east")), Some("good"), "its own last good stays");
        assert_eq!(held(&target("east")), Some("1"), "the rest came in");
        assert!(!transaction.refused(&nack).whole);
        let again = Transaction::between(&router, &world, &Scope::Everything);
        assert!(again.is_empty() && !again.whole);
        assert_eq!(router.rejected[&owned("east")], ("bad".to_owned(), "no".to_owned()));
    }

    #[test]
    fn what_is_withheld_is_offered_again_and_all_else_is_sent() {
        let world = world(&[(target("east"), "2", false), (owned("east"), "2", false)]);
        let mut router = holding(&[(owned("east"), "1")]);
        let mut transaction = Transaction::between(&router, &world, &Scope::Everything);
        transaction.withhold(|name| *name == owned("east"));
        router.acked(&transaction);
        assert_eq!(router.held.get(&owned("east")).map(String::as_str), Some("1"));
        assert_eq!(router.held.get(&target("east")).map(String::as_str), Some("2"));
        let again = Transaction::between(&router, &world, &Scope::Everything);
        assert_eq!(again.upserts.len(), 1);
    }

    #[test]
    fn a_refusal_of_what_was_not_sent_is_unclear() {
        let transaction = Transaction {
            removals: vec![target("gone")],
            ..Transaction::default()
        };
        let mut router = Holding::default();
        assert!(!router.nacked(&transaction, &refusal(&target("gone"))));
        assert!(!router.nacked(&transaction, &v1::Nack::default()));
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
        Arc::make_mut(&mut east.resource).body = Some(v1::resource::Body::Target(body));
        let mut router = Holding::default();
        let transaction = router.next(&world, &Scope::Everything);
        let offered: Vec<_> = transaction.upserts.iter().map(|(name, _)| name).collect();
        assert_eq!(offered, [&target("west")], "the others are told all the same");
        assert!(router.rejected[&target("east")].1.contains("bytes"));
        router.acked(&transaction);
        assert!(router.next(&world, &Scope::Everything).is_empty());
    }
}
