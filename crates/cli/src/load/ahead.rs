//! Reads rows on a separate thread, ahead of their use, so that parsing and storing each use a
//! processor.
//!
//! Invariants:
//! 1. The reader waits once [`BLOCK_BYTES`] are queued, so a block exceeds that size by at most one
//!    row.
//! 2. The reader thread does everything that can block on input, including opening the file. The
//!    caller polls for signals meanwhile.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use plimsoll_disk::thread;

use super::{Problem, Rows};
use crate::exit::Failure;

/// Size of a full block: keys, values, and the list of rows.
const BLOCK_BYTES: usize = 128 * 1024;

/// Wake the consumer once a block has this many bytes.
const WAKING_BYTES: usize = 32 * 1024;

/// Rows that arrive slowly are handed over after this time.
const FLUSH_AFTER: Duration = Duration::from_millis(20);

/// Rows in file order.
#[derive(Debug, Default)]
pub(crate) struct Block {
    bytes: Vec<u8>,
    rows: Vec<Row>,
    /// Why no rows follow these.
    pub(crate) end: Option<End>,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    line: u64,
    key_end: usize,
    value_end: usize,
    /// Whether the row is malformed. Then its key holds the error text.
    is_bad: bool,
}

/// A row's key and value, or its error.
pub(crate) type KeyAndValue<'a> = Result<(&'a [u8], &'a [u8]), &'a str>;

/// Why there are no more rows.
#[derive(Debug)]
pub(crate) enum End {
    /// The file has ended.
    OfFile,
    /// The next row has an error after which no row can be read.
    Problem(Problem),
    /// The reader thread panicked.
    Panic,
}

impl Block {
    /// The rows, each with its line.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (u64, KeyAndValue<'_>)> {
        let mut start = 0;
        self.rows.iter().map(move |row| {
            let (key, value) =
                (&self.bytes[start..row.key_end], &self.bytes[row.key_end..row.value_end]);
            start = row.value_end;
            match row.is_bad {
                false => (row.line, Ok((key, value))),
                true => (row.line, Err(std::str::from_utf8(key).expect("a description is text"))),
            }
        })
    }

    fn push(&mut self, line: u64, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.rows.push(Row { line, key_end, value_end: self.bytes.len(), is_bad: false });
    }

    fn push_bad(&mut self, line: u64, message: &str) {
        self.bytes.extend_from_slice(message.as_bytes());
        let end = self.bytes.len();
        self.rows.push(Row { line, key_end: end, value_end: end, is_bad: true });
    }

    fn held_bytes(&self) -> usize {
        self.bytes.len() + self.rows.len() * size_of::<Row>()
    }

    fn must_wake(&self) -> bool {
        self.held_bytes() >= WAKING_BYTES || self.end.is_some()
    }
}

/// An open source of rows, or the error of opening it.
pub(crate) type Opened = Result<Box<dyn Rows + Send>, Failure>;

/// Rows that are read ahead.
pub(crate) struct Ahead {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Rows were added or taken.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Whether opening succeeded, once known; taken once.
    opened: Option<Result<(), Failure>>,
    block: Block,
    /// The consumer has stopped taking rows.
    is_abandoned: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to the block once it has room; `false` if the consumer has stopped.
    fn add(&self, add: impl FnOnce(&mut Block)) -> bool {
        let full =
            |state: &mut State| state.block.held_bytes() >= BLOCK_BYTES && !state.is_abandoned;
        let mut state =
            self.changed.wait_while(self.lock(), full).unwrap_or_else(PoisonError::into_inner);
        let was_worth_waking = state.block.must_wake();
        add(&mut state.block);
        if !was_worth_waking && state.block.must_wake() {
            self.changed.notify_one();
        }
        !state.is_abandoned
    }
}

impl Ahead {
    /// Starts opening and reading rows.
    pub(crate) fn of(open: impl FnOnce() -> Opened + Send + 'static) -> Result<Self, Failure> {
        let shared = Arc::new(Shared::default());
        let reader = Arc::clone(&shared);
        thread::spawn("read-rows", move || read(open, &reader)).map_err(|error| {
            Failure::system(format!("cannot start a thread that reads rows: {error}"))
        })?;
        Ok(Self { shared })
    }

    /// Waits until the rows are open; returns `false` if `given_up` returns true before that.
    /// Called once, before any row is taken.
    pub(crate) fn wait_until_open(&self, given_up: impl Fn() -> bool) -> Result<bool, Failure> {
        loop {
            let pending = |state: &mut State| state.opened.is_none() && state.block.end.is_none();
            let waited =
                self.shared.changed.wait_timeout_while(self.shared.lock(), FLUSH_AFTER, pending);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
            match state.opened.take() {
                Some(opened) => return opened.map(|()| true),
                // The reader panicked; taking rows reports it.
                None if state.block.end.is_some() => return Ok(true),
                None if given_up() => return Ok(false),
                None => {}
            }
        }
    }

    /// Takes the queued rows. Waits briefly if there are few; the block may be empty.
    pub(crate) fn take(&self) -> Block {
        let few = |state: &mut State| !state.block.must_wake();
        let waited = self.shared.changed.wait_timeout_while(self.shared.lock(), FLUSH_AFTER, few);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        let block = std::mem::take(&mut state.block);
        self.shared.changed.notify_one();
        block
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.shared.lock().is_abandoned = true;
        self.shared.changed.notify_one();
    }
}

/// Reports the end of the rows even if the thread panics; otherwise `load` would wait endlessly.
struct Ending<'a> {
    to: &'a Shared,
    end: End,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let end = std::mem::replace(&mut self.end, End::Panic);
        self.to.add(|block| block.end = Some(end));
    }
}

fn read(open: impl FnOnce() -> Opened, to: &Shared) {
    let mut ending = Ending { to, end: End::Panic };
    let (opened, rows) = match open() {
        Ok(rows) => (Ok(()), Some(rows)),
        Err(failure) => (Err(failure), None),
    };
    to.lock().opened = Some(opened);
    to.changed.notify_one();
    let Some(mut rows) = rows else {
        ending.end = End::OfFile;
        return;
    };
    let (mut key, mut value) = (Vec::new(), Vec::new());
    ending.end = loop {
        match rows.next(&mut key, &mut value) {
            Ok(Some(line)) if to.add(|block| block.push(line, &key, &value)) => {}
            Err(problem)
                if problem.is_of_one_row
                    && to.add(|block| block.push_bad(problem.line, &problem.message)) => {}
            Ok(_) => break End::OfFile,
            Err(problem) => break End::Problem(problem),
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows 1, 2, 3, ... with their numbers as keys, followed by an error.
    struct Numbers {
        next: u64,
        fault_at: u64,
    }

    impl Rows for Numbers {
        fn next(&mut self, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<Option<u64>, Problem> {
            if self.next == self.fault_at {
                return Err(Problem::new(self.next, "a fault"));
            }
            key.clear();
            key.extend_from_slice(self.next.to_string().as_bytes());
            value.clear();
            value.resize(self.next as usize % 300, 7);
            self.next += 1;
            Ok(Some(self.next - 1))
        }
    }

    #[test]
    fn rows_arrive_in_order_before_the_error() {
        let ahead = Ahead::of(|| Ok(Box::new(Numbers { next: 1, fault_at: 5000 }))).ok().unwrap();
        let mut number = 1;
        let problem = loop {
            let block = ahead.take();
            for (line, row) in block.rows() {
                let (key, value) = row.unwrap();
                assert_eq!((line, key), (number, number.to_string().as_bytes()));
                assert_eq!(value.len(), number as usize % 300);
                number += 1;
            }
            if let Some(end) = block.end {
                break end;
            }
        };
        assert!(matches!(problem, End::Problem(Problem { line: 5000, .. })));
        assert_eq!(number, 5000);
    }

    #[test]
    fn row_error_keeps_its_place_and_reading_continues() {
        struct Three {
            next: u64,
        }

        impl Rows for Three {
            fn next(
                &mut self,
                key: &mut Vec<u8>,
                value: &mut Vec<u8>,
            ) -> Result<Option<u64>, Problem> {
                self.next += 1;
                key.clear();
                value.clear();
                match self.next {
                    2 => Err(Problem::of_row(2, "a fault")),
                    1 | 3 => Ok(Some(self.next)),
                    _ => Ok(None),
                }
            }
        }

        let ahead = Ahead::of(|| Ok(Box::new(Three { next: 0 }))).ok().unwrap();
        let mut rows = Vec::new();
        while rows.len() < 3 {
            rows.extend(
                ahead.take().rows().map(|(line, row)| (line, row.err().map(str::to_owned))),
            );
        }
        assert_eq!(rows, [(1, None), (2, Some("a fault".to_owned())), (3, None)]);
    }

    #[test]
    fn panic_of_the_reader_ends_the_rows() {
        struct Broken;

        impl Rows for Broken {
            fn next(&mut self, _: &mut Vec<u8>, _: &mut Vec<u8>) -> Result<Option<u64>, Problem> {
                panic!("a fault of the reader, made by this test")
            }
        }

        let ahead = Ahead::of(|| Ok(Box::new(Broken))).ok().unwrap();
        let end = std::iter::repeat_with(|| ahead.take()).find_map(|block| block.end).unwrap();
        assert!(matches!(end, End::Panic));
    }

    #[test]
    fn rows_are_available_early_and_an_abandoned_reader_ends() {
        struct Slow(std::sync::mpsc::Receiver<u64>);

        impl Rows for Slow {
            fn next(
                &mut self,
                key: &mut Vec<u8>,
                value: &mut Vec<u8>,
            ) -> Result<Option<u64>, Problem> {
                key.clear();
                value.clear();
                Ok(self.0.recv().ok())
            }
        }

        let (sender, rows) = std::sync::mpsc::channel();
        let ahead = Ahead::of(|| Ok(Box::new(Slow(rows)))).ok().unwrap();
        for line in [3, 7] {
            sender.send(line).unwrap();
            let seen = std::iter::repeat_with(|| ahead.take())
                .find(|block| block.rows().count() > 0)
                .unwrap();
            assert_eq!(seen.rows().map(|(line, _)| line).collect::<Vec<_>>(), [line]);
        }
        drop(ahead);
        while sender.send(9).is_ok() {
            std::thread::yield_now();
        }
    }
}
