//! What has no namespace: who is asked, and where a new Namespace goes.

use portolan_crds::shard::Bucketing;

use super::*;
use crate::decision::plan::choose::{Decides, Finding, Holder};

fn unknown(cluster: &str) -> Finding {
    Finding::Unknown(Fault::Unavailable {
        message: format!("{cluster} is away"),
        cluster: Some(cluster.to_owned()),
        sent: false,
    })
}

#[test]
fn the_holder_is_found_and_doubt_is_never_absence() {
    use Finding::{Forbidden, Has, HasNot};
    let choose = |writes: bool, findings: &[Finding]| {
        let holder = Holder {
            path: "/api/v1/nodes/n".to_owned(),
            object: "nodes n".to_owned(),
            writes,
            one_of: false,
            replicated: false,
            decides: Decides::Place,
            unasked: None,
            placing: None,
        };
        match holder.choose(findings) {
            Ok(index) => index.to_string(),
            Err(fault) => fault.status_code().as_u16().to_string(),
        }
    };
    let away = || unknown("east");
    for (findings, read, write) in [
        (vec![Has], "0", "0"),
        (vec![HasNot, Has, Has], "1", "1"),
        (vec![HasNot, HasNot], "0", "0"),
        // It may be there: what is not found elsewhere is not known.
        (vec![away(), HasNot], "503", "503"),
        (vec![HasNot, away()], "503", "503"),
        // The primary's would win: a write waits for it, a read takes what there is.
        (vec![away(), Has], "1", "503"),
        (vec![HasNot, Has, away()], "1", "1"),
        // The member says itself what it allows.
        (vec![HasNot, Forbidden], "1", "1"),
        (vec![Forbidden, Has], "1", "1"),
        (vec![Forbidden, HasNot], "0", "0"),
    ] {
        assert_eq!(choose(false, &findings), read, "{findings:?}");
        assert_eq!(choose(true, &findings), write, "{findings:?}");
    }
}

/// Where a Namespace of this body goes: the member, `!` if warned; or the code of the refusal.
fn placed(world: &World, content_type: &str, body: &[u8]) -> String {
    let Plan::Choose(choose) = world.plan(&world.pod(), "POST /api/v1/namespaces", &[]).plan else {
        panic!("no choice")
    };
    let By::NewNamespace(shard) = &choose.by else {
        panic!("not by the body")
    };
    match choose.place(shard, &world.snapshot, body, Some(content_type)) {
        Ok((index, warning)) => {
            let cluster = &choose.candidates[index].forward.target.cluster;
            format!("{cluster}{}", if warning.is_some() { "!" } else { "" })
        }
        Err(fault) => fault.status_code().as_u16().to_string(),
    }
}

fn json(name: &str, cluster: Option<&str>) -> Vec<u8> {
    let mut object = serde_json::json!({"metadata": {"name": name}});
    if let Some(cluster) = cluster {
        object["metadata"]["annotations"] = serde_json::json!({"ctrlmesh.kusionstack.io/cluster": cluster});
    }
    serde_json::to_vec(&object).unwrap()
}

#[test]
fn a_new_namespace_goes_where_it_says() {
    let world = World::new(two());
    let kind = "application/json";
    for (name, cluster, expected) in [
        ("new", Some("west"), "west!"),
        ("new", None, "400"),
        ("new", Some("north"), "400"),
        // Home is no member.
        ("new", Some("home"), "400"),
        // Owned by name: no doubt where.
        ("ns-c", None, "west"),
        ("ns-c", Some("west"), "west"),
        // It would be shadowed, or is another's.
        ("ns-a", Some("west"), "403"),
        ("ns-z", Some("west"), "403"),
        ("ns-r", Some("east"), "403"),
        ("kube-system", Some("east"), "403"),
        ("", Some("east"), "east!"),
        ("", None, "400"),
    ] {
        assert_eq!(
            placed(&world, kind, &json(name, cluster)),
            expected,
            "{name} {cluster:?}"
        );
    }
    let yaml = b"metadata: {name: new, annotations: {ctrlmesh.kusionstack.io/cluster: east}}";
    assert_eq!(placed(&world, "application/yaml", yaml), "east!");
    assert_eq!(placed(&world, "application/cbor", b""), "415");
    assert_eq!(placed(&world, kind, br#"{"metadata":{"name":1}}"#), "400");
    let one = World::new(shard(vec![member("west", &["ns-a"])]));
    assert_eq!(placed(&one, kind, &json("new", None)), "west!");
    let mut audit = two();
    audit.enforcement = v1::Enforcement::Audit.into();
    assert_eq!(placed(&World::new(audit), kind, &json("ns-z", Some("west"))), "west!");
    let mut whole = shard(vec![member("home", &["*"])]);
    whole.primary_cluster = "home".into();
    assert_eq!(placed(&World::new(whole), kind, &json("new", None)), "home");
}

fn rules(names: &[&str], selectors: &[&str], default_for_new: bool) -> v1::NamespaceRules {
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    v1::NamespaceRules {
        names: owned(names),
        selectors: owned(selectors),
        default_for_new,
    }
}

#[test]
fn a_new_namespace_goes_where_the_shard_takes_it() {
    let labelled = |name: &str, label: &str| {
        let object = serde_json::json!({"metadata": {"name": name, "labels": {"crew": label}}});
        serde_json::to_vec(&object).unwrap()
    };
    let mut shard = two();
    let bucket = Bucketing::default().bucket_of("hashed");
    shard.members[0].namespace_rules = Some(rules(
        &["ns-a", "ns-r", "named", "kube-public"],
        &[
            "crew in (blue,both)",
            &format!("ctrlmesh.kusionstack.io/sharding-hash={bucket}"),
        ],
        false,
    ));
    shard.members[1].namespace_rules = Some(rules(&["ns-c"], &["crew in (red,both)"], false));
    let kind = "application/json";
    let cases = [
        ("new", "blue", "east"),
        ("new", "red", "west"),
        ("new", "both", "400"),
        ("new", "green", "403"),
        ("named", "", "east"),
        ("named", "red", "400"),
        // The agent's label follows from the name.
        ("hashed", "", "east"),
        ("kube-public", "", "east"),
        ("kube-system", "blue", "403"),
        ("ns-c", "blue", "west"),
        // The name is made up later.
        ("", "red", "400"),
    ];
    for (name, label, expected) in cases {
        let world = World::new(shard.clone());
        assert_eq!(placed(&world, kind, &labelled(name, label)), expected, "{name} {label}");
    }
    let world = World::new(shard.clone());
    assert_eq!(
        placed(&world, kind, &json("new", Some("west"))),
        "403",
        "it takes none of those"
    );
    // Of several the default.
    shard.members[1].namespace_rules = Some(rules(&["ns-c"], &["crew in (red,both)"], true));
    let world = World::new(shard.clone());
    assert_eq!(placed(&world, kind, &labelled("new", "both")), "west");
    assert_eq!(
        placed(&world, kind, &labelled("new", "blue")),
        "east",
        "the default does not take it"
    );
    shard.enforcement = v1::Enforcement::Audit.into();
    let world = World::new(shard);
    assert_eq!(placed(&world, kind, &json("new", Some("west"))), "west!");
}

#[test]
fn who_makes_a_namespace_that_no_rule_takes_is_told_the_rules() {
    let mut shard = two();
    shard.members[0].namespace_rules = Some(rules(&["a", "b", "c", "d", "e", "f", "g"], &[], false));
    shard.members[1].namespace_rules = Some(rules(&[], &["crew=red"], false));
    let world = World::new(shard);
    let Plan::Choose(choose) = world.plan(&world.pod(), "POST /api/v1/namespaces", &[]).plan else {
        panic!("no choice")
    };
    let By::NewNamespace(shard) = &choose.by else {
        panic!("not by the body")
    };
    let refused = choose
        .place(shard, &world.snapshot, &json("new", None), None)
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "Namespace new would be outside shard ops/blue: spec.clusters takes in east those named a, b, c, d, e and 2 more, \
         in west those labelled crew=red"
    );
}

#[test]
fn a_namespace_that_no_shard_owns_is_absent_only_where_all_say_so() {
    use Finding::{Forbidden, Has, HasNot};
    let world = World::new(two());
    let Plan::Choose(choose) = world.plan(&world.pod(), "GET /api/v1/namespaces/nowhere", &[]).plan else {
        panic!("no choice")
    };
    let By::Unowned(unowned) = &choose.by else {
        panic!("not by absence")
    };
    let both = ["east", "west"].map(str::to_owned);
    for (findings, expected) in [
        (vec![HasNot, HasNot], None),
        (vec![HasNot, Has], Some(403)),
        (vec![Forbidden, HasNot], Some(403)),
        (vec![unknown("east"), HasNot], Some(503)),
        (vec![unknown("east"), Has], Some(403)),
    ] {
        let said = unowned.is_absent(&both, findings.clone()).err();
        assert_eq!(said.map(|fault| fault.status_code().as_u16()), expected, "{findings:?}");
    }
    for applies in [false, true] {
        assert_eq!(
            unowned.not_found(applies).to_string(),
            "namespaces \"nowhere\" not found"
        );
    }
}

#[test]
fn a_namespace_is_nowhere_by_the_hubs_word() {
    let world = World::new(two());
    let unowned = |request: &str| match world.plan(&world.pod(), request, &[]).plan {
        Plan::Choose(choose) => match choose.by {
            By::Unowned(unowned) => unowned,
            _ => panic!("not by absence"),
        },
        other => panic!("{other:?}"),
    };
    let (read, made) = (
        unowned("DELETE /api/v1/namespaces/nowhere/pods/p"),
        unowned("POST /api/v1/namespaces/nowhere/pods"),
    );
    let applied = unowned("PATCH /api/v1/namespaces/nowhere/pods/p");
    let away = ["west".to_owned()];
    for (there, away, reads, makes) in [
        (&[][..], &[][..], None, None),
        (&[], &away, None, Some(503)),
        (&away, &[], Some(403), Some(403)),
        (&away, &away, Some(403), Some(403)),
    ] {
        let presence = Presence { there, away };
        let code = |unowned: &Unowned, applies| {
            let judged = unowned.judge(presence, unowned.makes(applies)).err();
            judged.map(|fault| fault.status_code().as_u16())
        };
        assert_eq!((code(&read, false), code(&made, false)), (reads, makes), "{presence:?}");
        assert_eq!((code(&applied, false), code(&applied, true)), (reads, makes));
    }
    let said = |unowned: &Unowned, applies| unowned.not_found(applies).to_string();
    assert_eq!(said(&read, false), "pods \"p\" not found");
    assert_eq!(said(&made, false), "namespaces \"nowhere\" not found");
    assert_eq!(said(&applied, true), "namespaces \"nowhere\" not found");
    let rights: Vec<_> = read.rights.iter().collect();
    let [Check::Resource { cluster, user, wanted }] = rights.as_slice() else {
        panic!("{rights:?}")
    };
    assert_eq!(
        (cluster.as_str(), user.user.as_str()),
        ("east", "system:serviceaccount:ops:operator")
    );
    assert_eq!(
        user.groups,
        [
            "system:serviceaccounts",
            "system:serviceaccounts:ops",
            "system:authenticated"
        ]
    );
    assert_eq!(
        wanted.forbidden("u", ""),
        "pods \"p\" is forbidden: User \"u\" cannot delete resource \"pods\" in API group \"\" in the namespace \"nowhere\""
    );
}

/// What the primary is asked is asked of whom its members would see.
#[test]
fn whom_the_caller_acts_as_is_who_must_have_the_right() {
    let world = World::new(two());
    let headers = [("impersonate-user", "system:serviceaccount:ops:other")];
    let planned = world.plan(&world.pod(), "GET /api/v1/namespaces/nowhere/pods", &headers);
    let Plan::FanOut(fan) = planned.plan else {
        panic!("no list")
    };
    let unowned = fan.unowned.unwrap();
    let [Check::Impersonate { .. }, Check::Resource { user, .. }] = unowned.rights.as_slice() else {
        panic!("{:?}", unowned.rights)
    };
    assert_eq!(user.user, "system:serviceaccount:ops:other");
    assert_eq!(
        user.groups,
        [
            "system:serviceaccounts",
            "system:serviceaccounts:ops",
            "system:authenticated"
        ]
    );
}

#[test]
fn a_new_namespace_says_where_in_protobuf() {
    use crate::value::object::protobuf::{MAGIC, put};
    let message = |fields: &[(u64, &[u8])]| {
        let mut out = Vec::new();
        for (number, content) in fields {
            put(&mut out, *number, content);
        }
        out
    };
    let annotation = message(&[(1, b"ctrlmesh.kusionstack.io/cluster"), (2, b"west")]);
    let object = message(&[(1, &message(&[(1, b"new"), (12, &annotation)]))]);
    let body = [MAGIC, &message(&[(2, &object)])].concat();
    let world = World::new(two());
    assert_eq!(placed(&world, "application/vnd.kubernetes.protobuf", &body), "west!");
}

#[test]
fn one_place_needs_no_search() {
    let mut wire = shard(vec![member("east", &["ns-a"])]);
    wire.limits = vec![limit("", "nodes", "app=foo")];
    World::new(wire).check(&[
        (
            "GET /api/v1/nodes/n",
            "cluster-scoped → east labels:/api/v1/nodes/n?app=foo",
        ),
        ("DELETE /api/v1/nodes", "cluster-scoped → east select:app=foo"),
        ("DELETE /api/v1/pods", "several-members ✗ 405"),
        ("GET /api/v1/nodes", "cluster-scoped ⇒ east select:app=foo"),
        ("POST /api/v1/nodes", "cluster-scoped → east body:Whole?app=foo"),
    ]);
}

fn vacant(cluster: &str, shard: &str, namespace: &str) -> v1::resource::Body {
    v1::resource::Body::Ownership(v1::Ownership {
        cluster: cluster.to_owned(),
        shard: shard.to_owned(),
        namespaces: vec![v1::NamespaceGrant {
            namespace: namespace.to_owned(),
            owner_count: 5,
            state: v1::GrantState::Granted.into(),
            vacant: true,
            ..v1::NamespaceGrant::default()
        }],
        ..v1::Ownership::default()
    })
}

#[test]
fn a_namespace_that_is_gone_is_its_shards_and_nobody_elses_business() {
    let mut world = World::new(two());
    let theirs = ["east", "west", "home"].map(|cluster| vacant(cluster, "ops/green", "ns-z"));
    let ours = vacant("east", "ops/blue", "ns-v");
    let told = theirs.into_iter().chain([ours]);
    world.snapshot = told::upsert(&world.snapshot, "2", told).snapshot;
    world.check(&[
        // Its member says that it is not there.
        ("GET /api/v1/namespaces/ns-v/pods", "owned-namespace ⇒ east"),
        ("POST /api/v1/namespaces/ns-v/pods", "owned-namespace → east"),
        (
            "GET /api/v1/namespaces/ns-z/pods/p",
            "unowned-namespace ? east, west by absence of pods p",
        ),
        (
            "GET /api/v1/namespaces/ns-z/pods",
            "unowned-namespace ⇒ if nowhere east select:nothing,!nothing",
        ),
    ]);
}

/// A shard keeps so many that are gone and no more: who deletes once more what is leaving for that is told that it is not there.
#[test]
fn a_namespace_that_is_gone_and_leaves_its_shard_is_nowhere() {
    let mut east = member("east", &["ns-v"]);
    east.namespaces[0].vacant = true;
    east.namespaces[0].state = v1::GrantState::Releasing.into();
    let world = World::new(shard(vec![east, member("west", &["ns-c"])]));
    world.check(&[
        (
            "DELETE /api/v1/namespaces/ns-v",
            "unowned-namespace ? east, west by absence of namespaces ns-v",
        ),
        (
            "DELETE /api/v1/namespaces/ns-v/pods/p",
            "unowned-namespace ? east, west by absence of pods p",
        ),
        // Its member says that it is not there.
        ("GET /api/v1/namespaces/ns-v/pods/p", "owned-namespace → east"),
    ]);
}

#[test]
fn a_namespace_that_is_gone_is_made_where_it_was_or_where_its_annotation_says() {
    let gone = |namespace: &str| {
        let mut east = member("east", &[namespace]);
        east.namespaces[0].vacant = true;
        World::new(shard(vec![east, member("west", &["ns-c"])]))
    };
    let to = |world: &World, namespace: &str, cluster: Option<&str>| {
        let Plan::Choose(choose) = world.plan(&world.pod(), "POST /api/v1/namespaces", &[]).plan else {
            panic!("no choice")
        };
        let By::NewNamespace(shard) = &choose.by else {
            panic!("no namespace")
        };
        let placed = choose.place(shard, &world.snapshot, &json(namespace, cluster), None);
        let (index, doubt) = placed.unwrap();
        (choose.candidates[index].forward.target.cluster.to_string(), doubt)
    };
    let world = gone("ns-v");
    assert_eq!(to(&world, "ns-v", None), ("east".to_owned(), None));
    let (cluster, doubt) = to(&world, "ns-v", Some("west"));
    assert_eq!(cluster, "west");
    assert!(doubt.is_none_or(|doubt| !doubt.contains("shadow")));
    // Where it is counts before where it was.
    let mut east = member("east", &["ns-v"]);
    east.namespaces[0].vacant = true;
    let world = World::new(shard(vec![east, member("west", &["ns-v"])]));
    world.check(&[("GET /api/v1/namespaces/ns-v/pods", "owned-namespace ⇒ west")]);
}
