//! Whether what the hub changed takes something from anybody: a router that came back with what was before would do harm. Pure.
//!
//! All that is not known only to widen narrows: an edit of limits, of the explicit view, of enforcement, of whom a member lets the
//! router act as, of the way to it. Caller: `hub_state`, which has it on disk before it is acknowledged.

use std::collections::HashSet;

use portolan_wire::v1;
use portolan_wire::v1::resource::Body;

/// Whether anybody may do less by `after` than by `before`, or that is not known. `None`: there is none.
#[allow(clippy::match_same_arms, reason = "each for a reason of its own")]
pub(super) fn narrows(before: Option<&v1::Resource>, after: Option<&v1::Resource>) -> bool {
    let before = before.and_then(|before| before.body.as_ref());
    let after = after.and_then(|after| after.body.as_ref());
    match (before, after) {
        // A first rule holds whom none held; a key that another member has told before is nobody's from now on.
        (None, Some(Body::Policy(_) | Body::MemberIdentity(_))) => true,
        // Nobody was served by what was not there; and who was held is free.
        (None, _) | (Some(Body::Policy(_)), None) => false,
        // How members are asked, not what; how long it counts without a hub has a bound of its own.
        (Some(Body::Coverage(_)), _) => false,
        (Some(_), None) => true,
        // A newer token of the same identity.
        (Some(Body::Credential(_)), Some(Body::Credential(_))) => false,
        (Some(Body::Ownership(before)), Some(Body::Ownership(after))) => !grants(before).is_subset(&grants(after)),
        (Some(Body::CallerView(before)), Some(Body::CallerView(after))) => rights(before) != rights(after),
        (Some(Body::Target(before)), Some(Body::Target(after))) => way(before) != way(after),
        (Some(before), Some(after)) => before != after,
    }
}

/// Namespaces that may be written to, with what writes there have to say.
fn grants(owned: &v1::Ownership) -> HashSet<(&str, u64, bool)> {
    let granted = owned.namespaces.iter();
    let granted = granted.filter(|grant| grant.state() != v1::GrantState::Releasing);
    granted
        .map(|grant| (grant.namespace.as_str(), grant.owner_count, grant.fenced))
        .collect()
}

/// Without the age of the Pod, which no right follows from.
fn rights(view: &v1::CallerView) -> v1::CallerView {
    v1::CallerView {
        created_unix_seconds: None,
        ..view.clone()
    }
}

/// Without what is said of its breakers: a router that comes back finds out how the member is.
fn way(target: &v1::Target) -> v1::Target {
    v1::Target {
        breaker: None,
        ..target.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: Body) -> v1::Resource {
        v1::Resource {
            version: String::new(),
            body: Some(body),
        }
    }

    fn shard(edit: impl FnOnce(&mut v1::Shard)) -> v1::Resource {
        let mut shard = v1::Shard {
            name: "ns/a".to_owned(),
            explicit_view: true,
            ..v1::Shard::default()
        };
        edit(&mut shard);
        of(Body::Shard(shard))
    }

    fn view(edit: impl FnOnce(&mut v1::CallerView)) -> v1::Resource {
        let mut view = v1::CallerView {
            shards: vec!["ns/a".to_owned()],
            ..v1::CallerView::default()
        };
        edit(&mut view);
        of(Body::CallerView(view))
    }

    fn owned(namespaces: &[(&str, v1::GrantState, bool)]) -> v1::Resource {
        let grant = |(namespace, state, fenced): &(&str, v1::GrantState, bool)| v1::NamespaceGrant {
            namespace: (*namespace).to_owned(),
            state: (*state).into(),
            fenced: *fenced,
            ..v1::NamespaceGrant::default()
        };
        of(Body::Ownership(v1::Ownership {
            namespaces: namespaces.iter().map(grant).collect(),
            ..v1::Ownership::default()
        }))
    }

    fn identity(accounts: &[&str]) -> v1::Resource {
        of(Body::MemberIdentity(v1::MemberIdentity {
            allowed_service_accounts: accounts.iter().map(|one| (*one).to_owned()).collect(),
            ..v1::MemberIdentity::default()
        }))
    }

    fn target(edit: impl FnOnce(&mut v1::Target)) -> v1::Resource {
        let mut target = v1::Target::default();
        edit(&mut target);
        of(Body::Target(target))
    }

    #[test]
    fn what_takes_from_anybody_narrows() {
        use v1::GrantState::{Granted, Releasing};
        let policy = || of(Body::Policy(v1::Policy::default()));
        let credential = || of(Body::Credential(v1::Credential::default()));
        let granted = || owned(&[("a", Granted, false)]);
        let limits = |shard: &mut v1::Shard| shard.limits.push(v1::Limit::default());
        for (row, before, after) in [
            ("limits", shard(|_| {}), Some(shard(limits))),
            (
                "the explicit view",
                shard(|_| {}),
                Some(shard(|shard| shard.explicit_view = false)),
            ),
            (
                "enforcement",
                shard(|_| {}),
                Some(shard(|shard| shard.set_enforcement(v1::Enforcement::Enforce))),
            ),
            (
                "the leader lock",
                shard(|_| {}),
                Some(shard(|shard| shard.lock = Some(v1::Lock::default()))),
            ),
            ("the shard", shard(|_| {}), None),
            ("an account", identity(&["ns/a", "ns/b"]), Some(identity(&["ns/b"]))),
            (
                "the member",
                target(|_| {}),
                Some(target(|target| target.withdrawn = true)),
            ),
            (
                "its CA",
                target(|_| {}),
                Some(target(|target| target.ca_pem = "new".to_owned())),
            ),
            ("a token", credential(), None),
            ("a release", granted(), Some(owned(&[("a", Releasing, false)]))),
            ("a fence", granted(), Some(owned(&[("a", Granted, true)]))),
            ("a namespace", granted(), Some(owned(&[]))),
            ("a caller", view(|_| {}), None),
            (
                "a second shard",
                view(|_| {}),
                Some(view(|view| view.shards.push("ns/b".to_owned()))),
            ),
            (
                "a policy of a caller",
                view(|_| {}),
                Some(view(|view| view.policies.push("p".to_owned()))),
            ),
        ] {
            assert!(narrows(Some(&before), after.as_ref()), "{row}");
        }
        assert!(narrows(None, Some(&policy())) && narrows(None, Some(&identity(&[]))));
    }

    #[test]
    fn what_only_widens_is_not_waited_for() {
        use v1::GrantState::Granted;
        let (one, two) = (("a", Granted, false), ("b", Granted, true));
        let coverage = || of(Body::Coverage(v1::Coverage::default()));
        let suspicious = |target: &mut v1::Target| target.breaker = Some(v1::Breaker::default());
        for (row, before, after) in [
            ("a caller comes", None, Some(view(|_| {}))),
            (
                "its age is told",
                Some(view(|_| {})),
                Some(view(|view| view.created_unix_seconds = Some(1))),
            ),
            ("a namespace comes", Some(owned(&[one])), Some(owned(&[one, two]))),
            ("a shard comes", None, Some(shard(|_| {}))),
            ("the same", Some(shard(|_| {})), Some(shard(|_| {}))),
            ("a breaker", Some(target(|_| {})), Some(target(suspicious))),
            ("labels", Some(coverage()), None),
            ("a policy goes", Some(of(Body::Policy(v1::Policy::default()))), None),
        ] {
            assert!(!narrows(before.as_ref(), after.as_ref()), "{row}");
        }
    }
}
