//! Who may ask at all, what refusals say, classes, deadlines and explanations.

use super::*;

#[test]
fn refusals_name_what_and_whose() {
    let world = World::new(two());
    let text = |request| world.fault(request).to_string();
    assert_eq!(
        text("GET /api/v1/namespaces/ns-z/pods/p"),
        "namespace ns-z is outside shard ops/blue: it belongs to shard ops/green in member cluster east"
    );
    assert!(text("DELETE /api/v1/pods").contains("needs a namespace"));
}

#[test]
fn callers_without_exactly_one_shard() {
    let none = World::of(vec![], None, |_| {});
    none.check(&[
        ("GET /api/v1/namespaces/ops/pods", "no-shard ✗ 403"),
        ("GET /clusters/east/api/v1/pods", "no-shard ✗ 403"),
        ("GET /version", "no-shard ✗ 403"),
        ("GET /healthz", "health Live"),
    ]);
    let several = World::of(vec!["ops/blue".into(), "ops/green".into()], None, |_| {});
    several.check(&[("GET /api/v1/namespaces/ops/pods", "several-shards ✗ 403")]);
    assert!(
        several
            .fault("GET /api/v1/pods")
            .to_string()
            .contains("ops/blue, ops/green")
    );
}

#[test]
fn a_shard_that_is_not_told_whole_is_waited_for() {
    World::of(vec!["ops/blue".into()], None, |_| {}).check(&[
        ("GET /api/v1/namespaces/ns-a/pods", "shard-not-told ✗ 429"),
        ("GET /api/v1/pods?watch", "shard-not-told ✗ 429"),
        ("GET /api/v1/namespaces/ns-a/pods/p", "shard-not-told ✗ 503"),
        ("POST /api/v1/namespaces/ns-a/pods", "shard-not-told ✗ 503"),
    ]);
}

#[test]
fn the_explicit_view_needs_a_grant() {
    World::new(two()).check(&[
        ("GET /clusters/east/api/v1/pods", "no-explicit-view ✗ 403"),
        ("GET /clusters/nowhere/api/v1/pods", "no-explicit-view ✗ 403"),
    ]);
    let mut wire = two();
    wire.explicit_view = true;
    wire.limits = vec![limit("*", "*", "app=foo")];
    let world = World::new(wire);
    world.check(&[
        ("GET /clusters/east/api/v1/pods?watch", "explicit-view → east"),
        ("DELETE /clusters/west/api/v1/namespaces/ns-z", "explicit-view → west"),
        ("GET /clusters/west/healthz", "explicit-view → west"),
        (&format!("GET /clusters/east{LEASES}/op"), "explicit-view → east"),
        ("GET /clusters/home/api/v1/pods", "no-explicit-view ✗ 403"),
    ]);
    // Whether there is such a member is not said to who may not use it.
    let words = |cluster: &str| world.fault(&format!("GET /clusters/{cluster}/api")).to_string();
    assert_eq!(words("nope"), words("home").replace("home", "nope"));
    let ada = Caller::Person {
        user: "ada".into(),
        groups: vec!["sre".into()],
    };
    let planned = world.plan(&ada, "GET /clusters/home/api/v1/pods", &[]);
    let Plan::Forward(forward) = &planned.plan else {
        panic!("{planned:?}")
    };
    let (user, groups) = ("ada".to_owned(), vec!["sre".to_owned()]);
    assert_eq!(
        forward.needs,
        [Need::Access(Check::HubProxy {
            user,
            groups,
            cluster: "home".into()
        })]
    );
    assert_eq!(forward.act_as, Impersonation::user("ada"));
    assert_eq!(say(&world.plan(&ada, "GET /api/v1/pods", &[])), "no-merged-view ✗ 403");
    assert_eq!(say(&world.plan(&ada, "GET /readyz", &[])), "health Ready");
    let bob = Caller::Person {
        user: "bob".into(),
        groups: vec![],
    };
    assert_eq!(
        say(&world.plan(&bob, "GET /clusters/east/api", &[])),
        "not-allowed ✗ 403"
    );
}

#[test]
fn members_decide_whom_the_router_acts_as() {
    let world = World::of(vec!["ops/blue".into()], Some(two()), |target| {
        if target.cluster == "west" {
            target.allowed_service_accounts.clear();
        }
    });
    world.check(&[
        ("GET /api/v1/namespaces/ns-a/pods", "owned-namespace ⇒ east"),
        ("GET /api/v1/namespaces/ns-c/pods", "not-allowed ✗ 403"),
        ("GET /api/v1/pods", "not-allowed ✗ 403"),
    ]);
    let text = world.fault("GET /api/v1/namespaces/ns-c/pods").to_string();
    assert!(
        text.contains("west") && text.contains("portolanctl allow --member-kubeconfig FILE ops/operator"),
        "{text}"
    );
}

/// A ServiceAccount is allowed by its name and namespace, never as a person of that user name, and none of a system namespace.
#[test]
fn an_account_is_not_allowed_as_a_person() {
    let world = World::of(vec!["ops/blue".into()], Some(two()), |target| {
        target.allowed_service_accounts = vec!["ops/operator".into(), "kube-system/root".into(), "odd".into()];
        target.allowed_users.push("system:serviceaccount:ops:other".into());
    });
    let as_user = |user: &str| {
        let planned = world.plan(
            &world.pod(),
            "GET /api/v1/namespaces/ns-c/pods/p",
            &[("impersonate-user", user)],
        );
        say(&planned)
    };
    let refused = "not-allowed ✗ 403";
    for user in [
        "system:serviceaccount:ops:other",
        "system:serviceaccount:kube-system:root",
        "odd",
        "bob",
    ] {
        assert_eq!(as_user(user), refused, "{user}");
    }
    for user in ["system:serviceaccount:ops:operator", "ada"] {
        assert_ne!(as_user(user), refused, "{user}");
    }
}

#[test]
fn impersonation_is_asked_for_first() {
    let world = World::new(two());
    let as_user = |user: &str| {
        world.plan(
            &world.pod(),
            "GET /api/v1/namespaces/ns-c/pods/p",
            &[("impersonate-user", user)],
        )
    };
    let planned = as_user("system:serviceaccount:ops:other");
    let Plan::Forward(forward) = planned.plan else {
        panic!("{planned:?}")
    };
    let wanted = Impersonation::user("system:serviceaccount:ops:other");
    assert_eq!(forward.act_as, wanted);
    let groups = [
        "system:serviceaccounts",
        "system:serviceaccounts:ops",
        "system:authenticated",
    ];
    assert_eq!(
        forward.needs,
        [Need::Access(Check::Impersonate {
            cluster: "west".into(),
            user: "system:serviceaccount:ops:operator".into(),
            groups: groups.map(str::to_owned).to_vec(),
            wanted,
        })]
    );
    for refused in [
        "root",
        "system:node:n1",
        "system:serviceaccount:kube-system:default",
        "system:masters",
    ] {
        assert_eq!(say(&as_user(refused)), "not-allowed ✗ 403", "{refused}");
    }
    let masters = [("impersonate-user", "ada"), ("impersonate-group", "system:masters")];
    assert_eq!(
        say(&world.plan(&world.pod(), "GET /api/v1/namespaces/ns-c/pods", &masters)),
        "not-allowed ✗ 403"
    );
}

#[test]
fn a_cordon_stops_callers_but_not_their_lease() {
    let world = World::of(vec!["ops/blue".into()], Some(two()), |target| {
        target.cordoned = target.cluster == "east";
    });
    world.check(&[
        ("GET /api/v1/namespaces/ns-a/pods", "cordoned ✗ 429"),
        ("GET /api/v1/namespaces/ns-a/pods?watch", "cordoned ✗ 429"),
        ("GET /api/v1/namespaces/ns-a/pods/p", "cordoned ✗ 503"),
        ("GET /api/v1/namespaces/ns-c/pods/p", "owned-namespace → west"),
        (&format!("PUT {LEASES}/op"), "leader-election → east lease:op---blue"),
    ]);
    // Nor where only the body tells that it is the Lease, whatever holds other Leases of that namespace.
    let home = World::of(vec!["ops/blue".into()], Some(two()), |target| {
        target.cordoned = target.cluster == "home";
    });
    let Plan::Choose(choose) = home.plan(&home.pod(), &format!("POST {LEASES}"), &[]).plan else {
        panic!("the body tells")
    };
    let held: Vec<_> = choose.candidates.iter().map(|one| one.held.is_some()).collect();
    assert_eq!(held, [false, true, false]);
    let Plan::Choose(choose) = world.plan(&world.pod(), &format!("POST {LEASES}"), &[]).plan else {
        panic!("the body tells")
    };
    let held: Vec<_> = choose.candidates.iter().map(|one| one.held.is_some()).collect();
    assert_eq!(held, [true, false, false]);
    let ada = Caller::Person {
        user: "ada".into(),
        groups: vec![],
    };
    assert_eq!(
        say(&world.plan(&ada, "GET /clusters/east/api/v1/pods", &[])),
        "explicit-view → east"
    );
}

#[test]
fn classes_and_deadlines() {
    use TrafficClass::{List, Unary, Upgrade, Watch};
    let world = World::new(two());
    let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
    let base = "/api/v1/namespaces/ns-a/pods";
    for (request, headers, class, long, read, collection) in [
        (format!("GET {base}"), &[][..], List, false, true, true),
        (format!("GET {base}?watch"), &[], Watch, true, true, true),
        (format!("GET {base}?watch"), &upgrade, Watch, true, true, true),
        (format!("GET {base}/p"), &[], Unary, false, true, false),
        (format!("GET {base}/p/log"), &[], Unary, true, true, false),
        (format!("GET {base}/p/log?follow=true"), &[], Watch, true, true, false),
        (format!("POST {base}/p/exec"), &upgrade, Upgrade, true, false, false),
        (format!("GET {base}/p/exec"), &upgrade, Upgrade, true, false, false),
        (format!("GET {base}/p/proxy/x"), &[], Unary, true, false, false),
        (format!("PUT {base}/p"), &[], Unary, false, false, false),
    ] {
        let planned = world.plan(&world.pod(), &request, headers);
        let forward = match planned.plan {
            Plan::Forward(forward) => *forward,
            Plan::FanOut(mut fan) => fan.legs.remove(0).forward,
            other => panic!("{request}: {other:?}"),
        };
        let Traffic {
            class: found, effect, ..
        } = forward.traffic;
        let found = (
            found,
            forward.traffic.long,
            forward.traffic.is_read(),
            effect == Effect::Collection,
        );
        assert_eq!(found, (class, long, read, collection), "{request}");
    }
    assert!(world.forward(&format!("PUT {LEASES}/op")).is_priority());
}

#[test]
fn owners_are_asked_for_where_a_child_could_be_written_elsewhere() {
    let world = World::new(two());
    let owners = |request: &str| world.forward(request).needs.contains(&Need::Owners);
    assert!(owners("POST /api/v1/namespaces/ns-a/pods"));
    assert!(owners("PATCH /api/v1/namespaces/ns-a/pods/p"));
    assert!(!owners("GET /api/v1/namespaces/ns-a/pods/p"));
    assert!(owners("PUT /api/v1/namespaces/ns-a/pods/p/status"));
    assert!(!owners("PUT /apis/x.io/v1/namespaces/ns-a/ships/s/status"));
    assert!(!owners("PUT /api/v1/namespaces/ns-a/pods/p/proxy"));
    // The lock is the primary's, and its holder's Pod may be another member's.
    assert!(owners(&format!("PUT {LEASES}/op")));
    let Plan::Choose(choose) = world.plan(&world.pod(), &format!("POST {LEASES}"), &[]).plan else {
        panic!("the body tells")
    };
    let forwards = choose.candidates.iter().map(|one| &one.forward);
    let told: Vec<_> = forwards
        .map(|forward| (forward.is_priority(), forward.needs.contains(&Need::Owners)))
        .collect();
    assert_eq!(told, [(false, true), (false, true), (true, true)]);
}

#[test]
fn a_plan_says_whether_it_needs_the_body_before_it_sends_any_of_it() {
    let mut wire = two();
    wire.limits = vec![limit("", "pods", "app=foo")];
    let world = World::new(wire);
    let gathers = |request: &str| match world.plan(&world.pod(), request, &[]).plan {
        Plan::Forward(forward) => (forward.gathers(), forward.traffic.long),
        Plan::Choose(choose) => (choose.gathers(), false),
        other => panic!("{request}: {other:?}"),
    };
    assert_eq!(gathers("POST /api/v1/namespaces/ns-a/pods"), (true, false));
    assert_eq!(gathers("PUT /api/v1/namespaces/ns-a/pods/p/log"), (true, true));
    assert_eq!(gathers("GET /api/v1/namespaces/ns-a/pods/p"), (false, false));
    assert_eq!(gathers("POST /api/v1/namespaces"), (true, false));
    assert_eq!(gathers(&format!("PUT {LEASES}/op")), (true, false));
    assert_eq!(gathers(&format!("POST {LEASES}")), (true, false));
    assert_eq!(gathers("GET /api/v1/nodes/n"), (false, false));
}

#[test]
fn a_kind_that_nobody_is_known_to_serve_is_told_and_nothing_is_done() {
    let world = World::new(two());
    let unknown = |request: &str| world.plan(&world.pod(), request, &[]).unknown_kind;
    assert!(unknown("GET /apis/example.com/v1/nobodies"));
    assert!(unknown("DELETE /apis/example.com/v1/nobodies"));
    assert!(!unknown("GET /apis/example.com/v1/things"));
    assert!(
        !unknown("GET /apis/example.com/v1/namespaces/ns-a/nobodies"),
        "its place is known"
    );
    assert!(!unknown("GET /api/v1/nodes"), "of Kubernetes itself");
}

#[test]
fn a_missing_target_is_said() {
    let mut wire = two();
    wire.members.push(member("north", &["ns-n"]));
    World::new(wire).check(&[
        ("GET /api/v1/namespaces/ns-n/pods", "no-target ✗ 429"),
        ("PUT /api/v1/namespaces/ns-n/pods/p", "no-target ✗ 503"),
    ]);
}

#[test]
fn plans_explain_themselves() {
    let mut wire = shard(vec![member("west", &["ns-a"])]);
    wire.limits = vec![limit("*", "pods", "app=foo")];
    let world = World::new(wire);
    let why = |request: &str| world.plan(&world.pod(), request, &[]).why().join("\n");
    assert!(why("GET /api/v1/namespaces/ns-a/pods").contains("labelSelector is narrowed by app=foo"));
    assert!(why("PUT /api/v1/namespaces/ns-a/pods/p").contains("the labels of pods ns-a/p must match app=foo"));
    assert!(why(&format!("POST {LEASES}")).contains("to the last if the body names the election's op"));
    assert!(why("GET /api/v1/namespaces/x/pods").contains("empty if none of west has Namespace x, else refused"));
    assert!(why("GET /api/v1/namespaces/x/pods/p").contains("404 if none of west has Namespace x, else 403"));
    assert!(why("GET /api/v1/namespaces/ns-z/pods").contains("refused with 403"));
}

proptest! {
    /// Under `Enforce`, a namespaced write leaves only to the member that owns the namespace (and is not losing it), to
    /// the caller's home for its own namespace, or to the primary for leases, reviews and cluster events.
    #[test]
    fn no_write_leaves_the_shard(
        east in proptest::collection::btree_set("ns-[a-d]!?", 0..4),
        west in proptest::collection::btree_set("ns-[a-d]!?", 0..4),
        verb in "POST|PUT|PATCH|DELETE|GET|OPTIONS",
        namespace in "ns-[a-e]|ops|default",
        rest in "pods|pods/p|pods/p/exec|pods/p/proxy/x|leases/op|secrets|configmaps/c/status",
    ) {
        let unique = |set: std::collections::BTreeSet<String>| {
            let mut names: Vec<String> = set.into_iter().collect();
            names.dedup_by_key(|name| name.trim_end_matches('!').to_owned());
            names
        };
        let (east, west) = (unique(east), unique(west));
        let names = |all: &[String]| all.iter().map(String::as_str).map(str::to_owned).collect::<Vec<_>>();
        let grant = |cluster, all: &[String]| member(cluster, &names(all).iter().map(String::as_str).collect::<Vec<_>>());
        let world = World::new(shard(vec![grant("east", &east), grant("west", &west)]));
        let request = format!("{verb} /api/v1/namespaces/{namespace}/{rest}");
        let planned = world.plan(&world.pod(), &request, &[]);
        if let Plan::Forward(forward) = &planned.plan {
            let has = |all: &[String], name: &str| all.iter().any(|one| one == name);
            let held = |all: &[String]| has(all, &namespace) || has(all, &format!("{namespace}!"));
            let owner = if held(&east) { Some(("east", &east)) } else if held(&west) { Some(("west", &west)) } else { None };
            match owner {
                Some((cluster, names)) => {
                    prop_assert_eq!(&*forward.target.cluster, cluster);
                    prop_assert!(forward.traffic.is_read() || has(names, &namespace), "{} while releasing", request);
                }
                None => prop_assert!(namespace == "ops" && &*forward.target.cluster == "home", "{}", request),
            }
        }
    }
}
