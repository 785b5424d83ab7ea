//! Merges three versions of a text by lines.

use std::ops::Range;

use imara_diff::sources::byte_lines;
use imara_diff::{Algorithm, Diff, Hunk, InternedInput, TokenSource};
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::buffer::Buffer;

use crate::types::error::Result;
use crate::types::value::{Value, room_for};

/// The longest text that is merged. This limit and the next one exist because the comparison
/// allocates from the heap, where freed memory may stay with the process.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// The most lines of the three texts together.
const LINES_MAX: u64 = 1 << 16;

/// Upper bound of the memory that a comparison takes for each line of the two texts: its token, its
/// entry among the distinct lines, and the tables of the comparison.
const LINE_BYTES: u64 = 96;

/// Applies the changes from `base` to `theirs` to `ours`; `None` if both sides changed the same
/// lines, or lines next to each other, in different ways, or if the texts are too long.
///
/// # Errors
/// The budget.
pub(super) fn merge(
    budget: &Budget,
    base: &[u8],
    ours: &[u8],
    theirs: &[u8],
) -> Result<Option<Value>> {
    let texts = [base, ours, theirs];
    if !are_in_bounds(texts.map(|text| text.len() as u64)) {
        return Ok(None);
    }
    let lines: u64 = texts.iter().map(|text| byte_lines(text).count() as u64).sum();
    if lines > LINES_MAX {
        return Ok(None);
    }
    let _lease = budget.lease(Kind::Staging, lines * LINE_BYTES)?;
    let by_us = Changes::new(base, ours);
    let by_them = Changes::new(base, theirs);
    let mut merged = room_for(budget, (ours.len() + theirs.len()) as u64)?;
    Ok(merge_changes(base, &by_us, &by_them, &mut merged).map(|()| Value::new(merged)))
}

/// Whether texts of these lengths are merged.
pub(super) fn are_in_bounds(lens: [u64; 3]) -> bool {
    lens.iter().all(|len| *len <= TEXT_BYTES_MAX as u64)
}

/// The changes from one text to another.
struct Changes<'a> {
    hunks: Vec<Hunk>,
    /// The beginning of each line of the changed text, and the end of the text.
    offsets: Vec<usize>,
    text: &'a [u8],
}

impl<'a> Changes<'a> {
    fn new(base: &'a [u8], text: &'a [u8]) -> Self {
        // Reserves room for the actual number of lines, which `InternedInput::new` only estimates.
        let mut input = InternedInput::default();
        let count = |text| u32::try_from(byte_lines(text).count()).unwrap_or(u32::MAX);
        input.reserve(count(base), count(text));
        input.update_before(byte_lines(base));
        input.update_after(byte_lines(text));
        let hunks = Diff::compute(Algorithm::Histogram, &input).hunks().collect();
        Self { hunks, offsets: offsets(text), text }
    }

    /// The lines that a hunk puts in place of those of the base.
    fn lines(&self, hunk: &Hunk) -> &'a [u8] {
        slice(self.text, &self.offsets, &hunk.after)
    }
}

/// The beginning of each line, and the end of the text.
fn offsets(text: &[u8]) -> Vec<usize> {
    let ends = byte_lines(text).tokenize().scan(0, |end, line| {
        *end += line.len();
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}

fn slice<'a>(text: &'a [u8], offsets: &[usize], lines: &Range<u32>) -> &'a [u8] {
    &text[offsets[lines.start as usize]..offsets[lines.end as usize]]
}

/// Writes the merged text into `merged`, which has room for the texts of both sides; `None` if
/// there is a conflict.
fn merge_changes(
    base: &[u8],
    ours: &Changes<'_>,
    theirs: &Changes<'_>,
    merged: &mut Buffer<u8>,
) -> Option<()> {
    let base_offsets = offsets(base);
    let (mut by_us, mut by_them) = (ours.hunks.iter().peekable(), theirs.hunks.iter().peekable());
    // Lines of the base before this one are done.
    let mut done = 0;
    loop {
        let (hunk, lines) = match (by_us.peek(), by_them.peek()) {
            (None, None) => break,
            (Some(us), Some(them)) if us.before == them.before => {
                if ours.lines(us) != theirs.lines(them) {
                    return None;
                }
                by_them.next();
                let hunk = by_us.next()?;
                (hunk, ours.lines(hunk))
            }
            (Some(us), Some(them)) if touch(us, them) => return None,
            (us, them)
                if us.is_some_and(|us| {
                    them.is_none_or(|them| us.before.start < them.before.start)
                }) =>
            {
                let hunk = by_us.next()?;
                (hunk, ours.lines(hunk))
            }
            _ => {
                let hunk = by_them.next()?;
                (hunk, theirs.lines(hunk))
            }
        };
        merged.extend_from_slice(slice(base, &base_offsets, &(done..hunk.before.start)));
        merged.extend_from_slice(lines);
        done = hunk.before.end;
    }
    let end = base_offsets.len() as u32 - 1;
    merged.extend_from_slice(slice(base, &base_offsets, &(done..end)));
    Some(())
}

/// Whether two changes overlap or are next to each other.
fn touch(a: &Hunk, b: &Hunk) -> bool {
    a.before.start <= b.before.end && b.before.start <= a.before.end
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use plimsoll_disk::random::Random;
    use plimsoll_memory::budget::Backing;

    use super::*;

    fn merged(base: &str, ours: &str, theirs: &str) -> Option<String> {
        static BUDGET: LazyLock<Budget> =
            LazyLock::new(|| Budget::new(16 << 20, Backing::Heap).unwrap());
        let merged = merge(&BUDGET, base.as_bytes(), ours.as_bytes(), theirs.as_bytes()).unwrap();
        merged.map(|text| String::from_utf8(text.into_vec()).unwrap())
    }

    #[test]
    fn changes_of_different_lines_are_both_kept() {
        let cases = [
            ("a\nb\nc\n", "A\nb\nc\n", "a\nb\nC\n", "A\nb\nC\n"),
            ("a\nb\nc", "a\nb\nc\nd\n", "x\nb\nc", "x\nb\nc\nd\n"),
            ("a\nb\nc\n", "b\nc\n", "a\nb\n", "b\n"),
            ("a\nb\nc\n", "a\nb\nc\n", "", ""),
            ("", "a\n", "", "a\n"),
            ("a\n\n\nb\n", "a\nx\n\n\nb\n", "a\n\n\nb\ny", "a\nx\n\n\nb\ny"),
        ];
        for (base, ours, theirs, wanted) in cases {
            assert_eq!(merged(base, ours, theirs).as_deref(), Some(wanted), "{base:?}");
            assert_eq!(merged(base, theirs, ours).as_deref(), Some(wanted), "{base:?}");
        }
    }

    #[test]
    fn changes_of_the_same_or_neighbouring_lines_are_a_conflict() {
        let cases = [
            ("a\nb\nc\n", "a\nB\nc\n", "a\nx\nc\n"),
            ("a\nb\nc\n", "A\nb\nc\n", "a\nB\nc\n"),
            ("a\nb\nc\n", "a\nc\n", "a\nB\nc\n"),
            ("a\n", "a\nb\n", "a\nc\n"),
            ("a", "a\n", "b"),
        ];
        for (base, ours, theirs) in cases {
            assert_eq!(merged(base, ours, theirs), None, "{base:?} {ours:?} {theirs:?}");
            assert_eq!(merged(base, theirs, ours), None, "{base:?} {ours:?} {theirs:?}");
        }
    }

    #[test]
    fn texts_that_are_too_long_are_a_conflict() {
        let text = |line: &str, lines: usize| line.repeat(lines);
        for (line, lines) in
            [("\n", 21_000), ("a line of a usual length\n", 21_000), ("x", 1 << 20)]
        {
            let base = text(line, lines);
            let (ours, theirs) = (format!("{base}end"), format!("begin\n{base}"));
            let is_short = line != "x";
            assert_eq!(merged(&base, &ours, &theirs).is_some(), is_short, "{line:?}");
            let base = text(line, 2 * lines);
            assert_eq!(merged(&base, &base, &format!("begin\n{base}")), None, "{line:?}");
        }
    }

    #[test]
    fn random_texts_merge_in_either_order_and_with_themselves() {
        let seed = std::env::var("SEED").map_or(11, |seed| seed.parse().unwrap());
        println!("SEED={seed}");
        let mut random = Random::new(seed);
        let mut clean = 0;
        for _ in 0..3000 {
            let text = |random: &mut Random| -> Vec<String> {
                (0..random.below(20)).map(|_| format!("{}\n", random.below(6))).collect()
            };
            let base = text(&mut random);
            let mut edit = |base: &[String]| {
                let mut lines = base.to_vec();
                for _ in 0..random.below(3) {
                    let at = random.below(lines.len() as u64 + 1) as usize;
                    match random.below(2) {
                        0 if at < lines.len() => drop(lines.remove(at)),
                        _ => lines.insert(at, format!("{}\n", random.below(100))),
                    }
                }
                lines.concat()
            };
            let (ours, theirs) = (edit(&base), edit(&base));
            let base = base.concat();
            assert_eq!(merged(&base, &ours, &base).as_ref(), Some(&ours));
            assert_eq!(merged(&base, &base, &theirs).as_ref(), Some(&theirs));
            assert_eq!(merged(&base, &ours, &ours).as_ref(), Some(&ours));
            let both = merged(&base, &ours, &theirs);
            assert_eq!(merged(&base, &theirs, &ours), both);
            if let Some(both) = both {
                clean += 1;
                let is_in = |line: &str, text: &String| text.lines().any(|it| it == line);
                for line in both.lines() {
                    assert!([&base, &ours, &theirs].iter().any(|text| is_in(line, text)));
                }
            }
        }
        assert!(clean > 1000, "{clean}");
    }

    /// The lines are distinct and the edits apart, so that the result is known.
    #[test]
    fn edits_apart_from_each_other_are_all_kept() {
        let seed = std::env::var("SEED").map_or(12, |seed| seed.parse().unwrap());
        println!("SEED={seed}");
        let mut random = Random::new(seed);
        for _ in 0..2000 {
            let mut texts = [const { String::new() }; 4];
            let mut is_conflict = false;
            for line in 0..3 * random.below(12) {
                let base = format!("line {line}\n");
                let new = |kind, by: &str| match kind {
                    0 => String::new(),
                    1 => format!("{by}\n"),
                    _ => format!("{by} {line}\n{base}"),
                };
                let mut lines = [base.clone(), base.clone(), base.clone()];
                if line % 3 == 1 {
                    let kind = random.below(3);
                    let whose = 3 + random.below(4) / 3;
                    match random.below(whose) {
                        0 => lines = [new(kind, "our"), base.clone(), new(kind, "our")],
                        1 => lines = [base.clone(), new(kind, "their"), new(kind, "their")],
                        2 => lines = [new(kind, "both"), new(kind, "both"), new(kind, "both")],
                        _ => {
                            lines = [new(kind, "our"), new(kind, "their"), String::new()];
                            is_conflict |= kind > 0;
                        }
                    }
                }
                let [ours, theirs, both] = lines;
                for (text, line) in texts.iter_mut().zip([base, ours, theirs, both]) {
                    text.push_str(&line);
                }
            }
            let [base, ours, theirs, both] = &texts;
            let wanted = Some(both).filter(|_| !is_conflict);
            assert_eq!(merged(base, ours, theirs).as_ref(), wanted, "{base} {ours} {theirs}");
        }
    }
}
