//! The requested entries by GLSN, in either order.

use std::iter;
use std::ops::RangeInclusive;

use plimsoll::{Branch, Db, Error, Glsn, Keyspace};

use crate::exit::Failure;

/// If only some entries are wanted, GLSNs are scanned in windows of this many.
const WINDOW: u64 = 1 << 16;

/// The order of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    NewestFirst,
    OldestFirst,
}

/// GLSNs of existing entries.
pub(super) type Glsns<'a> = Box<dyn Iterator<Item = Result<u64, Failure>> + 'a>;

/// Every entry.
pub(super) fn all<'a>(range: RangeInclusive<u64>, order: Order) -> Glsns<'a> {
    match order {
        Order::NewestFirst => Box::new(range.rev().map(Ok)),
        Order::OldestFirst => Box::new(range.map(Ok)),
    }
}

/// The entries of one stream.
pub(super) fn of_stream(
    db: &Db,
    stream: u32,
    range: RangeInclusive<u64>,
    order: Order,
) -> Glsns<'_> {
    Box::new(windows(range, order).flat_map(move |window| {
        let mut found = Vec::new();
        if let Err(failure) = collect_stream(db, stream, window, &mut found) {
            found.push(Err(failure));
        }
        if order == Order::NewestFirst {
            found.reverse();
        }
        found
    }))
}

fn collect_stream(
    db: &Db,
    stream: u32,
    window: RangeInclusive<u64>,
    found: &mut Vec<Result<u64, Failure>>,
) -> Result<(), Failure> {
    let end = *window.end();
    let mut scan = db.log().scan(Glsn(*window.start())..=Glsn(end), Some(stream))?;
    let mut next = *window.start();
    while let Some(entry) = scan.next() {
        match entry {
            Ok(entry) => {
                next = entry.glsn.0 + 1;
                found.push(Ok(entry.glsn.0));
            }
            // Request each entry from here on, so that damaged ones are reported individually.
            Err(Error::Corrupt { .. }) => {
                for glsn in next..=end.min(db.newest().0) {
                    match db.log().read(Glsn(glsn)) {
                        Ok(entry) if entry.stream != stream => {}
                        _ => found.push(Ok(glsn)),
                    }
                }
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Splits a range into windows of at most [`WINDOW`].
fn windows(range: RangeInclusive<u64>, order: Order) -> impl Iterator<Item = RangeInclusive<u64>> {
    let mut left = range;
    iter::from_fn(move || {
        if left.is_empty() {
            return None;
        }
        let (start, end) = (*left.start(), *left.end());
        let window = match order {
            Order::NewestFirst => start.max(end.saturating_sub(WINDOW - 1))..=end,
            Order::OldestFirst => start..=end.min(start.saturating_add(WINDOW - 1)),
        };
        left = match order {
            Order::NewestFirst if *window.start() > start => start..=*window.start() - 1,
            Order::OldestFirst if *window.end() < end => *window.end() + 1..=end,
            _ => RangeInclusive::new(1, 0),
        };
        Some(window)
    })
}

/// The commits that wrote or deleted a key on a branch, from its retained versions.
pub(super) fn of_key<'a>(
    branch: &Branch,
    keyspace: &Keyspace,
    key: &[u8],
    range: RangeInclusive<u64>,
    order: Order,
) -> Result<Glsns<'a>, Failure> {
    let (from, to) = range.into_inner();
    let newest_first = branch
        .history(keyspace, key)?
        .map(|version| Ok(version?.glsn.0))
        .skip_while(move |glsn| matches!(glsn, Ok(glsn) if *glsn > to))
        .take_while(move |glsn| !matches!(glsn, Ok(glsn) if *glsn < from));
    Ok(match order {
        Order::NewestFirst => Box::new(newest_first),
        Order::OldestFirst => {
            let mut all: Vec<_> = newest_first.collect();
            all.reverse();
            Box::new(all.into_iter())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cover_range_once_in_order() {
        for (start, end) in [(1, 1), (1, WINDOW), (1, WINDOW + 1), (5, 3 * WINDOW), (3, 2)] {
            let forwards: Vec<u64> = windows(start..=end, Order::OldestFirst).flatten().collect();
            assert!(forwards.iter().copied().eq(start..=end));
            let back: Vec<u64> =
                windows(start..=end, Order::NewestFirst).flat_map(|window| window.rev()).collect();
            assert!(back.iter().copied().eq((start..=end).rev()));
        }
    }
}
