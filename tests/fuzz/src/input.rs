//! What the bytes of an input choose beside the stream itself.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use portolan_merge::filter::NamespaceFilter;

/// What is to be done with the bytes, told by the last of them so that the corpus can be read.
#[derive(Clone, Copy)]
pub(crate) struct Flags(pub(crate) u8);

impl Flags {
    pub(crate) fn split(data: &[u8]) -> (Self, &[u8]) {
        data.split_last()
            .map_or((Self(0), data), |(last, rest)| (Self(*last), rest))
    }

    pub(crate) fn filtered(self) -> bool {
        self.0 & 1 == 1
    }

    pub(crate) fn second(self) -> bool {
        self.0 & 2 == 2
    }

    pub(crate) fn third(self) -> bool {
        self.0 & 4 == 4
    }

    pub(crate) fn filter(self) -> Option<NamespaceFilter> {
        let names: HashSet<Arc<str>> = ["ns-a", "ns-c"].into_iter().map(Arc::from).collect();
        self.filtered().then(|| NamespaceFilter::only(Arc::new(names)))
    }

    /// How the bytes are cut, beside not at all.
    pub(crate) fn piece(self) -> usize {
        usize::from(self.0 >> 3) + 1
    }
}

/// In pieces of that many bytes, each with memory of its own: slices that reach over a cut would be found.
pub(crate) fn pieces(data: &[u8], length: usize) -> impl Iterator<Item = Bytes> {
    data.chunks(length.max(1)).map(Bytes::copy_from_slice)
}
