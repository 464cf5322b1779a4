//! What members serve, on disk: a router that restarts while a member is away knows that member's kinds as a running one
//! would. Written by rename; a file that does not check out is as good as none, and members are asked as without it.
//!
//! The first line is [`HEAD`], each other one a member in JSON. Discovery replaces what is recalled as soon as the member
//! answers, and nothing is recalled of a cluster that is no member, or another one of the name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use portolan_runtime::{Chain, Tasks, files};
use serde::{Deserialize, Serialize};

use super::{Routing, RoutingStore};
use crate::resource::following::follow;
use crate::value::kinds::MemberKinds;

const FILE_NAME: &str = "kinds.jsonl";
/// Ends with the format's number, which changes with what the lines mean: another one is not read.
const HEAD: &str = "portolan-router-kinds 1";
/// Of the file: some hundred bytes per kind and member. Members that would make it longer are left out.
const MAX_BYTES: usize = 32 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct Line<K> {
    cluster: Arc<str>,
    uid: String,
    serves: K,
}

impl RoutingStore {
    /// Takes over what an earlier process knew of members that this one has been told of, and not yet heard. Blocking.
    pub(crate) fn recall_kinds(&self, folder: &Path) {
        let path = folder.join(FILE_NAME);
        let lines = match files::read(&path) {
            Ok(bytes) => decode(&bytes),
            Err(error) if error.is_not_found() => return,
            Err(error) => Err(Chain(&error).to_string()),
        };
        match lines {
            Ok(lines) => {
                let heard = &self.load().kinds;
                for line in lines.into_iter().filter(|line| heard.member(&line.cluster).is_none()) {
                    self.set_kinds(&line.cluster, &line.uid, &Arc::new(line.serves));
                }
            }
            Err(error) => tracing::warn!(
                path = %path.display(),
                %error,
                "what members serve cannot be recalled: custom kinds are waited for until members tell them"
            ),
        }
    }

    /// Keeps the file up to date until cancelled, and writes it a last time then.
    pub(crate) async fn remember_kinds(self: Arc<Self>, folder: PathBuf, tasks: Tasks) {
        let (store, path) = (self.clone(), folder.join(FILE_NAME));
        follow(|| self.load().kinds.revision(), move || store.write_kinds(&path), tasks).await;
    }

    /// False: it was not written.
    fn write_kinds(&self, path: &Path) -> bool {
        let written = files::write_private(path, encode(&self.load(), MAX_BYTES));
        if let Err(error) = &written {
            tracing::warn!(error = %Chain(error), "what members serve was not written");
        }
        written.is_ok()
    }
}

fn decode(bytes: &[u8]) -> Result<Vec<Line<MemberKinds>>, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let rest = text.strip_prefix(HEAD).and_then(|rest| rest.strip_prefix('\n'));
    let rest = rest.ok_or_else(|| format!("it does not begin with {HEAD:?}"))?;
    let lines = rest.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().map_err(|error| error.to_string())
}

fn encode(routing: &Routing, most: usize) -> Vec<u8> {
    let mut bytes = format!("{HEAD}\n").into_bytes();
    for (cluster, serves) in routing.kinds.members() {
        let Some(target) = routing.snapshot.targets.get(cluster) else {
            continue;
        };
        let line = Line {
            cluster: cluster.clone(),
            uid: target.cluster_uid.clone(),
            serves: &**serves,
        };
        let line = serde_json::to_vec(&line).unwrap_or_default();
        if line.is_empty() || bytes.len() + line.len() >= most {
            tracing::warn!(%cluster, most, "what a member serves is not remembered: the file would be too long");
            continue;
        }
        bytes.extend(line);
        bytes.push(b'\n');
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::resource::upstream::scripted::{snapshot, target};
    use crate::value::kinds::{Kind, Scope};

    fn store(clusters: &[&str]) -> Arc<RoutingStore> {
        RoutingStore::of(snapshot(clusters.iter().map(|cluster| target(cluster, &[], ""))))
    }

    fn serving(resource: &str, scope: Scope) -> Arc<MemberKinds> {
        let mut kinds = MemberKinds::default();
        let kind = Kind {
            scope,
            kind: "Ship".to_owned(),
            versions: vec!["v1".to_owned()],
            verbs: ["get", "list"].map(str::to_owned).into(),
        };
        kinds.add("x.io", resource, kind);
        Arc::new(kinds)
    }

    #[tokio::test]
    async fn what_members_serve_survives_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let before = store(&["east", "west"]);
        before.recall_kinds(folder.path());
        let tasks = Tasks::new();
        let remembering = before.clone().remember_kinds(folder.path().to_owned(), tasks.clone());
        tasks.spawn("remember-kinds", remembering);
        tokio::task::yield_now().await;
        before.set_kinds(&"east".into(), "uid-east", &serving("fleets", Scope::Cluster));
        before.set_kinds(&"west".into(), "uid-west", &serving("ships", Scope::Namespaced));
        assert!(tasks.shutdown(Duration::from_mins(1)).await.is_clean());

        let after = store(&["east", "west"]);
        after.set_kinds(&"east".into(), "uid-east", &serving("harbours", Scope::Cluster));
        after.recall_kinds(folder.path());
        let routing = after.load();
        let west = routing.kinds.member("west").unwrap();
        assert_eq!(west, &serving("ships", Scope::Namespaced));
        assert_eq!(
            routing.kinds.serves("east", "x.io", "fleets"),
            Some(false),
            "it has spoken since"
        );
        assert!(store(&["east"]).load().kinds.member("west").is_none(), "no member");
    }

    #[test]
    fn a_kinds_file_that_does_not_check_out_is_as_good_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let before = store(&["east"]);
        before.set_kinds(&"east".into(), "uid-east", &serving("ships", Scope::Namespaced));
        let good = encode(&before.load(), MAX_BYTES);
        let other = String::from_utf8(good.clone()).unwrap().replace("kinds 1", "kinds 2");
        for spoilt in [
            &b""[..],
            &good[..good.len() - 5],
            other.as_bytes(),
            b"\xff",
            b"portolan-router-kinds 1",
        ] {
            std::fs::write(&path, spoilt).unwrap();
            let after = store(&["east"]);
            after.recall_kinds(folder.path());
            assert!(after.load().kinds.member("east").is_none(), "{spoilt:?}");
        }
        std::fs::write(&path, &good).unwrap();
        let after = store(&["east"]);
        after.recall_kinds(folder.path());
        assert!(after.load().kinds.member("east").is_some());
    }

    #[test]
    fn the_file_is_bounded_member_by_member() {
        let before = store(&["east", "west"]);
        for cluster in ["east", "west"] {
            before.set_kinds(
                &cluster.into(),
                &format!("uid-{cluster}"),
                &serving("ships", Scope::Namespaced),
            );
        }
        let whole = encode(&before.load(), MAX_BYTES);
        assert_eq!(decode(&whole).unwrap().len(), 2);
        assert_eq!(decode(&encode(&before.load(), whole.len() - 1)).unwrap().len(), 1);
    }
}
