//! Every row of the planning table, and the law that nothing is written outside the shard.

mod answers;
mod collections;
mod labelled;
mod locks;
mod nodes;
mod operators;
mod past;
mod places;
mod replicated;
mod reviews;
mod tables;
mod withdrawn;

use std::fmt::Write as _;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use portolan_wire::v1;
use proptest::prelude::*;

use super::choose::By;
use super::*;
use crate::value::classify::classify;
use crate::value::kinds::{Kind, Kinds, MemberKinds, Scope};
use crate::value::snapshot::{CallerView, HeldElsewhere, told};
use crate::value::traffic::{Effect, TrafficClass};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/ops/leases";

fn target(cluster: &str) -> told::Target {
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
        at_admission: Some(true),
    };
    told::Target {
        cluster: cluster.into(),
        endpoints: vec![v1::Endpoint {
            url: format!("https://{cluster}:6443"),
            tls_server_name: String::new(),
        }],
        allowed_service_accounts: vec!["ops/operator".into(), "ops/other".into()],
        allowed_users: vec!["ada".into()],
        nodes: vec![format!("n-{cluster}"), "n-twice".into()],
        coverage: vec![
            covered("", "pods", true),
            covered("", "secrets", false),
            covered("", "namespaces", true),
        ],
        ..told::Target::default()
    }
}

fn member(cluster: &str, namespaces: &[&str]) -> told::MemberGrant {
    let grant = |name: &&str| {
        let (name, state) = match name.strip_suffix('!') {
            Some(name) => (name, v1::GrantState::Releasing),
            None => (*name, v1::GrantState::Granted),
        };
        v1::NamespaceGrant {
            namespace: name.into(),
            owner_count: 4,
            fenced: true,
            state: state.into(),
            ..v1::NamespaceGrant::default()
        }
    };
    told::MemberGrant {
        cluster: cluster.into(),
        all_namespaces: namespaces == ["*"],
        namespaces: namespaces.iter().filter(|name| **name != "*").map(grant).collect(),
        namespace_rules: None,
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
fn shard(members: Vec<told::MemberGrant>) -> told::Shard {
    let rules = v1::Shard {
        primary_cluster: "east".into(),
        leader_election_name: "op".into(),
        enforcement: v1::Enforcement::Enforce.into(),
        label_prefix: "ctrlmesh.kusionstack.io/".into(),
        ..v1::Shard::default()
    };
    told::Shard { rules, members }
}

fn two() -> told::Shard {
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
    let mut kinds = Kinds::default();
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
    fn new(shard: told::Shard) -> Self {
        Self::of(vec!["ops/blue".into()], Some(shard), |_| {})
    }

    fn of(shards: Vec<String>, of: Option<told::Shard>, change: impl Fn(&mut told::Target)) -> Self {
        let view = told::CallerView {
            created_unix_seconds: None,
            writes_closed: None,
            policies: Vec::new(),
            home_cluster: "home".into(),
            pod_uid: "u1".into(),
            namespace: "ops".into(),
            pod: "operator-0".into(),
            service_account: "operator".into(),
            shards,
            shard: of,
        };
        let mut bodies = view.bodies();
        for cluster in ["east", "west", "home"] {
            let mut target = target(cluster);
            change(&mut target);
            bodies.extend(target.bodies());
            let green = told::Shard {
                members: vec![member(cluster, &["ns-z"])],
                ..shard(Vec::new())
            };
            bodies.extend(green.bodies("ops/green"));
        }
        let applied = told::upsert(&Snapshot::default(), "1", bodies);
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
        Plan::Review(clusters) => format!("{rule} ? {} by body", clusters.join(", ")),
        Plan::Refuse(fault) => format!("{rule} ✗ {}", fault.status_code().as_u16()),
        Plan::Forward(forward) => format!("{rule} → {}", say_forward(forward)),
        Plan::FanOut(fan) => {
            let legs: Vec<String> = fan.legs.iter().map(say_leg).collect();
            let union = if fan.unique { " union" } else { "" };
            let union = if fan.unowned.is_some() { " if nowhere" } else { union };
            format!("{rule} ⇒{union} {}", legs.join(" | "))
        }
        Plan::DeleteEach(parts) => {
            let parts: Vec<String> = parts.iter().map(|part| say_forward(&part.forward)).collect();
            format!("{rule} → each of {}", parts.join(" | "))
        }
        Plan::Choose(choose) => {
            let by = match &choose.by {
                By::Holder(holder) => &holder.path,
                By::NewNamespace(_) => "body",
                By::NewObject(new) if new.closed.is_empty() => "owners",
                By::NewObject(new) => &format!("owners, not {}", new.closed.join(", ")),
                By::Unowned(unowned) => match &unowned.absent {
                    Absent::Nothing => "absence, then nothing",
                    Absent::Object(kind, name) => &format!("absence of {kind} {name}"),
                    Absent::Namespace => "absence",
                    Absent::Made(_) => "absence, then body",
                },
                By::Lease(lease) => &format!("lease {}", lease.names.client),
            };
            let clusters = match &choose.by {
                By::Unowned(unowned) => unowned.clusters.join(", "),
                _ => choose.clusters(),
            };
            format!("{rule} ? {clusters} by {by}")
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
    add("fields", rewrite.fields.map(str::to_owned));
    add("lease", rewrite.lease.as_ref().map(|lease| lease.member.clone()));
    add("shown", rewrite.shown.as_ref().map(|lease| lease.client.clone()));
    for need in &forward.needs {
        match need {
            Need::Access(_) | Need::Owners => {}
            Need::Copies(copies) => {
                let others = copies.others.iter().map(|one| &*one.forward.target.cluster);
                add("copies", Some(others.collect::<Vec<_>>().join(",")));
            }
            Need::Labels(check) => add("labels", Some(format!("{}?{}", check.path, check.selector))),
            Need::Body(rule) => add("body", Some(format!("{:?}?{}", rule.change, rule.selector))),
            Need::Lock(moved) => add("lock", Some(moved.from.0.to_string())),
        }
    }
    add("warns", forward.warning.as_ref().map(|_| String::new()));
    text
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
            "owned-namespace → east labels:/api/v1/namespaces/ns-a/pods/p?app=foo body:Over?app=foo",
        ),
        ("POST /api/v1/namespaces/ops/bindings", "own-namespace → home"),
        // As API servers read what stands before `proxy`, and only there.
        (
            "GET /api/v1/namespaces/ns-a/pods/p:8080/proxy/x",
            "owned-namespace → east labels:/api/v1/namespaces/ns-a/pods/p?app=foo",
        ),
        (
            "GET /api/v1/namespaces/ns-a/pods/https:p:8080/proxy/x",
            "owned-namespace → east labels:/api/v1/namespaces/ns-a/pods/p?app=foo",
        ),
        (
            "GET /api/v1/namespaces/ns-a/pods/a:b:c:d/proxy/x",
            "owned-namespace → east labels:/api/v1/namespaces/ns-a/pods/a:b:c:d?app=foo",
        ),
        (
            "POST /api/v1/namespaces/ns-a/pods/p:8080/exec",
            "owned-namespace → east labels:/api/v1/namespaces/ns-a/pods/p:8080?app=foo",
        ),
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
