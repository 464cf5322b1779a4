//! What the run did and how long moves took, printed in the end; and the log of who wrote when.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::crashes::Crashes;
use crate::history::Story;
use crate::judge::{Attempt, Author, told};
use crate::mover::Asked;
use crate::operator::Line;

/// Of what is wrong with a namespace, so many lines of its log before and after.
const AROUND: usize = 8;

/// From a request to its grant, of all moves that were granted.
#[derive(Default)]
pub(crate) struct Times {
    /// Whether the member refuses what is of before, and whether something was away meanwhile.
    granted: BTreeMap<(bool, bool), Vec<Duration>>,
    /// Nobody was granted them, or who had it: they were taken back before.
    taken_back: usize,
}

impl Times {
    pub(crate) fn of(stories: &[(Story, Vec<Asked>)], crashes: &Crashes) -> Self {
        let mut times = Self::default();
        for (story, asks) in stories {
            let mut grants = story.grants.iter().peekable();
            let mut before = None;
            for (number, asked) in asks.iter().enumerate() {
                let next = asks.get(number + 1).map(|next| next.at);
                // The last of several that want the same is the one that is granted.
                while let Some(grant) = grants.next_if(|grant| grant.at < asked.at) {
                    before = Some(&grant.shard);
                }
                let mine = grants.peek().filter(|grant| {
                    let is_new = before != Some(&grant.shard);
                    is_new && grant.shard == asked.ask.shard && next.is_none_or(|next| grant.at < next)
                });
                let Some(grant) = mine else {
                    times.taken_back += 1;
                    continue;
                };
                let was_away = |(from, to): &(Instant, Instant)| *from < grant.at && asked.at < *to;
                let disturbed = crashes.times.iter().any(was_away);
                let of = times.granted.entry((grant.fenced, disturbed)).or_default();
                of.push(grant.at - asked.at);
            }
        }
        times
    }

    pub(crate) fn print(&self) {
        for ((fenced, disturbed), times) in &self.granted {
            let fenced = if *fenced { "fenced" } else { "unfenced" };
            let when = if *disturbed { "under crashes" } else { "in calm" };
            let [half, most, all] = [50, 99, 100].map(|percent| percentile(times, percent));
            let what = format!("{fenced}, {when}");
            println!(
                "{what:22} {} moves, p50 {half:.1?}, p99 {most:.1?}, longest {all:.1?}",
                times.len()
            );
        }
        println!("taken back before      {}", self.taken_back);
    }
}

fn percentile(times: &[Duration], percent: usize) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or_default()
}

/// Who wrote when, and whose the namespace was: by revision of the member.
pub(crate) struct Log(Vec<(u64, String)>);

impl Log {
    pub(crate) fn of(story: &Story, asks: &[Asked], lines: &[Line], begun: Instant) -> Self {
        let since = |at: Instant| format!("{:9.3}", (at - begun.min(at)).as_secs_f64());
        let known: BTreeMap<&Author, &Line> = lines.iter().map(|line| (&line.author, line)).collect();
        let mut all = Vec::new();
        for (at, write) in &story.writes {
            let what = write
                .count
                .map_or("a mark".to_owned(), |count| format!("count {count}"));
            let mut text = format!("{} {what} by {}", since(*at), told(&write.author));
            if let Some(line) = known.get(&write.author) {
                let Attempt { answer, blind, .. } = line.attempt;
                let blind = if blind { ", blind" } else { "" };
                let _ = write!(
                    text,
                    ", asked {}, {answer:?}{blind} {}",
                    since(line.attempt.asked),
                    line.said
                );
            }
            all.push((write.revision, text));
        }
        for grant in &story.grants {
            let unfenced = if grant.fenced { "" } else { ", unfenced" };
            all.push((
                grant.revision,
                format!("{} granted to {}{unfenced}", since(grant.at), grant.shard),
            ));
        }
        for asked in asks {
            let text = format!("{} wanted for {}", since(asked.at), asked.ask.shard);
            all.push((asked.ask.revision, text));
        }
        all.sort_by_key(|(revision, _)| *revision);
        Self(all)
    }

    /// All of it, line by line.
    pub(crate) fn lines(&self, namespace: &str) -> String {
        let mut text = String::new();
        for (revision, line) in &self.0 {
            let _ = writeln!(text, "{namespace} {revision} {line}");
        }
        text
    }

    /// What stands around it.
    pub(crate) fn around(&self, revision: u64) -> String {
        let at = self.0.partition_point(|(other, _)| *other < revision);
        let around = self.0.iter().skip(at.saturating_sub(AROUND)).take(2 * AROUND);
        let lines = around.map(|(revision, line)| format!("    {revision} {line}\n"));
        lines.collect()
    }
}
