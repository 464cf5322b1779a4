//! Where log lines go: at once, but for the access lines of a server, which are many and are written some milliseconds
//! later, together.
//!
//! A write for each of ten thousand access lines a second cost the router a fifth of its CPU, and its threads waited for
//! each other. A thread of its own writes all lines, in their order: who asks for a line to be written at
//! once waits for that, and not for long. A log that nobody reads, a full pipe, must not stop a server: what does not find room, or
//! cannot be written, is dropped and counted. A process that is killed loses the access lines of its last [`LATE`]. Caller: `line`.

use std::io::{self, Write};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use prometheus_client::metrics::counter::Counter;
use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

/// Target of access lines: one for each request that is over.
pub const ACCESS: &str = "access";
/// How long an access line waits for company.
const LATE: Duration = Duration::from_millis(5);
/// So many bytes of lines are written although they have not waited.
const FULL: usize = 256 << 10;
/// Most bytes of lines that wait while nobody reads the log.
const MOST: usize = 4 << 20;
/// Room beside that for lines that are no access lines.
const RESERVED: usize = 1 << 20;
/// A line that goes at once is waited for so long, and no other until the log is read again.
const AT_ONCE: Duration = Duration::from_secs(1);
/// The last lines are waited for so long.
const AT_END: Duration = Duration::from_secs(2);
/// How often the thread looks whether it is still wanted.
const LOOK: Duration = Duration::from_secs(5);

/// Makes the writers of single lines. Clones write to the same place.
#[derive(Clone)]
pub(super) struct Lines(Arc<Shared>);

struct Shared {
    /// A mutex beside `queue`'s: held for a write, while lines go on to be queued.
    output: Mutex<Box<dyn Write + Send>>,
    /// A mutex: held for a copy of one line.
    queue: Mutex<Queue>,
    /// There is something to write.
    queued: Condvar,
    /// Something was written.
    written: Condvar,
    /// Started by the first line.
    thread: OnceLock<bool>,
    dropped: Counter,
}

#[derive(Default)]
struct Queue {
    lines: Vec<u8>,
    /// Some of `lines` is to go at once.
    urgent: bool,
    /// Bytes that were ever queued, and those of them that were written.
    came: u64,
    went: u64,
    /// Nobody seems to read the log.
    stalled: bool,
}

impl Lines {
    pub(super) fn new(output: impl Write + Send + 'static) -> Self {
        Self(Arc::new(Shared {
            output: Mutex::new(Box::new(output)),
            queue: Mutex::default(),
            queued: Condvar::new(),
            written: Condvar::new(),
            thread: OnceLock::new(),
            dropped: Counter::default(),
        }))
    }

    /// Writes the queued lines, if the log is read.
    pub(super) fn flush(&self) {
        self.0.queue.lock().stalled = false;
        self.0.until_written(AT_END);
    }

    /// Lines that were dropped.
    pub(super) fn dropped(&self) -> Counter {
        self.0.dropped.clone()
    }
}

impl Shared {
    fn write(&self, lines: &[u8]) -> io::Result<()> {
        let mut output = self.output.lock();
        output.write_all(lines)?;
        output.flush()
    }

    fn has_thread(self: &Arc<Self>) -> bool {
        *self.thread.get_or_init(|| start(Arc::downgrade(self)))
    }

    fn access(self: &Arc<Self>, line: &[u8]) -> io::Result<()> {
        if !self.has_thread() {
            return self.write(line);
        }
        let mut queue = self.queue.lock();
        let before = queue.lines.len();
        let wakes = before == 0 || (before < FULL && before + line.len() >= FULL);
        let takes = queue.add(line, MOST);
        drop(queue);
        if !takes {
            self.dropped.inc();
        } else if wakes {
            self.queued.notify_one();
        }
        Ok(())
    }

    fn at_once(self: &Arc<Self>, line: &[u8]) -> io::Result<()> {
        if !self.has_thread() {
            return self.write(line);
        }
        if self.queue.lock().add(line, MOST + RESERVED) {
            self.until_written(AT_ONCE);
        } else {
            self.dropped.inc();
        }
        Ok(())
    }

    /// Waits until all that is queued by now is written; not while nobody reads the log.
    fn until_written(&self, patience: Duration) {
        let (mut queue, until) = (self.queue.lock(), Instant::now() + patience);
        let last = queue.came;
        queue.urgent = true;
        self.queued.notify_one();
        while queue.went < last && !queue.stalled {
            queue.stalled = self.written.wait_until(&mut queue, until).timed_out();
        }
    }

    /// The next lines to write, at the latest when it is time to look whether there will be any; none then.
    fn next(&self) -> Vec<u8> {
        let mut queue = self.queue.lock();
        if queue.lines.is_empty() {
            self.queued.wait_for(&mut queue, LOOK);
        }
        let until = Instant::now() + LATE;
        while !queue.lines.is_empty() && !queue.urgent && queue.lines.len() < FULL {
            if self.queued.wait_until(&mut queue, until).timed_out() {
                break;
            }
        }
        queue.urgent = false;
        std::mem::take(&mut queue.lines)
    }

    fn wrote(&self, bytes: usize) {
        let mut queue = self.queue.lock();
        queue.went += bytes as u64;
        queue.stalled = false;
        self.written.notify_all();
    }
}

impl Queue {
    /// False: there is no room for it.
    fn add(&mut self, line: &[u8], most: usize) -> bool {
        let takes = self.lines.len() + line.len() <= most;
        if takes {
            self.lines.extend_from_slice(line);
            self.came += line.len() as u64;
        }
        takes
    }
}

/// False if there can be no thread; lines then go at once.
fn start(shared: Weak<Shared>) -> bool {
    let run = move || {
        while let Some(shared) = shared.upgrade() {
            let lines = shared.next();
            if !lines.is_empty() {
                // Nobody can be told of it by the log. Some of them may have been written.
                if shared.write(&lines).is_err() {
                    let lost = lines.split_inclusive(|byte| *byte == b'\n').count();
                    shared.dropped.inc_by(lost as u64);
                }
                shared.wrote(lines.len());
            }
        }
    };
    std::thread::Builder::new().name("log".to_owned()).spawn(run).is_ok()
}

/// Writes one line.
pub(super) struct Line<'a> {
    shared: &'a Arc<Shared>,
    waits: bool,
}

impl Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.waits {
            self.shared.access(line)?;
        } else {
            self.shared.at_once(line)?;
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
