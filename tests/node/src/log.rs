//! What containers write, in files of the form that container runtimes have: time, stream, whole or partial, text. One file
//! for each run of a container.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use jiff::Timestamp;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, BufReader};

/// A longer line is cut in pieces, as container runtimes do.
const MAX_LINE_BYTES: usize = 16 * 1024;
/// A log that is longer takes nothing more: a container that only prints would fill the disk.
const MAX_LOG_BYTES: u64 = 64 * 1024 * 1024;

/// Makes an empty log, and takes away those of runs before the last one: what "previous" means is one.
pub(crate) fn begin(log: &Path) -> io::Result<()> {
    let (Some(folder), Some(run)) = (log.parent(), run_of(log)) else {
        return Ok(());
    };
    std::fs::create_dir_all(folder)?;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if run_of(&path).is_some_and(|other| other + 1 < run) {
            std::fs::remove_file(path)?;
        }
    }
    File::create(log).map(drop)
}

/// Marks a log as whole: nothing is added to it any more.
pub(crate) fn end(log: &Path) -> io::Result<()> {
    File::create(log.with_extension("end")).map(drop)
}

/// Whether nothing will be added to a log, or it is gone.
pub(crate) fn has_ended(log: &Path) -> bool {
    log.with_extension("end").exists() || !log.exists()
}

/// The newest run of which a folder has a log.
pub(crate) fn newest(folder: &Path) -> Option<u32> {
    let entries = std::fs::read_dir(folder).ok()?;
    entries.filter_map(|entry| run_of(&entry.ok()?.path())).max()
}

/// `3` of `3.log`.
fn run_of(log: &Path) -> Option<u32> {
    log.file_stem()?.to_str()?.parse().ok()
}

/// Copies a stream to the end of a log, line by line, until it ends.
pub(crate) async fn copy(from: impl AsyncRead + Unpin, name: &str, log: &Path) -> io::Result<()> {
    copy_lines(&mut BufReader::new(from), name, log).await
}

/// [`copy`] of what is buffered already.
pub(crate) async fn copy_lines(from: &mut (impl AsyncBufRead + Unpin), name: &str, log: &Path) -> io::Result<()> {
    // Appending: both streams of a container write to one file, each line at once.
    let mut file = File::options().create(true).append(true).open(log)?;
    let mut line = Vec::new();
    loop {
        let (used, whole) = {
            let bytes = from.fill_buf().await?;
            if bytes.is_empty() {
                break;
            }
            let bytes = &bytes[..bytes.len().min(MAX_LINE_BYTES - line.len())];
            let end = bytes.iter().position(|byte| *byte == b'\n');
            line.extend_from_slice(&bytes[..end.unwrap_or(bytes.len())]);
            (end.map_or(bytes.len(), |at| at + 1), end.is_some())
        };
        from.consume(used);
        if whole || line.len() == MAX_LINE_BYTES {
            write(&mut file, name, whole, &line)?;
            line.clear();
        }
    }
    if !line.is_empty() {
        write(&mut file, name, true, &line)?;
    }
    Ok(())
}

fn write(file: &mut File, name: &str, whole: bool, text: &[u8]) -> io::Result<()> {
    if file.metadata()?.len() > MAX_LOG_BYTES {
        return Ok(());
    }
    let tag = if whole { 'F' } else { 'P' };
    let mut line = format!("{:.9} {name} {tag} ", Timestamp::now()).into_bytes();
    line.extend_from_slice(text);
    line.push(b'\n');
    file.write_all(&line)
}

/// Which part of a log is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The last so many lines.
    pub(crate) tail: Option<usize>,
    /// Lines from then on.
    pub(crate) since: Option<Timestamp>,
    /// With the time before each line.
    pub(crate) timestamps: bool,
    /// No more bytes than these.
    pub(crate) limit: Option<usize>,
}

impl Wanted {
    /// That part of `log`, as it is shown to people. A last line that is not whole yet is left for later: how many bytes of the
    /// log were looked at comes with it.
    pub(crate) fn of(&self, log: &[u8]) -> (Vec<u8>, usize) {
        let whole = log.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<_> = log[..whole].split_inclusive(|byte| *byte == b'\n').collect();
        let first = self.tail.map_or(0, |tail| first_of_last(&lines, tail));
        let mut shown = Vec::new();
        for line in &lines[first..] {
            if let Some(line) = Line::parse(line)
                && self.since.is_none_or(|since| line.time >= since)
            {
                line.show(self.timestamps, &mut shown);
            }
        }
        shown.truncate(self.limit.unwrap_or(usize::MAX));
        (shown, whole)
    }
}

/// Where the last `tail` lines begin; pieces of one line count as one.
fn first_of_last(lines: &[&[u8]], tail: usize) -> usize {
    let ends: Vec<_> = (0..lines.len())
        .filter(|at| Line::parse(lines[*at]).is_some_and(|line| line.whole))
        .collect();
    match ends.len().checked_sub(tail) {
        None | Some(0) => 0,
        Some(skipped) => ends[skipped - 1] + 1,
    }
}

struct Line<'a> {
    stamp: &'a [u8],
    time: Timestamp,
    whole: bool,
    text: &'a [u8],
}

impl<'a> Line<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let mut parts = line.splitn(4, |byte| *byte == b' ');
        let (stamp, _stream, tag) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self {
            stamp,
            time: std::str::from_utf8(stamp).ok()?.parse().ok()?,
            whole: tag == b"F",
            text: parts.next()?,
        })
    }

    fn show(&self, timestamps: bool, to: &mut Vec<u8>) {
        if timestamps {
            to.extend_from_slice(self.stamp);
            to.push(b' ');
        }
        to.extend_from_slice(self.text);
        if self.whole {
            to.push(b'\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &[u8] = b"2026-01-01T00:00:00.000000000Z stdout F one\n\
                         2026-01-01T00:00:01.000000000Z stderr P tw\n\
                         2026-01-01T00:00:01.000000000Z stderr F o\n\
                         2026-01-01T00:00:02.000000000Z stdout F three  3\n\
                         2026-01-01T00:00:03.00000";

    fn shown(wanted: &Wanted) -> String {
        String::from_utf8(wanted.of(LOG).0).unwrap()
    }

    #[test]
    fn parts_of_a_log() {
        let all = Wanted::default();
        assert_eq!(shown(&all), "one\ntwo\nthree  3\n");
        assert_eq!(all.of(LOG).1, LOG.len() - b"2026-01-01T00:00:03.00000".len());
        let tail = |tail| Wanted {
            tail: Some(tail),
            ..Wanted::default()
        };
        assert_eq!(shown(&tail(2)), "two\nthree  3\n");
        assert_eq!(shown(&tail(0)), "");
        assert_eq!(shown(&tail(9)), shown(&all));
        let since = Some("2026-01-01T00:00:02Z".parse().unwrap());
        assert_eq!(
            shown(&Wanted {
                since,
                timestamps: true,
                ..Wanted::default()
            }),
            "2026-01-01T00:00:02.000000000Z three  3\n"
        );
        assert_eq!(
            shown(&Wanted {
                limit: Some(5),
                ..Wanted::default()
            }),
            "one\nt"
        );
    }

    #[tokio::test]
    async fn what_is_written_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.log");
        let long = "x".repeat(MAX_LINE_BYTES + 10);
        let text = format!("one\n\n{long}\nno end");
        copy(text.as_bytes(), "stdout", &path).await.unwrap();
        let log = std::fs::read(&path).unwrap();
        let (shown, _) = Wanted::default().of(&log);
        assert_eq!(String::from_utf8(shown).unwrap(), format!("{text}\n"));
        assert_eq!(log.split(|byte| *byte == b'\n').count(), 6);
    }
}
