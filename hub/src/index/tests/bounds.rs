//! What one agent may report, in number and in size.

use super::*;

#[test]
fn one_agent_cannot_feed_the_hub_without_bound() {
    let mut facts = Facts::default();
    facts.agent_connected("east", 1, &v1::AgentHello::default());
    let namespaces = |reset, names: std::ops::Range<u32>, removed: &[&str]| {
        let upserted = names.map(|n| v1::NamespaceFact {
            name: format!("ns-{n}"),
            ..Default::default()
        });
        Report::Namespaces(v1::NamespaceDelta {
            reset,
            upserted: upserted.collect(),
            removed: removed.iter().map(|name| (*name).to_owned()).collect(),
            ..v1::NamespaceDelta::default()
        })
    };
    folded(&mut facts, 1, namespaces(true, 0..50_000, &[]));
    let before = facts.clone();
    let more = facts.apply_report("east", 1, namespaces(false, 49_999..50_001, &[]));
    assert!(matches!(more, Err(OutOfBounds::TooMany { .. })), "{more:?}");
    assert_eq!(facts, before, "what was known stays");
    folded(&mut facts, 1, namespaces(false, 49_999..50_001, &["ns-0", "ns-0"]));
    folded(&mut facts, 1, namespaces(true, 0..1, &[]));
    let kinds = |reset, names: std::ops::Range<u32>| {
        let upserted = names.map(|n| v1::CoverageFact {
            kind: Some(v1::KindRef {
                group: "example.com".into(),
                resource: format!("kind{n}"),
            }),
            ..Default::default()
        });
        Report::Coverage(v1::CoverageDelta {
            reset,
            upserted: upserted.collect(),
            removed: Vec::new(),
            ..v1::CoverageDelta::default()
        })
    };
    folded(&mut facts, 1, kinds(true, 0..5_000));
    assert!(facts.apply_report("east", 1, kinds(false, 5_000..5_001)).is_err());
}

/// A namespace of so many epochs.
fn open(epochs: u64) -> Report {
    let fact = v1::NamespaceFact {
        name: "open".to_owned(),
        epochs: (1..=epochs).collect(),
        ..Default::default()
    };
    Report::Namespaces(v1::NamespaceDelta {
        upserted: vec![fact],
        ..v1::NamespaceDelta::default()
    })
}

#[test]
fn what_no_api_server_gives_out_is_refused() {
    let mut facts = Facts::default();
    facts.agent_connected("east", 1, &v1::AgentHello::default());
    let namespace = |name: &str, label: usize| {
        Report::Namespaces(v1::NamespaceDelta {
            reset: true,
            upserted: vec![v1::NamespaceFact {
                name: name.to_owned(),
                labels: [("key".to_owned(), "x".repeat(label))].into(),
                ..Default::default()
            }],
            removed: Vec::new(),
            ..v1::NamespaceDelta::default()
        })
    };
    let allowed = |length: usize| {
        Report::Allowed(v1::Allowed {
            service_accounts: vec!["x".repeat(length)],
            users: Vec::new(),
            extras: Vec::new(),
            fence_lists: false,
        })
    };
    let router = gateway(&mut facts);
    let token = |length: usize| {
        Report::Token(v1::MemberToken {
            token: "x".repeat(length),
            expires_unix_seconds: 1,
            router: Some(router.clone()),
        })
    };
    let refused = [
        namespace(&"x".repeat(1 << 20), 1),
        namespace("../ns", 1),
        open(257),
        allowed(1 << 20),
        token(1 << 20),
    ];
    for report in refused {
        let refusal = facts.apply_report("east", 1, report).unwrap_err();
        assert!(refusal.to_string().len() < 300, "{refusal}");
    }
    for report in [namespace("ns", 63), open(256), allowed(63), token(2_000)] {
        assert_eq!(folded(&mut facts, 1, report), Change::Compile);
    }
    folded(&mut facts, 1, namespace("ns", 1 << 20));
    let namespaces = facts.agents["east"].namespaces.as_ref().unwrap();
    assert!(
        namespaces["ns"].labels.is_empty() && namespaces["ns"].labels_cut > 1 << 20,
        "one object's labels cost the object"
    );
    let beat = v1::Heartbeat {
        message: "é".repeat(1 << 20),
        ..Default::default()
    };
    folded(&mut facts, 1, Report::Heartbeat(beat, Timestamp::UNIX_EPOCH));
    let known = facts.agents["east"].heartbeat.as_ref().unwrap();
    assert_eq!(known.message.len(), 1024);
}

/// An agent of an earlier release tells the texts of selectors, as many and as long as there are.
#[test]
fn whose_pods_are_too_many_is_known_by_digests_and_never_too_much() {
    let mut facts = Facts::default();
    facts.agent_connected("east", 1, &v1::AgentHello::default());
    let text = |at: usize| format!("app in ({at},{})", "x".repeat(57_000));
    let cut = |at: usize| v1::ExcessSelector {
        namespace: "evil".to_owned(),
        selector: if at < 10 { text(at) } else { at.to_string() },
        matched: 520,
        told: 500,
        fault: "y".repeat(10_000),
        ..v1::ExcessSelector::default()
    };
    let told = v1::CallerExcess {
        selectors: (0..100_000).map(cut).collect(),
    };
    folded(&mut facts, 1, Report::Excess(told));
    let known = &facts.agents["east"].excess;
    assert!((1..=2_000).contains(&known.len()));
    assert_eq!(known[3].digest, portolan_crds::selector::digest_of(&text(3)));
    let bytes: usize = known.iter().map(prost::Message::encoded_len).sum();
    assert!(bytes < 1 << 20, "{bytes}");
}
