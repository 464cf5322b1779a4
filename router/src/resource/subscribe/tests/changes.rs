//! An Ownership that is told as what is different in it.

use super::*;

fn grant(namespace: &str) -> v1::NamespaceGrant {
    v1::NamespaceGrant {
        namespace: namespace.to_owned(),
        owner_count: 1,
        view_revision: 1,
        state: v1::GrantState::Granted.into(),
        ..v1::NamespaceGrant::default()
    }
}

fn change(version: &str, from: &str, granted: &[&str], gone: &[&str]) -> v1::Resource {
    let now = v1::Ownership {
        cluster: "east".to_owned(),
        shard: "ns/a".to_owned(),
        namespaces: granted.iter().map(|namespace| grant(namespace)).collect(),
        incarnation: "first".to_owned(),
        ..v1::Ownership::default()
    };
    let change = v1::OwnershipChange {
        from: from.to_owned(),
        now: Some(now),
        gone: gone.iter().map(|&namespace| namespace.to_owned()).collect(),
        forgotten: Vec::new(),
    };
    resource(version, Body::OwnershipChange(change))
}

/// Namespaces of shard a in east.
fn namespaces(client: &Client) -> Vec<String> {
    let snapshot = client.routing.load().snapshot.clone();
    let pairs = snapshot
        .pairs()
        .filter(|((cluster, _, shard), _)| ***cluster == *"east" && shard.to_string() == "ns/a");
    let mut namespaces: Vec<_> = pairs.map(|((_, namespace, _), _)| namespace.to_owned()).collect();
    namespaces.sort_unstable();
    namespaces
}

#[tokio::test]
async fn a_change_is_served_kept_and_refused_where_it_does_not_lead_on() {
    let (mut hub, client, _folder) = connected().await;
    let mut session = hub.session().await;
    session.push(1, everything(), Vec::new()).await;
    let first = v1::GrantState::Granted.as_str_name();
    let pushed = session
        .push(2, vec![change("2", first, &["ns-b"], &[])], Vec::new())
        .await;
    assert_eq!(pushed, In::Ack(v1::Ack { nonce: 2 }));
    assert_eq!(namespaces(&client), ["ns-a", "ns-b"]);
    let pushed = session
        .push(3, vec![change("4", "3", &[], &["ns-b"])], Vec::new())
        .await;
    let In::Nack(nack) = pushed else { panic!("{pushed:?}") };
    let [refused] = nack.rejected.as_slice() else {
        panic!("{nack:?}")
    };
    assert_eq!(refused.r#ref, Some(removed(v1::ResourceKind::Ownership, "east/ns/a")));
    assert!(refused.reason.contains("version 3"), "{}", refused.reason);
    assert_eq!(namespaces(&client), ["ns-a", "ns-b"], "its last good stays");
    let pushed = session
        .push(4, vec![change("3", "2", &[], &["ns-a"])], Vec::new())
        .await;
    assert_eq!(pushed, In::Ack(v1::Ack { nonce: 4 }));
    assert_eq!(namespaces(&client), ["ns-b"]);
    session.end(Status::unavailable("restarting")).await;
    let session = hub.session().await;
    let known = session.hello.known.iter().find(|known| {
        let name = known.r#ref.as_ref().map(|name| name.name.as_str());
        name == Some("east/ns/a")
    });
    assert_eq!(
        known.map(|known| known.version.as_str()),
        Some("3"),
        "by its version it is known"
    );
    client.stop().await;
}
