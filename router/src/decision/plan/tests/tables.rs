//! What is planned of every kind of request: two members, one, and an original manifest.

use super::*;

#[test]
fn two_members_enforced() {
    World::new(two()).check(&[
        // Owned namespaces: the member that owns them, every verb; the first in order wins.
        ("GET /api/v1/namespaces/ns-a/pods", "owned-namespace ⇒ east"),
        ("GET /api/v1/namespaces/ns-a/pods?watch", "owned-namespace ⇒ east"),
        ("GET /api/v1/watch/namespaces/ns-a/pods/p", "owned-namespace ⇒ east"),
        ("GET /api/v1/watch/namespaces/ns-a", "owned-namespace ⇒ east"),
        ("GET /api/v1/namespaces/ns-c/pods/p", "owned-namespace → west"),
        ("POST /api/v1/namespaces/ns-c/pods", "owned-namespace → west"),
        (
            "PUT /apis/apps/v1/namespaces/ns-c/deployments/d/status",
            "owned-namespace → west",
        ),
        (
            "PATCH /apis/apps/v1/namespaces/ns-c/deployments/d",
            "owned-namespace → west",
        ),
        ("DELETE /api/v1/namespaces/ns-c/pods", "owned-namespace → west"),
        ("POST /api/v1/namespaces/ns-c/pods/p/exec", "owned-namespace → west"),
        ("OPTIONS /api/v1/namespaces/ns-c/pods", "owned-namespace → west"),
        // Namespace objects.
        ("GET /api/v1/namespaces/ns-c", "owned-namespace → west"),
        ("PUT /api/v1/namespaces/ns-c/finalize", "owned-namespace → west"),
        ("DELETE /api/v1/namespaces/ns-z", "outside-refused ✗ 403"),
        // On its way to another shard.
        ("GET /api/v1/namespaces/ns-r/pods", "owned-namespace ⇒ east"),
        (
            "GET /api/v1/namespaces/ns-r/pods/p/log?follow=1",
            "owned-namespace → east",
        ),
        ("POST /api/v1/namespaces/ns-r/pods", "releasing ✗ 403"),
        ("GET /api/v1/namespaces/ns-r/pods/p/exec", "releasing ✗ 403"),
        ("DELETE /api/v1/namespaces/ns-r/pods", "releasing ✗ 403"),
        ("OPTIONS /api/v1/namespaces/ns-r/pods", "releasing ✗ 403"),
        // The caller's own namespace.
        (
            "GET /api/v1/namespaces/ops/configmaps?watch&fieldSelector=metadata.name%3Dc",
            "own-namespace ⇒ home",
        ),
        ("PATCH /api/v1/namespaces/ops/secrets/s", "own-namespace → home"),
        ("GET /api/v1/namespaces/ops", "own-namespace → home"),
        // Outside.
        ("GET /api/v1/namespaces/ns-z/pods", "outside-refused ✗ 403"),
        ("POST /api/v1/namespaces/ns-z/events", "outside-refused ✗ 403"),
    ]);
}

#[test]
fn events_of_one_object_without_a_namespace_are_every_members() {
    const ONE: &str = "fieldSelector=involvedObject.name=p,involvedObject.uid=u,involvedObject.kind";
    let world = World::new(two());
    let events = |query: &str| format!("GET /api/v1/events?{query}");
    let plan = |query: &str| world.say(&events(query));
    let described = plan(&format!("{ONE}=ports"));
    assert!(
        described.starts_with("cluster-scoped-event ⇒ east fields:involvedObject.namespace= | west fields"),
        "{described}"
    );
    assert!(
        world
            .say("GET /apis/events.k8s.io/v1/events?fieldSelector=regarding.name=p,regarding.kind=ports")
            .contains("fields:regarding"),
    );
    // Of what has a namespace, of a kind that nobody knows, and of more than one object: the shard's.
    for query in [
        format!("{ONE}=things"),
        format!("{ONE}=Unknown"),
        format!("watch&{ONE}=ports"),
        "fieldSelector=involvedObject.kind=ports".to_owned(),
    ] {
        let planned = plan(&query);
        assert!(planned.starts_with("all-namespaces"), "{query}: {planned}");
    }
}

#[test]
fn events_of_what_has_no_namespace_are_the_primarys() {
    World::new(two()).check(&[
        ("POST /api/v1/namespaces/default/events", "cluster-scoped-event → east"),
        (
            "PATCH /apis/events.k8s.io/v1/namespaces/default/events/e",
            "cluster-scoped-event → east",
        ),
        (
            "POST /api/v1/namespaces/default/pods",
            "unowned-namespace ? east, west by absence",
        ),
        // What else is in that namespace is its owner's.
        (
            "GET /api/v1/namespaces/default/events",
            "cluster-scoped-event ⇒ east fields:involvedObject.namespace=",
        ),
        (
            "GET /apis/events.k8s.io/v1/namespaces/default/events?watch",
            "cluster-scoped-event ⇒ east fields:regarding.namespace=",
        ),
        (
            "GET /api/v1/namespaces/default/events/e",
            "unowned-namespace ? east, west by absence of events e",
        ),
        (
            "DELETE /api/v1/namespaces/default/events",
            "unowned-namespace ? east, west by absence, then nothing",
        ),
    ]);
}

#[test]
fn a_namespace_of_no_shard_is_looked_for() {
    let nothing = "select:nothing,!nothing";
    World::new(two()).check(&[
        (
            "GET /api/v1/namespaces/nowhere",
            "unowned-namespace ? east, west by absence of namespaces nowhere",
        ),
        (
            "DELETE /api/v1/namespaces/nowhere",
            "unowned-namespace ? east, west by absence of namespaces nowhere",
        ),
        (
            "PATCH /api/v1/namespaces/nowhere",
            "unowned-namespace ? east, west by absence, then body",
        ),
        (
            "GET /api/v1/namespaces/nowhere/status",
            "unowned-namespace ? east, west by absence of namespaces nowhere",
        ),
        // And what is in it.
        (
            "GET /api/v1/namespaces/nowhere/pods/p",
            "unowned-namespace ? east, west by absence of pods p",
        ),
        (
            "POST /apis/apps/v1/namespaces/nowhere/deployments",
            "unowned-namespace ? east, west by absence",
        ),
        (
            "PATCH /apis/apps/v1/namespaces/nowhere/deployments/d",
            "unowned-namespace ? east, west by absence of deployments.apps d",
        ),
        (
            "GET /api/v1/namespaces/nowhere/pods/p/exec",
            "unowned-namespace ? east, west by absence of pods p",
        ),
        (
            "DELETE /api/v1/namespaces/nowhere/pods",
            "unowned-namespace ? east, west by absence, then nothing",
        ),
        (
            "GET /api/v1/namespaces/nowhere/pods",
            &format!("unowned-namespace ⇒ if nowhere east {nothing}"),
        ),
        (
            "GET /api/v1/namespaces/nowhere/pods?watch=true&labelSelector=a%3Db",
            &format!("unowned-namespace ⇒ if nowhere east {nothing}"),
        ),
        // In the words of a member that has the kind.
        (
            "GET /apis/example.com/v1/namespaces/nowhere/ships",
            &format!("unowned-namespace ⇒ if nowhere east {nothing}"),
        ),
    ]);
}

#[test]
fn what_programs_know_a_cluster_by_is_the_homes() {
    let known = [
        ("GET /api/v1/namespaces/kube-system", "well-known → east"),
        (
            "GET /api/v1/namespaces?fieldSelector=metadata.name%3Dkube-system",
            "well-known ⇒ east",
        ),
        (
            "GET /api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
            "well-known → home",
        ),
        (
            "GET /api/v1/namespaces/kube-system/configmaps?watch=true&fieldSelector=metadata.name%3Dextension-apiserver-authentication",
            "well-known ⇒ home",
        ),
        (
            "GET /api/v1/namespaces/kube-public/configmaps/cluster-info",
            "well-known → home",
        ),
        (
            "GET /api/v1/namespaces/default/services/kubernetes",
            "well-known → home",
        ),
    ];
    World::new(two()).check(&known);
    World::new(two()).check(&[
        (
            "PATCH /api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
            "unowned-namespace ? east, west by absence of configmaps extension-apiserver-authentication",
        ),
        (
            "DELETE /api/v1/namespaces/kube-system",
            "unowned-namespace ? east, west by absence of namespaces kube-system",
        ),
        (
            "GET /api/v1/namespaces/kube-system/configmaps",
            "unowned-namespace ⇒ if nowhere east select:nothing,!nothing",
        ),
        (
            "GET /api/v1/namespaces/default/services/kubernetes/proxy",
            "unowned-namespace ? east, west by absence of services kubernetes",
        ),
    ]);
    let owned = World::new(shard(vec![member("west", &["kube-system", "default"])]));
    owned.check(&[
        ("GET /api/v1/namespaces/kube-system", "owned-namespace → west"),
        (
            "GET /api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
            "owned-namespace → west",
        ),
        (
            "GET /api/v1/namespaces/default/services/kubernetes",
            "owned-namespace → west",
        ),
    ]);
}

#[test]
fn two_members_together() {
    World::new(two()).check(&[
        (
            "GET /api/v1/pods",
            "all-namespaces ⇒ east select:namespace in (ns-a,ns-r) | west select:namespace=ns-c",
        ),
        (
            "GET /api/v1/pods?watch=true",
            "all-namespaces ⇒ east select:namespace in (ns-a,ns-r) | west select:namespace=ns-c",
        ),
        (
            "GET /api/v1/secrets",
            "all-namespaces ⇒ east keep:namespaces ns-a, ns-r | west keep:namespaces ns-c",
        ),
        (
            "GET /api/v1/namespaces",
            "all-namespaces ⇒ east select:namespace in (ns-a,ns-r) | west select:namespace=ns-c",
        ),
        ("GET /api/v1/nodes/n", "cluster-scoped ? east, west by /api/v1/nodes/n"),
        (
            "PATCH /api/v1/nodes/n/status",
            "cluster-scoped ? east, west by /api/v1/nodes/n",
        ),
        ("GET /api/v1/nodes", "cluster-scoped ⇒ union east | west"),
        ("DELETE /apis/example.com/v1/things", "several-members ✗ 405"),
        (
            "DELETE /apis/example.com/v1/ports",
            "cluster-scoped → each of east | west",
        ),
        (
            "POST /apis/rbac.authorization.k8s.io/v1/clusterroles",
            // West is known not to serve them.
            "cluster-scoped ? east by owners",
        ),
        ("POST /api/v1/namespaces", "new-namespace ? east, west by body"),
    ]);
}

#[test]
fn the_election_has_a_lease_of_the_shard() {
    World::new(two()).check(&[
        (&format!("GET {LEASES}/op"), "leader-election → east lease:op---blue"),
        (&format!("PUT {LEASES}/op"), "leader-election → east lease:op---blue"),
        (&format!("PATCH {LEASES}/op"), "leader-election → east lease:op---blue"),
        (&format!("DELETE {LEASES}/op"), "leader-election → east lease:op---blue"),
        (
            &format!("GET {LEASES}?fieldSelector=metadata.name=op"),
            "leader-election ⇒ east lease:op---blue",
        ),
        (
            &format!("GET {LEASES}?watch&fieldSelector=metadata.name=op"),
            "leader-election ⇒ east lease:op---blue",
        ),
        (
            "GET /apis/coordination.k8s.io/v1/watch/namespaces/ops/leases/op",
            "leader-election ⇒ east lease:op---blue",
        ),
        (&format!("POST {LEASES}"), "other-lease ? east, home, east by lease op"),
        (&format!("GET {LEASES}/other"), "other-lease ? east, home by lease op"),
        (&format!("GET {LEASES}"), "other-lease ⇒ east shown:op"),
        (
            &format!("GET {LEASES}?watch&fieldSelector=metadata.name=other"),
            "other-lease ⇒ east",
        ),
        (
            "GET /apis/coordination.k8s.io/v1/namespaces/ns-c/leases/op",
            "owned-namespace → west",
        ),
    ]);
}

#[test]
fn what_would_elect_a_lease_that_no_caller_reads_is_refused() {
    const CANDIDATES: &str = "/apis/coordination.k8s.io/v1beta1/namespaces/ops/leasecandidates";
    World::new(two()).check(&[
        (&format!("POST {CANDIDATES}"), "leader-election ✗ 403"),
        (&format!("PUT {CANDIDATES}/op-0"), "leader-election ✗ 403"),
        (&format!("PATCH {CANDIDATES}/op-0"), "leader-election ✗ 403"),
        (&format!("GET {CANDIDATES}/op-0"), "own-namespace → home"),
        (&format!("DELETE {CANDIDATES}/op-0"), "own-namespace → home"),
        (
            "POST /apis/coordination.k8s.io/v1beta1/namespaces/ns-c/leasecandidates",
            "owned-namespace → west",
        ),
    ]);
    // Of a shard that elects none, nothing is mapped.
    let mut shard = two();
    shard.rules.leader_election_name.clear();
    World::new(shard).check(&[(&format!("POST {CANDIDATES}"), "own-namespace → home")]);
}

#[test]
fn what_belongs_to_no_namespace_is_the_primarys_or_ours() {
    World::new(two()).check(&[
        (
            "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            "review ? east, west, home by body",
        ),
        (
            "POST /apis/authorization.k8s.io/v1/namespaces/ns-c/localsubjectaccessreviews",
            "review ? east, west, home by body",
        ),
        (
            "POST /apis/authentication.k8s.io/v1/tokenreviews",
            "review ? east, west, home by body",
        ),
        ("GET /api", "discovery of east west home"),
        ("GET /apis/apps/v1", "discovery of east west home"),
        ("GET /openapi/v3", "discovery of east west home"),
        ("GET /version", "non-resource → east"),
        ("GET /healthz", "health Live"),
        ("GET /livez/ping", "health Live"),
        ("GET /readyz?verbose", "health Ready"),
        ("POST /readyz", "non-resource → east"),
    ]);
}

#[test]
fn one_member_is_filtered_by_its_labels() {
    let mut wire = shard(vec![member("west", &["ns-a", "ns-b"])]);
    wire.limits = vec![limit("*", "pods", "app=foo")];
    World::new(wire).check(&[
        (
            "GET /api/v1/pods",
            "all-namespaces ⇒ west select:app=foo,namespace in (ns-a,ns-b)",
        ),
        (
            "GET /api/v1/pods?watch",
            "all-namespaces ⇒ west select:app=foo,namespace in (ns-a,ns-b)",
        ),
        (
            "GET /api/v1/watch/pods",
            "all-namespaces ⇒ west select:app=foo,namespace in (ns-a,ns-b)",
        ),
        (
            "GET /api/v1/namespaces",
            "all-namespaces ⇒ west select:namespace in (ns-a,ns-b)",
        ),
        (
            "GET /api/v1/secrets",
            "all-namespaces ⇒ west keep:namespaces ns-a, ns-b",
        ),
        (
            "GET /apis/example.com/v1/pods?watch",
            "all-namespaces ⇒ west select:app=foo keep:namespaces ns-a, ns-b",
        ),
        // The primary is not a member, and has what belongs to none.
        ("GET /api/v1/nodes", "cluster-scoped ⇒ union east | west"),
        ("GET /api/v1/nodes/n", "cluster-scoped ? east, west by /api/v1/nodes/n"),
        (
            "POST /apis/example.com/v1/ports",
            "cluster-scoped ? east, west by owners",
        ),
        ("POST /api/v1/namespaces", "new-namespace ? west by body"),
    ]);
}

#[test]
fn one_namespace_of_one_member_is_held_to_its_labels() {
    let mut wire = shard(vec![member("west", &["ns-a", "ns-b"])]);
    wire.limits = vec![limit("*", "pods", "app=foo")];
    World::new(wire).check(&[
        (
            "GET /api/v1/namespaces/ns-a/pods",
            "owned-namespace ⇒ west select:app=foo",
        ),
        (
            "DELETE /api/v1/namespaces/ns-a/pods",
            "owned-namespace → west select:app=foo",
        ),
        ("GET /api/v1/namespaces/ns-a/secrets", "owned-namespace ⇒ west"),
        (
            "GET /api/v1/namespaces/ns-a/pods/p",
            "owned-namespace → west labels:/api/v1/namespaces/ns-a/pods/p?app=foo",
        ),
        (
            "POST /api/v1/namespaces/ns-a/pods/p/exec",
            "owned-namespace → west labels:/api/v1/namespaces/ns-a/pods/p?app=foo",
        ),
        (
            "PUT /api/v1/namespaces/ns-a/pods/p",
            "owned-namespace → west labels:/api/v1/namespaces/ns-a/pods/p?app=foo body:Whole?app=foo",
        ),
        (
            "PATCH /api/v1/namespaces/ns-a/pods/p",
            "owned-namespace → west labels:/api/v1/namespaces/ns-a/pods/p?app=foo body:Patch?app=foo",
        ),
        (
            "PUT /api/v1/namespaces/ns-a/pods/p/ephemeralcontainers",
            "owned-namespace → west labels:/api/v1/namespaces/ns-a/pods/p?app=foo",
        ),
        (
            "PATCH /api/v1/namespaces/ns-a/pods/p/resize",
            "owned-namespace → west labels:/api/v1/namespaces/ns-a/pods/p?app=foo",
        ),
        (
            "PUT /apis/example.com/v1/namespaces/ns-a/pods/p/status",
            "owned-namespace → west labels:/apis/example.com/v1/namespaces/ns-a/pods/p?app=foo body:Status?app=foo",
        ),
        (
            "POST /api/v1/namespaces/ns-a/pods",
            "owned-namespace → west body:Whole?app=foo",
        ),
    ]);
}

#[test]
fn an_original_manifest_keeps_its_meaning() {
    let mut wire = shard(vec![member("home", &["*"])]);
    wire.primary_cluster = "home".into();
    wire.enforcement = v1::Enforcement::Audit.into();
    wire.limits = vec![limit(
        "*",
        "pods",
        "app=foo,ctrlmesh.kusionstack.io/namespace in (ns-a,ns-b)",
    )];
    World::new(wire.clone()).check(&[
        (
            "GET /api/v1/pods",
            "all-namespaces ⇒ home select:app=foo,namespace in (ns-a,ns-b)",
        ),
        ("GET /api/v1/secrets", "all-namespaces ⇒ home"),
        (
            "GET /api/v1/namespaces/ns-a/pods",
            "owned-namespace ⇒ home select:app=foo",
        ),
        (
            "GET /api/v1/namespaces/ns-z/pods",
            "owned-namespace ⇒ home select:nothing,!nothing",
        ),
        ("GET /api/v1/namespaces/ns-a/pods/p", "owned-namespace → home"),
        ("DELETE /api/v1/namespaces/ns-z/pods/p", "owned-namespace → home warns:"),
        ("GET /api/v1/namespaces/ns-z/secrets/s", "owned-namespace → home"),
        ("GET /api/v1/nodes", "cluster-scoped ⇒ home"),
        (&format!("PUT {LEASES}/op"), "leader-election → home lease:op---blue"),
    ]);
    wire.enforcement = v1::Enforcement::Enforce.into();
    World::new(wire).check(&[
        ("DELETE /api/v1/namespaces/ns-z/pods/p", "outside-refused ✗ 403"),
        ("POST /api/v1/namespaces/ns-z/pods", "outside-refused ✗ 403"),
        ("GET /api/v1/namespaces/ns-z/secrets/s", "owned-namespace → home"),
    ]);
}

#[test]
fn a_write_to_what_the_shard_has_by_name_is_of_its_grant() {
    let world = World::new(two());
    let grant = |request: &str| {
        let grant = world.forward(request).grant?;
        assert_eq!((grant.shard.as_str(), grant.epoch, grant.fenced), ("ops/blue", 4, true));
        Some(grant.namespace)
    };
    let of = |namespace: &str| Some(namespace.to_owned());
    for (request, namespace) in [
        ("POST /api/v1/namespaces/ns-a/pods", of("ns-a")),
        ("DELETE /api/v1/namespaces/ns-c/pods", of("ns-c")),
        ("POST /api/v1/namespaces/ns-a/pods/x/exec", of("ns-a")),
        ("PATCH /api/v1/namespaces/ns-a", of("ns-a")),
        ("GET /api/v1/namespaces/ns-a/pods/x", None),
        // Its own namespace, which the shard does not have.
        ("POST /api/v1/namespaces/ops/pods", None),
        ("PUT /apis/coordination.k8s.io/v1/namespaces/ops/leases/op", None),
    ] {
        assert_eq!(grant(request), namespace, "{request}");
    }
}
