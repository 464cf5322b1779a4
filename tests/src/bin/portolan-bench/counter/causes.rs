//! What instructions were spent on, by the functions that callgrind names: for a table of causes, so by names and not by calls.
//!
//! A function that was inlined counts as the one that it went into, and one that is generic by the first of the rules below that
//! any of its names meets. Of a program without symbols nearly all that is no library's is all else: HAProxy's HTTP/2, headers and
//! tasks, as distributions build it.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

/// Of the C library, before the word for the processor that each is for.
const COPIES: [&str; 11] = [
    "memcpy",
    "memmove",
    "memset",
    "memcmp",
    "memchr",
    "bcmp",
    "strlen",
    "strcmp",
    "strncmp",
    "strchr",
    "strcasecmp",
];

/// On what a proxy spends itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Cause {
    /// Ciphers, and TLS around them.
    Tls,
    /// Frames, streams and HPACK.
    Http2,
    /// Requests, answers and their headers.
    Http,
    /// Tasks, wake-ups, timers and sockets.
    Runtime,
    Copies,
    Allocation,
    /// Spans, access lines and metrics.
    Telemetry,
    /// What is the program's own, for the most part.
    Own,
}

impl Cause {
    pub(crate) const ALL: [Self; 8] = [
        Self::Tls,
        Self::Http2,
        Self::Http,
        Self::Runtime,
        Self::Copies,
        Self::Allocation,
        Self::Telemetry,
        Self::Own,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tls => "TLS",
            Self::Http2 => "HTTP/2 and HPACK",
            Self::Http => "requests and headers",
            Self::Runtime => "tasks and sockets",
            Self::Copies => "copies and comparisons",
            Self::Allocation => "allocation",
            Self::Telemetry => "spans, lines, metrics",
            Self::Own => "all else",
        }
    }

    /// Of a function in an object: a program or a library.
    fn of(object: &str, function: &str) -> Self {
        let object = object.rsplit('/').next().unwrap_or_default();
        if object.starts_with("libssl") || object.starts_with("libcrypto") {
            return Self::Tls;
        }
        let starts = |words: &[&str]| words.iter().any(|word| function.starts_with(word));
        let names = |words: &[&str]| words.iter().any(|word| function.contains(word));
        let plain = function.trim_start_matches('_');
        if COPIES.iter().any(|word| plain.starts_with(word)) {
            Self::Copies
        } else if starts(&[
            "mi_",
            "_mi_",
            "malloc",
            "free",
            "calloc",
            "realloc",
            "_int_",
            "unlink_chunk",
            "cfree",
        ]) || names(&["__rust_alloc", "__rust_dealloc", "__rdl_", "alloc::raw_vec", "mimalloc"])
        {
            Self::Allocation
        } else if names(&["aws_lc", "rustls", "aesni", "ghash", "nistz256"])
            || starts(&["ssl_", "EVP_", "SHA", "CRYPTO_", "aead_", "gcm_", "aes_", "bn_"])
        {
            Self::Tls
        } else if names(&["h2::"]) || starts(&["h2_", "hpack_", "h2s_", "h2c_", "huff_"]) {
            Self::Http2
        } else if names(&[
            "tracing",
            "telemetry",
            "opentelemetry",
            "prometheus",
            "edge::record",
            "edge::completion",
        ]) {
            Self::Telemetry
        } else if names(&["portolan"]) {
            Self::Own
        } else if names(&["hyper::", "hyper_util", "http::", "http_body", "bytes::", "httparse"]) || starts(&["http_"])
        {
            Self::Http
        } else if names(&["tokio", "mio::", "futures", "parking_lot", "std::sys"]) || object.starts_with("libc.") {
            Self::Runtime
        } else {
            Self::Own
        }
    }
}

/// Instructions of a callgrind file by cause.
pub(crate) fn causes(text: &str) -> BTreeMap<Cause, f64> {
    let (mut objects, mut functions) = (HashMap::new(), HashMap::new());
    let (mut object, mut cause, mut of_call) = (String::new(), Cause::Own, false);
    let mut sums = BTreeMap::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            object = resolve(&mut objects, name);
        } else if let Some(name) = line.strip_prefix("fn=") {
            cause = Cause::of(&object, &resolve(&mut functions, name));
        } else if let Some(name) = line.strip_prefix("cob=") {
            resolve(&mut objects, name);
        } else if let Some(name) = line.strip_prefix("cfn=") {
            resolve(&mut functions, name);
        } else if line.starts_with("calls=") {
            // The next line is what the callee cost, which counts there.
            of_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let cost = line.split(' ').nth(1).and_then(|cost| cost.parse::<f64>().ok());
            if !std::mem::take(&mut of_call) {
                *sums.entry(cause).or_default() += cost.unwrap_or_default();
            }
        }
    }
    sums
}

/// A name is written out once, and is a number after that.
fn resolve(known: &mut HashMap<String, String>, text: &str) -> String {
    let (number, name) = text.split_once(' ').unwrap_or((text, ""));
    if !name.is_empty() {
        known.insert(number.to_owned(), name.to_owned());
    }
    known.get(number).cloned().unwrap_or_else(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_function_costs_itself_is_its_cause() {
        let text = "events: Ir\n\nob=(1) /usr/bin/router\nfl=(1) a.rs\nfn=(1) portolan_router::serve\n1 10\n\
                    cob=(2) /lib/libc.so.6\ncfn=(2) __memcpy_avx\ncalls=3 0\n1 600\n+1 5\n\n\
                    ob=(2)\nfn=(2)\n0 600\n\nob=(1)\nfn=(3) <h2::codec::Codec<T> as tokio::Read>::poll\n* 7\n\
                    fn=(4) mi_malloc\n9 1\nfn=(6) _aesni_ctr32_ghash_6x\n9 2\nob=(3) /lib/libcrypto.so.3\nfn=(5) 0x0000\n0 4\n\ntotals: 629\n";
        let sums = causes(text);
        let of = |cause| sums.get(&cause).copied().unwrap_or_default();
        let known = [Cause::Own, Cause::Copies, Cause::Http2, Cause::Allocation, Cause::Tls].map(of);
        assert_eq!(known.map(|sum| format!("{sum}")), ["15", "600", "7", "1", "6"]);
    }
}
