//! Kinds that mean the same in every member.

use super::*;
use crate::decision::plan::choose::Finding;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Definitions are replicated over east, the primary, and west.
fn world(change: impl Fn(&mut told::Target)) -> World {
    let mut shard = two();
    shard.rules.replicated = vec![v1::ReplicatedKind {
        group: "apiextensions.k8s.io".into(),
        resource: "customresourcedefinitions".into(),
    }];
    World::of(vec!["ops/blue".into()], Some(shard), change)
}

fn planned(world: &World, request: &str) -> Plan {
    world.plan(&world.pod(), request, &[]).plan
}

fn copied_to(forward: &Forward) -> Vec<(String, bool)> {
    let others = forward.replicas.iter().flat_map(|replicas| &replicas.others);
    others
        .map(|other| (other.cluster.clone(), matches!(other.way, Way::Open(_))))
        .collect()
}

#[test]
fn the_primary_decides_and_the_others_follow() {
    let world = world(|_| {});
    let west = vec![("west".to_owned(), true)];
    let Plan::Forward(made) = planned(&world, &format!("POST {DEFINITIONS}")) else {
        panic!("it is the primary's")
    };
    assert_eq!((&*made.target.cluster, copied_to(&made)), ("east", west.clone()));
    let asks = made.needs.iter().any(|need| match need {
        Need::Copies(copies) => copies.others.len() == 1,
        _ => false,
    });
    assert!(asks, "a copy that is on its way out: {:?}", made.needs);
    for verb in ["PUT", "PATCH"] {
        let Plan::Choose(choose) = planned(&world, &format!("{verb} {DEFINITIONS}/cs.a.b")) else {
            panic!("{verb}: who has it?")
        };
        assert!(matches!(&choose.by, By::Holder(holder) if holder.replicated), "{verb}");
        let copied: Vec<_> = choose.candidates.iter().map(|one| copied_to(&one.forward)).collect();
        assert_eq!(
            copied,
            [west.clone(), vec![("east".to_owned(), true)]],
            "{verb}: whoever decides, the others follow"
        );
    }
    let Plan::DeleteEach(parts) = planned(&world, &format!("DELETE {DEFINITIONS}/cs.a.b")) else {
        panic!("each deletes its own")
    };
    let clusters: Vec<&str> = parts.iter().map(|part| &*part.forward.target.cluster).collect();
    assert_eq!(clusters, ["east", "west"]);
}

#[test]
fn nothing_follows_what_changes_nothing_or_is_not_replicated() {
    let world = world(|_| {});
    for request in [
        format!("POST {DEFINITIONS}?dryRun=All"),
        format!("PATCH {DEFINITIONS}/cs.a.b?dryRun=All"),
        format!("PUT {DEFINITIONS}/cs.a.b/status?dryRun=All"),
        format!("GET {DEFINITIONS}/cs.a.b"),
        "POST /apis/rbac.authorization.k8s.io/v1/clusterroles".to_owned(),
        "PUT /apis/rbac.authorization.k8s.io/v1/clusterroles/r".to_owned(),
    ] {
        let copied = match planned(&world, &request) {
            Plan::Forward(forward) => copied_to(&forward),
            Plan::Choose(choose) => choose
                .candidates
                .iter()
                .flat_map(|one| copied_to(&one.forward))
                .collect(),
            other => panic!("{request}: {other:?}"),
        };
        assert_eq!(copied, [], "{request}");
    }
    // A hub that does not say so has none replicated.
    let before = World::new(two());
    let Plan::Choose(choose) = planned(&before, &format!("DELETE {DEFINITIONS}/cs.a.b")) else {
        panic!("the one that has it")
    };
    assert!(matches!(choose.by, By::Holder(holder) if !holder.replicated));
}

#[test]
fn a_member_that_does_not_let_the_caller_in_is_told_and_holds_up_nothing() {
    let world = world(|target| {
        if target.cluster == "west" {
            target.allowed_service_accounts.clear();
        }
    });
    let Plan::Forward(made) = planned(&world, &format!("POST {DEFINITIONS}")) else {
        panic!("it is the primary's")
    };
    assert_eq!(copied_to(&made), [("west".to_owned(), false)]);
    for verb in ["PUT", "PATCH"] {
        let Plan::Forward(changed) = planned(&world, &format!("{verb} {DEFINITIONS}/cs.a.b")) else {
            panic!("{verb}: it is the primary's")
        };
        assert_eq!(
            (&*changed.target.cluster, copied_to(&changed)),
            ("east", vec![("west".to_owned(), false)])
        );
    }
    let Plan::Forward(deleted) = planned(&world, &format!("DELETE {DEFINITIONS}/cs.a.b")) else {
        panic!("the primary's alone")
    };
    let warning = deleted.warning.as_ref().unwrap();
    assert!(
        warning.contains("west") && warning.contains("portolanctl allow"),
        "{warning}"
    );
}

#[test]
fn a_member_that_is_not_known_holds_up_no_write_of_what_the_primary_has() {
    let mut world = world(|_| {});
    std::sync::Arc::make_mut(&mut world.snapshot.identities).remove("west");
    for verb in ["PUT", "PATCH"] {
        let Plan::Choose(choose) = planned(&world, &format!("{verb} {DEFINITIONS}/cs.a.b")) else {
            panic!("{verb}: who has it?")
        };
        let By::Holder(holder) = &choose.by else {
            panic!("the one that has it")
        };
        let copied: Vec<_> = choose.candidates.iter().map(|one| copied_to(&one.forward)).collect();
        assert_eq!(copied, [vec![("west".to_owned(), false)]], "{verb}");
        assert_eq!(holder.choose(&[Finding::Has]), Ok(0));
        // It may be there, and nowhere else.
        let unknown = holder.choose(&[Finding::HasNot]);
        assert!(
            matches!(unknown, Err(Fault::Unavailable { sent: false, .. })),
            "{unknown:?}"
        );
    }
}

#[test]
fn no_copy_outside_the_limits_is_written() {
    let mut shard = two();
    shard.rules.replicated = vec![v1::ReplicatedKind {
        group: "apiextensions.k8s.io".into(),
        resource: "customresourcedefinitions".into(),
    }];
    shard.rules.limits = vec![limit("apiextensions.k8s.io", "customresourcedefinitions", "team=a")];
    let world = World::of(vec!["ops/blue".into()], Some(shard), |_| {});
    let looks = |forward: &Forward| {
        let labels = forward.needs.iter().filter_map(|need| match need {
            Need::Labels(check) => Some(check.selector.to_string()),
            _ => None,
        });
        labels.collect::<Vec<_>>()
    };
    let Plan::DeleteEach(parts) = planned(&world, &format!("DELETE {DEFINITIONS}/cs.a.b")) else {
        panic!("each deletes its own")
    };
    for part in &parts {
        assert_eq!(looks(&part.forward), ["team=a"], "{}", part.forward.target.cluster);
    }
    for request in ["POST", "PUT", "PATCH"] {
        let path = if request == "POST" {
            DEFINITIONS.to_owned()
        } else {
            format!("{DEFINITIONS}/cs.a.b")
        };
        let forward = match planned(&world, &format!("{request} {path}")) {
            Plan::Forward(forward) => *forward,
            Plan::Choose(mut choose) => choose.candidates.swap_remove(0).forward,
            other => panic!("{request}: {other:?}"),
        };
        let replicas = forward.replicas.unwrap();
        let [Way::Open(copy)] = replicas.others.iter().map(|other| &other.way).collect::<Vec<_>>()[..] else {
            panic!("{request}: west is open")
        };
        assert_eq!(looks(&copy.forward), ["team=a"], "{request}");
    }
}
