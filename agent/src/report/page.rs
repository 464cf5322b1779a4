//! A difference in pieces, each of which is a message of bounded size. Pure. Caller: `report`.

use std::sync::Arc;

use portolan_wire::protocol::REPORT_PAGE_MAX_BYTES;
use prost::Message;

/// Most bytes of what is not a fact: a key of two names, and what frames it.
const KEY_BYTES: usize = 600;
/// What frames a field of a message, and a message on the stream.
const FRAME_BYTES: usize = 16;

/// A piece of a difference, or all of it. What is in pieces counts with the last.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page<K, V> {
    pub(super) reset: bool,
    pub(super) upserted: Vec<Arc<V>>,
    pub(super) removed: Vec<K>,
    /// Namespaces of which not all is known.
    pub(super) pending: Vec<String>,
    /// Another one follows.
    pub(super) more: bool,
}

/// The difference in as few pages as it takes. A fact is smaller than a page: its labels are bounded.
pub(super) fn paged<K, V: Message>(whole: Page<K, V>) -> Vec<Page<K, V>> {
    let mut pages = Pages {
        all: vec![Page::empty(whole.reset)],
        left: REPORT_PAGE_MAX_BYTES - FRAME_BYTES,
    };
    for fact in whole.upserted {
        pages.with_room(fact.encoded_len() + FRAME_BYTES).upserted.push(fact);
    }
    for key in whole.removed {
        pages.with_room(KEY_BYTES).removed.push(key);
    }
    for namespace in whole.pending {
        pages.with_room(namespace.len() + FRAME_BYTES).pending.push(namespace);
    }
    let last = pages.all.len() - 1;
    pages.all[..last].iter_mut().for_each(|page| page.more = true);
    pages.all
}

struct Pages<K, V> {
    all: Vec<Page<K, V>>,
    /// Bytes that the last one has room for.
    left: usize,
}

impl<K, V> Pages<K, V> {
    /// The last page, which has room for so much.
    fn with_room(&mut self, bytes: usize) -> &mut Page<K, V> {
        if bytes > self.left {
            self.all.push(Page::empty(false));
            self.left = REPORT_PAGE_MAX_BYTES - FRAME_BYTES;
        }
        self.left = self.left.saturating_sub(bytes);
        self.all.last_mut().expect("there is a first page")
    }
}

impl<K, V> Page<K, V> {
    fn empty(reset: bool) -> Self {
        Self {
            reset,
            upserted: Vec::new(),
            removed: Vec::new(),
            pending: Vec::new(),
            more: false,
        }
    }
}
