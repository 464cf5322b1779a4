//! The digits of a cursor, in both formats: written so that they are read, and read only as they would be written.

use super::{CursorError, Format, Head, LONGEST, Slot, is_cursor};

const EPOCH: usize = 10;
const REVISION: usize = 10;
const COUNT: usize = 4;
pub(super) const CHECK: usize = 9;
/// Digits of a slot's length in format 1, and of the largest version.
const LENGTH: usize = 2;
const VERSION: usize = 20;
/// The largest prime below 10⁹: no digit times a power of ten is a multiple of it, so one wrong digit never passes.
const CHECK_PRIME: u64 = 999_999_937;

/// What is in the slots; the error is damage.
type Slots = Result<Box<[Slot]>, CursorError>;

pub(super) const fn most_members() -> usize {
    (LONGEST - slots_at(Format::One) - CHECK) / (LENGTH + VERSION)
}

/// Digits of the longest cursor with so many slots, of which so many are asked.
pub(super) fn longest(format: Format, slots: usize, asked: usize) -> usize {
    let slots = match format {
        Format::One => slots * LENGTH + asked * VERSION,
        Format::Two => slots * VERSION,
    };
    slots_at(format) + slots + CHECK
}

const fn slots_at(format: Format) -> usize {
    1 + EPOCH
        + COUNT
        + match format {
            Format::One => 0,
            Format::Two => REVISION,
        }
}

pub(super) fn write(head: Head, slots: &[Slot]) -> Result<String, CursorError> {
    let most = match head.format {
        Format::One => 10_usize.pow(4) - 1,
        Format::Two => most_members(),
    };
    if slots.len() > most || head.revision >= 10_u64.pow(10) {
        return Err(CursorError::TooLong);
    }
    let mut text = String::with_capacity(longest(head.format, slots.len(), slots.len()));
    text.push(match head.format {
        Format::One => '1',
        Format::Two => '2',
    });
    put(&mut text, head.epoch.into(), EPOCH);
    if head.format == Format::Two {
        put(&mut text, head.revision, REVISION);
    }
    put(&mut text, slots.len() as u64, COUNT);
    for slot in slots {
        match (head.format, slot) {
            (Format::One, Slot::Unasked) => text.push_str("00"),
            (Format::One, Slot::Sync) => text.push_str("010"),
            (Format::One, Slot::At(version)) => {
                put(&mut text, digits(*version).into(), LENGTH);
                put(&mut text, *version, 1);
            }
            (Format::Two, slot) => match u64::try_from(number(*slot)) {
                Ok(number) => put(&mut text, number, VERSION),
                // Of the last of all versions.
                Err(_) => text.push_str(&number(*slot).to_string()),
            },
        }
    }
    if text.len() + CHECK > LONGEST {
        return Err(CursorError::TooLong);
    }
    let sum = check(text.as_bytes());
    put(&mut text, sum, CHECK);
    Ok(text)
}

/// Appends a number with at least so many digits. A cursor goes with each event, and `write!` takes ten times as long.
fn put(text: &mut String, number: u64, width: usize) {
    let mut digits = [b'0'; VERSION];
    let (mut from, mut rest) = (VERSION, number);
    while rest > 0 {
        from -= 1;
        digits[from] += (rest % 10) as u8;
        rest /= 10;
    }
    let from = from.min(VERSION - width);
    text.push_str(std::str::from_utf8(&digits[from..]).unwrap_or_default());
}

/// What it begins with, and its slots if there are `count` of them.
pub(super) fn read(text: &str, count: usize) -> Result<(Head, Option<Slots>), CursorError> {
    if !is_cursor(text) {
        return Err(CursorError::NotACursor);
    }
    if text.len() > LONGEST {
        return Err(CursorError::TooLong);
    }
    let (body, sum) = text.split_at(text.len() - CHECK);
    if sum.parse() != Ok(check(body.as_bytes())) {
        return Err(CursorError::Damaged);
    }
    read_body(body, count).ok_or(CursorError::Damaged)
}

fn read_body(body: &str, count: usize) -> Option<(Head, Option<Slots>)> {
    let format = match body.as_bytes().first()? {
        b'1' => Format::One,
        b'2' => Format::Two,
        _ => return None,
    };
    let (head, slots) = body.split_at_checked(slots_at(format))?;
    let (epoch, rest) = head[1..].split_at(EPOCH);
    let (revision, held) = rest.split_at(rest.len() - COUNT);
    let head = Head {
        format,
        epoch: epoch.parse().ok()?,
        revision: if revision.is_empty() { 0 } else { revision.parse().ok()? },
    };
    let slots = (held.parse() == Ok(count)).then(|| match format {
        Format::One => read_slots(slots, count),
        Format::Two => read_wide_slots(slots, count),
    });
    Some((head, slots.map(|slots| slots.ok_or(CursorError::Damaged))))
}

fn read_slots(mut text: &str, count: usize) -> Option<Box<[Slot]>> {
    let mut slots = Vec::with_capacity(count);
    for _ in 0..count {
        let (length, rest) = text.split_at_checked(LENGTH)?;
        let (version, rest) = rest.split_at_checked(length.parse().ok()?)?;
        slots.push(match version {
            "" => Slot::Unasked,
            "0" => Slot::Sync,
            _ if version.starts_with('0') => return None,
            _ => Slot::At(version.parse().ok()?),
        });
        text = rest;
    }
    text.is_empty().then(|| slots.into_boxed_slice())
}

fn read_wide_slots(text: &str, count: usize) -> Option<Box<[Slot]>> {
    if text.len() != count * VERSION || count > most_members() {
        return None;
    }
    let slot = |digits: &[u8]| {
        let number: u128 = std::str::from_utf8(digits).ok()?.parse().ok()?;
        Some(match number {
            0 => Slot::Unasked,
            1 => Slot::Sync,
            _ => Slot::At(u64::try_from(number - 1).ok()?),
        })
    };
    text.as_bytes().chunks(VERSION).map(slot).collect()
}

/// A slot of format 2: the member's version and one more, so that 0 is left for what is not asked.
fn number(slot: Slot) -> u128 {
    match slot {
        Slot::Unasked => 0,
        Slot::Sync => 1,
        Slot::At(version) => u128::from(version) + 1,
    }
}

pub(super) fn digits(version: u64) -> u32 {
    version.checked_ilog10().map_or(1, |log| log + 1)
}

pub(super) fn check(body: &[u8]) -> u64 {
    // As many digits at a time as fit behind a remainder.
    body.chunks(CHECK).fold(0, |sum, digits| {
        let more = |sum, digit: &u8| sum * 10 + u64::from(digit - b'0');
        digits.iter().fold(sum, more) % CHECK_PRIME
    })
}
