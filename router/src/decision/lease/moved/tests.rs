//! Steps one by one, and all orders in which two routers may take them beside clients.

use std::collections::HashSet;

use super::*;

fn lease(version: &str, holder: &str, annotations: &Value) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "op", "namespace": "ops", "resourceVersion": version, "uid": "u", "annotations": annotations},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"},
    })
}

#[test]
fn a_record_is_brought_once() {
    let old = lease("7", "a", &json!({"x": "y"}));
    assert_eq!(step(None, None, "u/1"), Step::Done, "nothing to bring");
    let stale = lease("3", "z", &json!({LOCK_MOVED: "u/0"}));
    assert_eq!(step(Some(stale.clone()), None, "u/1"), Step::Done);
    for new in [None, Some(stale)] {
        let version = new.as_ref().map(|new| new["metadata"]["resourceVersion"].clone());
        let Step::Write { record, marked } = step(new.clone(), Some(old.clone()), "u/1") else {
            panic!("nothing is brought")
        };
        assert_eq!(record["spec"], old["spec"]);
        assert_eq!(
            record["metadata"].get("resourceVersion").cloned(),
            version,
            "the precondition"
        );
        assert_eq!(record["metadata"].get("uid").is_some(), version.is_some());
        assert_eq!(marked["metadata"]["resourceVersion"], "7");
        assert_eq!(marked["metadata"]["annotations"], json!({"x": "y", LOCK_MOVED: "u/1"}));
        assert_eq!(marked["spec"], old["spec"]);
        assert_eq!(step(new.clone(), Some(marked.clone()), "u/1"), Step::Done, "marked");
        assert_ne!(step(new, Some(marked), "u/2"), Step::Done, "by an earlier handover");
    }
}

#[test]
fn other_kinds_carry_it_in_an_annotation() {
    let old = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "op", "namespace": "ops", "resourceVersion": "7", "annotations": {LEADER: "{a}"}},
        "data": {"k": "v"},
    });
    let Step::Write { record, .. } = step(None, Some(old.clone()), "u/1") else {
        panic!("nothing is brought")
    };
    let made = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "op", "namespace": "ops", "annotations": {LEADER: "{a}"}},
    });
    assert_eq!(record, made);
    let new = json!({"kind": "ConfigMap", "metadata": {"name": "op", "resourceVersion": "3"}, "data": {"mine": ""}});
    let Step::Write { record, .. } = step(Some(new), Some(old), "u/1") else {
        panic!("nothing is brought")
    };
    assert_eq!(record["metadata"]["annotations"], json!({LEADER: "{a}"}));
    assert_eq!(record["data"], json!({"mine": ""}));
    let bare = json!({"kind": "ConfigMap", "metadata": {"name": "op"}});
    assert_eq!(step(None, Some(bare), "u/1"), Step::Done, "no lock yet");
}

/// A lock at one place: its version, who is recorded, and whether it is marked.
type Place = Option<(u8, &'static str, bool)>;

/// What a router does next, with what it has read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Next {
    Begin,
    /// The first place was read.
    Second(Place),
    /// Both were, the new one and the old one.
    Record(Place, Place),
    Mark(Place),
    /// Its clients may write, so often.
    Done(u8),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    new: Place,
    old: Place,
    routers: [Next; 2],
    /// Routers that may yet forget all that they know.
    restarts: u8,
    /// What a client wrote was undone.
    undone: bool,
}

fn object(place: Place) -> Option<Value> {
    let (version, holder, marked) = place?;
    let annotations = if marked { json!({LOCK_MOVED: "u/1"}) } else { json!({}) };
    Some(lease(&version.to_string(), holder, &annotations))
}

/// Written as of what was read; `None`: another was faster.
fn write(place: Place, read: Place, (holder, marked): (&'static str, bool)) -> Option<Place> {
    (place == read).then(|| Some((read.map_or(1, |(version, ..)| version + 1), holder, marked)))
}

/// What may follow when this router acts. `new_first`: it reads the new place before the old one.
fn acts(state: &State, router: usize, new_first: bool) -> Vec<State> {
    let mut next = state.clone();
    let mut all = Vec::new();
    next.routers[router] = match state.routers[router] {
        Next::Begin => Next::Second(if new_first { state.new } else { state.old }),
        Next::Second(first) => {
            let (new, old) = if new_first {
                (first, state.old)
            } else {
                (state.new, first)
            };
            match step(object(new), object(old), "u/1") {
                Step::Done => Next::Done(1),
                Step::Write { .. } => Next::Record(new, old),
            }
        }
        Next::Record(new, old) => match write(state.new, new, ("a", false)) {
            Some(written) => {
                next.undone |= state.new.is_some_and(|(_, holder, _)| holder == "client");
                next.new = written;
                Next::Mark(old)
            }
            None => Next::Begin,
        },
        Next::Mark(old) => match write(state.old, old, ("a", true)) {
            Some(written) => {
                next.old = written;
                Next::Done(1)
            }
            None => Next::Begin,
        },
        Next::Done(0) => return all,
        Next::Done(more) => {
            next.new = state
                .new
                .and_then(|now| write(state.new, Some(now), ("client", false)).flatten());
            if state.new.is_none() {
                next.new = Some((1, "client", false));
            }
            Next::Done(more - 1)
        }
    };
    all.push(next);
    if state.restarts > 0 {
        let mut forgets = state.clone();
        forgets.routers[router] = Next::Begin;
        forgets.restarts -= 1;
        all.push(forgets);
    }
    all
}

/// Whether in any order what a client wrote is undone; and of how many states.
fn search(new: Place, new_first: bool) -> (bool, usize) {
    let mut open = vec![State {
        new,
        old: Some((7, "a", false)),
        routers: [Next::Begin; 2],
        restarts: 2,
        undone: false,
    }];
    let mut seen = HashSet::new();
    while let Some(state) = open.pop() {
        if state.undone {
            return (true, seen.len());
        }
        for router in 0..2 {
            for next in acts(&state, router, new_first) {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
    }
    (false, seen.len())
}

#[test]
fn what_a_client_wrote_is_never_undone() {
    for new in [None, Some((3, "z", false))] {
        let (undone, states) = search(new, true);
        assert!(!undone && states > 100, "{states}");
        assert!(search(new, false).0, "the order matters");
    }
}
