//! The end of a router, as its hub and its folder have it.

use super::*;
use crate::resource::policies::SharesFile;

const IDENTITY: &str = "identity.pem";

fn share() -> Out {
    Out::Shares(v1::Shares {
        revision: 3,
        shares: vec![v1::RuleShare {
            policy: "CircuitBreaker/ns/calm".to_owned(),
            uid: "p1".to_owned(),
            rule: "all".to_owned(),
            millionths: 250_000,
            fresh: false,
        }],
    })
}

/// A router that has a state and a share, on disk too.
async fn settled(client: &Client, hub: &mut ScriptedHub, folder: &std::path::Path) -> HubSession {
    let mut session = hub.session().await;
    assert_eq!(
        session.push(1, everything(), Vec::new()).await,
        In::Ack(v1::Ack { nonce: 1 })
    );
    session.send(share()).await;
    let kept = || {
        let shares = SharesFile::in_folder(folder).load();
        shares.revision == 3 && folder.join("state.bin").exists() && folder.join(IDENTITY).exists()
    };
    while !kept() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    client.routing.writes.earlier_are_answered();
    session
}

/// What is said last, once the stream is closed by the hub.
async fn last_word(mut session: HubSession) -> Option<v1::Ended> {
    loop {
        if let In::Ended(ended) = session.next().await? {
            return Some(ended);
        }
    }
}

async fn ground(forgotten: bool) -> (ScriptedHub, Client, tempfile::TempDir) {
    let (hub, folder) = (ScriptedHub::start().await, tempfile::tempdir().unwrap());
    let client = Client::new().enrolled(&hub.authority);
    let identity = folder.path().join(IDENTITY);
    std::fs::write(&identity, "").unwrap();
    let link = client.link(&hub.authority, hub.address);
    client.subscribe_forgotten(link, folder.path(), forgotten.then_some(identity));
    (hub, client, folder)
}

#[tokio::test]
async fn shares_are_given_back_on_disk_before_the_hub_hears_so_and_the_name_is_kept() {
    let (mut hub, client, folder) = ground(false).await;
    let session = settled(&client, &mut hub, folder.path()).await;
    client.tasks.cancel();
    let said = last_word(session).await.unwrap();
    assert!(said.gave_back_shares && !said.forget, "{said:?}");
    let kept = SharesFile::in_folder(folder.path()).load();
    assert!(kept.shares.is_empty() && kept.revision == 3, "{kept:?}");
    client.stop().await;
    assert!(folder.path().join("state.bin").exists() && folder.path().join(IDENTITY).exists());
    assert!(folder.path().join("ended").exists());
}

#[tokio::test]
async fn of_one_that_is_forgotten_nothing_is_left_to_serve_by() {
    let (mut hub, client, folder) = ground(true).await;
    let session = settled(&client, &mut hub, folder.path()).await;
    client.tasks.cancel();
    let said = last_word(session).await.unwrap();
    assert!(said.gave_back_shares && said.forget, "{said:?}");
    client.stop().await;
    assert!(!folder.path().join("state.bin").exists() && !folder.path().join(IDENTITY).exists());
    assert!(folder.path().join("ended").exists(), "and the next one may say so");
}

#[tokio::test]
async fn who_may_have_a_write_open_or_did_not_wait_for_clients_gives_nothing_back() {
    for fails in [false, true] {
        let (mut hub, client, folder) = ground(true).await;
        let session = settled(&client, &mut hub, folder.path()).await;
        let open = (!fails).then(|| {
            let east = "east".into();
            client.routing.writes.begin((&east, "ns-a", "ops"), Some(1))
        });
        if fails {
            let planted = std::future::ready(Err(anyhow::anyhow!("planted")));
            client.tasks.spawn_critical("fails", planted);
        } else {
            client.tasks.cancel();
        }
        assert_eq!(last_word(session).await, None, "{fails}");
        assert_eq!(
            client.tasks.shutdown(Duration::from_secs(20)).await.failure.is_some(),
            fails
        );
        drop(open);
        assert_eq!(SharesFile::in_folder(folder.path()).load().revision, 3);
        assert!(!SharesFile::in_folder(folder.path()).load().shares.is_empty());
        assert!(folder.path().join("state.bin").exists() && folder.path().join(IDENTITY).exists());
        assert!(!folder.path().join("ended").exists());
    }
}
