//! Tokens: what worlds share of them, and what is told anew.

use portolan_wire::v1::resource::Body;
use proptest::prelude::*;

use super::fleet::{CLUSTERS, Fleet};
use super::*;

const ROUTERS: [&str; 3] = ["a", "b", "c"];

#[test]
fn they_are_shared_until_one_of_them_changes() {
    let mut fleet = Fleet::new(&["ns-a"]);
    fleet.token("east", "a", "one");
    let first = fleet.compile(0).credentials;
    fleet.inventory("east", &["ns-a", "ns-b"]);
    let of = |credentials: &Credentials, router: &str| credentials.of_router(router).map(Arc::as_ptr);
    assert_eq!(of(&fleet.compile(0).credentials, "a"), of(&first, "a"));
    fleet.token("east", "b", "two");
    let second = fleet.compile(0).credentials;
    assert!(second != first);
    assert_eq!((of(&first, "b"), of(&second, "a")), (None, of(&first, "a")));
    let name = Ref::gateway_credential;
    let Some(Body::Credential(told)) = second.get("b", &name("east")).and_then(|told| told.to_wire().body) else {
        panic!("the new one is told")
    };
    assert_eq!(
        (&*told.token, &*told.cluster, told.expires_unix_seconds),
        ("two", "east", 1)
    );
    assert!(second.get("b", &name("west")).is_none());
}

/// A router may have a token of it from an earlier hub, of which no agent has told this one.
#[test]
fn a_member_that_goes_makes_others_of_them_although_none_was_of_it() {
    let mut fleet = Fleet::new(&["ns-a"]);
    let first = fleet.compile(0).credentials;
    fleet.facts.members.remove("west");
    assert!(fleet.compile(0).credentials != first);
}

/// What happens to tokens, of one of the members.
#[derive(Debug, Clone)]
enum Step {
    /// A router's is minted, perhaps with the text of before.
    Mint(&'static str, u8),
    Forget(&'static str),
    Accept(bool),
    /// The hub has heard nothing of the agent.
    Silent,
}

fn step() -> impl Strategy<Value = (&'static str, Step)> {
    let router = || prop::sample::select(&ROUTERS[..]);
    let step = prop_oneof![
        6 => (router(), 0..3_u8).prop_map(|(router, text)| Step::Mint(router, text)),
        2 => router().prop_map(Step::Forget),
        1 => any::<bool>().prop_map(Step::Accept),
        1 => Just(Step::Silent),
    ];
    (prop::sample::select(&CLUSTERS[..]), step)
}

fn take(fleet: &mut Fleet, cluster: &str, step: Step) {
    match step {
        Step::Mint(router, text) => fleet.token(cluster, router, &text.to_string()),
        Step::Forget(router) => drop(Arc::make_mut(&mut fleet.agent(cluster).tokens).remove(router)),
        Step::Accept(accept) => fleet.facts.members.get_mut(cluster).unwrap().accept = accept,
        Step::Silent => drop(fleet.facts.agents.remove(cluster)),
    }
}

proptest! {
    #[test]
    fn made_from_those_before_they_are_as_made_anew(
        runs in prop::collection::vec(prop::collection::vec(step(), 0..5), 1..12)
    ) {
        let mut fleet = Fleet::new(&[]);
        let mut last = Credentials::default();
        for steps in runs {
            for (cluster, step) in steps {
                take(&mut fleet, cluster, step);
            }
            let next = Credentials::of(&fleet.facts, Some(&last));
            prop_assert_eq!(&next, &Credentials::of(&fleet.facts, None));
            last = next;
        }
    }
}
