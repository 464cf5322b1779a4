//! Steps of a command as they are told, with the time that each took.

use std::time::Instant;

/// Steps as they are told: what was done, and how long it took.
pub(crate) struct Steps(Instant);

impl Steps {
    pub(crate) fn begin() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn done(&mut self, what: &str) {
        println!("✓ {what} ({:.1} s)", self.0.elapsed().as_secs_f64());
        self.0 = Instant::now();
    }
}
