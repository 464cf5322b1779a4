//! Which Pods are told, of which selectors, and what holds back what.

use super::*;

fn pod(uid: &str) -> FactMap<String, CallerFact> {
    pod_with(uid, &[])
}

fn pod_with(uid: &str, volumes: &[&str]) -> FactMap<String, CallerFact> {
    let volumes: Vec<_> = volumes
        .iter()
        .map(|name| serde_json::json!({"name": name, "emptyDir": {}}))
        .collect();
    let mut facts = FactMap::new();
    let pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "operator-0", "namespace": "ops", "uid": uid, "labels": {"app": "operator"},
                     "creationTimestamp": "2026-11-23T06:00:00Z"},
        "spec": {"serviceAccountName": "operator", "containers": [{"name": "c", "image": "i"}], "volumes": volumes},
        "status": {"phase": "Running", "podIP": "10.0.0.1"}
    });
    insert(&mut facts, serde_json::from_value(pod).unwrap());
    facts
}

fn selector(text: &str) -> CallerSelector {
    selector_in("ops", text)
}

fn selector_in(namespace: &str, text: &str) -> CallerSelector {
    CallerSelector {
        namespace: namespace.into(),
        selector: text.into(),
        digest: text.into(),
    }
}

fn listed(pods: FactMap<String, CallerFact>) -> Seen {
    Seen {
        pods,
        stage: Stage::Listed,
    }
}

fn names(pods: &FactMap<String, CallerFact>) -> Vec<&str> {
    pods.keys().map(String::as_str).collect()
}

#[test]
fn a_fact_is_what_the_wire_asks_for() {
    let facts = pod("u1");
    let fact = &facts["u1"];
    assert_eq!((fact.namespace.as_str(), fact.pod.as_str()), ("ops", "operator-0"));
    assert_eq!(
        (fact.service_account.as_str(), fact.phase.as_str()),
        ("operator", "Running")
    );
    assert_eq!(fact.labels["app"], "operator");
    assert_eq!(fact.created_unix_seconds, Some(1_795_413_600));
    assert_eq!(fact.pointed, Some(false));
    assert_eq!(pod_with("u1", &["data"])["u1"].pointed, Some(false));
    assert_eq!(pod_with("u1", &["data", VOLUME_ACCOUNT])["u1"].pointed, Some(true));
}

#[test]
fn a_pod_goes_when_the_last_selector_loses_it() {
    let mut seen = FactsBySelector::from([
        (selector("a=1"), listed(pod("u1"))),
        (selector("b=2"), listed(pod("u1"))),
    ]);
    let told = union(&mut seen);
    assert_eq!((names(&told.pods), told.pending.len()), (vec!["u1"], 0));
    seen.insert(selector("a=1"), listed(FactMap::new()));
    assert_eq!(names(&union(&mut seen).pods), ["u1"]);
    seen.insert(selector("b=2"), listed(FactMap::new()));
    assert_eq!(union(&mut seen), Union::default());
    assert_eq!(union(&mut FactsBySelector::new()), Union::default());
}

/// As by a list that is never answered, or refused for ever.
#[test]
fn a_selector_that_cannot_be_listed_holds_back_nobody_elses_pods() {
    let mut seen = FactsBySelector::from([
        (selector("a=1"), listed(pod("u1"))),
        (selector("b=2"), Seen::default()),
        (selector_in("others", "c=3"), listed(pod("u3"))),
    ]);
    let told = union(&mut seen);
    assert_eq!(names(&told.pods), ["u1", "u3"]);
    assert_eq!(told.pending, ["ops".to_owned()].into(), "of `others` all is known");
    assert!(told.excess.selectors.is_empty(), "an API server may be busy");
    for _ in 0..=TRIES_UNTOLD {
        seen.get_mut(&selector("b=2")).unwrap().failed("x".repeat(10_000));
    }
    let told = union(&mut seen).excess.selectors;
    assert_eq!((told.len(), told[0].digest.as_str()), (1, "b=2"));
    assert_eq!(told[0].fault, "x".repeat(FAULT_MAX_BYTES));
    *seen.get_mut(&selector("b=2")).unwrap() = listed(pod("u2"));
    let told = union(&mut seen);
    assert_eq!((names(&told.pods), told.pending.len()), (vec!["u1", "u2", "u3"], 0));
    assert!(told.excess.selectors.is_empty());
}

#[test]
fn what_an_edited_selector_saw_stays_until_the_new_one_is_listed() {
    let mut seen = FactsBySelector::new();
    ask(&mut seen, &[selector("a=1"), selector_in("others", "c=3")].into());
    for (selector, uid) in [(selector("a=1"), "u1"), (selector_in("others", "c=3"), "u3")] {
        *seen.get_mut(&selector).unwrap() = listed(pod(uid));
    }
    ask(&mut seen, &[selector("a in (1,2)")].into());
    let told = union(&mut seen);
    assert_eq!(names(&told.pods), ["u1"], "nothing is asked for in `others`");
    assert_eq!(told.pending, ["ops".to_owned()].into());
    *seen.get_mut(&selector("a in (1,2)")).unwrap() = listed(pod("u2"));
    assert_eq!(names(&union(&mut seen).pods), ["u2"]);
    assert_eq!(seen.len(), 1, "what is retired is forgotten");
}

/// As by an author whose other selector is refused by the API server.
#[test]
fn selectors_that_are_edited_all_the_time_leave_no_more_behind_than_may_be_told() {
    let mut seen = FactsBySelector::new();
    for edit in 0..1_000 {
        let now = selector(&format!("edit={edit}"));
        ask(&mut seen, &[now.clone(), selector("refused")].into());
        if edit % 2 == 0 {
            *seen.get_mut(&now).unwrap() = listed(many(&format!("e{edit}"), 20, &[]));
        }
    }
    assert_eq!(seen.len(), 3, "two that are asked for, and what is left of others");
    let kept: usize = seen.values().map(|seen| seen.pods.len()).sum();
    assert_eq!(kept, MOST_OF_ALL);
    let told = union(&mut seen);
    assert!((4_000..=MOST_OF_ALL).contains(&told.pods.len()), "{}", told.pods.len());
    assert!(told.excess.selectors.is_empty(), "nobody asks for them");
    *seen.get_mut(&selector("refused")).unwrap() = listed(FactMap::new());
    *seen.get_mut(&selector("edit=999")).unwrap() = listed(pod("u1"));
    assert_eq!((names(&union(&mut seen).pods), seen.len()), (vec!["u1"], 2));
}

fn many(prefix: &str, count: usize, labels: &[(&str, usize)]) -> FactMap<String, CallerFact> {
    let fact = |at: usize| CallerFact {
        created_unix_seconds: i64::try_from(count - at).ok(),
        labels: labels
            .iter()
            .map(|(key, bytes)| ((*key).to_owned(), "v".repeat(*bytes)))
            .collect(),
        ..CallerFact::default()
    };
    (0..count)
        .map(|at| (format!("{prefix}-{at}"), Arc::new(fact(at))))
        .collect()
}

#[test]
fn who_makes_thousands_of_pods_is_cut_and_others_are_not() {
    let pods = |prefix: &str, count| listed(many(prefix, count, &[]));
    let mut seen = FactsBySelector::from([
        (selector("app=flood"), pods("flood", 5_001)),
        (selector("app=few"), pods("few", 3)),
    ]);
    let Union { pods: told, excess, .. } = union(&mut seen);
    assert_eq!(told.len(), MOST_OF_SELECTOR + 3);
    assert!(
        told.contains_key("flood-5000") && !told.contains_key("flood-0"),
        "the oldest"
    );
    let ExcessSelector {
        selector: cut,
        matched,
        told: kept,
        ..
    } = &excess.selectors[0];
    assert_eq!(
        (excess.selectors.len(), cut.as_str(), *matched, *kept),
        (1, "app=flood", 5_001, 500)
    );
    for shard in 0..40 {
        seen.insert(selector(&format!("app=s{shard}")), pods(&format!("s{shard}"), 200));
    }
    let Union { pods: told, excess, .. } = union(&mut seen);
    assert!((4_900..=MOST_OF_ALL).contains(&told.len()), "{}", told.len());
    assert!((0..3).all(|at| told.contains_key(&format!("few-{at}"))));
    assert_eq!(excess.selectors.len(), 41, "all that have more than their part");
    // Another namespace has its own part, however many selectors there are here.
    seen.insert(selector_in("others", "app=mine"), pods("mine", 400));
    let Union { pods: told, excess, .. } = union(&mut seen);
    assert!(told.len() <= MOST_OF_ALL, "{}", told.len());
    assert!((0..400).all(|at| told.contains_key(&format!("mine-{at}"))));
    assert!(excess.selectors.iter().all(|cut| cut.namespace == "ops"));
}

#[test]
fn pods_count_by_their_labels_so_that_a_report_of_all_is_small() {
    let fat = many("fat", 72, &[("k", 60 * 1024)]);
    let mut seen = FactsBySelector::from([
        (selector("app=fat"), listed(fat)),
        (selector_in("others", "app=mine"), listed(many("mine", 400, &[]))),
    ]);
    let told = union(&mut seen);
    assert_eq!(told.pods.len(), 400 + 500 / 16);
    assert_eq!(
        (told.excess.selectors[0].matched, told.excess.selectors[0].told),
        (72, 31)
    );
}

#[test]
fn one_namespace_does_not_fill_what_is_told_of_excess() {
    let cut = |namespace: &str, at: usize| ExcessSelector {
        namespace: namespace.to_owned(),
        digest: at.to_string(),
        ..ExcessSelector::default()
    };
    let mut excess: Vec<_> = (0..10_000).map(|at| cut("evil", at)).collect();
    excess.extend((0..3).map(|at| cut("others", at)));
    in_turn(&mut excess);
    assert_eq!(excess.len(), EXCESS_MAX);
    assert_eq!(excess.iter().filter(|cut| cut.namespace == "others").count(), 3);
}

#[test]
fn a_pod_that_has_ended_calls_nobody() {
    let mut facts = pod("u1");
    let ended = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator-0", "namespace": "ops", "uid": "u1"},
        "spec": {}, "status": {"phase": "Succeeded"}
    });
    insert(&mut facts, serde_json::from_value(ended).unwrap());
    assert!(facts.is_empty());
}
