//! Sets of row numbers as bits: of a compiled rule set, where only the words between the lowest and the highest are kept (what
//! names one namespace in one rule of thousands is one word), and of the rows that one request meets.

use std::ops::Range;

/// Numbers per word.
pub(super) const WORD: usize = u64::BITS as usize;

/// A set of row numbers that is not changed any more.
#[derive(Debug, Default)]
pub(super) struct Bits {
    /// Index of the first word that is kept.
    first: usize,
    words: Vec<u64>,
    /// How many it holds.
    count: usize,
}

/// The set that holds nothing.
pub(super) static NOTHING: &Bits = &Bits {
    first: 0,
    words: Vec::new(),
    count: 0,
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
        let count = rows.len();
        Self { first, words, count }
    }

    /// The words that are kept.
    fn range(&self) -> Range<usize> {
        self.first..self.first + self.words.len()
    }

    /// The numbers from `index * WORD` on.
    pub(super) fn word(&self, index: usize) -> u64 {
        // Below `first` it wraps past any length.
        self.words.get(index.wrapping_sub(self.first)).copied().unwrap_or(0)
    }
}

/// The union of some sets: what a request may meet by one of its words.
#[derive(Debug, Clone, Copy)]
pub(super) struct Union<'a> {
    /// Those that hold anything, and as many.
    sets: [&'a Bits; 4],
    used: usize,
    /// In all of them.
    pub(super) count: usize,
}

impl<'a> Union<'a> {
    pub(super) fn of(sets: [&'a Bits; 4]) -> Self {
        let mut union = Self {
            sets: [NOTHING; 4],
            used: 0,
            count: 0,
        };
        for set in sets.into_iter().filter(|set| set.count > 0) {
            union.sets[union.used] = set;
            union.used += 1;
            union.count += set.count;
        }
        union
    }

    /// The numbers from `index * WORD` on.
    pub(super) fn word(&self, index: usize) -> u64 {
        self.sets[..self.used].iter().fold(0, |all, set| all | set.word(index))
    }

    /// No other word has any.
    pub(super) fn range(&self) -> Range<usize> {
        let ranges = || self.sets[..self.used].iter().map(|set| set.range());
        let first = ranges().map(|range| range.start).min().unwrap_or(0);
        first..ranges().map(|range| range.end).max().unwrap_or(0)
    }
}

/// Words of [`Rows`] that need no allocation: 1,024 rows, as many as an object has at most.
const FEW: usize = 16;

/// The rows that a request meets. Requests with the same rows meet the same rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rows {
    few: [u64; FEW],
    /// From the word [`FEW`] on, up to the last that has a row.
    more: Vec<u64>,
}

impl Rows {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.more.is_empty() && self.few.iter().all(|word| *word == 0)
    }

    /// These rows of a word, at least one. Words are set in ascending order.
    pub(super) fn set(&mut self, index: usize, rows: u64) {
        if let Some(word) = self.few.get_mut(index) {
            *word = rows;
            return;
        }
        self.more.resize(index - FEW, 0);
        self.more.push(rows);
    }

    /// The words that have rows, with their indexes.
    pub(super) fn words(&self) -> impl Iterator<Item = (usize, u64)> {
        let all = self.few.iter().chain(&self.more).copied().enumerate();
        all.filter(|(_, rows)| *rows != 0)
    }
}
