//! What a member's status says.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use portolan_crds::GroupResource;

use super::*;
use crate::facts::{MemberHistory, Token};
use crate::status::reach::Breakers;

#[test]
fn a_member_that_is_not_accepted_any_more_was_withdrawn() {
    let member = |uid: &str, accept| MemberObject {
        uid: uid.to_owned(),
        generation: 2,
        labels: std::collections::BTreeMap::new(),
        accept,
        problems: Vec::new(),
        in_force: None,
        status: MemberClusterStatus::default(),
    };
    let pin = Pin {
        member_uid: "one".to_owned(),
        cluster_uid: "c".to_owned(),
        signing_keys: Vec::new(),
        agent_keys: Vec::new(),
        history: MemberHistory::default(),
    };
    let found = |member| {
        let mut facts = Facts::default();
        facts.members.insert("east".to_owned(), member);
        facts.pins.insert("east".to_owned(), pin.clone());
        joined(&facts, "east", None)
    };
    let mut facts = Facts::default();
    facts.pins.insert("east".to_owned(), pin.clone());
    facts.members.insert("east".to_owned(), member("one", false));
    let sources = Sources {
        facts: &facts,
        world: &World::default(),
        routers: &Routers::new(),
        breakers: &Breakers::default(),
        now: Timestamp::now(),
    };
    let conditions = status(sources, "east", &member("one", false)).conditions;
    let said = |condition: &&Condition| condition.message.starts_with("withdrawn: ");
    assert_eq!(conditions.iter().filter(said).count(), 5, "{conditions:?}");
    let withdrawn = found(member("one", false));
    assert_eq!(
        (withdrawn.status, withdrawn.reason),
        (Some(false), ConditionReason::NotAccepted)
    );
    assert!(withdrawn.message.starts_with("withdrawn: "), "{}", withdrawn.message);
    assert_eq!(found(member("one", true)).status, Some(true));
    // A new object of the name has never had an agent.
    let anew = found(member("two", false));
    assert!(
        anew.message.starts_with("no agent has joined as east"),
        "{}",
        anew.message
    );
}

#[test]
fn after_a_restart_agents_have_time_to_return_whenever_they_were_written_of_last() {
    let now = Timestamp::from_second(1_000).unwrap();
    let may_return = |seconds: i64, members| {
        let last_heartbeat = unix(1_000 - seconds);
        let status = MemberClusterStatus {
            last_heartbeat,
            ..MemberClusterStatus::default()
        };
        may_return(&status, members, now)
    };
    assert!(may_return(50, 1) && !may_return(51, 1));
    assert!(may_return(100, 1_000) && !may_return(101, 1_000));
    assert!(may_return(-1, 1), "written by a clock that is ahead");
    assert!(!super::may_return(&MemberClusterStatus::default(), 1, now));
}

#[test]
fn each_router_is_looked_for_among_tokens() {
    let now = Timestamp::UNIX_EPOCH;
    let token = |expires_unix_seconds| Token {
        router_uid: String::new(),
        token: portolan_runtime::Secret::new("t".to_owned()),
        expires_unix_seconds,
    };
    let router = |name: &str| v1::RouterRef {
        name: name.to_owned(),
        uid: String::new(),
    };
    let routers = ["a", "b", "c"].map(router);
    let found = |tokens: &[(&str, i64)]| {
        let mut agent = AgentReport::default();
        for (name, expires) in tokens {
            std::sync::Arc::make_mut(&mut agent.tokens).insert((*name).into(), token(*expires).into());
        }
        let finding = credentials((None, Some(&agent)), &routers, now);
        (finding.reason, finding.message)
    };
    let (reason, message) = found(&[("0", 1), ("b", 0), ("c", 1), ("z", 1)]);
    assert_eq!(reason, ConditionReason::TokenExpired);
    assert!(message.contains("router b has"), "{message}");
    let (reason, message) = found(&[("aa", 1), ("b", 1)]);
    assert_eq!(reason, ConditionReason::WaitingForAgent);
    assert!(message.contains("router a, c since"), "{message}");
    let (_, message) = found(&[("a", 1), ("b", 1), ("bb", 0), ("c", 1)]);
    assert_eq!(message, "each router has its token");
}

#[test]
fn labels_are_synced_when_every_kind_says_so_and_there_is_one() {
    let coverage = |complete: &[bool]| {
        let kinds = complete.iter().enumerate().map(|(number, complete)| {
            let kind = GroupResource::new("", number.to_string());
            let coverage = v1::KindCoverage {
                complete: *complete,
                ..v1::KindCoverage::default()
            };
            (kind, coverage)
        });
        Some(kinds.collect())
    };
    for (coverage, holds) in [
        (None, None),
        (coverage(&[]), Some(false)),
        (coverage(&[true, false]), Some(false)),
        (coverage(&[true]), Some(true)),
    ] {
        let agent = AgentReport {
            coverage,
            ..AgentReport::default()
        };
        assert_eq!(labels(Some(&agent), false, &[]).status, holds);
        assert_eq!(labels(Some(&agent), true, &[]).status, None, "silent");
        let new = labels(Some(&agent), false, &["new".to_owned()]);
        assert_eq!(new.status, holds.map(|_| false), "{new:?}");
        assert_eq!(new.message.contains("new"), holds == Some(true), "{new:?}");
    }
}

#[test]
fn a_member_that_does_not_label_at_admission_is_not_said_to_be_labelled_for_ever() {
    let kind = |labelled, at_admission| v1::KindCoverage {
        labelled,
        total: 2,
        at_admission,
        ..v1::KindCoverage::default()
    };
    for (kinds, reason) in [
        (
            [kind(2, Some(false)), kind(2, Some(false))],
            ConditionReason::NotAtAdmission,
        ),
        ([kind(2, Some(false)), kind(1, Some(false))], ConditionReason::Labelling),
        ([kind(2, Some(false)), kind(2, None)], ConditionReason::Labelling),
    ] {
        let kinds = kinds.into_iter().enumerate();
        let coverage = kinds.map(|(number, kind)| (GroupResource::new("", number.to_string()), kind));
        let agent = AgentReport {
            coverage: Some(coverage.collect()),
            ..AgentReport::default()
        };
        let found = labels(Some(&agent), false, &[]);
        assert_eq!((found.status, found.reason), (Some(false), reason), "{found:?}");
    }
}
