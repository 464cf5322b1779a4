//! Where log lines go: at once, but for the access lines of a server, which are many and are written some milliseconds
//! later, together.
//!
//! A write for each of ten thousand access lines a second cost the router a fifth of its CPU, and its threads waited for
//! each other. Order is kept: a line that goes at once takes all before it along. Nothing is dropped; who fills the
//! buffer writes it out. A process that is killed loses the access lines of its last [`LATE`]. Caller: `line`.

use std::io::{self, Write};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

/// Target of access lines: one for each request that is over.
pub const ACCESS: &str = "access";
/// How long an access line waits for company.
const LATE: Duration = Duration::from_millis(5);
/// Most bytes of lines in the queue.
const FULL: usize = 256 << 10;
/// How often the thread looks whether it is still wanted.
const LOOK: Duration = Duration::from_secs(5);

/// Makes the writers of single lines. Clones write to the same place.
#[derive(Clone)]
pub(super) struct Lines(Arc<Shared>);

struct Shared {
    /// A mutex beside `queue`'s: held for a write, while access lines go on to be queued.
    output: Mutex<Box<dyn Write + Send>>,
    /// A mutex: held for a copy of one line.
    queue: Mutex<Vec<u8>>,
    queued: Condvar,
    /// Started by the first access line: most programs have none.
    thread: OnceLock<bool>,
}

impl Lines {
    pub(super) fn new(output: impl Write + Send + 'static) -> Self {
        Self(Arc::new(Shared {
            output: Mutex::new(Box::new(output)),
            queue: Mutex::default(),
            queued: Condvar::new(),
            thread: OnceLock::new(),
        }))
    }

    /// Writes the queued lines.
    pub(super) fn flush(&self) {
        // Nobody can be told of a log that cannot be written.
        let _ = self.0.write(&[]);
    }
}

impl Shared {
    /// Writes the queued lines, then `line`.
    fn write(&self, line: &[u8]) -> io::Result<()> {
        let mut output = self.output.lock();
        let waiting = std::mem::take(&mut *self.queue.lock());
        if !waiting.is_empty() {
            output.write_all(&waiting)?;
        }
        output.write_all(line)?;
        output.flush()
    }

    fn queue(self: &Arc<Self>, line: &[u8]) -> io::Result<()> {
        if !*self.thread.get_or_init(|| start(Arc::downgrade(self))) {
            return self.write(line);
        }
        let mut queue = self.queue.lock();
        queue.extend_from_slice(line);
        let (first, full) = (queue.len() == line.len(), queue.len() >= FULL);
        drop(queue);
        if full {
            return self.write(&[]);
        }
        if first {
            self.queued.notify_one();
        }
        Ok(())
    }
}

/// False if there can be no thread; lines then go at once.
fn start(shared: Weak<Shared>) -> bool {
    let run = move || {
        while let Some(shared) = shared.upgrade() {
            let mut queue = shared.queue.lock();
            if queue.is_empty() {
                shared.queued.wait_for(&mut queue, LOOK);
            }
            let waiting = !queue.is_empty();
            drop(queue);
            if waiting {
                std::thread::sleep(LATE);
                let _ = shared.write(&[]);
            }
        }
    };
    std::thread::Builder::new()
        .name("access-log".to_owned())
        .spawn(run)
        .is_ok()
}

/// Writes one line.
pub(super) struct Line<'a> {
    shared: &'a Arc<Shared>,
    waits: bool,
}

impl Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.waits {
            self.shared.queue(line)?;
        } else {
            self.shared.write(line)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line {
            shared: &self.0,
            waits: false,
        }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Line<'a> {
        Line {
            shared: &self.0,
            waits: metadata.target() == ACCESS,
        }
    }
}
