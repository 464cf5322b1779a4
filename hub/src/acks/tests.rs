//! What routers acknowledge, hold and may have told.

use portolan_wire::protocol::UNDER_WAY_FOR;
use portolan_wire::v1;

use super::*;

#[tokio::test(start_paused = true)]
async fn the_slowest_router_counts_until_it_is_forgotten() {
    let acks = Acks::default();
    assert_eq!(acks.released(BTreeSet::new()).by_all, u64::MAX, "nobody was ever there");
    acks.expect_returns();
    assert_eq!(acks.released(BTreeSet::new()).by_all, 0, "routers may come back");
    tokio::time::advance(RETURN_GRACE).await;
    assert_eq!(acks.released(BTreeSet::new()).by_all, u64::MAX, "nobody is there");
    assert!(acks.connected("a", RouterState::new(1, BTreeMap::new())));
    assert!(acks.connected("b", RouterState::new(2, BTreeMap::new())));
    assert!(!acks.connected("a", RouterState::new(3, BTreeMap::new())), "a is here");
    acks.update("a", 1, |state| state.acked_run = 7);
    assert_eq!(acks.released(BTreeSet::new()).by_all, 0);
    acks.update("b", 1, |state| state.acked_run = 9);
    assert_eq!(
        acks.released(BTreeSet::new()).by_all,
        0,
        "an earlier stream of b has no say"
    );
    acks.update("b", 2, |state| {
        state.acked_run = 5;
        state.left = Some(Instant::now());
    });
    assert_eq!(acks.released(BTreeSet::new()).by_all, 5);
    tokio::time::advance(FORGOTTEN_AFTER).await;
    assert_eq!(acks.released(BTreeSet::new()).by_all, 7);
}

/// One that says no more than that it ends may come back and serve by its folder before it has heard the hub.
#[tokio::test(start_paused = true)]
async fn a_router_of_which_nothing_is_left_counts_for_nothing() {
    let shard: ShardName = "ops/a".parse().unwrap();
    let holds = || RouterState {
        acked_run: 5,
        offered: [shard.clone()].into(),
        ..RouterState::new(2, [(Ref::Shard(shard.clone()), String::new())].into())
    };
    for (gone, run) in [(false, 5), (true, 7)] {
        let acks = Acks::default();
        acks.connected("a", RouterState::new(1, BTreeMap::new()));
        acks.update("a", 1, |state| state.acked_run = 7);
        acks.connected("b", holds());
        acks.update("b", 2, |state| _ = state.end(gone));
        acks.update("b", 2, |state| state.left = Some(Instant::now()));
        let released = acks.released([shard.clone()].into());
        assert_eq!((released.by_all, released.of(&shard)), (run, run), "{gone}");
        assert_eq!(acks.lock_users_away().is_nobody(), gone);
        let pair = ("east".to_owned(), "ns".to_owned(), 1);
        assert!(
            acks.read(|routers| routers["b"].is_answered(&pair)),
            "all writes are over"
        );
        // Another Pod of the name has to say what it holds.
        assert!(acks.connected("b", RouterState::new(3, BTreeMap::new())));
        assert_eq!(acks.released(BTreeSet::new()).by_all, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_is_waited_for_any_more_once_all_known_routers_are_back() {
    let acks = Acks::default();
    let known = ["a".to_owned(), "b".to_owned()];
    assert!(acks.connected("a", RouterState::new(1, BTreeMap::new())));
    acks.update("a", 1, |state| state.left = Some(Instant::now()));
    tokio::time::advance(Duration::from_secs(1)).await;
    acks.expect_returns();
    let is_over = || {
        acks.hear_returns(known.iter(), None);
        *acks.returning_until.read() <= Instant::now()
    };
    assert!(acks.connected("b", RouterState::new(2, BTreeMap::new())));
    assert!(!is_over(), "of a it is known what it had before");
    assert!(acks.connected("a", RouterState::new(3, BTreeMap::new())));
    assert!(is_over());
    assert_eq!(acks.released(BTreeSet::new()).by_all, 0, "both have to acknowledge");
}

#[tokio::test(start_paused = true)]
async fn writes_sent_under_an_earlier_hub_are_known_to_be_answered_if_it_told_of_all_who_sent_them() {
    let (pair, known) = (("east".to_owned(), "ns".to_owned(), 3), ["a".to_owned()]);
    let told = |told: Option<Duration>, gone: Option<Instant>, is_noted: bool| {
        let acks = Acks::default();
        if let Some(known_for) = told {
            acks.inherit_known_for(known_for);
        }
        assert_eq!(acks.known_for(None), told.unwrap_or_default(), "it has just won");
        acks.begin(false);
        let state = RouterState {
            earlier_answered: true,
            is_noted,
            answered: [pair.clone()].into(),
            ..RouterState::new(1, BTreeMap::new())
        };
        assert!(acks.connected("a", state));
        assert!(!acks.are_answered(&"ops/a".parse().unwrap(), &pair), "others may come");
        assert_eq!(acks.known_for(None), told.unwrap_or_default(), "whoever comes");
        acks.hear_returns(known.iter(), gone);
        acks
    };
    let answered = |acks: &Acks| acks.are_answered(&"ops/a".parse().unwrap(), &pair);
    tokio::time::advance(KNOWN_FOR_MAX).await;
    let all = told(Some(FORGOTTEN_AFTER), None, true);
    assert!(answered(&all));
    assert_eq!(all.known_for(None), FORGOTTEN_AFTER, "for the one after it");
    assert!(!answered(&told(None, None, true)), "it told nothing");
    let less = FORGOTTEN_AFTER.checked_sub(Duration::from_secs(1)).unwrap();
    assert!(!answered(&told(Some(less), None, true)));
    let gone = told(Some(FORGOTTEN_AFTER), Some(Instant::now()), true);
    assert!(!answered(&gone), "one is gone since");
    assert_eq!(gone.known_for(None), Duration::ZERO);
    let copy = told(Some(FORGOTTEN_AFTER), None, false);
    assert!(!answered(&copy), "its folder may be a copy");
    tokio::time::advance(UNDER_WAY_FOR).await;
    assert!(answered(&copy));
    let first = Acks::default();
    first.begin(true);
    assert_eq!(first.known_for(None), KNOWN_FOR_MAX);
    // What is made under this hub nobody had before.
    let fresh = |is_new| RouterState {
        earlier_answered: true,
        is_new,
        answered: [pair.clone()].into(),
        ..RouterState::new(2, BTreeMap::new())
    };
    let later = told(Some(FORGOTTEN_AFTER), None, true);
    assert!(later.connected("new", fresh(true)) && answered(&later));
    assert!(later.connected("another", fresh(false)) && !answered(&later));
    let long_after = told(Some(FORGOTTEN_AFTER), None, true);
    tokio::time::advance(UNDER_WAY_FOR).await;
    assert!(long_after.connected("another", fresh(false)) && answered(&long_after));
}

#[test]
fn a_router_of_some_shards_counts_for_what_it_holds_or_is_sent() {
    let shard = |name: &str| -> ShardName { format!("ops/{name}").parse().unwrap() };
    let owned = |name: &str| Ref::Ownership {
        cluster: "east".to_owned(),
        shard: shard(name),
    };
    let acks = Acks::default();
    acks.connected("gateway", RouterState::new(1, BTreeMap::new()));
    let part = RouterState {
        subscription: Subscription::Shards([shard("a"), shard("b")].into()),
        offered: [shard("b")].into(),
        ..RouterState::new(2, [(owned("a"), String::new())].into())
    };
    acks.connected("part", part);
    acks.update("gateway", 1, |state| state.acked_run = 7);
    acks.update("part", 2, |state| state.acked_run = 3);
    let released = acks.released([shard("a"), shard("b"), shard("c")].into());
    let runs: Vec<_> = ["a", "b", "c"].map(|name| released.of(&shard(name))).into();
    assert_eq!((released.by_all, runs), (3, vec![3, 3, 7]));
}

#[tokio::test(start_paused = true)]
async fn cursors_are_written_as_all_routers_of_an_hour_read_them() {
    let older = || RouterState {
        reads_views: false,
        ..RouterState::new(1, BTreeMap::new())
    };
    let (one, two) = (CursorFormat::One, CursorFormat::Two);
    let acks = Acks::default();
    acks.connected("new", RouterState::new(2, BTreeMap::new()));
    assert_eq!(acks.cursor_format(two), two, "as the hub of before has stored it");
    assert_eq!(acks.cursor_format(one), one, "nobody knows who was here before");
    tokio::time::advance(READERS_WITHIN).await;
    assert_eq!(acks.cursor_format(one), two);
    acks.connected("old", older());
    assert_eq!(acks.cursor_format(two), one);
    acks.update("old", 1, |state| state.left = Some(Instant::now()));
    assert_eq!(acks.cursor_format(two), one);
    tokio::time::advance(FORGOTTEN_AFTER).await;
    acks.released(BTreeSet::new());
    assert_eq!(acks.cursor_format(one), one, "forgotten, and not an hour ago");
    tokio::time::advance(READERS_WITHIN).await;
    assert_eq!(acks.cursor_format(one), two);
}

#[tokio::test(start_paused = true)]
async fn a_router_is_alone_once_all_others_are_forgotten() {
    let second = Duration::from_secs(1);
    let acks = Acks::default();
    let of_shard = |epoch, name: &str| RouterState {
        subscription: Subscription::Shards([format!("ops/{name}").parse().unwrap()].into()),
        ..RouterState::new(epoch, BTreeMap::new())
    };
    acks.connected("a", of_shard(1, "a"));
    acks.connected("b", of_shard(2, "b"));
    assert_eq!(
        acks.alone_for("a"),
        Duration::MAX,
        "there was never another one of its callers"
    );
    acks.connected("c", of_shard(3, "a"));
    assert_eq!(acks.alone_for("a"), Duration::ZERO);
    assert_eq!(acks.alone_for("b"), Duration::MAX);
    acks.update("c", 3, |state| state.left = Some(Instant::now()));
    tokio::time::advance(FORGOTTEN_AFTER).await;
    assert_eq!(acks.alone_for("a"), Duration::ZERO);
    acks.released(BTreeSet::new());
    tokio::time::advance(second).await;
    assert_eq!(acks.alone_for("a"), second);
    acks.update("a", 1, |state| state.left = Some(Instant::now()));
    acks.connected("a", of_shard(4, "a"));
    assert_eq!(
        acks.alone_for("a"),
        Duration::ZERO,
        "another program of the name was there"
    );

    let later = Acks::default();
    later.expect_returns();
    later.connected("a", RouterState::new(1, BTreeMap::new()));
    tokio::time::advance(FORGOTTEN_AFTER).await;
    assert_eq!(
        later.alone_for("a"),
        Duration::ZERO,
        "others of before may not have come back"
    );
    tokio::time::advance(second).await;
    assert_eq!(later.alone_for("a"), second);
}

#[tokio::test(start_paused = true)]
async fn until_when_a_member_answered_is_known_only_while_all_routers_are_heard() {
    let acks = Acks::default();
    let target = Ref::Target("east".to_owned());
    let holding = |epoch| RouterState::new(epoch, [(target.clone(), String::new())].into());
    let tell = |router: &str, epoch, until| {
        let reported = Reported {
            answered: Answered::east(until),
            ..Reported::default()
        };
        acks.reported(router, epoch, reported);
    };
    let until = || acks.answered_until("a", "east", 1_000);
    acks.connected("a", holding(1));
    acks.connected("b", holding(2));
    tell("a", 1, 100);
    assert_eq!(until(), None, "b has not told");
    tell("b", 2, 200);
    assert_eq!(until(), Some(200));
    tokio::time::advance(HEARD_WITHIN).await;
    tell("a", 1, 300);
    assert_eq!(until(), None, "the line of b is dead");
    tell("b", 2, 200);
    assert_eq!(until(), Some(300));
    acks.update("b", 2, |state| state.left = Some(Instant::now()));
    assert_eq!(until(), None);
    acks.connected("b", RouterState::new(3, BTreeMap::new()));
    assert_eq!(until(), None, "what an earlier b had does not count as nothing");
    tell("b", 3, 400);
    assert_eq!(until(), Some(400));
    // One that is never told of the member.
    acks.update("b", 3, |state| state.left = Some(Instant::now()));
    acks.connected("b", RouterState::new(4, BTreeMap::new()));
    tokio::time::advance(FORGOTTEN_AFTER).await;
    tell("a", 1, 300);
    assert_eq!(until(), Some(400), "600 s ago");
}

#[tokio::test]
async fn a_ledger_that_was_set_back_is_noticed() {
    let acks = Acks::default();
    assert!(acks.connected("a", RouterState::new(1, BTreeMap::new())));
    let seen = LedgerPosition {
        incarnation: "one".to_owned(),
        view_revision: 8,
    };
    acks.update("a", 1, |state| state.seen = seen);
    assert!(acks.have_seen_beyond("one", 7));
    assert!(!acks.have_seen_beyond("one", 8));
    assert!(!acks.have_seen_beyond("another", 7), "of an earlier life");
    acks.update("a", 1, |state| {
        state.subscription = Subscription::Shards(["ops/a".parse().unwrap()].into());
    });
    assert!(!acks.have_seen_beyond("one", 7), "a router of one shard says so");
}

#[tokio::test]
async fn how_rules_stand_wakes_who_looks_at_rules_and_nobody_else() {
    let acks = Acks::default();
    acks.connected("r", RouterState::new(1, BTreeMap::new()));
    let (mut others, mut rules) = (acks.changes(), acks.status_changes());
    let mut said = |epoch, of: &[(&str, bool, u64)]| {
        rules.mark_unchanged();
        others.mark_unchanged();
        let states = of.iter().map(|(rule, opened, last_minute)| v1::RuleState {
            rule: (*rule).to_owned(),
            opened: *opened,
            last_minute: *last_minute,
            ..v1::RuleState::default()
        });
        let report = RuleReport {
            states: states.collect(),
            ..RuleReport::default()
        };
        acks.policies_reported("r", epoch, report);
        assert!(!others.has_changed().unwrap(), "nothing that is granted depends on it");
        rules.has_changed().unwrap()
    };
    assert!(said(1, &[("a", false, 1)]), "it did something for the first time");
    assert!(said(1, &[("a", true, 1), ("b", false, 1)]));
    assert!(!said(1, &[("b", false, 9), ("a", true, 2)]), "figures, and their order");
    assert!(!said(2, &[]), "another stream's");
    assert!(said(1, &[]));
}

#[tokio::test]
async fn what_a_router_said_of_rules_stands_until_it_speaks_on_its_next_stream() {
    let acks = Acks::default();
    acks.connected("r", RouterState::new(1, BTreeMap::new()));
    let opened = v1::RuleState {
        rule: "a".to_owned(),
        opened: true,
        ..v1::RuleState::default()
    };
    let report = RuleReport {
        states: vec![opened],
        ..RuleReport::default()
    };
    acks.policies_reported("r", 1, report.clone());
    acks.update("r", 1, |state| state.left = Some(Instant::now()));
    acks.connected("r", RouterState::new(2, BTreeMap::new()));
    let known = || acks.read(|routers| (routers["r"].told_rules.is_some(), (*routers["r"].rules).clone()));
    assert_eq!(known(), (false, report));
    acks.policies_reported("r", 2, RuleReport::default());
    assert_eq!(known(), (true, RuleReport::default()));
}

#[tokio::test]
async fn what_a_process_said_of_copies_stands_until_it_speaks_on_its_next_stream() {
    let acks = Acks::default();
    let of_process = |epoch, process: &str| RouterState {
        process: process.to_owned(),
        ..RouterState::new(epoch, BTreeMap::new())
    };
    acks.connected("r", of_process(1, "first"));
    let (mut others, mut statuses) = (acks.changes(), acks.status_changes());
    others.mark_unchanged();
    let copy = CopyBehind {
        may_pass: true,
        kind: "k".to_owned(),
        name: "cs.a.b".to_owned(),
        cluster: "west".to_owned(),
        message: "it is away".to_owned(),
    };
    let copies = Copies {
        behind: vec![copy],
        more: 0,
    };
    let behind = BTreeMap::from([("ops/a".parse::<ShardName>().unwrap(), copies)]);
    let mut said = |epoch, copies: &BTreeMap<ShardName, Copies>| {
        statuses.mark_unchanged();
        acks.copies_reported("r", epoch, copies.clone());
        statuses.has_changed().unwrap()
    };
    assert!(!said(1, &BTreeMap::new()), "as before");
    assert!(said(1, &behind));
    assert!(!said(1, &behind) && !said(2, &BTreeMap::new()), "another stream's");
    assert!(!others.has_changed().unwrap(), "nothing that is granted depends on it");
    let known = || acks.read(|routers| (*routers["r"].copies).clone());
    for (epoch, process, stands) in [(3, "first", true), (4, "second", false)] {
        acks.update("r", epoch - 1, |state| state.left = Some(Instant::now()));
        acks.update("r", 1, |state| state.left = Some(Instant::now()));
        acks.connected("r", of_process(epoch, process));
        assert_eq!(!known().is_empty(), stands, "a process that starts knows of none");
    }
}

/// A process of the router `a`, connected on its `epoch`th stream.
fn process(epoch: u64, name: &str, holds: bool, earlier_answered: bool) -> RouterState {
    let target = (Ref::Target("east".to_owned()), String::new());
    let held = holds.then_some(target).into_iter().collect();
    RouterState {
        process: name.to_owned(),
        earlier_answered,
        answered: [("east".to_owned(), "ns-b".to_owned(), 1)].into(),
        ..RouterState::new(epoch, held)
    }
}

fn leaves(acks: &Acks, epoch: u64, ended: bool) {
    acks.update("a", epoch, |state| {
        (state.left, state.ended) = (Some(Instant::now()), ended);
    });
}

fn are_answered(acks: &Acks) -> bool {
    let shard = ShardName::new("ops", "a").unwrap();
    acks.are_answered(&shard, &("east".to_owned(), "ns-b".to_owned(), 1))
}

#[tokio::test(start_paused = true)]
async fn who_ends_has_no_write_open_and_the_next_may_say_so_too() {
    let acks = Acks::default();
    acks.connected("a", process(1, "one", false, true));
    assert!(are_answered(&acks), "there was none before it");
    leaves(&acks, 1, false);
    assert!(!are_answered(&acks), "it is cut off, and may go on");
    acks.connected("a", process(2, "one", true, true));
    assert!(are_answered(&acks), "it is the same process");
    leaves(&acks, 2, true);
    assert!(are_answered(&acks), "it sends nothing more");
    acks.connected("a", process(3, "two", true, true));
    assert!(are_answered(&acks));
}

#[tokio::test(start_paused = true)]
async fn who_knows_nothing_of_the_process_before_is_not_believed_while_its_writes_may_be_under_way() {
    for (what, holds) in [("a new folder", false), ("a folder from a backup", true)] {
        let acks = Acks::default();
        acks.connected("a", process(1, "one", true, false));
        leaves(&acks, 1, false);
        acks.connected("a", process(2, "two", holds, true));
        assert!(!are_answered(&acks), "{what}");
        leaves(&acks, 2, true);
        acks.connected("a", process(3, "three", true, true));
        assert!(!are_answered(&acks), "{what}: nor is the next");
        tokio::time::advance(UNDER_WAY_FOR).await;
        assert!(are_answered(&acks), "{what}");
    }
    let acks = Acks::default();
    acks.connected("a", process(1, "one", true, false));
    leaves(&acks, 1, false);
    acks.connected("a", process(2, "two", true, false));
    assert!(are_answered(&acks), "it says so of what it knows");
}

#[tokio::test(start_paused = true)]
async fn no_leader_lock_is_handed_over_while_routers_may_come_back() {
    let acks = Acks::default();
    assert!(acks.hand_locks_over(), "nobody was ever there");
    acks.expect_returns();
    assert!(!acks.hand_locks_over(), "one of an earlier release may come back");
    tokio::time::advance(RETURN_GRACE).await;
    assert!(acks.hand_locks_over());
    let older = RouterState {
        hands_locks_over: false,
        ..RouterState::new(1, BTreeMap::new())
    };
    acks.connected("older", older);
    assert!(!acks.hand_locks_over());
}

#[tokio::test(start_paused = true)]
async fn what_a_router_said_of_a_closed_lock_is_known_when_it_comes_back_with_the_same_rules() {
    let shard: ShardName = "ops/a".parse().unwrap();
    let holding = |epoch, version: &str| {
        let held = [(Ref::Shard(shard.clone()), version.to_owned())];
        RouterState::new(epoch, held.into())
    };
    let acks = Acks::default();
    acks.connected("empty", RouterState::new(1, BTreeMap::new()));
    let nobody = acks.lock(&shard, 7);
    assert!(
        nobody.closed && !nobody.open,
        "a gateway that holds nothing lets nobody use it"
    );
    acks.update("empty", 1, |state| state.offered = [shard.clone()].into());
    assert!(acks.lock(&shard, 7).open, "but it is being told");
    acks.update("empty", 1, |state| state.offered.clear());
    acks.connected("a", holding(2, "closed"));
    assert!(acks.lock(&shard, 7).open);
    let standing = LockStanding {
        generation: 7,
        closed: true,
        others: false,
    };
    acks.update("a", 2, |state| state.locks = [(shard.clone(), standing)].into());
    let all = acks.lock(&shard, 7);
    assert!(all.closed && !all.open);
    assert!(acks.lock(&shard, 8).open, "of another handover");
    assert!(acks.lock_users_away().is_nobody());
    acks.update("a", 2, |state| state.left = Some(Instant::now()));
    let away = acks.lock(&shard, 7);
    assert!(
        !away.closed && !away.open,
        "it cannot be asked, and has let nobody use it"
    );
    assert!(acks.lock_users_away().is_of(&shard));
    acks.connected("a", holding(3, "closed"));
    let back = acks.lock(&shard, 7);
    assert!(back.closed && !back.open);
    acks.update("a", 3, |state| state.left = Some(Instant::now()));
    acks.connected("a", holding(4, "older"));
    assert!(acks.lock(&shard, 7).open, "by other rules");
}
