//! Sets of row numbers as bits: of a compiled rule set, where only what stands between the lowest and the highest is kept (what
//! names one namespace in one rule of thousands is one block), and of the rows that one request meets.

use std::array::from_fn;
use std::ops::Range;

/// Numbers per word.
const WORD: usize = u64::BITS as usize;
/// Words that are looked at together. A number that is known, and small: so the compiler makes one loop over a block few
/// instructions without branches.
const WORDS: usize = 8;
/// Numbers per block.
const NUMBERS: usize = WORDS * WORD;

/// As many rows as one look sees.
pub(super) type Block = [u64; WORDS];

const NONE: Block = [0; WORDS];

/// A set of row numbers that is not changed any more.
#[derive(Debug, Default)]
pub(super) struct Bits {
    /// Index of the first block that is kept.
    first: usize,
    blocks: Vec<Block>,
    /// How many it holds.
    count: usize,
}

/// The set that holds nothing.
pub(super) static NOTHING: &Bits = &Bits {
    first: 0,
    blocks: Vec::new(),
    count: 0,
};

impl Bits {
    /// `rows` in ascending order.
    pub(super) fn of(rows: &[usize]) -> Self {
        let (Some(lowest), Some(highest)) = (rows.first(), rows.last()) else {
            return Self::default();
        };
        let first = lowest / NUMBERS;
        let mut blocks = vec![NONE; highest / NUMBERS - first + 1];
        for row in rows {
            blocks[row / NUMBERS - first][row % NUMBERS / WORD] |= 1 << (row % WORD);
        }
        let count = rows.len();
        Self { first, blocks, count }
    }

    /// The blocks that are kept.
    fn range(&self) -> Range<usize> {
        self.first..self.first + self.blocks.len()
    }

    /// The numbers from `index * NUMBERS` on.
    pub(super) fn block(&self, index: usize) -> &Block {
        // Below `first` it wraps past any length.
        self.blocks.get(index.wrapping_sub(self.first)).unwrap_or(&NONE)
    }
}

/// What is in both.
pub(super) fn both(one: &Block, other: &Block) -> Block {
    from_fn(|at| one[at] & other[at])
}

/// What is in either.
pub(super) fn either(one: &Block, other: &Block) -> Block {
    from_fn(|at| one[at] | other[at])
}

/// Whether it has no row.
pub(super) fn is_empty(block: &Block) -> bool {
    block.iter().fold(0, |all, word| all | word) == 0
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

    /// The numbers from `index * NUMBERS` on.
    pub(super) fn block(&self, index: usize) -> Block {
        let sets = self.sets[..self.used].iter();
        sets.fold(NONE, |all, set| either(&all, set.block(index)))
    }

    /// No other block has any.
    pub(super) fn range(&self) -> Range<usize> {
        let ranges = || self.sets[..self.used].iter().map(|set| set.range());
        let first = ranges().map(|range| range.start).min().unwrap_or(0);
        first..ranges().map(|range| range.end).max().unwrap_or(0)
    }
}

/// Blocks of [`Rows`] that need no allocation: 1,024 rows, as many as an object has at most.
const FEW: usize = 2;

/// The rows that a request meets. Requests with the same rows meet the same rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rows {
    few: [Block; FEW],
    /// From the block [`FEW`] on, up to the last that has a row.
    more: Vec<Block>,
}

impl Rows {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.more.is_empty() && self.few.iter().all(is_empty)
    }

    /// These rows of a block, at least one. Blocks are set in ascending order, below `end`.
    pub(super) fn set(&mut self, index: usize, rows: Block, end: usize) {
        if let Some(block) = self.few.get_mut(index) {
            *block = rows;
            return;
        }
        if self.more.is_empty() {
            self.more.reserve_exact(end - FEW);
        }
        self.more.resize(index - FEW, NONE);
        self.more.push(rows);
    }

    /// The blocks, with their indexes.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (usize, &Block)> {
        self.few.iter().chain(&self.more).enumerate()
    }
}

/// The rows of a block that stands at this index, in ascending order.
pub(super) fn each_row(index: usize, block: &Block, mut row: impl FnMut(usize)) {
    for (at, word) in block.iter().enumerate() {
        let mut rest = *word;
        while rest != 0 {
            row(index * NUMBERS + at * WORD + rest.trailing_zeros() as usize);
            rest &= rest - 1;
        }
    }
}
