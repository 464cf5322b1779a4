//! Heads before and after; the laws of narrowing and of leaving alone what is not ours.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::header::{ACCEPT, AUTHORIZATION, CONNECTION, HOST, TE, UPGRADE};
use portolan_runtime::Secret;
use proptest::prelude::*;

use super::*;
use crate::decision::plan::{Rewrite, WriteGrant};
use crate::value::classify::{Impersonation, classify};
use crate::value::snapshot::Snapshot;
use crate::value::snapshot::told;
use crate::value::traffic::Traffic;
use portolan_wire::v1;
use portolan_wire::v1::resource::Body;

fn forward(rewrite: Rewrite) -> Forward {
    let wire = v1::Target {
        cluster: "east".into(),
        endpoints: vec![v1::Endpoint {
            url: "https://east:6443".into(),
            tls_server_name: String::new(),
        }],
        ..v1::Target::default()
    };
    let applied = told::upsert(&Snapshot::default(), "1", [Body::Target(wire)]);
    Forward {
        target: Arc::clone(&applied.snapshot.targets["east"]),
        traffic: Traffic::collection(false),
        rewrite,
        act_as: Impersonation::user("system:serviceaccount:ns:sa"),
        needs: vec![],
        warning: None,
        grant: None,
        replicas: None,
    }
}

fn selecting(text: &str) -> Forward {
    forward(Rewrite {
        selector: Some(Selector::parse(text).unwrap()),
        ..Rewrite::default()
    })
}

fn rewritten(forward: &Forward, uri: &str, headers: &[(&str, &str)]) -> Result<Parts, Fault> {
    let mut request = http::Request::builder().uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (mut head, ()) = request.body(()).unwrap().into_parts();
    let api = classify(&head.method, &head.uri, &head.headers)?;
    rewrite_head(forward, &api, &mut head, &Secret::from("t0k").bearer().unwrap())?;
    Ok(head)
}

/// What HTTP/2 makes longer counts so: a member ends the connection, which is everybody's, over what it cannot take.
#[test]
fn a_head_that_no_member_takes_is_not_sent() {
    let forward = forward(Rewrite::default());
    let long = |byte: u8, count: usize| {
        let value = http::HeaderValue::from_bytes(&vec![byte; count]).unwrap();
        let mut request = http::Request::builder().uri("/api/v1/pods").header("x-long", value);
        request = request.header("x-short", "y");
        let (mut head, ()) = request.body(()).unwrap().into_parts();
        let api = classify(&head.method, &head.uri, &head.headers).unwrap();
        let bearer = Secret::from("t0k").bearer().unwrap();
        rewrite_head(&forward, &api, &mut head, &bearer).err()
    };
    for (byte, count, fits) in [
        (b'y', 1_000_000, true),
        (b'y', 1_050_000, false),
        (0xff, 200_000, true),
        (0xff, 300_000, false),
        (b'{', 600_000, false),
    ] {
        let said = long(byte, count).map(|fault| fault.status_code().as_u16());
        assert_eq!(said, (!fits).then_some(431), "{byte} {count}");
    }
}

fn label_selector(uri: &Uri) -> String {
    let query = crate::value::classify::Query::new(uri.query());
    query.first("labelSelector").unwrap().into_owned()
}

#[test]
fn the_selector_is_anded() {
    let table = [
        ("", "app=foo"),
        ("?labelSelector=", "app=foo"),
        ("?labelSelector", "app=foo"),
        ("?labelSelector=tier%3Dweb", "app=foo,tier=web"),
        ("?labelSelector=app!%3Dfoo", "nothing,!nothing"),
        ("?labelSelector=app%3Dbar", "nothing,!nothing"),
        ("?labelSelector=app+in+(foo,bar)", "app=foo"),
        ("?labelSelector=!app", "nothing,!nothing"),
        ("?labelSelector=tier%3Dweb&labelSelector=app%3Dbar", "app=foo,tier=web"),
    ];
    for (query, expected) in table {
        let head = rewritten(&selecting("app=foo"), &format!("/api/v1/pods{query}"), &[]).unwrap();
        assert_eq!(label_selector(&head.uri), expected, "{query}");
        assert_eq!(head.uri.query().unwrap().matches("labelSelector").count(), 1, "{query}");
    }
    let broken = rewritten(&selecting("app=foo"), "/api/v1/pods?labelSelector=a%3D%3D%3Db", &[]);
    assert!(matches!(broken, Err(Fault::BadRequest(text)) if text.contains("labelSelector")));
}

#[test]
fn untouched_requests_keep_every_byte() {
    for uri in [
        "/clusters/east/api/v1/namespaces/a/pods/p/proxy/x//%2e%2e/y?q=%41&&b;c&labelSelector=a%3Db",
        "/clusters/east/api/v1/p%6fds/?watch&x=+",
    ] {
        let head = rewritten(&forward(Rewrite::default()), uri, &[]).unwrap();
        assert_eq!(head.uri.to_string(), uri.strip_prefix("/clusters/east").unwrap());
    }
    let head = rewritten(&forward(Rewrite::default()), "https://router/clusters/east", &[]).unwrap();
    assert_eq!(head.uri.to_string(), "/");
}

#[test]
fn nobody_can_say_who_they_are() {
    let head = rewritten(
        &forward(Rewrite::default()),
        "/api/v1/pods",
        &[
            ("host", "router"),
            ("authorization", "Bearer client"),
            ("x-remote-user", "root"),
            ("x-remote-extra-a", "b"),
            ("x-remote-extra-a", "c"),
            ("x-forwarded-for", "1.2.3.4"),
            ("x-real-ip", "1.2.3.4"),
            ("forwarded", "for=1.2.3.4"),
            ("impersonate-user", "root"),
            ("impersonate-group", "system:masters"),
            ("connection", "x-custom, close"),
            ("x-custom", "1"),
            ("keep-alive", "1"),
            ("te", "gzip, trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("trailer", "expires"),
            ("proxy-authenticate", "x"),
            ("proxy-authorization", "x"),
            ("proxy-connection", "keep-alive"),
            ("expect", "100-continue"),
            ("user-agent", "kubectl"),
            ("accept", "application/json;as=Table"),
        ],
    )
    .unwrap();
    let mut left: Vec<_> = head
        .headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    left.sort();
    assert_eq!(
        left,
        [
            "accept: application/json;as=Table",
            "authorization: Bearer t0k",
            "impersonate-user: system:serviceaccount:ns:sa",
            "te: trailers",
            "user-agent: kubectl",
        ]
    );
    assert!(head.headers[AUTHORIZATION].is_sensitive());
    assert!(!head.headers.contains_key(HOST) && !head.headers.contains_key(CONNECTION));
}

#[test]
fn upgrades_keep_their_headers_but_no_token() {
    let mut forward = forward(Rewrite::default());
    forward.traffic.class = TrafficClass::Upgrade;
    let head = rewritten(
        &forward,
        "/api/v1/namespaces/a/pods/p/exec?command=ls",
        &[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
            ("te", "trailers"),
            ("sec-websocket-key", "k"),
            (
                "sec-websocket-protocol",
                "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.dG9r",
            ),
        ],
    )
    .unwrap();
    assert_eq!(head.headers[CONNECTION], "Upgrade");
    assert_eq!(head.headers[UPGRADE], "websocket");
    assert_eq!(head.headers["sec-websocket-protocol"], "v5.channel.k8s.io");
    assert_eq!(head.headers["sec-websocket-key"], "k");
    assert!(!head.headers.contains_key(TE));
}

#[test]
fn fields_are_narrowed_and_the_clients_own_stay() {
    let forward = forward(Rewrite {
        fields: Some("involvedObject.namespace="),
        ..Rewrite::default()
    });
    for (asked, sent) in [("", ""), ("?fieldSelector=type%3DNormal", "type=Normal,")] {
        let head = rewritten(&forward, &format!("/api/v1/namespaces/default/events{asked}"), &[]).unwrap();
        let query = crate::value::classify::Query::new(head.uri.query());
        let fields = query.first("fieldSelector").unwrap().into_owned();
        assert_eq!(fields, format!("{sent}involvedObject.namespace="));
    }
}

#[test]
fn the_lease_is_renamed_in_path_and_query() {
    let lease = LeaseName {
        client: "op".into(),
        member: "op---blue".into(),
    };
    let forward = forward(Rewrite {
        lease: Some(lease),
        ..Rewrite::default()
    });
    let base = "/apis/coordination.k8s.io/v1/namespaces/ops/leases";
    let accept = [(
        "accept",
        "application/cbor, application/vnd.kubernetes.protobuf,application/json;q=0.9",
    )];
    let one = Forward {
        traffic: Traffic {
            class: TrafficClass::Unary,
            ..forward.traffic
        },
        ..forward.clone()
    };
    let head = rewritten(&one, &format!("{base}/op?timeout=5s"), &accept).unwrap();
    assert_eq!(head.uri.to_string(), format!("{base}/op---blue?timeout=5s"));
    assert_eq!(
        head.headers[ACCEPT],
        "application/vnd.kubernetes.protobuf,application/json;q=0.9"
    );
    // A list is renamed as it comes, which protobuf cannot be; for who takes nothing else it is gathered.
    let protobuf = "application/vnd.kubernetes.protobuf";
    for (accept, wanted) in [(accept[0].1, "application/json;q=0.9"), (protobuf, protobuf)] {
        let head = rewritten(&forward, base, &[("accept", accept)]).unwrap();
        assert_eq!(head.headers[ACCEPT], wanted);
    }
    let head = rewritten(
        &forward,
        &format!("{base}?fieldSelector=metadata.name%3Dop&limit=1"),
        &[],
    )
    .unwrap();
    assert_eq!(
        head.uri.to_string(),
        format!("{base}?fieldSelector=metadata.name%3Dop---blue&limit=1")
    );
    let legacy = base.replace("v1/", "v1/watch/");
    let head = rewritten(&forward, &format!("{legacy}/op"), &[]).unwrap();
    assert_eq!(head.uri.to_string(), format!("{legacy}/op---blue"));
    let head = rewritten(&forward, base, &[("accept", "application/cbor")]).unwrap();
    assert_eq!(
        (head.uri.to_string().as_str(), &head.headers[ACCEPT]),
        (base, &HeaderValue::from_static("application/json"))
    );
}

#[test]
fn a_lock_of_the_core_group_is_renamed_in_its_path() {
    let forward = forward(Rewrite {
        lease: Some(LeaseName {
            client: "op".into(),
            member: "op---blue".into(),
        }),
        ..Rewrite::default()
    });
    for base in [
        "/api/v1/namespaces/ops/configmaps",
        "/api/v1/watch/namespaces/ops/configmaps",
    ] {
        let head = rewritten(&forward, &format!("{base}/op"), &[]).unwrap();
        assert_eq!(head.uri.to_string(), format!("{base}/op---blue"));
    }
}

#[test]
fn what_has_the_locks_name_is_not_shown_beside_it() {
    let forward = forward(Rewrite {
        shown: Some(LeaseName {
            client: "op".into(),
            member: "op---blue".into(),
        }),
        ..Rewrite::default()
    });
    for (asked, sent) in [
        ("", ""),
        ("?fieldSelector=metadata.name!=op", "metadata.name!=op---blue,"),
    ] {
        let head = rewritten(&forward, &format!("/api/v1/namespaces/ops/configmaps{asked}"), &[]).unwrap();
        let query = crate::value::classify::Query::new(head.uri.query());
        let fields = query.first("fieldSelector").unwrap().into_owned();
        assert_eq!(fields, format!("{sent}metadata.name!=op"));
    }
}

#[test]
fn answers_are_cleaned_and_marked() {
    let mut forward = forward(Rewrite::default());
    forward.warning = Some("namespace \"x\" é\n".into());
    let answer = http::Response::builder()
        .header("connection", "x-a")
        .header("x-a", "1")
        .header("transfer-encoding", "chunked")
        .header("warning", "299 - \"theirs\"")
        .body(())
        .unwrap();
    let (mut head, ()) = answer.into_parts();
    rewrite_response(&forward, &mut head);
    assert_eq!(head.headers[VIA], "1.1 portolan");
    let warnings: Vec<_> = head.headers.get_all(WARNING).iter().collect();
    assert_eq!(
        warnings,
        ["299 - \"theirs\"", "299 portolan \"namespace \\\"x\\\" ??\""]
    );
    assert_eq!(head.headers.len(), 3);
}

fn terms() -> impl Strategy<Value = String> {
    let term = prop_oneof![
        "[ab]=[xy]",
        "[ab]!=[xy]",
        "!?[ab]",
        "[ab] in \\([xy],[xyz]\\)",
        "[ab] notin \\([xy]\\)"
    ];
    proptest::collection::vec(term, 0..3).prop_map(|terms| terms.join(","))
}

proptest! {
    #[test]
    fn narrowing_never_widens(shard in terms(), client in terms(), a in "[xyz]?", b in "[xyz]?") {
        let labels: BTreeMap<String, String> =
            [("a", a), ("b", b)].into_iter().filter(|(_, v)| !v.is_empty()).map(|(k, v)| (k.to_owned(), v)).collect();
        let (shard, client_selector) = (Selector::parse(&shard).unwrap(), Selector::parse(&client).unwrap());
        let sent = Selector::parse(&narrow(&shard, &client).unwrap().to_string()).unwrap();
        prop_assert_eq!(sent.matches(&labels), shard.matches(&labels) && client_selector.matches(&labels));
    }

    #[test]
    fn what_is_not_ours_keeps_its_order_and_bytes(pairs in proptest::collection::vec("[a-z;]{1,3}(=[a-z%+]{0,3})?", 0..6), at in 0_usize..6) {
        let mut all = pairs.clone();
        all.insert(at.min(all.len()), "labelSelector=q%3Dr".into());
        let head = rewritten(&selecting("app=foo"), &format!("/api/v1/pods?{}", all.join("&")), &[]).unwrap();
        let sent = head.uri.query().unwrap().to_owned();
        let rest: Vec<_> = sent.split('&').filter(|pair| !pair.starts_with("labelSelector=")).collect();
        prop_assert_eq!(rest, pairs.iter().map(String::as_str).collect::<Vec<_>>());
        prop_assert_eq!(label_selector(&head.uri), "app=foo,q=r");
    }
}

#[test]
fn nobody_says_where_the_client_is() {
    let head = rewritten(&forward(Rewrite::default()), "/api", &[("x-real-ip", "10.0.0.1")]).unwrap();
    assert!(
        !head.headers.contains_key("x-real-ip"),
        "it would stand in the member's audit log"
    );
}

#[test]
fn no_member_is_sent_a_cursor() {
    let cursor = "2".repeat(40);
    let asked = |path: &str| {
        let head = rewritten(&forward(Rewrite::default()), path, &[]).unwrap();
        head.uri.path_and_query().unwrap().to_string()
    };
    let path = "/api/v1/nodes/n";
    assert_eq!(
        asked(&format!(
            "{path}?a=b&resourceVersion={cursor}&resourceVersionMatch=Exact"
        )),
        format!("{path}?a=b")
    );
    let own = format!("{path}?resourceVersion=17");
    assert_eq!(asked(&own), own, "a member's own");
}

#[test]
fn a_write_says_for_which_owner_of_its_namespace_it_is_where_the_member_asks() {
    let says = |fenced| {
        let grant = WriteGrant {
            namespace: "ns-a".to_owned(),
            shard: "ops/blue".to_owned(),
            epoch: 4,
            fenced,
        };
        let forward = Forward {
            grant: Some(grant),
            ..forward(Rewrite::default())
        };
        let head = rewritten(&forward, "/api/v1/namespaces/ns-a/pods/x", &[]).unwrap();
        let value = |name: &str| {
            head.headers
                .get(name)
                .and_then(|value| value.to_str().ok().map(str::to_owned))
        };
        let extra = |key: &str| value(&format!("impersonate-extra-ctrlmesh.kusionstack.io%2f{key}"));
        (extra("shard"), extra("epoch"))
    };
    assert_eq!(says(true), (Some("ops/blue".to_owned()), Some("4".to_owned())));
    assert_eq!(says(false), (None, None));
}
