//! Enrolment and renewal against a scripted hub over real gRPC and TLS.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use super::*;
use crate::resource::subscribe::scripted::{Client, HOUR, ScriptedHub, Step};

const CANARY: &str = "abc123.canary-b7e2-0000";

struct World {
    hub: ScriptedHub,
    client: Client,
    folder: tempfile::TempDir,
}

impl World {
    async fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        let (hub, folder) = (ScriptedHub::start().await, tempfile::tempdir().unwrap());
        fs::write(folder.path().join("token"), format!("{CANARY}\n")).unwrap();
        steps.into_iter().for_each(|step| hub.then(step));
        Self {
            hub,
            client: Client::new(),
            folder,
        }
    }

    fn enroller(&self, proof: Option<Proof>) -> Enroller {
        let link = self.client.link(&self.hub.authority, self.hub.address);
        let ready = self.client.readiness.task("identity");
        Enroller::new(link, proof, self.folder.path().to_owned(), ready)
    }

    fn bootstrap(&self) -> Proof {
        Proof::Bootstrap(self.folder.path().join("token"))
    }

    fn run(&self) {
        let enroller = self.enroller(Some(self.bootstrap()));
        enroller.load();
        self.client.tasks.spawn_service("enroll", enroller.run());
    }

    async fn generation(&self, wanted: u64) {
        let mut generations = self.client.identity.subscribe();
        let reached = generations.wait_for(|generation| *generation >= wanted);
        tokio::time::timeout(Duration::from_secs(20), reached)
            .await
            .expect("an identity")
            .unwrap();
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn pending_refused_and_lost_answers_are_asked_for_again_with_the_same_key() {
    let world = World::new([Step::Refuse, Step::Pending, Step::Lose, Step::Issue(HOUR)]).await;
    world.run();
    world.generation(1).await;
    assert!(world.client.readiness.is_ready());
    let keys = world.hub.keys();
    assert_eq!(keys.len(), 4);
    assert!(
        keys.iter().all(|key| *key == keys[0]),
        "a bootstrap token serves one key"
    );
    let identity = world.folder.path().join(IDENTITY_FILE);
    assert_eq!(mode(&identity), 0o600);
    assert!(!world.folder.path().join(PENDING_KEY_FILE).exists());
    world.client.stop().await;
}

#[tokio::test]
async fn a_restart_needs_no_proof() {
    let world = World::new([Step::Issue(HOUR)]).await;
    world.run();
    world.generation(1).await;
    let second = Client::new();
    let link = second.link(&world.hub.authority, world.hub.address);
    let folder = world.folder.path().to_owned();
    let enroller = Enroller::new(link, None, folder, second.readiness.task("identity"));
    assert!(enroller.load() && second.readiness.is_ready());
    assert_eq!(
        second.identity.load().unwrap().subject().common_name,
        "portolan:router:gateway"
    );
    world.client.stop().await;
}

#[tokio::test]
async fn the_certificate_is_renewed_with_a_new_key_and_kept() {
    // Backdated by five minutes: half of its life is over at once.
    let world = World::new([Step::Issue(Duration::from_mins(1)), Step::Lose, Step::Issue(HOUR)]).await;
    world.run();
    world.generation(2).await;
    let keys = world.hub.keys();
    assert_eq!(
        keys.iter().map(|(_, renewal)| *renewal).collect::<Vec<_>>(),
        [false, true, true]
    );
    assert_ne!(keys[0].0, keys[2].0);
    let kept = world.enroller(None).read_identity().unwrap().unwrap();
    assert_eq!(kept.not_after(), world.client.identity.load().unwrap().not_after());
    world.client.stop().await;
}

#[tokio::test]
async fn what_is_missing_is_told_without_the_token() {
    let world = World::new([Step::Refuse]).await;
    let refused = world.enroller(Some(world.bootstrap())).apply().await.err().unwrap();
    let no_proof = world.enroller(None).apply().await.err().unwrap();
    let no_file = world
        .enroller(Some(Proof::Bootstrap("/nowhere/token".into())))
        .apply()
        .await
        .err()
        .unwrap();
    for (error, part) in [
        (refused, "unknown token"),
        (no_proof, "--bootstrap-token-file"),
        (no_file, "/nowhere/token"),
    ] {
        let text = format!("{} {error:?}", Chain(&error));
        assert!(text.contains(part) && !text.contains("canary"), "{text}");
    }
    world.client.stop().await;
}

#[tokio::test]
async fn a_spoilt_identity_file_is_not_the_end() {
    let world = World::new([Step::Issue(HOUR)]).await;
    fs::write(
        world.folder.path().join(IDENTITY_FILE),
        "-----BEGIN CERTIFICATE-----\nx\n",
    )
    .unwrap();
    world.run();
    world.generation(1).await;
    world.client.stop().await;
}
