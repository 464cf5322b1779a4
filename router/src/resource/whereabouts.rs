//! Whether any member of a shard has a namespace that no shard owns: the hub is asked, which knows all namespaces of all members
//! from their agents (`docs/semantics.md#namespaces`).
//!
//! An answer counts for a second, so that who asks again and again costs one question. Callers: `preflight` asks; `subscribe`
//! carries, by a [`Carrier`] while its stream is up.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use portolan_crds::names::is_dns_label;
use tokio::time::Instant;

use super::question::{self, HubAway, Questions};

/// For the hub's answer; a client waits for it.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);
/// How long an answer counts.
const HOLDS: Duration = Duration::from_secs(1);
/// Answers kept. What is beyond is asked for each time.
const MOST_KEPT: usize = 4_096;

/// Which of these members have a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Question {
    pub(crate) namespace: String,
    pub(crate) clusters: Vec<String>,
}

impl Question {
    pub(crate) fn new(namespace: &str, clusters: &[Arc<str>]) -> Self {
        Self {
            namespace: namespace.to_owned(),
            clusters: clusters.iter().map(ToString::to_string).collect(),
        }
    }
}

/// What the hub knows of it. Who is in none of the lists has no such namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Members that have it.
    pub(crate) there: Vec<String>,
    /// Members that had none when they were heard last, and cannot be heard now.
    pub(crate) away: Vec<String>,
    /// Members of which the hub knows nothing.
    pub(crate) unknown: Vec<String>,
}

/// One of the questions on its way.
pub(crate) type Asked = question::Asked<Question, Found>;
/// Held by the stream that carries them.
pub(crate) type Carrier = question::Carrier<Question, Found>;

/// One per process.
#[derive(Debug, Default)]
pub(crate) struct Whereabouts {
    stream: Questions<Question, Found>,
    /// A mutex: held for a look-up.
    kept: Mutex<HashMap<Question, (Instant, Found)>>,
}

impl Whereabouts {
    /// Questions go to this stream from now on.
    pub(crate) fn carry(&self) -> Carrier {
        self.stream.carry()
    }

    /// Asks the hub. What can be no name is in no member.
    pub(crate) async fn find(&self, question: Question) -> Result<Found, HubAway> {
        if !is_dns_label(&question.namespace) {
            return Ok(Found::default());
        }
        let kept = self.kept.lock().get(&question).cloned();
        if let Some((until, found)) = kept
            && Instant::now() < until
        {
            return Ok(found);
        }
        let found = self.stream.ask(question.clone(), ANSWERED_WITHIN).await?;
        self.keep(question, found.clone());
        Ok(found)
    }

    fn keep(&self, question: Question, found: Found) {
        let now = Instant::now();
        let mut kept = self.kept.lock();
        if kept.len() >= MOST_KEPT {
            kept.retain(|_, (until, _)| now < *until);
        }
        if kept.len() < MOST_KEPT {
            kept.insert(question, (now + HOLDS, found));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(namespace: &str) -> Question {
        Question {
            namespace: namespace.to_owned(),
            clusters: vec!["east".to_owned()],
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_hub_is_asked_once_a_second_for_a_name() {
        let whereabouts = Whereabouts::default();
        assert_eq!(whereabouts.find(question("a")).await, Err(HubAway), "no stream");
        let mut carrier = whereabouts.carry();
        let found = Found {
            there: vec!["east".to_owned()],
            ..Found::default()
        };
        let answer = async {
            let asked = carrier.questions.recv().await.unwrap();
            assert_eq!(asked.question, question("a"));
            asked.answer.send(found.clone()).unwrap();
        };
        let (said, ()) = tokio::join!(whereabouts.find(question("a")), answer);
        assert_eq!(said.as_ref(), Ok(&found));
        assert_eq!(whereabouts.find(question("a")).await, Ok(found), "nobody is asked");
        tokio::time::advance(HOLDS).await;
        let at = Instant::now();
        assert_eq!(whereabouts.find(question("a")).await, Err(HubAway), "it is silent");
        assert_eq!(at.elapsed(), ANSWERED_WITHIN);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_name_is_nowhere() {
        let whereabouts = Whereabouts::default();
        for name in ["", "A", "a/b", &"a".repeat(64)] {
            assert_eq!(whereabouts.find(question(name)).await, Ok(Found::default()));
        }
    }
}
