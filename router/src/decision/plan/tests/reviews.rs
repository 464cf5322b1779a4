//! Who answers a review, by what its body asks about.

use super::*;
use crate::decision::plan::reviews::{Known, Part, ReviewRequest, Reviewed, review};
use crate::value::check::Attributes;
use crate::value::review::About;

const PATH: &str = "POST /apis/authorization.k8s.io/v1/subjectaccessreviews";

impl World {
    fn reviewed(&self, about: Option<&About>, known: &Known) -> String {
        let (method, path) = PATH.split_once(' ').unwrap();
        let method = Method::try_from(method).unwrap();
        let asked = classify(&method, &path.parse().unwrap(), &HeaderMap::new()).unwrap();
        let caller = self.pod();
        let request = ReviewRequest {
            caller: &caller,
            asked: &asked,
            snapshot: &self.snapshot,
            kinds: &self.kinds,
        };
        let part = |part: &Part| match part {
            Ok(forward) => forward.target.cluster.to_string(),
            Err(fault) => format!("✗ {}", fault.status_code().as_u16()),
        };
        match review(request, about, known).unwrap().0 {
            Reviewed::One(one) => part(&one),
            Reviewed::Holder(choose) => match &choose.by {
                By::Holder(holder) => format!("{} by {}", choose.clusters(), holder.path),
                _ => panic!("no holder"),
            },
            Reviewed::All(parts) => format!("all of {}", parts.iter().map(part).collect::<Vec<_>>().join(", ")),
            Reviewed::Outside(message) => format!("no: {message}"),
        }
    }

    fn about(&self, [group, resource, namespace, name]: [&str; 4]) -> String {
        let about = About::Resource(Attributes {
            verb: "get".to_owned(),
            group: group.to_owned(),
            version: "v1".to_owned(),
            resource: resource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ..Attributes::default()
        });
        self.reviewed(Some(&about), &Known::default())
    }
}

#[test]
fn a_review_is_answered_where_what_it_is_about_is() {
    let world = World::new(two());
    for (asked, expected) in [
        (["", "pods", "ns-c", ""], "west"),
        (["", "pods", "ns-a", "p"], "east"),
        // Reads go on while it is released.
        (["", "pods", "ns-r", ""], "east"),
        (["", "namespaces", "", "ns-c"], "west"),
        (["", "namespaces", "ns-c", "ns-c"], "west"),
        (["", "configmaps", "ops", ""], "home"),
        // The callers' Leases are the primary's.
        (["coordination.k8s.io", "leases", "ops", ""], "east"),
        (["", "events", "default", ""], "east"),
        (["", "pods", "", ""], "all of east, west"),
        (["", "pods", "", "p"], "all of east, west"),
        (["example.com", "ports", "", ""], "all of east, west"),
        (
            ["example.com", "ports", "", "p"],
            "east, west by /apis/example.com/v1/ports/p",
        ),
        (["", "nodes", "", "n"], "east, west by /api/v1/nodes/n"),
        // No path of an API server.
        (["", "nodes", "", "n/x"], "all of east, west"),
    ] {
        assert_eq!(world.about(asked), expected, "{asked:?}");
    }
    for (namespace, why) in [
        ("ns-z", "it belongs to shard ops/green"),
        ("nowhere", "no shard owns it"),
    ] {
        let said = world.about(["", "pods", namespace, ""]);
        assert!(said.starts_with("no: ") && said.contains(why), "{said}");
    }
    let audited = World::new(told::Shard {
        rules: v1::Shard {
            enforcement: v1::Enforcement::Audit.into(),
            ..two().rules
        },
        ..two()
    });
    assert_eq!(
        audited.about(["", "pods", "nowhere", ""]),
        "east",
        "as it would be let through"
    );
}

#[test]
fn who_is_asked_about_is_known_where_it_was_authenticated() {
    let world = World::new(two());
    let of = |known: Option<&str>, about: About| {
        let member = known.map(Arc::from);
        let known = Known {
            authenticated_by: member.clone(),
            signed_by: member,
        };
        world.reviewed(Some(&about), &known)
    };
    let path = || About::NonResource("u".to_owned());
    let token = || About::Token("t".to_owned());
    assert_eq!(of(None, path()), "home");
    assert_eq!(of(Some("west"), path()), "west");
    assert_eq!(of(Some("north"), path()), "home", "no member of the shard");
    assert_eq!(of(None, token()), "east");
    assert_eq!(of(Some("west"), token()), "west");
    assert_eq!(of(Some("home"), token()), "home");
    assert_eq!(of(Some("north"), token()), "east");
    assert_eq!(of(None, About::Rules("ns-c".to_owned())), "west");
    assert_eq!(
        of(None, About::Rules(String::new())),
        "east",
        "which says what is wrong with it"
    );
    assert_eq!(world.reviewed(None, &Known::default()), "east");
}

/// What cannot be asked is an answer, too.
#[test]
fn a_member_that_cannot_be_asked_is_one_part_of_all() {
    let world = World::of(vec!["ops/blue".into()], Some(two()), |target| {
        target.cordoned = target.cluster == "west";
    });
    assert_eq!(world.about(["", "pods", "", ""]), "all of east, ✗ 503");
    assert_eq!(world.about(["", "pods", "ns-c", ""]), "✗ 503");
}
