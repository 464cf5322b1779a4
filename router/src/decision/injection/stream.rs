//! What ordered faults do to one stream of events, and when: event by event, the time since it began an argument.
//!
//! Each fault happens once in a stream's life, but for a delay, which lasts. It happens when everything is behind that it
//! waits for, and when it is in force: whoever asks says which are. Nothing is read or written here, see `stage::inject`.

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::value::injection::{Action, After, StreamFault};

/// A fault of a stream and how far it is.
#[derive(Debug)]
struct Ordered {
    fault: StreamFault,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It has not happened yet.
    Armed,
    /// Nothing comes until then; `None`: to the end.
    Stalling(Option<Duration>),
    Delaying,
    Over,
}

/// What is to be done before more is handed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The fault of this index happens now. To be told of, and the next step to be asked for.
    Begin(usize),
    /// Nothing is handed on until then, or until something else is in force; `None`: until the latter.
    Stalled(Option<Duration>),
    /// What comes is handed on.
    Pass,
}

/// Where a stream is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Since it began.
    pub(crate) now: Duration,
    /// Between two events.
    pub(crate) between: bool,
    /// Its events can be told apart, and one of ours be put between them.
    pub(crate) framed: bool,
    /// There is a bookmark that could come again.
    pub(crate) bookmark: bool,
}

/// All faults of one stream.
#[derive(Debug)]
pub(crate) struct StreamFaults {
    all: Vec<Ordered>,
    events: u64,
    bytes: u64,
}

impl After {
    fn is_behind(&self, faults: &StreamFaults, now: Duration) -> bool {
        faults.events >= self.events && faults.bytes >= self.bytes && now >= self.time
    }
}

impl StreamFaults {
    /// In the order in which they are to happen.
    pub(crate) fn new(faults: impl IntoIterator<Item = StreamFault>) -> Self {
        let armed = |fault| Ordered {
            fault,
            state: State::Armed,
        };
        Self {
            all: faults.into_iter().map(armed).collect(),
            events: 0,
            bytes: 0,
        }
    }

    /// So many bytes were handed on. `event`: one ended with them, and is no bookmark.
    pub(crate) fn passed(&mut self, bytes: usize, event: bool) {
        self.bytes += bytes as u64;
        self.events += u64::from(event);
    }

    /// What is due. `in_force`: by index; one that is not does nothing, and what it does ends.
    pub(crate) fn step(&mut self, place: Place, in_force: impl Fn(usize) -> bool) -> Step {
        let mut stalled: Option<Option<Duration>> = None;
        for index in 0..self.all.len() {
            let Ordered { fault, state } = &self.all[index];
            match *state {
                State::Delaying if !in_force(index) => self.all[index].state = State::Armed,
                State::Delaying | State::Over => {}
                State::Stalling(until) => {
                    if !in_force(index) || until.is_some_and(|until| until <= place.now) {
                        self.all[index].state = State::Over;
                    } else {
                        // The one that lasts longest counts; one without an end outlasts all.
                        let so_far = stalled.unwrap_or(Some(Duration::ZERO));
                        stalled = Some(so_far.zip(until).map(|(one, other)| one.max(other)));
                    }
                }
                State::Armed => {
                    let may = self.may(fault, place) && fault.after.is_behind(self, place.now);
                    if may && in_force(index) {
                        let next = match fault.action {
                            Action::Drop | Action::Expire | Action::RepeatBookmark => State::Over,
                            Action::Stall(duration) => State::Stalling(duration.map(|duration| place.now + duration)),
                            Action::Delay(_) => State::Delaying,
                        };
                        self.all[index].state = next;
                        return Step::Begin(index);
                    }
                }
            }
        }
        stalled.map_or(Step::Pass, Step::Stalled)
    }

    /// Whether a fault may come here: a connection also breaks within an event, where the bytes say so.
    fn may(&self, fault: &StreamFault, place: Place) -> bool {
        match fault.action {
            Action::Drop => place.between || (fault.after.bytes > 0 && self.bytes >= fault.after.bytes),
            Action::RepeatBookmark => place.between && place.bookmark,
            Action::Expire => place.between && place.framed,
            Action::Stall(_) | Action::Delay(_) => place.between,
        }
    }

    /// By how much everything is put off now.
    pub(crate) fn delay(&self, in_force: impl Fn(usize) -> bool) -> Duration {
        let delays = self
            .all
            .iter()
            .enumerate()
            .filter_map(|(index, ordered)| match ordered.fault.action {
                Action::Delay(delay) if ordered.state == State::Delaying && in_force(index) => Some(delay),
                _ => None,
            });
        delays.fold(Duration::ZERO, Duration::saturating_add)
    }

    /// How many bytes may be handed on before the next look; `None`: any number.
    pub(crate) fn room(&self) -> Option<u64> {
        let armed = self.all.iter().filter(|one| one.state == State::Armed);
        let cuts = armed.filter(|one| one.fault.action == Action::Drop);
        let left = cuts.filter_map(|one| one.fault.after.bytes.checked_sub(self.bytes));
        left.filter(|left| *left > 0).min()
    }

    /// Whether events need not be told apart any more.
    pub(crate) fn is_settled(&self) -> bool {
        let settled = |one: &Ordered| matches!(one.state, State::Over | State::Delaying);
        self.all.iter().all(settled)
    }

    /// Whether somebody waits for a bookmark, or will.
    pub(crate) fn wants_bookmark(&self) -> bool {
        let wants = |one: &Ordered| one.fault.action == Action::RepeatBookmark && one.state == State::Armed;
        self.all.iter().any(wants)
    }

    /// When the next one may happen for the time alone.
    pub(crate) fn next_look(&self, now: Duration) -> Option<Duration> {
        let armed = self.all.iter().filter(|one| one.state == State::Armed);
        armed.map(|one| one.fault.after.time).filter(|time| *time > now).min()
    }
}
