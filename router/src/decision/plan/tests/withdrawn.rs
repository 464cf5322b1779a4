//! A member that is accepted no more: answers over all members go without it and say so; what is its alone is refused.

use super::*;

fn without(clusters: &[&str]) -> World {
    withdrawn(World::new(two()), clusters)
}

pub(super) fn withdrawn(mut world: World, clusters: &[&str]) -> World {
    let bodies = clusters.iter().map(|cluster| {
        v1::resource::Body::Target(v1::Target {
            cluster: (*cluster).to_owned(),
            withdrawn: true,
            ..v1::Target::default()
        })
    });
    let applied = told::upsert(&world.snapshot, "2", bodies);
    assert_eq!(applied.rejected, []);
    world.snapshot = applied.snapshot;
    world
}

#[test]
fn the_others_answer_for_themselves() {
    let world = without(&["west"]);
    world.check(&[
        ("GET /api/v1/namespaces/ns-c/pods", "withdrawn ✗ 403"),
        ("GET /api/v1/namespaces/ns-c/pods?watch=1", "withdrawn ✗ 403"),
        ("DELETE /api/v1/namespaces/ns-c/pods/p", "withdrawn ✗ 403"),
        ("DELETE /apis/example.com/v1/ports/p", "cluster-scoped → east"),
        ("POST /apis/example.com/v1/ports", "cluster-scoped → east"),
        ("GET /apis", "discovery of east home"),
    ]);
    for (request, legs) in [
        ("GET /api/v1/pods", 1),
        ("GET /api/v1/pods?watch=1", 1),
        ("GET /apis/example.com/v1/ports", 1),
    ] {
        let fan = world.fan(request);
        assert_eq!(fan.legs.len(), legs, "{request}");
        let said: Vec<_> = fan.without().collect();
        assert!(
            said.len() == 1 && said[0].contains("member cluster west"),
            "{request}: {said:?}"
        );
    }
    assert_eq!(
        world.fan("GET /api/v1/namespaces/ns-a/pods").without().count(),
        0,
        "that is east's"
    );
}

#[test]
fn nothing_is_made_in_another_member_than_the_primary() {
    let world = without(&["east"]);
    world.check(&[
        ("GET /apis/example.com/v1/ports/p", "cluster-scoped → west"),
        ("PATCH /apis/example.com/v1/ports/p", "withdrawn ✗ 403"),
        ("POST /apis/example.com/v1/ports", "withdrawn ✗ 403"),
        ("DELETE /apis/example.com/v1/ports", "withdrawn ✗ 403"),
    ]);
    let world = without(&["east", "west"]);
    world.check(&[
        ("GET /api/v1/pods", "withdrawn ✗ 403"),
        ("GET /apis/example.com/v1/ports", "withdrawn ✗ 403"),
        ("GET /apis/example.com/v1/ports/p", "withdrawn ✗ 403"),
        ("POST /api/v1/namespaces", "withdrawn ✗ 403"),
    ]);
}

#[test]
fn it_comes_back_as_it_was() {
    let mut world = without(&["west"]);
    let applied = told::upsert(&world.snapshot, "3", target("west").bodies());
    world.snapshot = applied.snapshot;
    assert!(world.snapshot.withdrawn.is_empty());
    assert_eq!(world.fan("GET /api/v1/pods").legs.len(), 2);
}
