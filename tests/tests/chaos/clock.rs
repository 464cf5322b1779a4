//! A router whose clock is wrong: the program as it is, with a library before libc's that adds to what `CLOCK_REALTIME` says. It is
//! what libfaketime does, in ten lines, for that is on few machines; the C compiler is on all that build this. Certificates, tokens
//! and whatever else is compared with the time of day are judged by it; time-outs, which go by another clock, are not.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;

/// Names the seconds that are added.
pub(crate) const SECONDS: &str = "PORTOLAN_CHAOS_CLOCK";

const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long off(void) { const char *text = getenv("PORTOLAN_CHAOS_CLOCK"); return text ? atol(text) : 0; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec += off();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec exact;
    int result = clock_gettime(CLOCK_REALTIME, &exact);
    if (now) { now->tv_sec = exact.tv_sec; now->tv_usec = exact.tv_nsec / 1000; }
    return result;
}

time_t time(time_t *into) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (into) *into = exact.tv_sec;
    return exact.tv_sec;
}
"#;

/// Compiles it; for `LD_PRELOAD`.
pub(crate) fn library(folder: &Path) -> anyhow::Result<PathBuf> {
    let file = folder.join("clock.so");
    let mut compiler = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-x", "c", "-", "-o"])
        .arg(&file)
        .stdin(Stdio::piped())
        .spawn()
        .context("no C compiler")?;
    compiler
        .stdin
        .take()
        .context("a piped stdin")?
        .write_all(SOURCE.as_bytes())?;
    anyhow::ensure!(compiler.wait()?.success(), "the clock does not compile");
    Ok(file)
}
