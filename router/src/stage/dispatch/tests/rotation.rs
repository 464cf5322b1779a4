//! A member's CA and the router's credential change while requests run.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use portolan_wire::v1::resource::Body as Told;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::*;
use crate::resource::upstream::scripted::Certified;
use crate::value::snapshot::Snapshot;
use crate::value::snapshot::told;

const CALLERS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(20);

/// A member that takes some tokens and tells which it has seen.
struct Member {
    backend: Arc<Backend>,
    takes: Arc<Lock<BTreeSet<&'static str>>>,
    seen: Arc<Lock<Vec<String>>>,
}

impl Member {
    async fn start(certified: &Certified) -> Self {
        let takes = Arc::new(Lock::new(BTreeSet::from(["Bearer old"])));
        let seen = Arc::new(Lock::new(Vec::new()));
        let (valid, told) = (takes.clone(), seen.clone());
        let answer = script(move |request, mut respond| {
            let bearer = request.headers()["authorization"].to_str().unwrap().to_owned();
            let status = if valid.lock().contains(&*bearer) { 200 } else { 401 };
            told.lock().push(bearer);
            async move {
                let mut out = respond.send_response(head(status), false).unwrap();
                out.send_data(Bytes::from_static(b"{}"), true).unwrap();
            }
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self {
            backend: Arc::new(Backend::start_on(listener, certified.clone(), 100, answer)),
            takes,
            seen,
        }
    }

    /// One read, by what is known now.
    async fn ask(&self, dispatcher: &Arc<Dispatcher>, now: &Arc<RoutingStore>) {
        let world = World {
            backend: self.backend.clone(),
            dispatcher: dispatcher.clone(),
            routing: now.load(),
            now: now.clone(),
            asked: Asked::default(),
        };
        let read = Forward {
            traffic: Traffic::QUESTION,
            ..world.forward()
        };
        let answer = world.dispatch(read, Method::GET, "/version", Value::Null).await;
        assert_eq!(answer.unwrap().0, 200);
    }

    /// What the hub tells of it.
    fn told(&self, bundle: &str, token: &str) -> Snapshot {
        let mut target = self.backend.target("east");
        target.ca_pem = bundle.to_owned();
        let mut credential = told::credential("east", token);
        credential.expires_unix_seconds = i64::MAX;
        let snapshot = snapshot([target]);
        told::upsert(&snapshot, token, [Told::Credential(credential)]).snapshot
    }
}

#[tokio::test]
async fn ca_and_credential_are_rotated_under_load_and_no_request_fails() {
    let (old, new) = (Certified::new(), Certified::new());
    let member = Member::start(&old).await;
    let now = RoutingStore::of(member.told(&old.ca_pem(), "old"));
    let member = Arc::new(member);
    let dispatcher = Arc::new(Dispatcher::new(Tasks::new(), DispatchMetrics::default()));
    let done: Arc<[AtomicUsize; CALLERS]> = Arc::default();
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (member, dispatcher, now, done) = (member.clone(), dispatcher.clone(), now.clone(), done.clone());
        callers.spawn(async move {
            loop {
                member.ask(&dispatcher, &now).await;
                done[caller].fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let everybody = || async {
        let before: Vec<_> = done.iter().map(|done| done.load(Ordering::Relaxed)).collect();
        let moved = async {
            while done
                .iter()
                .zip(&before)
                .any(|(done, before)| done.load(Ordering::Relaxed) < before + 3)
            {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, moved)
            .await
            .expect("everybody is answered");
    };
    everybody().await;
    let both = format!("{}{}", old.ca_pem(), new.ca_pem());
    now.swap(member.told(&both, "old"));
    everybody().await;
    old.adopt(&new);
    member.takes.lock().insert("Bearer new");
    now.swap(member.told(&both, "new"));
    everybody().await;
    member.takes.lock().remove("Bearer old");
    member.seen.lock().clear();
    now.swap(member.told(&new.ca_pem(), "new"));
    everybody().await;
    assert!(member.seen.lock().iter().all(|bearer| bearer == "Bearer new"));
    assert_eq!(callers.len(), CALLERS);
    assert!(callers.try_join_next().is_none(), "none has failed");
    let breakers = now.load().upstreams.breakers();
    assert!(
        breakers.iter().all(|status| status.report.transitions.is_empty()),
        "the same upstream throughout"
    );
}
