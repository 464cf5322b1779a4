//! A set of small numbers as bits. Only the words between its lowest and its highest are kept: what names one namespace in
//! one rule of thousands is one word.

/// Numbers per word.
pub(super) const WORD: usize = u64::BITS as usize;

/// A set of row numbers that is not changed any more.
#[derive(Debug, Default)]
pub(super) struct Bits {
    /// Index of the first word that is kept.
    first: usize,
    words: Vec<u64>,
}

/// The set that holds nothing.
pub(super) static NOTHING: &Bits = &Bits {
    first: 0,
    words: Vec::new(),
};

impl Bits {
    /// `rows` in ascending order.
    pub(super) fn of(rows: &[usize]) -> Self {
        let (Some(lowest), Some(highest)) = (rows.first(), rows.last()) else {
            return Self::default();
        };
        let first = lowest / WORD;
        let mut words = vec![0; highest / WORD - first + 1];
        for row in rows {
            words[row / WORD - first] |= 1 << (row % WORD);
        }
        Self { first, words }
    }

    /// The numbers from `index * WORD` on.
    pub(super) fn word(&self, index: usize) -> u64 {
        // Below `first` it wraps past any length.
        self.words.get(index.wrapping_sub(self.first)).copied().unwrap_or(0)
    }
}
