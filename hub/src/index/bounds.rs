//! How much one agent may make the hub know.
//!
//! Facts of all agents are held in one process, and what follows from them goes to every router in messages of bounded
//! size: one broken or taken-over agent must not take the other members along. A report beyond these bounds is refused
//! whole, and what was known stays. Pure. Caller: `agents`, before it folds a report in.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use portolan_crds::GroupResource;
use portolan_crds::names::{is_dns_label, is_dns_subdomain};
use portolan_crds::policy::OPEN_EPOCHS_MAX;
use portolan_crds::selector::digest_of;
use portolan_crds::shard::MAX_BUCKETS;
use portolan_wire::protocol::{EXCESS_MAX, FAULT_MAX_BYTES, LABELS_MAX_BYTES, MAX_FENCES, MAX_NODE_NAMES};
use portolan_wire::v1;
use prost::Message as _;
use thiserror::Error;

use super::report::Report;
use crate::facts::AgentReport;

/// Namespaces of a member: five times what Kubernetes is tested with.
const MAX_NAMESPACES: usize = 50_000;
/// Replicas of operators in one cluster: each of them costs a view with all that its shard owns.
const MAX_CALLERS: usize = 5_000;
/// Kinds of a cluster with thousands of CustomResourceDefinitions.
const MAX_KINDS: usize = 5_000;
const MAX_ALLOWED: usize = 10_000;
/// Bytes of users and ServiceAccounts: they are kept in one object's status, which etcd takes up to 1.5 MiB of.
const MAX_ALLOWED_BYTES: usize = 512 * 1024;
/// A subject altogether, with all labels: what one message may have.
pub(crate) const MAX_SUBJECT_BYTES: usize = 64 * 1024 * 1024;
/// Facts and removals of one report: as many as there may be, all of them replaced.
pub(crate) const MAX_SUBJECT_FACTS: usize = 2 * MAX_NAMESPACES;
/// A signed token with its claims is one or two kilobytes, and has to fit into a header.
const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// Identifiers and texts that are not DNS names: uids, versions, messages, user names.
const MAX_TEXT_BYTES: usize = 1024;
/// Hex of 128 bits.
const DIGEST_BYTES: usize = 32;
/// Bytes of a refused text that its refusal quotes.
const NAMED_BYTES: usize = 80;

/// A report that the hub does not take.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum OutOfBounds {
    #[error("more than {max} {subject} of one member")]
    TooMany { subject: &'static str, max: usize },
    #[error("more than {max} bytes of {subject} of one member")]
    TooMuch { subject: &'static str, max: usize },
    #[error("{what} is not what an API server gives out, or too long: {text:?}")]
    Text { what: &'static str, text: String },
}

/// Whether `report` may be folded into what is known of the agent. Texts that nothing depends on are cut.
pub(super) fn check(known: &AgentReport, mut report: Report) -> Result<Report, OutOfBounds> {
    match &mut report {
        Report::Namespaces(delta) => {
            let facts = delta.upserted.iter_mut();
            facts.for_each(|fact| shed(&mut fact.labels, &mut fact.labels_cut));
        }
        Report::Callers(delta) => {
            let facts = delta.upserted.iter_mut();
            facts.for_each(|fact| shed(&mut fact.labels, &mut fact.labels_cut));
        }
        Report::Excess(excess) => excess.selectors = known_by_digest(std::mem::take(&mut excess.selectors)),
        _ => {}
    }
    match &report {
        Report::Namespaces(delta) => namespaces(known, delta)?,
        Report::Coverage(delta) => coverage(known, delta)?,
        Report::Callers(delta) => callers(known, delta)?,
        Report::Allowed(allowed) => whom(allowed)?,
        Report::Fences(told) => fences(told)?,
        Report::Nodes(names) if names.digests.len() > MAX_NODE_NAMES => {
            return Err(OutOfBounds::TooMany {
                subject: "Nodes",
                max: MAX_NODE_NAMES,
            });
        }
        Report::Token(token) if token.token.len() > MAX_TOKEN_BYTES => {
            return Err(OutOfBounds::TooMuch {
                subject: "token",
                max: MAX_TOKEN_BYTES,
            });
        }
        Report::Heartbeat(..)
        | Report::Token(_)
        | Report::Excess(_)
        | Report::Nodes(_)
        | Report::Policies(_)
        | Report::Key(_)
        | Report::Disconnected => {}
    }
    Ok(match report {
        Report::Heartbeat(mut beat, at) => {
            cut(&mut beat.message);
            cut(&mut beat.kubernetes_version);
            Report::Heartbeat(beat, at)
        }
        Report::Policies(mut policies) => {
            cut(&mut policies.fault);
            Report::Policies(policies)
        }
        report => report,
    })
}

/// The text, at most as long as texts may be.
pub(super) fn cut(text: &mut String) {
    text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
}

fn namespaces(known: &AgentReport, delta: &v1::NamespaceDelta) -> Result<(), OutOfBounds> {
    for fact in &delta.upserted {
        named("namespace", &fact.name, is_dns_label)?;
        named("uid of a namespace", &fact.uid, is_text)?;
        epochs(&fact.epochs)?;
    }
    let subject = Subject {
        name: "namespaces",
        max: MAX_NAMESPACES,
        known: known.namespaces.as_ref().filter(|_| !delta.reset),
    };
    subject.fits(delta.upserted.iter().map(|fact| &fact.name), delta.removed.iter())?;
    subject.fits_bytes(delta.encoded_len(), |name, fact| {
        let epochs = fact.epochs.len() * size_of::<u64>();
        name.len() + fact.uid.len() + bytes_of(fact.labels.iter()) + epochs
    })
}

fn fences(told: &v1::Fences) -> Result<(), OutOfBounds> {
    if told.fences.len() > MAX_FENCES {
        return Err(OutOfBounds::TooMany {
            subject: "fences",
            max: MAX_FENCES,
        });
    }
    let mut states = told.fences.iter();
    states.try_for_each(|state| {
        named("namespace", &state.namespace, is_dns_label)?;
        epochs(&state.open)
    })
}

fn epochs(open: &[u64]) -> Result<(), OutOfBounds> {
    if open.len() > OPEN_EPOCHS_MAX {
        return Err(OutOfBounds::TooMany {
            subject: "open epochs of a namespace",
            max: OPEN_EPOCHS_MAX,
        });
    }
    Ok(())
}

fn callers(known: &AgentReport, delta: &v1::CallerDelta) -> Result<(), OutOfBounds> {
    for fact in &delta.upserted {
        named("namespace of a Pod", &fact.namespace, is_dns_label)?;
        named("Pod", &fact.pod, is_dns_subdomain)?;
        named("uid of a Pod", &fact.uid, is_text)?;
        named("ServiceAccount of a Pod", &fact.service_account, is_text)?;
        named("phase of a Pod", &fact.phase, is_text)?;
    }
    let subject = Subject {
        name: "callers",
        // Beside those that the agent does not know of and that stay nevertheless: as many at most.
        max: MAX_CALLERS + if delta.reset { 0 } else { known.kept_callers.len() },
        known: known.callers.as_ref().filter(|_| !delta.reset),
    };
    subject.fits(delta.upserted.iter().map(|fact| &fact.uid), delta.removed.iter())?;
    subject.fits_bytes(delta.encoded_len(), |uid, fact| uid.len() + fact.encoded_len())
}

fn coverage(known: &AgentReport, delta: &v1::CoverageDelta) -> Result<(), OutOfBounds> {
    for fact in &delta.upserted {
        // Of aggregated API servers too, which are free in what they call their resources.
        let kind = fact.kind.as_ref();
        if fact.by_bucket.len() > MAX_BUCKETS.into() {
            return Err(OutOfBounds::TooMany {
                subject: "buckets",
                max: MAX_BUCKETS.into(),
            });
        }
        named("API group", kind.map_or("", |kind| &kind.group), is_short)?;
        named("resource", kind.map_or("", |kind| &kind.resource), is_short)?;
        named(
            "label prefix",
            fact.rule.as_ref().map_or("", |rule| &rule.prefix),
            is_text,
        )?;
    }
    let upserted = delta.upserted.iter().filter_map(|fact| fact.kind.clone());
    let upserted: BTreeSet<_> = upserted.map(GroupResource::from).collect();
    let removed: BTreeSet<_> = delta.removed.iter().cloned().map(GroupResource::from).collect();
    let subject = Subject {
        name: "kinds",
        max: MAX_KINDS,
        known: known.coverage.as_ref().filter(|_| !delta.reset),
    };
    subject.fits(upserted.iter(), removed.iter())
}

fn whom(allowed: &v1::Allowed) -> Result<(), OutOfBounds> {
    const SUBJECT: &str = "users and ServiceAccounts that the router may act as";
    if allowed.service_accounts.len() + allowed.users.len() > MAX_ALLOWED {
        return Err(OutOfBounds::TooMany {
            subject: SUBJECT,
            max: MAX_ALLOWED,
        });
    }
    if allowed.encoded_len() > MAX_ALLOWED_BYTES {
        return Err(OutOfBounds::TooMuch {
            subject: SUBJECT,
            max: MAX_ALLOWED_BYTES,
        });
    }
    Ok(())
}

/// What is known on a subject, as far as it stays, and how much of it may be known.
struct Subject<'a, K, V> {
    name: &'static str,
    max: usize,
    known: Option<&'a BTreeMap<K, V>>,
}

impl<K: Ord, V> Subject<'_, K, V> {
    /// Whether there are few enough after the change.
    fn fits<'k>(
        &self,
        upserted: impl Iterator<Item = &'k K>,
        removed: impl Iterator<Item = &'k K>,
    ) -> Result<(), OutOfBounds>
    where
        K: 'k,
    {
        let is_known = |key: &K| self.known.is_some_and(|known| known.contains_key(key));
        let fresh: BTreeSet<&K> = upserted.filter(|key| !is_known(key)).collect();
        let gone: BTreeSet<&K> = removed.filter(|key| is_known(key) || fresh.contains(key)).collect();
        if self.known.map_or(0, BTreeMap::len) + fresh.len() - gone.len() > self.max {
            return Err(OutOfBounds::TooMany {
                subject: self.name,
                max: self.max,
            });
        }
        Ok(())
    }

    /// Whether their bytes fit after the change. What is replaced or removed counts all the same: honest agents are far from
    /// the bound.
    fn fits_bytes(&self, more: usize, size: impl Fn(&K, &V) -> usize) -> Result<(), OutOfBounds> {
        let known = self.known.into_iter().flatten().map(|(key, value)| size(key, value));
        if known.sum::<usize>() + more > MAX_SUBJECT_BYTES {
            return Err(OutOfBounds::TooMuch {
                subject: self.name,
                max: MAX_SUBJECT_BYTES,
            });
        }
        Ok(())
    }
}

fn named(what: &'static str, text: &str, is_good: fn(&str) -> bool) -> Result<(), OutOfBounds> {
    if is_good(text) {
        return Ok(());
    }
    let text = text[..text.floor_char_boundary(NAMED_BYTES)].to_owned();
    Err(OutOfBounds::Text { what, text })
}

fn is_text(text: &str) -> bool {
    text.len() <= MAX_TEXT_BYTES
}

fn is_short(text: &str) -> bool {
    text.len() <= portolan_crds::names::DNS_SUBDOMAIN_MAX
}

/// Of an agent that cuts them itself nothing is left to do. That they are cut costs the object its labels, not the member its
/// reports.
fn shed(labels: &mut HashMap<String, String>, labels_cut: &mut u64) {
    let bytes = bytes_of(labels.iter());
    if bytes > LABELS_MAX_BYTES {
        labels.clear();
        *labels_cut = bytes as u64;
    }
}

/// The selectors without their texts, which an agent of an earlier release tells; more than are taken say nothing.
fn known_by_digest(selectors: Vec<v1::ExcessSelector>) -> Vec<v1::ExcessSelector> {
    let selectors = selectors.into_iter().take(EXCESS_MAX).map(|mut cut| {
        if !cut.selector.is_empty() {
            cut.digest = digest_of(&std::mem::take(&mut cut.selector));
        }
        cut.digest.truncate(cut.digest.floor_char_boundary(DIGEST_BYTES));
        cut.fault.truncate(cut.fault.floor_char_boundary(FAULT_MAX_BYTES));
        cut
    });
    selectors.filter(|cut| is_dns_label(&cut.namespace)).collect()
}

fn bytes_of<'a>(labels: impl Iterator<Item = (&'a String, &'a String)>) -> usize {
    labels.map(|(key, value)| key.len() + value.len()).sum()
}
