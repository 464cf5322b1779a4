//! Scripted members; time is paused. Questions to the hub are tested with its stream, in `subscribe`.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::StatusCode;
use serde_json::{Value, json};

use super::*;
use crate::value::classify::Impersonation;

/// Allows what is asked about `names`, to `operator`.
struct Members {
    names: &'static [&'static str],
    asked: AtomicUsize,
}

impl MemberApi for Members {
    fn post(&self, cluster: &str, path: &'static str, _: Turn, body: Vec<u8>) -> BoxFuture<'static, MemberAnswer> {
        assert_eq!((cluster, path), ("east", SUBJECT_ACCESS_REVIEWS));
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut review: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(review["kind"], "SubjectAccessReview");
        let attributes = &review["spec"]["resourceAttributes"];
        assert_eq!(attributes["verb"], "impersonate");
        let allowed = review["spec"]["user"] == "system:serviceaccount:ns:operator"
            && self.names.iter().any(|name| attributes["name"] == *name);
        review["status"] = json!({"allowed": allowed});
        std::future::ready(Ok((StatusCode::CREATED, Bytes::from(review.to_string())))).boxed()
    }
}

/// Who asks.
pub(crate) fn anybody() -> Caller {
    Caller::Person {
        user: "anybody".to_owned(),
        groups: Vec::new(),
    }
}

fn access(names: &'static [&'static str]) -> (Access, Arc<Members>) {
    let members = Arc::new(Members {
        names,
        asked: AtomicUsize::new(0),
    });
    (Access::new(HubReviews::default(), members.clone()), members)
}

fn act_as(user: &str, groups: &[&str]) -> [Check; 1] {
    [Check::Impersonate {
        cluster: "east".to_owned(),
        user: "system:serviceaccount:ns:operator".to_owned(),
        groups: vec!["system:authenticated".to_owned()],
        wanted: Impersonation {
            user: user.to_owned(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            ..Impersonation::default()
        },
    }]
}

#[tokio::test(start_paused = true)]
async fn every_attribute_must_be_allowed() {
    let (access, _) = access(&["ada", "sre", "robot"]);
    assert_eq!(access.check(&anybody(), &act_as("ada", &["sre"])).await, Ok(()));
    assert_eq!(
        access
            .check(&anybody(), &act_as("system:serviceaccount:jobs:robot", &[]))
            .await,
        Ok(())
    );
    for (user, groups, part) in [
        ("bob", &["sre"][..], "users \"bob\""),
        ("ada", &["sre", "system:masters"], "groups \"system:masters\""),
        (
            "system:serviceaccount:jobs:other",
            &[],
            "serviceaccounts \"other\" in API group \"\" in namespace \"jobs\"",
        ),
    ] {
        match access.check(&anybody(), &act_as(user, groups)).await {
            Err(Fault::Forbidden(text)) => assert!(text.contains(part) && text.contains("east"), "{text}"),
            other => panic!("{user}: {other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_members_answer_lives_ten_seconds() {
    let (access, members) = access(&["ada"]);
    for _ in 0..3 {
        access.check(&anybody(), &act_as("ada", &[])).await.unwrap();
        access.check(&anybody(), &act_as("bob", &[])).await.unwrap_err();
    }
    assert_eq!(members.asked.load(Ordering::SeqCst), 2);
    tokio::time::sleep(MEMBER).await;
    access.check(&anybody(), &act_as("ada", &[])).await.unwrap();
    assert_eq!(members.asked.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn the_hubs_last_word_stands_for_an_hour_and_no_longer() {
    let question = ProxyQuestion {
        user: "ada".to_owned(),
        groups: Vec::new(),
        cluster: "east".to_owned(),
    };
    let check = [Check::HubProxy {
        user: "ada".to_owned(),
        groups: Vec::new(),
        cluster: "east".to_owned(),
    }];
    let (access, _) = access(&[]);
    assert!(
        matches!(access.check(&anybody(), &check).await, Err(Fault::HubAway(_))),
        "never asked before"
    );
    access.people.put(
        question.clone(),
        Decision {
            allowed: true,
            reason: String::new(),
        },
        Duration::ZERO,
    );
    tokio::time::sleep(HUB_AWAY / 2).await;
    assert_eq!(access.check(&anybody(), &check).await, Ok(()));
    tokio::time::sleep(HUB_AWAY / 2).await;
    assert!(matches!(access.check(&anybody(), &check).await, Err(Fault::HubAway(_))));
    access.people.put(
        question,
        Decision {
            allowed: false,
            reason: "RBAC".to_owned(),
        },
        Duration::ZERO,
    );
    tokio::time::sleep(HUB_NO).await;
    assert!(matches!(access.check(&anybody(), &check).await, Err(Fault::Forbidden(text)) if text.contains("RBAC")));
}

#[tokio::test]
async fn the_hubs_last_word_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let question = |user: &str| ProxyQuestion {
        user: user.to_owned(),
        groups: vec!["sre".to_owned()],
        cluster: "east".to_owned(),
    };
    let yes = || Decision {
        allowed: true,
        reason: String::new(),
    };
    let (before, _) = access(&[]);
    before.recall(folder.path());
    before.people.put(question("ada"), yes(), Duration::ZERO);
    before.people.put(question("bob"), yes(), HUB_AWAY);
    let tasks = portolan_runtime::Tasks::new();
    tasks.spawn("remember", before.remember(folder.path().to_owned(), tasks.clone()));
    // Nothing was put since: what is written at the end is what counts.
    assert!(tasks.shutdown(Duration::from_mins(1)).await.is_clean());

    let (after, _) = access(&[]);
    after.recall(folder.path());
    let check = |user: &str| {
        [Check::HubProxy {
            user: user.to_owned(),
            groups: vec!["sre".to_owned()],
            cluster: "east".to_owned(),
        }]
    };
    assert_eq!(after.check(&anybody(), &check("ada")).await, Ok(()));
    assert!(after.check(&anybody(), &check("bob")).await.is_err(), "too old");
    assert!(after.check(&anybody(), &check("eve")).await.is_err(), "never asked");
    std::fs::write(folder.path().join("people.json"), "[{").unwrap();
    let (spoilt, _) = access(&[]);
    spoilt.recall(folder.path());
    assert!(spoilt.check(&anybody(), &check("ada")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_remembered_is_written_later() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let (access, _) = access(&[]);
    let question = ProxyQuestion {
        user: "ada".to_owned(),
        groups: Vec::new(),
        cluster: "east".to_owned(),
    };
    let decision = Decision {
        allowed: true,
        reason: String::new(),
    };
    access.people.put(question, decision, Duration::ZERO);
    let tasks = portolan_runtime::Tasks::new();
    tasks.spawn("remember", access.remember(missing.clone(), tasks.clone()));
    tokio::time::sleep(Duration::from_secs(3)).await;
    std::fs::create_dir(&missing).unwrap();
    assert!(tasks.shutdown(Duration::from_mins(1)).await.is_clean());
    assert!(missing.join("people.json").exists());
}

#[tokio::test]
async fn decisions_are_bounded_in_number() {
    let kept = Kept::new(2, MEMBER);
    for number in 0..5 {
        let decision = Decision {
            allowed: true,
            reason: String::new(),
        };
        kept.put(number, decision, Duration::ZERO);
    }
    kept.settle();
    let found: Vec<_> = (0..5).filter(|number| kept.get(number, |_| MEMBER).is_some()).collect();
    assert_eq!(found, [3, 4]);
}

/// Counts who asks at the same time, and whose turn it is.
#[derive(Default)]
struct Slow {
    asking: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl MemberApi for Slow {
    fn post(&self, _: &str, _: &'static str, turn: Turn, body: Vec<u8>) -> BoxFuture<'static, MemberAnswer> {
        assert_eq!(turn, Turn::InOrder(Flow::of(&anybody())), "it delays nobody else's");
        let (asking, most) = (self.asking.clone(), self.most.clone());
        async move {
            most.fetch_max(asking.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(5)).await;
            asking.fetch_sub(1, Ordering::SeqCst);
            let mut review: Value = serde_json::from_slice(&body).unwrap();
            review["status"] = json!({"allowed": true});
            Ok((StatusCode::CREATED, Bytes::from(review.to_string())))
        }
        .boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn one_request_asks_a_member_a_few_questions_at_a_time() {
    let members = Arc::new(Slow::default());
    let access = Access::new(HubReviews::default(), members.clone());
    let groups: Vec<_> = (0..32).map(|number| number.to_string()).collect();
    let groups: Vec<_> = groups.iter().map(String::as_str).collect();
    access.check(&anybody(), &act_as("ada", &groups)).await.unwrap();
    assert_eq!(members.most.load(Ordering::SeqCst), AT_ONCE);
}

#[tokio::test(start_paused = true)]
async fn what_runs_ends_when_its_right_is_taken_away() {
    let question = ProxyQuestion {
        user: "ada".to_owned(),
        groups: Vec::new(),
        cluster: "east".to_owned(),
    };
    let decided = |access: &Access, allowed| {
        let reason = String::new();
        access
            .people
            .put(question.clone(), Decision { allowed, reason }, Duration::ZERO);
    };
    let (access, _) = access(&[]);
    decided(&access, true);
    let began = tokio::time::Instant::now();
    let mut running = Box::pin(access.revoked(question.clone()));
    // The hub is away, and its last word was yes.
    assert!(tokio::time::timeout(HUB_AWAY / 2, &mut running).await.is_err());
    decided(&access, false);
    let taken = tokio::time::Instant::now();
    assert!(matches!(running.await, Fault::Forbidden(text) if text.contains("proxy")));
    assert!(taken.elapsed() < Duration::from_mins(1));

    decided(&access, true);
    let fault = access.revoked(question.clone()).await;
    assert!(matches!(fault, Fault::HubAway(_)), "{fault}");
    assert!(began.elapsed() > HUB_AWAY, "as long as it may begin anew");
}
