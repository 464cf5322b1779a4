//! Waiting until this router was told all that any router was told by the hub: asked by who has met a newer view.
//!
//! Many askers, one question: while one is under way all others wait for the one after it. Callers: `fanout` asks; `subscribe`
//! carries, by a [`Carrier`] while its stream is up. Without one, and after [`WITHIN`], the hub is away.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// For the answer; a client waits for it.
pub(crate) const WITHIN: Duration = Duration::from_secs(2);

const BETWEEN_QUESTIONS: Duration = Duration::from_millis(100);

/// The hub could not be asked, or did not answer in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HubAway;

/// Askers and the stream.
#[derive(Debug, Default)]
pub(crate) struct CatchUp {
    /// A watch: askers come from all tasks, and the stream must know of the last of them only.
    asked: watch::Sender<u64>,
    /// A watch: whoever waits is woken by every answer.
    told: watch::Sender<Told>,
}

/// How far askers have their answers.
#[derive(Debug, Default)]
struct Told {
    /// A stream is up.
    carried: bool,
    /// Of this question and all before it.
    answered: u64,
}

/// Held by the stream while it is up.
#[derive(Debug)]
pub(crate) struct Carrier<'a> {
    of: &'a CatchUp,
    asked: watch::Receiver<u64>,
    under_way: Option<u64>,
    /// Before that the hub is not asked again.
    next_at: Instant,
}

impl CatchUp {
    /// Returns once all is served that the hub had told any router when this was called.
    pub(crate) async fn wait(&self) -> Result<(), HubAway> {
        let mut told = self.told.subscribe();
        let mut number = 0;
        self.asked.send_modify(|asked| {
            *asked += 1;
            number = *asked;
        });
        let answered = told.wait_for(|told| !told.carried || told.answered >= number);
        match tokio::time::timeout(WITHIN, answered).await {
            Ok(Ok(told)) if told.answered >= number => Ok(()),
            _ => Err(HubAway),
        }
    }

    /// Questions go to this stream from now on. There is one at a time.
    pub(crate) fn carry(&self) -> Carrier<'_> {
        self.told.send_modify(|told| told.carried = true);
        Carrier {
            of: self,
            asked: self.asked.subscribe(),
            under_way: None,
            next_at: Instant::now(),
        }
    }
}

impl Carrier<'_> {
    /// The next question to send. Safe to drop.
    pub(crate) async fn next(&mut self) -> u64 {
        if self.under_way.is_some() {
            return std::future::pending().await;
        }
        let answered = self.of.told.borrow().answered;
        let asked = self.asked.wait_for(|asked| *asked > answered).await;
        let number = asked.map(|asked| *asked).expect("the sender outlives this");
        // Anybody may name a view that nobody has: the hub is asked in peace.
        tokio::time::sleep_until(self.next_at).await;
        self.next_at = Instant::now() + BETWEEN_QUESTIONS;
        self.under_way = Some(number);
        number
    }

    /// The hub has answered: all that it sent before is served.
    pub(crate) fn answered(&mut self, number: u64) {
        if self.under_way == Some(number) {
            self.under_way = None;
            self.of.told.send_modify(|told| told.answered = number);
        }
    }
}

impl Drop for Carrier<'_> {
    fn drop(&mut self) {
        self.of.told.send_modify(|told| told.carried = false);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::future::join_all;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_askers_make_one_question_and_those_who_come_later_another() {
        let catch_up = CatchUp::default();
        assert_eq!(catch_up.wait().await, Err(HubAway), "no stream");
        let mut carrier = catch_up.carry();
        let early = join_all((0..50).map(|_| catch_up.wait()));
        let late = async {
            let first = carrier.next().await;
            let asked = catch_up.wait();
            let answer = async {
                tokio::task::yield_now().await;
                carrier.answered(first);
                let second = carrier.next().await;
                assert!(second > first, "asked after the first was sent");
                carrier.answered(second);
            };
            tokio::join!(asked, answer).0
        };
        let (early, late) = tokio::join!(early, late);
        assert!(early.iter().all(Result::is_ok) && late.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_hub_that_does_not_answer_or_goes_away_is_away() {
        let catch_up = Arc::new(CatchUp::default());
        let carrier = catch_up.carry();
        assert_eq!(catch_up.wait().await, Err(HubAway), "silence");
        let asked = catch_up.wait();
        let leave = async { drop(carrier) };
        assert_eq!(tokio::join!(asked, leave).0, Err(HubAway));
    }
}
