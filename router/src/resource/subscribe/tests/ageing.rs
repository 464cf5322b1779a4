//! What was said of labels, while the hub that said it is away.

use super::*;

/// The labels of pods in a member, which are complete.
fn labelled(cluster: &str) -> v1::Resource {
    let kind = v1::KindCoverage {
        resource: "pods".to_owned(),
        complete: true,
        ..v1::KindCoverage::default()
    };
    let coverage = v1::Coverage {
        cluster: cluster.to_owned(),
        kinds: vec![kind],
        unconfirmed: Vec::new(),
    };
    resource(&format!("coverage-{cluster}"), Body::Coverage(coverage))
}

/// A hub that is away for minutes cannot say that an agent is not heard.
#[tokio::test(start_paused = true)]
async fn what_was_said_of_labels_ages_member_by_member_while_the_hub_is_away() {
    let folder = tempfile::tempdir().unwrap();
    let client = Client::new();
    let mut state = HubState::new(client.routing.clone(), folder.path());
    let told = Transaction {
        upserted: vec![labelled("east"), labelled("west")],
        removed: Vec::new(),
    };
    assert_eq!(state.apply(told.clone()), []);
    let by_labels = || {
        let snapshot = client.routing.load().snapshot.clone();
        ["east", "west"].map(|cluster| snapshot.coverage(cluster, "", "pods").is_some())
    };
    let began = tokio::time::Instant::now();
    state.lost_hub();
    state.lost_hub();
    state.coverage_ages().await;
    assert_eq!((began.elapsed().as_secs(), by_labels()), (300, [true, true]));
    state.age_coverage();
    assert_eq!(by_labels(), [false, true]);
    state.coverage_ages().await;
    state.age_coverage();
    assert_eq!((began.elapsed().as_secs(), by_labels()), (310, [false, false]));
    // A hub that was started anew may not have heard of the agents yet: what it says is asked for, and holds from then on.
    assert_eq!(state.known(), []);
    state.apply(Transaction::default());
    assert_eq!(by_labels(), [false, false]);
    assert_eq!(state.apply(told), []);
    assert_eq!(by_labels(), [true, true]);
    let never = tokio::time::timeout(Duration::from_hours(1), state.coverage_ages()).await;
    assert!(never.is_err(), "the hub is there");
}

/// A router that is restarted while the hub is away does not begin to count anew.
#[tokio::test(start_paused = true)]
async fn the_age_of_what_was_said_of_labels_outlives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let file = StateFile::in_folder(folder.path());
    let kept = [target("east", "https://east"), labelled("east")];
    for (minutes, left) in [(0, Some(300)), (4, Some(60)), (6, None)] {
        let heard = SystemTime::now() - Duration::from_mins(minutes);
        file.save(kept.iter(), heard).unwrap();
        let client = Client::new();
        let mut state = HubState::new(client.routing.clone(), folder.path());
        assert!(state.load());
        let began = tokio::time::Instant::now();
        state.lost_hub();
        let snapshot = client.routing.load().snapshot.clone();
        assert_eq!(snapshot.targets.len(), 1);
        assert_eq!(
            snapshot.coverage("east", "", "pods").is_some(),
            left.is_some(),
            "{minutes}"
        );
        let Some(left) = left else { continue };
        state.coverage_ages().await;
        assert!(
            began.elapsed().as_secs().abs_diff(left) <= 2,
            "{minutes}: {:?}",
            began.elapsed()
        );
        state.age_coverage();
        state.save_if_changed().await;
        let age = file.load().unwrap().unwrap().heard.elapsed().unwrap();
        assert!(age.as_secs().abs_diff(minutes * 60) <= 2, "{minutes}: {age:?}");
    }
}
