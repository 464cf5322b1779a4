//! An access line as JSON: the same object as of any other line, written straight into one text.
//!
//! There is one for each request, and by the JSON format of tracing-subscriber it was a sixth of what a small GET costs:
//! serde walks each field, and each line formats the whole date anew. An access line stands for itself: it names its trace,
//! and no span is around it. Caller: `line`.

use std::cell::RefCell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tracing::Event;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{self, FormatTime as _};

use super::fields::Object;

/// Room for most lines.
const ROOM: usize = 512;
/// Of a time to the second, as far as it stands for all times in that second.
const TO_THE_SECOND: usize = "2026-01-01T00:00:00".len();

thread_local! {
    /// The second that was formatted last, in seconds of the epoch. Of the thread, so that none waits for another.
    static SECOND: RefCell<(u64, String)> = const { RefCell::new((u64::MAX, String::new())) };
}

/// The line, with its end.
pub(super) fn line(event: &Event<'_>) -> String {
    let mut text = String::with_capacity(ROOM);
    text.push_str("{\"timestamp\":\"");
    now(&mut text);
    text.push('"');
    let mut object = Object::new(text);
    object.told("level", event.metadata().level().as_str());
    event.record(&mut object);
    object.told("target", event.metadata().target());
    let mut text = object.text;
    text.push_str("}\n");
    text
}

/// The time in RFC 3339, with microseconds as in all other lines.
fn now(text: &mut String) {
    SECOND.with_borrow_mut(|(second, formatted)| {
        let mut since = since_epoch();
        while *second != since.as_secs() {
            formatted.clear();
            // It looks at the clock itself, which may have gone on to the next second. Writing to a String does not fail.
            let _ = time::SystemTime.format_time(&mut Writer::new(formatted));
            formatted.truncate(TO_THE_SECOND);
            let before = since;
            since = since_epoch();
            if before.as_secs() == since.as_secs() {
                *second = since.as_secs();
            }
        }
        text.push_str(formatted);
        // A digit before them, for the zeros that they begin with.
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(1_000_000 + since.subsec_micros());
        text.push('.');
        text.push_str(&digits[1..]);
        text.push('Z');
    });
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_other_lines() {
        let other = || {
            let mut text = String::new();
            time::SystemTime.format_time(&mut Writer::new(&mut text)).unwrap();
            text
        };
        for _ in 0..100 {
            let (before, mut ours) = (other(), String::new());
            now(&mut ours);
            let after = other();
            assert_eq!(ours.len(), before.len(), "{ours} {before}");
            assert!(before <= ours && ours <= after, "{before} {ours} {after}");
        }
    }
}
