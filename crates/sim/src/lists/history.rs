//! The history of transactions over lists, as printed by their processes: a line before each
//! commit, and one after it has returned.

use std::collections::BTreeMap;
use std::fmt;

use crate::failure::{Failure, Outcome};

/// A list. The next generation of its slot follows a full list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListName {
    /// Number among the lists in use at a time.
    pub slot: u32,
    /// Number of earlier lists of the slot.
    pub generation: u32,
}

impl ListName {
    /// Its key in the store.
    pub fn key(self) -> [u8; 8] {
        (u64::from(self.slot) << 32 | u64::from(self.generation)).to_be_bytes()
    }

    /// The list with a key.
    pub fn of_key(key: &[u8]) -> Option<Self> {
        let number = u64::from_be_bytes(key.try_into().ok()?);
        Some(Self { slot: (number >> 32) as u32, generation: number as u32 })
    }
}

impl fmt::Display for ListName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.generation)
    }
}

/// A view of a list: the number of values, and a hash over them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Number of values.
    pub len: u64,
    /// Hash over all values, in order.
    pub hash: u64,
}

impl Seen {
    /// The view of these values.
    pub fn of(values: impl IntoIterator<Item = u64>) -> Self {
        values.into_iter().fold(Self::default(), Self::with)
    }

    /// The view extended by one value.
    pub fn with(self, value: u64) -> Self {
        let hash = (self.hash.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self { len: self.len + 1, hash }
    }
}

/// One step of a transaction: a read of a list, and optionally an append to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The list.
    pub list: ListName,
    /// The view, including the transaction's own values.
    pub seen: Seen,
    /// The appended value.
    pub value: Option<u64>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { list, seen: Seen { len, hash }, value } = self;
        write!(f, "{list} {len} {hash} {}", value.unwrap_or(0))
    }
}

/// The outcome of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The commit returned at this time.
    Committed(u64),
    /// The transaction was refused or aborted.
    Refused,
    /// The process died before it could report the outcome.
    Unknown,
}

/// A transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Start time, in nanoseconds of a clock that all processes share.
    pub begin: u64,
    /// Its outcome.
    pub end: End,
    /// Its steps, in order.
    pub steps: Vec<Step>,
}

impl fmt::Display for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[from {} ns, {:?}:", self.begin, self.end)?;
        for Step { list, seen, value } in &self.steps {
            write!(f, " {list} had {}", seen.len)?;
            if let Some(value) = value {
                write!(f, ", appends {value:x}")?;
            }
            f.write_str(";")?;
        }
        f.write_str("]")
    }
}

/// The line printed before a commit.
pub fn line_of_begin(thread: u64, begin: u64, steps: &[Step]) -> String {
    let steps: String = steps.iter().map(|step| format!(" {step}")).collect();
    format!("begin {thread} {begin}{steps} .\n")
}

/// The line printed after a commit; `None` if it was refused.
pub fn line_of_end(thread: u64, end: Option<u64>) -> String {
    match end {
        Some(end) => format!("done {thread} {end} .\n"),
        None => format!("refused {thread} .\n"),
    }
}

/// Parses the lines of a process; the last line may be truncated.
///
/// # Errors
/// A line before the last is invalid.
pub fn read_lines<'l>(lines: impl IntoIterator<Item = &'l str>) -> Outcome<Vec<Transaction>> {
    let mut transactions = Vec::new();
    // One transaction per thread.
    let mut under_way: BTreeMap<u64, Transaction> = BTreeMap::new();
    let mut cut: Option<&str> = None;
    for line in lines {
        if let Some(cut) = cut {
            return Err(Failure::new(format!("a process has printed {cut:?}")));
        }
        let Some(words) = line.strip_suffix(" .") else {
            cut = Some(line);
            continue;
        };
        let read = read_line(words)
            .ok_or_else(|| Failure::new(format!("a process has printed {line:?}")))?;
        let (thread, before) = match read {
            Line::Begin(thread, transaction) => (thread, under_way.insert(thread, transaction)),
            Line::End(thread, end) => (
                thread,
                under_way.remove(&thread).map(|transaction| Transaction { end, ..transaction }),
            ),
        };
        let is_end = !under_way.contains_key(&thread);
        if is_end && before.is_none() {
            return Err(Failure::new(format!("{line:?} ends a transaction that has not begun")));
        }
        transactions.extend(before);
    }
    transactions.extend(under_way.into_values());
    Ok(transactions)
}

enum Line {
    Begin(u64, Transaction),
    End(u64, End),
}

fn read_line(words: &str) -> Option<Line> {
    let mut words = words.split(' ');
    let what = words.next()?;
    let thread = words.next()?.parse().ok()?;
    match what {
        "begin" => {
            let begin = words.next()?.parse().ok()?;
            let words: Vec<&str> = words.collect();
            let steps = words.chunks(4).map(read_step).collect::<Option<Vec<_>>>()?;
            Some(Line::Begin(thread, Transaction { begin, end: End::Unknown, steps }))
        }
        "done" => Some(Line::End(thread, End::Committed(words.next()?.parse().ok()?))),
        "refused" => Some(Line::End(thread, End::Refused)),
        _ => None,
    }
}

fn read_step(words: &[&str]) -> Option<Step> {
    let [list, len, hash, value] = words else { return None };
    let (slot, generation) = list.split_once('.')?;
    let list = ListName { slot: slot.parse().ok()?, generation: generation.parse().ok()? };
    let seen = Seen { len: len.parse().ok()?, hash: hash.parse().ok()? };
    let value: u64 = value.parse().ok()?;
    Some(Step { list, seen, value: (value != 0).then_some(value) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_round_trips_through_its_text() {
        let list = ListName { slot: 3, generation: 70_000 };
        assert_eq!(ListName::of_key(&list.key()), Some(list));
        let seen = Seen::of([5, 6]);
        let steps = vec![Step { list, seen, value: None }, Step { list, seen, value: Some(7) }];
        let text = [
            line_of_begin(0, 10, &steps),
            line_of_begin(1, 11, &[]),
            line_of_end(0, Some(20)),
            line_of_end(1, None),
            line_of_begin(1, 30, &steps[..1]),
            line_of_begin(0, 31, &steps[1..]),
        ]
        .concat();
        let expected = [
            Transaction { begin: 10, end: End::Committed(20), steps: steps.clone() },
            Transaction { begin: 11, end: End::Refused, steps: Vec::new() },
            Transaction { begin: 31, end: End::Unknown, steps: steps[1..].to_vec() },
            Transaction { begin: 30, end: End::Unknown, steps: steps[..1].to_vec() },
        ];
        assert_eq!(read_lines(text.lines()).unwrap(), expected);
        // Truncating the last line anywhere removes it.
        let last = text.trim_end().rfind('\n').unwrap() + 1;
        for end in last..text.len() - 2 {
            assert_eq!(
                read_lines(text[..end].lines()).unwrap(),
                expected[..2].iter().chain(&expected[3..]).cloned().collect::<Vec<_>>()
            );
        }
        assert!(read_lines(["begin 0 1 3.4 .", "done 0 2 ."]).is_err());
        assert!(read_lines(["done 0 2 ."]).is_err());
        assert!(read_lines(["begin 0", "done 0 2 ."]).is_err());
    }
}
