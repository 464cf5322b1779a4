//! The names of the member's Nodes, by one metadata-only watch: routers tell from them which Nodes of two members have one name.
//!
//! A name is told as its digest, and not more of them than [`MAX_NODE_NAMES`]. A member that does not let the agent list its
//! Nodes tells nothing. Callers: `app` runs it, `report` sends.

use std::collections::BTreeSet;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Event, watcher};
use kube::{Api, Client};
use portolan_crds::names::name_digest;
use portolan_wire::protocol::MAX_NODE_NAMES;
use portolan_wire::v1::NodeNames;
use tokio::sync::watch;

use crate::explain::watch_broke;
use crate::member::watch_config;
use crate::metrics::{Metrics, Watched};

/// Watches for ever. During a relist readers keep what the last complete list said.
pub(crate) async fn run(client: Client, told: watch::Sender<Option<NodeNames>>, metrics: Metrics) {
    let nodes = Api::<PartialObjectMeta<Node>>::all(client);
    let mut events = std::pin::pin!(watcher(nodes, watch_config()).default_backoff());
    let mut names = Names::default();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                let Some(names) = names.after(event) else { continue };
                told.send_if_modified(|told| {
                    let is_new = told.as_ref() != Some(&names);
                    *told = Some(names);
                    is_new
                });
            }
            Err(error) => {
                watch_broke(&metrics, Watched::nodes, "all", &error);
            }
        }
    }
}

/// Digests of what is there, and of a list that is under way.
#[derive(Debug, Default)]
struct Names {
    there: BTreeSet<u64>,
    listed: BTreeSet<u64>,
}

impl Names {
    /// What is to be told after an event; `None`: nothing new.
    fn after(&mut self, event: Event<PartialObjectMeta<Node>>) -> Option<NodeNames> {
        let digest = |node: &PartialObjectMeta<Node>| name_digest(node.metadata.name.as_deref().unwrap_or_default());
        let is_new = match event {
            Event::Init => {
                self.listed.clear();
                false
            }
            Event::InitApply(node) => {
                self.listed.insert(digest(&node));
                false
            }
            Event::InitDone => {
                self.there = std::mem::take(&mut self.listed);
                true
            }
            Event::Apply(node) => self.there.insert(digest(&node)),
            Event::Delete(node) => self.there.remove(&digest(&node)),
        };
        is_new.then(|| NodeNames {
            digests: self.there.iter().copied().take(MAX_NODE_NAMES).collect(),
            more: self.there.len() > MAX_NODE_NAMES,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> PartialObjectMeta<Node> {
        let mut node = PartialObjectMeta::<Node>::default();
        node.metadata.name = Some(name.to_owned());
        node
    }

    #[test]
    fn names_are_told_whole_and_only_when_they_change() {
        let told = |names: &[&str]| {
            let digests: BTreeSet<_> = names.iter().map(|name| name_digest(name)).collect();
            Some(NodeNames {
                digests: digests.into_iter().collect(),
                more: false,
            })
        };
        let mut names = Names::default();
        assert_eq!(names.after(Event::Init), None);
        assert_eq!(
            names.after(Event::InitApply(node("a"))),
            None,
            "not before the list is through"
        );
        assert_eq!(names.after(Event::InitDone), told(&["a"]));
        assert_eq!(names.after(Event::Apply(node("a"))), None);
        assert_eq!(names.after(Event::Apply(node("b"))), told(&["a", "b"]));
        assert_eq!(names.after(Event::Delete(node("a"))), told(&["b"]));
        names.after(Event::Init);
        assert_eq!(names.after(Event::InitDone), told(&[]));
    }

    #[test]
    fn no_more_are_told_than_a_message_has_room_for() {
        let mut names = Names {
            there: (0..=MAX_NODE_NAMES as u64).collect(),
            ..Names::default()
        };
        let told = names.after(Event::Apply(node("a"))).unwrap();
        assert_eq!((told.digests.len(), told.more), (MAX_NODE_NAMES, true));
    }
}
