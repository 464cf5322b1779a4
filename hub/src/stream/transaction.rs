//! What one router must be sent: the difference between a world and what it holds. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_wire::v1;
use portolan_wire::v1::router_update::Kind;
use prost::Message as _;

use crate::acks::{Held, Names};
use crate::compile::{Compiled, Credential, Offered, Own, Ref, Scope, World};

/// Largest resource that is offered. Routers end a stream with a message of twice that, and would do so each time they
/// come back: none of them would learn anything more.
const MAX_RESOURCE_BYTES: usize = 32 * 1024 * 1024;

/// Resources that go and come, of one run.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Transaction {
    pub(super) run: u64,
    /// Shared by those that are told the same. A change is there where it leads on from what they hold.
    pub(super) upserts: Arc<Vec<(Ref, Compiled)>>,
    /// Of this router and no other.
    pub(super) credentials: Vec<Arc<Credential>>,
    pub(super) removals: Vec<Ref>,
    /// The router ends up with exactly the world's ownership. What it still holds by courtesy of missing facts, or has
    /// refused, makes this false, and then the run does not count as seen: nothing is proved to be released. Other kinds
    /// grant no namespace, so they have no say.
    pub(super) whole: bool,
    /// What routers that hold the same hold in common once they have taken all of it; none: each has to find out.
    pub(super) after: Option<Names>,
    /// Just what is its own once it has taken all of it; none: that was so before, or has to be found out.
    pub(super) own: Option<Arc<Own>>,
}

/// A router, as far as the difference is concerned.
#[derive(Debug, Clone, Default)]
pub(super) struct Holding {
    /// The router's name.
    pub(super) router: String,
    pub(super) held: Held,
    /// Versions it refused: the same content is not offered twice.
    pub(super) rejected: BTreeMap<Ref, (String, String)>,
    /// Whether it makes a resource of what is different in it.
    pub(super) takes_changes: bool,
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
        let own = world.credentials.of_router(&holding.router);
        if holding.held.is_own(own) {
            return;
        }
        let mut is_own = matches!(scope, Scope::Everything);
        for credential in own.into_iter().flat_map(|own| own.iter()) {
            let entry = credential.offered();
            let held = holding.held.get(entry.name);
            if !scope.sees(entry.name) || held == Some(entry.version) {
                continue;
            }
            if self.is_due(entry, held, holding.rejected.get(entry.name)) {
                self.credentials.push(credential.clone());
            } else {
                is_own = false;
            }
        }
        for (name, _) in holding.held.own() {
            let told = own.is_some_and(|own| own.get(name).is_some());
            if !(told && scope.sees(name)) {
                is_own &= self.withdraw(name, told, world, scope);
            }
        }
        self.own = own.filter(|_| is_own).cloned();
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
        if self.is_due(compiled.offered(name), held, rejected) {
            self.upserts_mut().push((name.clone(), compiled.since(held)));
        }
    }

    /// Whether a router is to be sent it that holds this version and has refused that.
    fn is_due(&mut self, entry: Offered<'_>, held: Option<&String>, rejected: Option<&(String, String)>) -> bool {
        if held == Some(entry.version) {
            return false;
        }
        let refused = rejected.is_some_and(|(refused, _)| refused == entry.version);
        if refused || (entry.provisional && held.is_some()) {
            self.whole &= entry.name.owner().is_none();
            return false;
        }
        true
    }

    fn upserts_mut(&mut self) -> &mut Vec<(Ref, Compiled)> {
        Arc::make_mut(&mut self.upserts)
    }

    /// `told`: there is something of that name, which the router may not see. False: it keeps it.
    fn withdraw(&mut self, name: &Ref, told: bool, world: &World, scope: &Scope) -> bool {
        let goes = world.is_gone(name) || (told && !scope.is_uncertain(name));
        if goes {
            self.removals.push(name.clone());
        } else {
            self.whole &= name.owner().is_none();
        }
        goes
    }

    /// Sends nothing new under these names: the router keeps to what it holds, until a removal.
    pub(super) fn withhold(&mut self, is_kept: impl Fn(&Ref) -> bool) {
        if self.upserts.iter().any(|(name, _)| is_kept(name)) {
            self.upserts_mut().retain(|(name, _)| !is_kept(name));
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
        after.extend(upserts.map(|(name, compiled)| (name.clone(), compiled.version().clone())));
        after
    }

    /// Names and versions of all that comes.
    fn coming(&self) -> impl Iterator<Item = (&Ref, &String)> {
        let common = self.upserts.iter().map(|(name, compiled)| (name, compiled.version()));
        let own = self.credentials.iter().map(|credential| credential.offered());
        common.chain(own.map(|entry| (entry.name, entry.version)))
    }

    /// How much comes.
    pub(super) fn upserted(&self) -> usize {
        self.upserts.len() + self.credentials.len()
    }

    /// Whether some of it no router could read. Tokens are bounded where they come in.
    pub(super) fn is_too_large(&self) -> bool {
        let mut upserts = self.upserts.iter();
        upserts.any(|(_, compiled)| compiled.resource.encoded_len() > MAX_RESOURCE_BYTES)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.upserted() == 0 && self.removals.is_empty()
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

    /// The messages that carry it, each made when it is its turn. What goes is named before what comes. `takes_changes`: the router
    /// can make a resource of what is different in it.
    pub(super) fn messages(&self, commit: v1::Commit, takes_changes: bool) -> impl Iterator<Item = v1::RouterUpdate> {
        let removed = self.removals.iter().map(|name| Kind::Removed(name.to_wire()));
        let sent = move |compiled: &Compiled| {
            let change = compiled.change.as_ref().filter(|_| takes_changes);
            v1::Resource::clone(change.unwrap_or(&compiled.resource))
        };
        let common = self.upserts.iter().map(move |(_, compiled)| sent(compiled));
        let own = self.credentials.iter().map(|credential| credential.to_wire());
        let upserted = common.chain(own).map(Kind::Resource);
        let kinds = removed.chain(upserted).chain([Kind::Commit(commit)]);
        kinds.map(|kind| v1::RouterUpdate { kind: Some(kind) })
    }
}

impl Holding {
    /// What to send, without what no router could read: that counts as refused, and its name and reason are told.
    pub(super) fn next(&mut self, world: &World, scope: &Scope) -> Transaction {
        let transaction = Transaction::between(self, world, scope);
        let too_large: Vec<_> = transaction
            .upserts
            .iter()
            .filter(|(_, compiled)| compiled.resource.encoded_len() > MAX_RESOURCE_BYTES)
            .map(|(name, compiled)| (name.clone(), compiled.version().clone()))
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
        self.take(&alone, &reasons);
        let is_change = |(_, compiled): &&(Ref, Compiled)| self.takes_changes && compiled.change.is_some();
        let changes: BTreeSet<_> = transaction
            .upserts
            .iter()
            .filter(is_change)
            .map(|(name, _)| name)
            .collect();
        let mut refused = 0;
        for (name, version) in transaction.coming() {
            let Some(reason) = reasons.get(name) else { continue };
            refused += 1;
            if changes.contains(name) {
                // Of what it holds nobody knows the version: it is sent the whole.
                self.held.insert(name.clone(), String::new());
            } else {
                self.rejected.insert(name.clone(), (version.clone(), reason.clone()));
            }
        }
        refused > 0 && refused == nack.rejected.len()
    }

    /// `transaction` has an `after` and an `own` only if nothing is refused.
    fn take(&mut self, transaction: &Transaction, but: &BTreeMap<Ref, String>) {
        // One by one where it is not known what all of it comes to.
        let is_taken = |name: &Ref| {
            if name.is_of_one_router() {
                transaction.own.is_none()
            } else {
                transaction.after.is_none()
            }
        };
        for name in &transaction.removals {
            self.rejected.remove(name);
            if is_taken(name) {
                self.held.remove(name);
            }
        }
        for (name, version) in transaction.coming().filter(|(name, _)| !but.contains_key(name)) {
            self.rejected.remove(name);
            if is_taken(name) {
                self.held.insert(name.clone(), version.clone());
            }
        }
        if let Some(after) = &transaction.after {
            self.held.set_common(after.clone());
        }
        if let Some(own) = &transaction.own {
            self.held.set_own(own.clone());
        }
    }
}

#[cfg(test)]
mod tests;
