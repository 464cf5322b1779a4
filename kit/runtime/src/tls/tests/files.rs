//! Material that changes on disk. Time is paused: the poll period passes as soon as nothing else is to do.

use super::*;
use crate::files::{write_private, write_public};
use crate::metrics::Registry;
use std::path::Path;

const PERIOD: Duration = Duration::from_secs(5);

fn write(folder: &Path, issued: &Issued) -> IdentityFiles {
    let files = IdentityFiles {
        cert: folder.join("tls.crt"),
        key: folder.join("tls.key"),
    };
    write_public(&files.cert, &issued.cert_pem).unwrap();
    write_private(&files.key, issued.key_pem.expose()).unwrap();
    files
}

fn current(store: &IdentityStore) -> String {
    store.load().unwrap().subject().common_name.clone()
}

/// Long enough for two looks.
async fn looks() {
    tokio::time::sleep(2 * PERIOD).await;
}

fn counted(registry: &Registry, name: &str) -> String {
    let text = registry.encode().unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with(name))
        .unwrap_or_else(|| panic!("{name}: {text}"));
    line[name.len()..].trim().to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_new_pair_takes_over_and_a_bad_one_never_does() {
    let (folder, ca, tasks) = (tempfile::tempdir().unwrap(), ca("hub CA"), Tasks::new());
    let issue = |name| ca.issue_server(name, &[NAME], HOUR).unwrap();
    let files = write(folder.path(), &issue("one"));
    let store = files.follow(&tasks, PERIOD).unwrap();
    let registry = Registry::new("hub");
    registry.scope("tls", |part| store.register(part));
    let server = server_config(store.clone(), ClientAuth::None, ALPN_HTTP).unwrap();
    let client = client_config(trust(&ca), None, ALPN_HTTP).unwrap();
    assert_eq!(shake(&server, &client).await.unwrap().0, "one");

    write(folder.path(), &issue("two"));
    looks().await;
    assert_eq!(shake(&server, &client).await.unwrap().0, "two");

    // Half of a pair, as a writer leaves it for a moment: refused once, then whole again.
    let three = issue("three");
    write_public(&files.cert, &three.cert_pem).unwrap();
    looks().await;
    assert_eq!(shake(&server, &client).await.unwrap().0, "two");
    assert_eq!(
        counted(&registry, "portolan_hub_tls_identity_reloads_rejected_total"),
        "1"
    );
    write_private(&files.key, three.key_pem.expose()).unwrap();
    looks().await;
    assert_eq!(shake(&server, &client).await.unwrap().0, "three");

    std::fs::remove_file(&files.key).unwrap();
    looks().await;
    assert_eq!(shake(&server, &client).await.unwrap().0, "three");
    assert_eq!(
        counted(&registry, "portolan_hub_tls_identity_reloads_rejected_total"),
        "2"
    );
    let not_after: u64 = counted(&registry, "portolan_hub_tls_identity_not_after_seconds")
        .parse()
        .unwrap();
    assert!(not_after > 1_700_000_000);
    assert!(tasks.shutdown(PERIOD).await.is_clean());
}

#[tokio::test(start_paused = true)]
async fn a_symlink_swap_is_seen() {
    let (folder, ca, tasks) = (tempfile::tempdir().unwrap(), ca("hub CA"), Tasks::new());
    // As the kubelet mounts a Secret: files link into ..data, which links to a dated folder.
    let data = folder.path().join("..data");
    for (dated, name) in [("one", "one"), ("two", "two")] {
        std::fs::create_dir(folder.path().join(dated)).unwrap();
        write(
            &folder.path().join(dated),
            &ca.issue_server(name, &[NAME], HOUR).unwrap(),
        );
    }
    std::os::unix::fs::symlink("one", &data).unwrap();
    let files = IdentityFiles {
        cert: data.join("tls.crt"),
        key: data.join("tls.key"),
    };
    let store = files.follow(&tasks, PERIOD).unwrap();
    assert_eq!(current(&store), "one");
    std::os::unix::fs::symlink("two", folder.path().join("..new")).unwrap();
    std::fs::rename(folder.path().join("..new"), &data).unwrap();
    looks().await;
    assert_eq!(current(&store), "two");
}

#[tokio::test(start_paused = true)]
async fn a_ca_bundle_is_followed_and_kept_when_it_turns_bad() {
    let (folder, tasks) = (tempfile::tempdir().unwrap(), Tasks::new());
    let (old, new) = (ca("old"), ca("new"));
    let file = CaFile(folder.path().join("ca.crt"));
    write_public(&file.0, old.pem()).unwrap();
    let store = file.follow(&tasks, PERIOD).unwrap();
    write_public(&file.0, "nonsense").unwrap();
    looks().await;
    assert_eq!(store.pem(), old.pem());
    write_public(&file.0, new.pem()).unwrap();
    looks().await;
    assert_eq!(store.pem(), new.pem());
}

#[tokio::test(start_paused = true)]
async fn files_that_are_missing_at_the_start_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let files = IdentityFiles {
        cert: folder.path().join("tls.crt"),
        key: folder.path().join("tls.key"),
    };
    let error = files.follow(&Tasks::new(), PERIOD).unwrap_err().to_string();
    assert!(error.contains("tls.crt"), "{error}");
}
