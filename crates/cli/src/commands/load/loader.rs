//! Loads the rows of a file into a store, in one bulk load or in one transaction per batch.
//!
//! Invariants:
//! 1. Batches are committed in file order without gaps, apart from skipped malformed rows, so a row
//!    count is enough to resume.
//! 2. A commit whose sync failed is reported as in doubt, never as absent. Its GLSN shows whether
//!    it exists.

use plimsoll::{Branch, BulkLoad, Db, Error, Glsn, Keyspace, MAX_KEY_BYTES, Transaction};

use crate::args::Load;
use crate::commands::load::left_out::LeftOut;
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::load::Problem;
use crate::load::ahead::{Ahead, End, KeyAndValue};
use crate::size::{count_of, show_count};
use crate::stderr::say;

/// Loaded rows and bytes.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) rows: u64,
    pub(super) transactions: u64,
    pub(super) bytes: u64,
    pub(super) left_out: u64,
    pub(super) interrupted: bool,
    pub(super) resume_advice: String,
}

/// Why the load stopped.
pub(super) enum Stop {
    End,
    Interrupted,
    Row(Problem),
    Store(Failure),
}

/// Puts rows into a bulk load or into transactions.
pub(super) struct Loader<'a> {
    db: &'a Db,
    branch: Branch,
    /// The first row creates it if it does not exist.
    keyspace: Option<Keyspace>,
    args: &'a Load,
    /// Committed rows and bytes.
    counts: Counts,
    /// Skipped malformed rows.
    left_out: LeftOut,
    /// Rows read so far: skipped, put or rejected.
    passed: u64,
    /// Value of `passed` at the last commit.
    passed_at_commit: u64,
    open: Option<Open>,
    in_doubt: Option<InDoubt>,
    interrupt: &'a Interrupt,
}

/// A failed commit that may still be found when the store is reopened.
struct InDoubt {
    rows: u64,
    /// The GLSN that the commit has if it is found, unless another process committed before it.
    glsn: Glsn,
}

/// An open commit.
struct Open {
    rows: u64,
    bytes: u64,
    writes: Writes,
}

/// The writer that fills the commit.
enum Writes {
    All(Box<BulkLoad>),
    Batch(Box<Transaction>),
}

impl<'a> Loader<'a> {
    pub(super) fn new(
        db: &'a Db,
        branch: Branch,
        args: &'a Load,
        interrupt: &'a Interrupt,
    ) -> Self {
        Self {
            db,
            branch,
            keyspace: None,
            args,
            counts: Counts::default(),
            left_out: LeftOut::default(),
            passed: 0,
            passed_at_commit: args.skip,
            open: None,
            in_doubt: None,
            interrupt,
        }
    }

    pub(super) fn load(&mut self, rows: &Ahead, tell: &mut dyn FnMut()) -> Stop {
        loop {
            if self.interrupt.was_received() {
                return Stop::Interrupted;
            }
            let block = rows.take();
            tell();
            for (line, row) in block.rows() {
                if self.passed < self.args.skip {
                    self.passed += 1;
                    continue;
                }
                if self.interrupt.was_received() {
                    return Stop::Interrupted;
                }
                match checked(row) {
                    Err(message) if self.args.ignore_errors => {
                        self.passed += 1;
                        self.left_out.add(line, message);
                    }
                    Err(message) => return Stop::Row(Problem::of_row(line, message)),
                    Ok((key, value)) => {
                        self.passed += 1;
                        if let Err(failure) = self.put(key, value) {
                            return Stop::Store(failure);
                        }
                    }
                }
            }
            match block.end {
                Some(End::OfFile) => return Stop::End,
                Some(End::Problem(problem)) => return Stop::Row(problem),
                Some(End::Panic) => {
                    let message = "the row reader failed with the internal error shown above; \
                                   please report it";
                    return Stop::Store(Failure::system(message));
                }
                None => {}
            }
        }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        let keyspace = match &self.keyspace {
            Some(keyspace) => keyspace,
            None => self.keyspace.insert(self.db.keyspace(&self.args.keyspace.keyspace)?),
        };
        if self.open.is_none() {
            let writes = match (self.args.batch, self.args.on.is_main()) {
                // The rows of a branch are not sorted into separate runs.
                (Some(_), _) | (None, false) => Writes::Batch(Box::new(self.branch.begin())),
                (None, true) => {
                    let mut load = Box::new(self.db.begin_bulk_load(keyspace)?);
                    load.cancel_on(self.interrupt.flag());
                    Writes::All(load)
                }
            };
            self.open = Some(Open { rows: 0, bytes: 0, writes });
        }
        let open = self.open.as_mut().expect("opened above");
        match &mut open.writes {
            Writes::All(load) => load.put(key, value)?,
            Writes::Batch(transaction) => transaction.put(keyspace, key, value)?,
        }
        open.rows += 1;
        open.bytes += (key.len() + value.len()) as u64;
        if self.args.batch == Some(open.rows) {
            self.commit()?;
        }
        Ok(())
    }

    fn commit(&mut self) -> plimsoll::Result<()> {
        if let Some(open) = self.open.take() {
            let glsn = self.db.newest().next();
            let committed = match open.writes {
                Writes::All(load) => load.commit(),
                Writes::Batch(transaction) => transaction.commit(),
            };
            committed.inspect_err(|error| {
                self.note_in_doubt(error, InDoubt { rows: open.rows, glsn })
            })?;
            self.counts.transactions += 1;
            self.counts.rows += open.rows;
            self.counts.bytes += open.bytes;
            self.passed_at_commit = self.passed;
        }
        Ok(())
    }

    /// Records a failed commit whose outcome is unknown. After other errors, it certainly failed.
    fn note_in_doubt(&mut self, error: &Error, commit: InDoubt) {
        if matches!(error, Error::Poisoned { .. } | Error::Stalled { .. }) {
            self.in_doubt = Some(commit);
        }
    }

    /// Commits the completed batches. If rows are missing, the error says how to resume.
    pub(super) fn finish(mut self, name: &str, stop: Stop) -> Result<Counts, Failure> {
        let keep = match &stop {
            Stop::End => true,
            Stop::Interrupted | Stop::Row(_) => self.args.batch.is_some(),
            // The open transaction lacks a row.
            Stop::Store(_) => false,
        };
        let committed = if keep { self.commit() } else { Ok(()) };
        self.left_out.print(name);
        self.counts.left_out = self.left_out.count();
        if matches!(stop, Stop::End) && self.passed < self.args.skip {
            let rows = count_of(self.passed, "row", "rows");
            say(format_args!("{name} has {rows}, and --skip {} skips all of them", self.args.skip));
        }
        let resume_advice = self.resume_advice(&stop);
        match (stop, committed) {
            (Stop::End, Ok(())) => Ok(self.counts),
            (Stop::Interrupted, Ok(())) | (Stop::End, Err(Error::Cancelled)) => {
                Ok(Counts { interrupted: true, resume_advice, ..self.counts })
            }
            (Stop::Row(problem), Ok(())) => Err(problem.in_file(name).advise(&resume_advice)),
            (Stop::Store(failure), _) => Err(failure.advise(&resume_advice)),
            (_, Err(error)) => Err(Failure::from(error).advise(&resume_advice)),
        }
    }

    fn resume_advice(&self, stop: &Stop) -> String {
        let rows = self.passed_at_commit;
        if let Some(in_doubt) = &self.in_doubt {
            let loaded = match self.counts.rows {
                0 => String::new(),
                loaded => format!("{} loaded. ", count_of(loaded, "row was", "rows were")),
            };
            let store = self.args.store.display();
            let again = if rows == 0 {
                "run the command again".to_owned()
            } else {
                format!("resume with --skip {rows}")
            };
            let next = match self.args.batch {
                Some(_) => format!("resume with --skip {}", self.passed),
                None => "everything is loaded".to_owned(),
            };
            return format!(
                "{loaded}The last commit ({}) may or may not be in the store. Before writing \
                 anything else, run `plimsoll log {store} --limit 1`: if the newest GLSN is \
                 {glsn}, the commit is there: {next}; if it is lower, the commit is not there: \
                 {again}. If other processes write to the store, look for the commit among those \
                 from GLSN {glsn} on.",
                count_of(in_doubt.rows, "row", "rows"),
                glsn = in_doubt.glsn
            );
        }
        let bad = match stop {
            Stop::Row(problem) if problem.line > 0 => Some(problem),
            _ => None,
        };
        if self.args.batch.is_none() {
            return match bad {
                Some(Problem { is_of_one_row: true, .. }) => {
                    "Nothing was loaded; --batch ROWS keeps the rows before the bad one, and \
                     --ignore-errors leaves out bad rows."
                }
                Some(_) => "Nothing was loaded; --batch ROWS keeps the rows before the bad one.",
                None => "Nothing was loaded; --batch ROWS keeps the rows that were read before.",
            }
            .to_owned();
        }
        let again = if rows == 0 {
            "run the command again".to_owned()
        } else {
            format!("resume with --skip {rows}")
        };
        let next = match bad {
            Some(&Problem { line, is_of_one_row: true, .. }) => format!(
                "; correct line {line} and {again}, or leave out that row with --skip {}, or \
                 all bad rows with --ignore-errors",
                rows + 1
            ),
            Some(problem) => format!("; correct line {} and {again}", problem.line),
            None if rows == 0 => String::new(),
            None => format!("; {again}"),
        };
        match self.counts.rows {
            0 => format!("Nothing was loaded{next}."),
            loaded => format!("{} loaded{next}.", count_of(loaded, "row was", "rows were")),
        }
    }
}

/// Checks a row against the store's limits.
fn checked(row: KeyAndValue<'_>) -> Result<(&[u8], &[u8]), String> {
    match row {
        Ok((b"", _)) => Err("the key is empty".to_owned()),
        Ok((key, _)) if key.len() > MAX_KEY_BYTES => Err(format!(
            "the key has {} bytes; the maximum is {}",
            show_count(key.len() as u64),
            show_count(MAX_KEY_BYTES as u64)
        )),
        row => row.map_err(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use plimsoll::Options;

    use super::*;
    use crate::args::{InKeyspace, OnBranch};

    fn args(batch: Option<u64>) -> Load {
        Load {
            store: "/store".into(),
            file: "rows.csv".into(),
            format: None,
            key: None,
            value: None,
            no_header: false,
            batch,
            atomic: false,
            skip: 0,
            ignore_errors: false,
            delimiter: None,
            max_row: 4 << 20,
            on: OnBranch { branch: None },
            keyspace: InKeyspace { keyspace: "default".to_owned() },
        }
    }

    /// The message after a failed last commit of two rows; five rows were put before it.
    fn failure_message(batch: Option<u64>, error: Error) -> String {
        let db = Db::in_memory(Options::new().memory_bytes(16 << 20)).unwrap();
        let args = args(batch);
        let interrupt = Interrupt::listen().unwrap();
        let mut loader = Loader::new(&db, db.main(), &args, &interrupt);
        for row in (0..5_u8).filter(|_| batch.is_some()) {
            loader.passed += 1;
            loader.put(&[row], b"value").unwrap();
        }
        assert!(loader.open.is_none());
        loader.passed += 2;
        loader.note_in_doubt(&error, InDoubt { rows: 2, glsn: Glsn(8) });
        let failure = loader.finish("rows.csv", Stop::Store(error.into())).unwrap_err();
        let Failure::Message { message, .. } = failure else { panic!("{failure:?}") };
        message
    }

    #[test]
    fn failed_sync_reports_commit_in_doubt_with_glsn() {
        let poisoned = || Error::Poisoned { cause: "a sync failed".to_owned() };
        let all = failure_message(None, poisoned());
        for words in [
            "may or may not be in the store",
            "GLSN is 8",
            "there: everything is loaded",
            "not there: run the command again",
        ] {
            assert!(all.contains(words), "{words:?}: {all}");
        }
        assert!(
            all.ends_with(
                "If other processes write to the store, look for the commit among those from GLSN \
                 8 on."
            ),
            "{all}"
        );
        assert!(
            failure_message(None, Error::Stalled { pid: None })
                .contains("may or may not be in the store")
        );
        assert!(!all.contains("Nothing was loaded"), "{all}");
        let batch = failure_message(Some(5), poisoned());
        for words in [
            "5 rows were loaded.",
            "GLSN is 8",
            "there: resume with --skip 7",
            "not there: resume with --skip 5",
        ] {
            assert!(batch.contains(words), "{words:?}: {batch}");
        }
        let full = Error::Io {
            kind: std::io::ErrorKind::StorageFull,
            message: "full".to_owned(),
            source: None,
        };
        assert!(failure_message(None, full).contains("Nothing was loaded"));
    }
}
