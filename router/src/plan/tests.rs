//! Every row of the planning table, and the law that nothing is written outside the shard.

mod collections;
mod places;

use std::collections::HashMap;
use std::fmt::Write as _;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use portolan_wire::v1;
use proptest::prelude::*;

use super::choose::By;
use super::*;
use crate::classify::classify;
use crate::discovery::kinds::{Kind, MemberKinds};
use crate::discovery::{Kinds, Scope};
use crate::snapshot::build::{Transaction, apply};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/ops/leases";

fn target(cluster: &str) -> v1::Target {
    let covered = |group: &str, resource: &str, complete| v1::KindCoverage {
        group: group.into(),
        resource: resource.into(),
        complete,
        labelled: 3,
        total: 4,
        rule: Some(v1::LabelRule {
            prefix: "ctrlmesh.kusionstack.io/".into(),
            bucketing: None,
        }),
    };
    v1::Target {
        cluster: cluster.into(),
        endpoints: vec![v1::Endpoint {
            url: format!("https://{cluster}:6443"),
            tls_server_name: String::new(),
        }],
        allowed_service_accounts: vec!["ops/operator".into(), "ops/other".into()],
        allowed_users: vec!["ada".into()],
        coverage: vec![
            covered("", "pods", true),
            covered("", "secrets", false),
            covered("", "namespaces", true),
        ],
        namespace_owners: HashMap::from([("ns-z".to_owned(), "ops/green".to_owned())]),
        ..v1::Target::default()
    }
}

fn member(cluster: &str, namespaces: &[&str]) -> v1::MemberGrant {
    let grant = |name: &&str| {
        let (name, state) = match name.strip_suffix('!') {
            Some(name) => (name, v1::GrantState::Releasing),
            None => (*name, v1::GrantState::Granted),
        };
        v1::NamespaceGrant {
            namespace: name.into(),
            generation: 1,
            state: state.into(),
        }
    };
    v1::MemberGrant {
        cluster: cluster.into(),
        all_namespaces: namespaces == ["*"],
        namespaces: namespaces.iter().filter(|name| **name != "*").map(grant).collect(),
    }
}

fn limit(group: &str, resource: &str, selector: &str) -> v1::Limit {
    let rule = v1::ResourceRule {
        api_groups: vec![group.into()],
        resources: vec![resource.into()],
    };
    v1::Limit {
        resources: vec![rule],
        selector: selector.into(),
    }
}

/// Shard `ops/blue`, primary east, lease `op`, enforced.
fn shard(members: Vec<v1::MemberGrant>) -> v1::Shard {
    v1::Shard {
        name: "blue".into(),
        primary_cluster: "east".into(),
        leader_election_name: "op".into(),
        enforcement: v1::Enforcement::Enforce.into(),
        members,
        label_prefix: "ctrlmesh.kusionstack.io/".into(),
        ..v1::Shard::default()
    }
}

fn two() -> v1::Shard {
    shard(vec![
        member("east", &["ns-a", "ns-r!"]),
        member("west", &["ns-c", "ns-a"]),
    ])
}

/// The caller runs in `ops` of cluster home.
struct World {
    snapshot: Snapshot,
    /// Members serve `things` and cluster-scoped `ports` of example.com.
    kinds: Kinds,
}

fn kinds() -> Kinds {
    let kinds = Kinds::default();
    for cluster in ["east", "west", "home"] {
        let mut served = MemberKinds::default();
        for (resource, scope) in [("things", Scope::Namespaced), ("ports", Scope::Cluster)] {
            let kind = Kind {
                scope,
                kind: resource.to_owned(),
                versions: vec!["v1".to_owned()],
                verbs: ["get".to_owned()].into(),
            };
            served.add("example.com", resource, kind);
        }
        if cluster == "east" {
            let kind = Kind {
                scope: Scope::Namespaced,
                kind: "Ship".to_owned(),
                versions: vec!["v2".to_owned(), "v1".to_owned()],
                verbs: ["get".to_owned()].into(),
            };
            served.add("example.com", "ships", kind.clone());
        }
        kinds.set(&cluster.into(), Arc::new(served));
    }
    kinds
}

impl World {
    fn new(shard: v1::Shard) -> Self {
        Self::of(vec!["ops/blue".into()], Some(shard), |_| {})
    }

    fn of(shards: Vec<String>, shard: Option<v1::Shard>, change: impl Fn(&mut v1::Target)) -> Self {
        use v1::resource::Body;
        let view = v1::CallerView {
            home_cluster: "home".into(),
            pod_uid: "u1".into(),
            namespace: "ops".into(),
            pod: "operator-0".into(),
            service_account: "operator".into(),
            shards,
            shard,
        };
        let mut bodies = vec![Body::CallerView(view)];
        for cluster in ["east", "west", "home"] {
            let mut target = target(cluster);
            change(&mut target);
            bodies.push(Body::Target(target));
        }
        let resource = |body| v1::Resource {
            version: "1".into(),
            body: Some(body),
        };
        let upserted = bodies.into_iter().map(resource).collect();
        let applied = apply(
            &Snapshot::default(),
            &Transaction {
                upserted,
                removed: vec![],
            },
        );
        assert_eq!(applied.rejected, []);
        Self {
            snapshot: applied.snapshot,
            kinds: kinds(),
        }
    }

    fn pod(&self) -> Caller {
        Caller::Pod(self.snapshot.callers.values().next().unwrap().clone())
    }

    fn plan(&self, caller: &Caller, request: &str, headers: &[(&str, &str)]) -> Planned {
        let (method, uri) = request.split_once(' ').unwrap();
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| {
                (
                    HeaderName::try_from(*name).unwrap(),
                    HeaderValue::try_from(*value).unwrap(),
                )
            })
            .collect();
        let request = classify(&Method::try_from(method).unwrap(), &uri.parse().unwrap(), &headers).unwrap();
        plan(caller, &request, &self.snapshot, &self.kinds)
    }

    fn say(&self, request: &str) -> String {
        say(&self.plan(&self.pod(), request, &[]))
    }

    fn check(&self, table: &[(&str, &str)]) {
        for (request, expected) in table {
            assert_eq!(self.say(request), *expected, "{request}");
        }
    }

    fn forward(&self, request: &str) -> Forward {
        match self.plan(&self.pod(), request, &[]).plan {
            Plan::Forward(forward) => *forward,
            other => panic!("{request}: {other:?}"),
        }
    }

    fn fan(&self, request: &str) -> FanOut {
        match self.plan(&self.pod(), request, &[]).plan {
            Plan::FanOut(fan) => *fan,
            other => panic!("{request}: {other:?}"),
        }
    }

    fn fault(&self, request: &str) -> Fault {
        match self.plan(&self.pod(), request, &[]).plan {
            Plan::Refuse(fault) => fault,
            other => panic!("{request}: {other:?}"),
        }
    }
}

/// `rule → cluster [what else]`, `rule ⇒ leg | leg`, `rule ? candidate, candidate` or `rule ✗ code`.
fn say(planned: &Planned) -> String {
    let rule = planned.rule;
    match &planned.plan {
        Plan::Discovery(wanted) => {
            let members: Vec<_> = wanted.members.iter().map(|one| &*one.cluster).collect();
            format!("{rule} of {}", members.join(" "))
        }
        Plan::Local(answer) => format!("{rule} {answer:?}"),
        Plan::Refuse(fault) => format!("{rule} ✗ {}", fault.status_code().as_u16()),
        Plan::Forward(forward) => format!("{rule} → {}", say_forward(forward)),
        Plan::FanOut(fan) => {
            let legs: Vec<String> = fan.legs.iter().map(say_leg).collect();
            let union = if fan.unique { " union" } else { "" };
            format!("{rule} ⇒{union} {}", legs.join(" | "))
        }
        Plan::Choose(choose) => {
            let by = match &choose.by {
                By::Holder(holder) => &holder.path,
                By::NewNamespace(_) => "body",
            };
            format!("{rule} ? {} by {by}", choose.clusters())
        }
    }
}

fn short(text: &str) -> String {
    text.replace("ctrlmesh.kusionstack.io/", "")
}

fn say_leg(leg: &FanLeg) -> String {
    let mut text = say_forward(&leg.forward);
    if let Some(filter) = &leg.filter {
        let _ = write!(text, " keep:{}", short(&filter.to_string()));
    }
    if leg.held.is_some() {
        text.push_str(" held");
    }
    text
}

fn say_forward(forward: &Forward) -> String {
    let mut text = forward.target.cluster.to_string();
    let mut add = |what: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = write!(text, " {what}:{}", short(&value));
        }
    };
    let rewrite = &forward.rewrite;
    add("select", rewrite.selector.as_ref().map(ToString::to_string));
    add("lease", rewrite.lease.as_ref().map(|lease| lease.member.clone()));
    let guard = forward.guard.as_ref();
    add("guard", guard.map(|guard| format!("{}?{}", guard.path, guard.selector)));
    let body = forward.body_rule.as_ref();
    add("body", body.map(|rule| format!("{:?}?{}", rule.change, rule.selector)));
    let election = forward.election.as_ref();
    add("election", election.map(|other| other.target.cluster.to_string()));
    add("warns", forward.warning.as_ref().map(|_| String::new()));
    text
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
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
        ("GET /api/v1/namespaces/nowhere/pods/p", "outside-refused ✗ 403"),
        ("POST /api/v1/namespaces/ns-z/events", "outside-refused ✗ 403"),
        ("POST /api/v1/namespaces/default/events", "cluster-scoped-event → east"),
        (
            "PATCH /apis/events.k8s.io/v1/namespaces/default/events/e",
            "cluster-scoped-event → east",
        ),
        ("POST /api/v1/namespaces/default/pods", "outside-refused ✗ 403"),
        // Recorders write events; what else is in that namespace is its owner's.
        ("GET /api/v1/namespaces/default/events", "outside-refused ✗ 403"),
        ("GET /api/v1/namespaces/default/events?watch", "outside-refused ✗ 403"),
        ("DELETE /api/v1/namespaces/default/events", "outside-refused ✗ 403"),
        // Several members.
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
        ("DELETE /apis/example.com/v1/ports", "several-members ✗ 405"),
        (
            "POST /apis/rbac.authorization.k8s.io/v1/clusterroles",
            "cluster-scoped → east",
        ),
        ("POST /api/v1/namespaces", "new-namespace ? east, west by body"),
        // Leases of the leader election.
        (&format!("GET {LEASES}/op"), "leader-election → east lease:op---blue"),
        (&format!("PUT {LEASES}/op"), "leader-election → east lease:op---blue"),
        (&format!("PATCH {LEASES}/op"), "leader-election → east lease:op---blue"),
        (&format!("DELETE {LEASES}/op"), "leader-election → east lease:op---blue"),
        (
            &format!("GET {LEASES}?fieldSelector=metadata.name=op"),
            "leader-election → east lease:op---blue",
        ),
        (
            &format!("GET {LEASES}?watch&fieldSelector=metadata.name=op"),
            "leader-election → east lease:op---blue",
        ),
        (
            "GET /apis/coordination.k8s.io/v1/watch/namespaces/ops/leases/op",
            "leader-election → east lease:op---blue",
        ),
        (
            &format!(
                "GET {LEASES}?watch&fieldSelector=metadata.name=op&resourceVersion=1{}",
                "0".repeat(24)
            ),
            "leader-election ✗ 410",
        ),
        (&format!("POST {LEASES}"), "own-namespace → home election:east"),
        (&format!("GET {LEASES}/other"), "own-namespace → home"),
        (&format!("GET {LEASES}"), "own-namespace ⇒ home"),
        (
            "GET /apis/coordination.k8s.io/v1/namespaces/ns-c/leases/op",
            "owned-namespace → west",
        ),
        // Reviews, discovery and the rest.
        (
            "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            "review → east",
        ),
        (
            "POST /apis/authorization.k8s.io/v1/namespaces/ns-c/localsubjectaccessreviews",
            "review → east",
        ),
        ("POST /apis/authentication.k8s.io/v1/tokenreviews", "review → east"),
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
#[expect(clippy::too_many_lines, reason = "a table")]
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
        ("POST /apis/example.com/v1/ports", "cluster-scoped → east"),
        ("POST /api/v1/namespaces", "new-namespace ? west by body"),
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
            "owned-namespace → west guard:/api/v1/namespaces/ns-a/pods/p?app=foo",
        ),
        (
            "POST /api/v1/namespaces/ns-a/pods/p/exec",
            "owned-namespace → west guard:/api/v1/namespaces/ns-a/pods/p?app=foo",
        ),
        (
            "PUT /api/v1/namespaces/ns-a/pods/p",
            "owned-namespace → west guard:/api/v1/namespaces/ns-a/pods/p?app=foo body:Whole?app=foo",
        ),
        (
            "PATCH /api/v1/namespaces/ns-a/pods/p",
            "owned-namespace → west guard:/api/v1/namespaces/ns-a/pods/p?app=foo body:Patch?app=foo",
        ),
        (
            "PUT /apis/example.com/v1/namespaces/ns-a/pods/p/status",
            "owned-namespace → west guard:/apis/example.com/v1/namespaces/ns-a/pods/p?app=foo body:Status?app=foo",
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
fn limits_hold_by_whatever_path() {
    let mut wire = two();
    wire.limits = vec![limit("", "pods", "app=foo"), limit("", "events", "app=foo")];
    World::new(wire).check(&[
        // Two groups, one kind.
        (
            "GET /apis/events.k8s.io/v1/namespaces/ns-a/events",
            "owned-namespace ⇒ east select:app=foo",
        ),
        // The Pod is named in the body only.
        ("POST /api/v1/namespaces/ns-a/bindings", "outside-refused ✗ 403"),
        (
            "POST /api/v1/namespaces/ns-a/pods/p/binding",
            "owned-namespace → east guard:/api/v1/namespaces/ns-a/pods/p?app=foo body:Over?app=foo",
        ),
        ("POST /api/v1/namespaces/ops/bindings", "own-namespace → home"),
    ]);
    World::new(two()).check(&[("POST /api/v1/namespaces/ns-a/bindings", "owned-namespace → east")]);
}

#[test]
fn audit_lets_through_and_warns() {
    let mut wire = two();
    wire.enforcement = v1::Enforcement::Audit.into();
    let world = World::new(wire.clone());
    world.check(&[
        ("PUT /api/v1/namespaces/ns-z/pods/p", "outside-audited → east warns:"),
        ("GET /api/v1/namespaces/nowhere/pods", "outside-audited ⇒ east warns:"),
        ("POST /api/v1/namespaces/ns-r/pods", "releasing ✗ 403"),
    ]);
    let warning = world.forward("GET /api/v1/namespaces/ns-z/pods/p").warning.unwrap();
    assert_eq!(
        warning,
        "namespace ns-z is outside shard ops/blue: it belongs to shard ops/green in member cluster east"
    );
    wire.members.push(member("home", &["ns-h"]));
    World::new(wire).check(&[("GET /api/v1/namespaces/nowhere/pods", "outside-audited ⇒ home warns:")]);
}

#[test]
fn refusals_name_what_and_whose() {
    let world = World::new(two());
    let text = |request| world.fault(request).to_string();
    assert_eq!(
        text("GET /api/v1/namespaces/ns-z/pods/p"),
        "namespace ns-z is outside shard ops/blue: it belongs to shard ops/green in member cluster east"
    );
    assert!(
        text("DELETE /apis/example.com/v1/ports").contains("several member clusters of shard ops/blue (east, west)")
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
fn the_explicit_view_needs_a_grant() {
    World::new(two()).check(&[
        ("GET /clusters/east/api/v1/pods", "no-explicit-view ✗ 403"),
        ("GET /clusters/nowhere/api/v1/pods", "unknown-cluster ✗ 404"),
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
    assert!(world.fault("GET /clusters/nope/api").to_string().contains("\"nope\""));
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
        forward.checks,
        [Check::HubProxy {
            user,
            groups,
            cluster: "home".into()
        }]
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
        forward.checks,
        [Check::Impersonate {
            cluster: "west".into(),
            user: "system:serviceaccount:ops:operator".into(),
            groups: groups.map(str::to_owned).to_vec(),
            wanted,
        }]
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
#[expect(clippy::too_many_lines, reason = "a table")]
fn classes_and_deadlines() {
    let world = World::new(two());
    let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
    let base = "/api/v1/namespaces/ns-a/pods";
    for (request, headers, class, long, read, collection) in [
        (format!("GET {base}"), &[][..], TrafficClass::Unary, false, true, true),
        (format!("GET {base}?watch"), &[], TrafficClass::Watch, true, true, true),
        (
            format!("GET {base}?watch"),
            &upgrade,
            // The client's connection is upgraded, the members' are not.
            TrafficClass::Watch,
            true,
            true,
            true,
        ),
        (format!("GET {base}/p"), &[], TrafficClass::Unary, false, true, false),
        (format!("GET {base}/p/log"), &[], TrafficClass::Unary, true, true, false),
        (
            format!("GET {base}/p/log?follow=true"),
            &[],
            TrafficClass::Watch,
            true,
            true,
            false,
        ),
        (
            format!("POST {base}/p/exec"),
            &upgrade,
            TrafficClass::Upgrade,
            true,
            false,
            false,
        ),
        (
            format!("GET {base}/p/exec"),
            &upgrade,
            TrafficClass::Upgrade,
            true,
            false,
            false,
        ),
        (
            format!("GET {base}/p/proxy/x"),
            &[],
            TrafficClass::Unary,
            true,
            false,
            false,
        ),
        (format!("PUT {base}/p"), &[], TrafficClass::Unary, false, false, false),
    ] {
        let planned = world.plan(&world.pod(), &request, headers);
        let forward = match planned.plan {
            Plan::Forward(forward) => *forward,
            Plan::FanOut(mut fan) => fan.legs.remove(0).forward,
            other => panic!("{request}: {other:?}"),
        };
        let found = (forward.class, forward.long_running, forward.read, forward.collection);
        assert_eq!(found, (class, long, read, collection), "{request}");
    }
    assert!(world.forward(&format!("PUT {LEASES}/op")).priority);
    assert!(world.forward(&format!("POST {LEASES}")).election.unwrap().priority);
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
    assert!(why(&format!("POST {LEASES}")).contains("unless the body names Lease op"));
    assert!(why("GET /api/v1/namespaces/x/pods").contains("refused with 403"));
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
                    prop_assert!(forward.read || has(names, &namespace), "{} while releasing", request);
                }
                None => prop_assert!(namespace == "ops" && &*forward.target.cluster == "home", "{}", request),
            }
        }
    }
}
