//! Nodes of one name: what is refused, what is told, and what goes on. Each member has `n-twice` and one of its own.

use super::*;

fn world_of_two() -> World {
    World::new(shard(vec![
        member("east", &["ns-a", "kube-node-lease"]),
        member("west", &["ns-c"]),
    ]))
}

fn planned(request: &str) -> Planned {
    let world = world_of_two();
    world.plan(&world.pod(), request, &[])
}

const CSI: &str = "/apis/storage.k8s.io/v1/csinodes";
const NODE_LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

#[test]
fn a_name_of_two_nodes_is_not_written() {
    for request in [
        "PUT /api/v1/nodes/n-twice".to_owned(),
        "PATCH /api/v1/nodes/n-twice".to_owned(),
        "PATCH /api/v1/nodes/n-twice/status".to_owned(),
        "DELETE /api/v1/nodes/n-twice".to_owned(),
        "GET /api/v1/nodes/n-twice/proxy/metrics".to_owned(),
        "GET /api/v1/nodes/https:n-twice:10250/proxy/metrics".to_owned(),
        "DELETE /api/v1/nodes?fieldSelector=metadata.name%3Dn-twice".to_owned(),
        format!("PUT {CSI}/n-twice"),
        format!("PUT {NODE_LEASES}/n-twice"),
    ] {
        let planned = planned(&request);
        assert_eq!(planned.rule, Rule::SeveralNodes, "{request}");
        let Plan::Refuse(Fault::Forbidden(message)) = &planned.plan else {
            panic!("{request}: {:?}", planned.plan)
        };
        for word in ["n-twice", "east", "west", "/clusters/east/", "/clusters/west/"] {
            assert!(message.contains(word), "{request}: {message}");
        }
    }
    for request in [
        "PATCH /api/v1/nodes/n-east".to_owned(),
        format!("PUT {CSI}/n-west"),
        format!("PUT {NODE_LEASES}/n-east"),
    ] {
        assert_ne!(planned(&request).rule, Rule::SeveralNodes, "{request}");
    }
}

#[test]
fn nothing_is_chosen_by_a_name_of_two_nodes() {
    for request in [
        "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn-twice",
        "GET /api/v1/pods?fieldSelector=status.phase!%3DFailed,spec.nodeName%3D%3Dn-twice&watch=1",
        "GET /api/v1/namespaces/ns-a/pods?fieldSelector=spec.nodeName%3Dn-twice",
        "DELETE /api/v1/namespaces/ns-a/pods?fieldSelector=spec.nodeName%3Dn-twice",
    ] {
        let planned = planned(request);
        let Plan::Refuse(Fault::BadRequest(message)) = &planned.plan else {
            panic!("{request}: {:?}", planned.plan)
        };
        assert!(message.contains("/clusters/east/ or /clusters/west/"), "{message}");
    }
    for request in [
        "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn-east",
        "GET /api/v1/pods?fieldSelector=spec.nodeName!%3Dn-twice",
        "GET /api/v1/pods",
    ] {
        assert!(matches!(planned(request).plan, Plan::FanOut(_)), "{request}");
    }
}

#[test]
fn who_reads_a_name_of_two_nodes_is_told() {
    let warning = |request: &str| match planned(request).plan {
        Plan::Choose(choose) => choose.candidates[0].forward.warning.clone(),
        Plan::Forward(forward) => forward.warning,
        other => panic!("{request}: {other:?}"),
    };
    for request in [
        "GET /api/v1/nodes/n-twice".to_owned(),
        format!("GET {NODE_LEASES}/n-twice"),
    ] {
        assert!(
            warning(&request).is_some_and(|text| text.contains("/clusters/west/")),
            "{request}"
        );
    }
    assert_eq!(warning("GET /api/v1/nodes/n-east"), None);
}

#[test]
fn what_has_one_place_has_no_twins() {
    let world = World::new(shard(vec![member("east", &["ns-a"])]));
    let patched = world.plan(&world.pod(), "PATCH /api/v1/nodes/n-twice", &[]);
    assert!(matches!(patched.plan, Plan::Forward(_)), "{:?}", patched.plan);
}
