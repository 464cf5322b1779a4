//! Namespaces that shards of other operators own: whose they are and where they are is not the same question.

use super::*;

fn owned(cluster: &str, (shard, operator): (&str, &str), namespace: &str) -> v1::resource::Body {
    v1::resource::Body::Ownership(v1::Ownership {
        cluster: cluster.to_owned(),
        shard: shard.to_owned(),
        operator: operator.to_owned(),
        namespaces: member(cluster, &[namespace]).namespaces,
        ..v1::Ownership::default()
    })
}

/// The caller's shard is of `operator`, and others own these.
fn world<const N: usize>(operator: &str, enforcement: v1::Enforcement, others: [v1::resource::Body; N]) -> World {
    let mut blue = two();
    blue.operator = operator.into();
    blue.enforcement = enforcement.into();
    let mut world = World::new(blue);
    let applied = told::upsert(&world.snapshot, "2", others);
    assert_eq!(applied.rejected, []);
    world.snapshot = applied.snapshot;
    world
}

#[test]
fn whose_it_is_the_callers_operator_says_and_no_stranger_is_named() {
    use v1::Enforcement::Enforce;
    let others = || {
        [
            owned("west", ("ops/pink", "ops/rollouts"), "ns-y"),
            owned("east", ("ops/prom", "ops/prometheus"), "ns-w"),
            owned("east", ("shop/x", "shop/rollouts"), "ns-x"),
        ]
    };
    let said = |world: &World, namespace: &str| {
        let fault = world.fault(&format!("GET /api/v1/namespaces/{namespace}/pods/p"));
        fault.to_string().split_once(": ").unwrap().1.to_owned()
    };
    let of_operators = world("ops/rollouts", Enforce, others());
    let nobodys = "no shard of its operator owns it in the member clusters that ops/blue spans";
    assert_eq!(
        said(&of_operators, "ns-y"),
        "it belongs to shard ops/pink in member cluster west"
    );
    assert_eq!(said(&of_operators, "ns-w"), nobodys);
    assert_eq!(said(&of_operators, "ns-x"), nobodys);
    // In a ledger of before all contend, whoever's they are.
    let [.., strangers] = others();
    let v1::resource::Body::Ownership(strangers) = strangers else {
        panic!("no ownership")
    };
    let of_before = v1::resource::Body::Ownership(v1::Ownership {
        operator: String::new(),
        ..strangers
    });
    let of_before = world("", Enforce, [of_before]);
    let stranger = "it belongs to a shard of another hub namespace in member cluster east";
    assert_eq!(said(&of_before, "ns-x"), stranger);
}

#[test]
fn where_it_is_any_operator_says() {
    let prometheus = ("ops/prom", "ops/prometheus");
    let audited = world(
        "ops/rollouts",
        v1::Enforcement::Audit,
        [owned("west", prometheus, "ns-w")],
    );
    audited.check(&[("PUT /api/v1/namespaces/ns-w/pods/p", "outside-audited → west warns:")]);
    let warning = audited.forward("PUT /api/v1/namespaces/ns-w/pods/p").warning.unwrap();
    assert!(!warning.contains("ops/prom"), "{warning}");
    // It is there: nobody is asked whether it is.
    let enforced = world(
        "ops/rollouts",
        v1::Enforcement::Enforce,
        [owned("west", prometheus, "ns-w")],
    );
    enforced.check(&[("GET /api/v1/namespaces/ns-w/pods/p", "outside-refused ✗ 403")]);
}

/// What another operator is given says nothing of what this one is about to be given, unless its rules do not take it.
#[test]
fn a_watch_of_what_was_nowhere_waits_for_its_own_operator() {
    let watch = "GET /api/v1/namespaces/new/pods?watch";
    for (may_be_taken, operator, taken) in [
        (true, "ops/prometheus", false),
        (true, "ops/rollouts", true),
        (false, "ops/prometheus", true),
    ] {
        let before = world("ops/rollouts", v1::Enforcement::Enforce, []);
        let mut unowned = before.fan(watch).unowned.unwrap();
        assert!(!unowned.is_taken(&before.snapshot));
        unowned.may_be_taken = may_be_taken;
        let after = [owned("west", ("ops/pink", operator), "new")];
        let after = world("ops/rollouts", v1::Enforcement::Enforce, after);
        assert_eq!(unowned.is_taken(&after.snapshot), taken, "{may_be_taken} {operator}");
    }
}

/// Of two operators that make one Namespace the second is told by the API server that it is there.
#[test]
fn a_namespace_that_another_operator_has_made_is_made_nowhere_else() {
    let placed = |others: Vec<v1::resource::Body>| {
        let mut world = world("ops/rollouts", v1::Enforcement::Enforce, []);
        world.snapshot = told::upsert(&world.snapshot, "3", others).snapshot;
        let Plan::Choose(choose) = world.plan(&world.pod(), "POST /api/v1/namespaces", &[]).plan else {
            panic!("the body tells")
        };
        let By::NewNamespace(shard) = &choose.by else {
            panic!("it makes a Namespace")
        };
        let body = r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"new"}}"#;
        let placed = choose.place(shard, &world.snapshot, body.as_bytes(), None);
        placed.map(|(index, _)| choose.candidates[index].forward.target.cluster.to_string())
    };
    assert!(
        matches!(placed(Vec::new()), Err(Fault::BadRequest(_))),
        "it may go to either"
    );
    let prometheus = ("ops/prom", "ops/prometheus");
    assert_eq!(placed(vec![owned("west", prometheus, "new")]).unwrap(), "west");
}
