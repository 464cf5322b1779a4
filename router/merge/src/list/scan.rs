//! Where a JSON object or array ends: brackets counted outside strings, 64 bytes at a time.
//!
//! This runs over every byte of every JSON list, so it is what a merged list costs over a direct one. It looks at brackets,
//! quotes and backslashes only and does not check that what lies between them is JSON. The nesting is a counter: there is
//! nothing that depth could exhaust. `json` calls it; any cut of the bytes gives the same answer.

use wide::u8x16;

const BLOCK: usize = 64;
const LANE: usize = 16;
const EVEN: u64 = 0x5555_5555_5555_5555;

/// Inside a container that was opened: how deep, and whether in a string.
#[derive(Debug, Clone)]
pub(super) struct Scan {
    depth: u64,
    in_string: bool,
    escaped: bool,
}

impl Scan {
    /// Before the bracket that opens the container.
    pub(super) fn before() -> Self {
        Self {
            depth: 0,
            in_string: false,
            escaped: false,
        }
    }

    /// Just behind the bracket that opens the container.
    pub(super) fn inside() -> Self {
        Self {
            depth: 1,
            ..Self::before()
        }
    }

    /// The index just behind the bracket that closes the container, if it is among these bytes.
    pub(super) fn close(&mut self, bytes: &[u8]) -> Option<usize> {
        let (blocks, tail) = bytes.as_chunks::<BLOCK>();
        for (index, block) in blocks.iter().enumerate() {
            if let Some(end) = self.block(block) {
                return Some(index * BLOCK + end);
            }
        }
        let end = self.bytes(tail)?;
        Some(bytes.len() - tail.len() + end)
    }

    fn block(&mut self, block: &[u8; BLOCK]) -> Option<usize> {
        let marks = Marks::of(block);
        let quotes = marks.quotes & !self.escapes(marks.backslashes);
        let strings = spread(quotes) ^ if self.in_string { u64::MAX } else { 0 };
        self.in_string = strings >> (BLOCK - 1) == 1;
        let (opens, closes) = (marks.opens & !strings, marks.closes & !strings);
        if self.depth > u64::from(closes.count_ones()) {
            self.depth = self.depth + u64::from(opens.count_ones()) - u64::from(closes.count_ones());
            return None;
        }
        let mut brackets = opens | closes;
        while brackets != 0 {
            let at = brackets.trailing_zeros();
            brackets &= brackets - 1;
            if opens >> at & 1 == 1 {
                self.depth += 1;
            } else {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 0 {
                    return usize::try_from(at + 1).ok();
                }
            }
        }
        None
    }

    /// Which bytes a backslash before them escapes. Runs of backslashes are told by the parity of their start and length
    /// (as simdjson does); most blocks have none.
    fn escapes(&mut self, backslashes: u64) -> u64 {
        let carried = u64::from(self.escaped);
        if backslashes | carried == 0 {
            return 0;
        }
        let backslashes = backslashes & !carried;
        let follows = backslashes << 1 | carried;
        let odd_starts = backslashes & !EVEN & !follows;
        let (even_ends, carry) = odd_starts.overflowing_add(backslashes);
        self.escaped = carry;
        (EVEN ^ (even_ends << 1)) & follows
    }

    fn bytes(&mut self, bytes: &[u8]) -> Option<usize> {
        for (index, byte) in bytes.iter().enumerate() {
            let escaped = self.escaped;
            self.escaped = *byte == b'\\' && !escaped;
            match byte {
                b'"' if !escaped => self.in_string = !self.in_string,
                b'{' | b'[' if !self.in_string => self.depth += 1,
                b'}' | b']' if !self.in_string => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(index + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

/// One bit per byte of a block.
struct Marks {
    quotes: u64,
    backslashes: u64,
    opens: u64,
    closes: u64,
}

impl Marks {
    fn of(block: &[u8; BLOCK]) -> Self {
        let mut marks = Self {
            quotes: 0,
            backslashes: 0,
            opens: 0,
            closes: 0,
        };
        for (index, lane) in block.as_chunks::<LANE>().0.iter().enumerate() {
            let lane = u8x16::new(*lane);
            // `[` and `{`, `]` and `}` differ in this bit alone; nothing else becomes one of them by it.
            let folded = lane | u8x16::splat(0x20);
            let at = index * LANE;
            marks.quotes |= find(lane, b'"') << at;
            marks.backslashes |= find(lane, b'\\') << at;
            marks.opens |= find(folded, b'{') << at;
            marks.closes |= find(folded, b'}') << at;
        }
        marks
    }
}

fn find(lane: u8x16, byte: u8) -> u64 {
    u64::from(lane.simd_eq(u8x16::splat(byte)).to_bitmask())
}

/// Each bit becomes the parity of the bits up to it: set from an opening quote to before the closing one.
fn spread(mut bits: u64) -> u64 {
    for shift in [1, 2, 4, 8, 16, 32] {
        bits ^= bits << shift;
    }
    bits
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition: one byte at a time.
    fn slow(bytes: &[u8]) -> Option<usize> {
        Scan::inside().bytes(bytes)
    }

    #[test]
    fn strings_hide_brackets_and_quotes() {
        let text = br#"{"a":"]}\"]","b":["\\"],"c\\\"]":{}}]tail]"#;
        assert_eq!(Scan::inside().close(text), Some(text.len() - 5));
        assert_eq!(slow(text), Some(text.len() - 5));
        assert_eq!(Scan::inside().close(b""), None);
    }

    #[test]
    fn depth_is_only_counted() {
        let deep = [b"[".repeat(1 << 20), b"]".repeat(1 << 20)].concat();
        assert_eq!(Scan::inside().close(&deep), None);
        assert_eq!(
            Scan::inside().close(&[deep, b"]".to_vec()].concat()),
            Some((1 << 21) + 1)
        );
    }

    const ALPHABET: &[u8] = b"\\\\\"\"[[[]{}aZ ;\x00\xfb\xdd\xff";

    proptest! {
        #[test]
        fn any_cut_finds_the_same_end(
            text in proptest::collection::vec(0..ALPHABET.len(), 0..300),
            cut in 0usize..300,
        ) {
            let text: Vec<u8> = text.into_iter().map(|index| ALPHABET[index]).collect();
            let expected = slow(&text);
            prop_assert_eq!(Scan::inside().close(&text), expected);
            let (left, right) = text.split_at(cut.min(text.len()));
            let mut scan = Scan::inside();
            let found = scan.close(left).or_else(|| scan.close(right).map(|end| left.len() + end));
            prop_assert_eq!(found, expected);
        }
    }
}
