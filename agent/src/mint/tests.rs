//! Which tokens there are, and which Secrets go.

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;

#[test]
fn renewed_at_half_life_and_never_in_a_tight_loop() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
    let after = |expires| {
        let minted = Minted {
            token: "canary".into(),
            expires_unix_seconds: expires,
            secret_uid: String::new(),
        };
        assert!(!format!("{minted:?}").contains("canary"));
        renew_after(&minted, now)
    };
    assert_eq!(after(1_000 + 3600), Duration::from_mins(30));
    assert_eq!(after(1_010), RENEW_MIN);
    assert_eq!(after(10), RENEW_MIN);
}

fn router(name: &str) -> RouterId {
    RouterId {
        name: name.to_owned(),
        uid: format!("uid-of-{name}"),
    }
}

/// Secrets by name, and how many tokens were minted.
#[derive(Default)]
struct Member {
    secrets: Mutex<BTreeMap<String, Value>>,
    minted: Mutex<u32>,
}

impl Member {
    fn names(&self) -> Vec<String> {
        self.secrets.lock().keys().cloned().collect()
    }

    fn put(&self, router: &str) {
        let secret = json!({"metadata": {
            "name": format!("router-uid-of-{router}"), "uid": format!("secret-of-{router}"),
            "labels": {"ctrlmesh.kusionstack.io/router-uid": format!("uid-of-{router}")},
        }});
        self.secrets.lock().insert(format!("router-uid-of-{router}"), secret);
    }
}

/// A member's API server as far as the mint asks it.
fn api(member: Arc<Member>) -> Client {
    crate::testing::answering(move |method, path| {
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        let mut secrets = member.secrets.lock();
        match (method.as_str(), path) {
            ("POST", path) if path.ends_with("/portolan-router/token") => {
                *member.minted.lock() += 1;
                let status = json!({"token": "canary", "expirationTimestamp": "2099-01-01T00:00:00Z"});
                Ok(json!({"metadata": {}, "spec": {"audiences": []}, "status": status}))
            }
            // What is made is put there by the test: bodies are not seen here.
            ("POST", _) => Err(409),
            ("GET", path) if path.ends_with("/secrets") => {
                let items: Vec<_> = secrets.values().cloned().collect();
                Ok(json!({"metadata": {}, "items": items}))
            }
            ("GET", _) => secrets.get(&name).cloned().ok_or(404),
            ("DELETE", _) => secrets.remove(&name).map(|_| json!({"status": "Success"})).ok_or(404),
            _ => Err(405),
        }
    })
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

#[tokio::test(start_paused = true)]
async fn each_router_has_a_token_and_only_a_whole_list_takes_one_back() {
    let member = Arc::new(Member::default());
    for router in ["a", "b", "left-over"] {
        member.put(router);
    }
    let (tokens, told) = watch::channel(Tokens::new());
    let (wanted, routers) = watch::channel(Wanted::None);
    let tasks = Tasks::new();
    let mint = Mint::new(api(member.clone()), tokens, Metrics::default());
    tasks.spawn("mint", mint.run(tasks.child(), routers));
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(member.names().len(), 3, "a hub that has not spoken forgets nobody");
    assert!(told.borrow().is_empty());

    wanted.send_replace(Some(Arc::new([router("a"), router("b")].into())));
    until("both have a token", || told.borrow().len() == 2).await;
    until("what is left over is deleted", || member.names().len() == 2).await;

    wanted.send_replace(Some(Arc::new([router("b")].into())));
    until("one is forgotten", || told.borrow().len() == 1).await;
    until("its Secret is deleted", || member.names() == ["router-uid-of-b"]).await;

    // Somebody takes the other one's back by hand: it gets another.
    let before = *member.minted.lock();
    let mut secret = member.secrets.lock()["router-uid-of-b"].clone();
    secret["metadata"]["uid"] = json!("another");
    member.secrets.lock().insert("router-uid-of-b".to_owned(), secret);
    until("it is minted anew", || *member.minted.lock() > before).await;
    until("by the new Secret", || {
        told.borrow()[&router("b")].secret_uid == "another"
    })
    .await;
    tasks.cancel();
}
