//! `plimsoll load`: rows of a file, all at once or in batches.
//!
//! Laws:
//! 1. Batches are committed in the file's order and without gaps, so the count of committed rows is all that is needed to go on.
//! 2. A commit whose sync failed is never told as "not there": it may be, and its GLSN tells.

use std::sync::atomic::Ordering;

use plimsoll::{BulkLoad, Db, Durability, Error, Glsn, Keyspace, MAX_KEY_BYTES, Transaction};

use crate::args::{Globals, Load};
use crate::effort::Effort;
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::keyspaces;
use crate::load::ahead::{Ahead, End};
use crate::load::delimited::{Delimited, Layout};
use crate::load::input::{self, Input};
use crate::load::json_lines::JsonLines;
use crate::load::{Format, Problem, Rows};
use crate::output::{Fact, Output};
use crate::progress::Progress;
use crate::size::{count_of, show_count};
use crate::stderr::say;
use crate::store;

pub(crate) fn run(globals: &Globals, args: &Load, output: &mut Output) -> Outcome {
    let interrupt = Interrupt::listen()?;
    let effort = Effort::start();
    keyspaces::check_writable(&args.keyspace.keyspace)?;
    let format = args.format.map_or_else(|| input::format_of(&args.file), Ok)?;
    // Before the store: a file that cannot be read leaves no empty store behind.
    let input = input::open(&args.file)?;
    let (name, bytes_read) = (input.name.clone(), input.bytes_read.clone());
    let progress = Progress::of_bytes(input.total_bytes);
    let rows = rows(input, format, args).map_err(|problem| of_problem(&name, &problem))?;
    let db = store::open_to_write_unless(Some(&interrupt), globals, &args.store, true, Durability::Sync)?;
    let mut loader = Loader::new(&db, args);
    let ended = loader.load(&Ahead::of(rows)?, &interrupt, &mut || {
        progress.set(bytes_read.load(Ordering::Relaxed));
    });
    drop(progress);
    let counts = loader.finish(&name, ended)?;
    let (limit_bytes, newest) = (db.stats().memory.limit_bytes, db.newest());
    store::close_after_commits(db);
    let mut facts = vec![
        Fact::count("rows", counts.rows),
        Fact::count("transactions", counts.transactions),
        Fact::bytes("bytes in", counts.bytes),
    ];
    facts.extend(effort.facts(limit_bytes, ""));
    let loaded = count_of(counts.rows, "row is", "rows are");
    output.report(&format!("{loaded} committed; the newest GLSN is {newest}."), |output| output.facts(&facts))?;
    if counts.interrupted {
        say(format_args!("interrupted. {}", counts.how_to_go_on));
        return Ok(Exit::Interrupted);
    }
    Ok(Exit::Done)
}

fn rows(input: Input, format: Format, args: &Load) -> Result<Box<dyn Rows + Send>, Problem> {
    let (key, value) = (args.key.as_deref(), args.value.as_deref());
    let header = !args.no_header;
    // A row is in memory whole.
    let row_bytes_max = usize::try_from(args.max_row).unwrap_or(usize::MAX);
    let delimited = |delimiter, quotes| Layout { delimiter, quotes, header, row_bytes_max };
    Ok(match format {
        Format::Csv => Box::new(Delimited::open(input.reader, delimited(b',', true), key, value)?),
        Format::Tsv => Box::new(Delimited::open(input.reader, delimited(b'\t', false), key, value)?),
        Format::Jsonl => {
            let key = key.ok_or_else(|| Problem {
                line: 0,
                message: "JSON lines have no first column; say which field is the key with --key".to_owned(),
            })?;
            Box::new(JsonLines::new(input.reader, key, value, row_bytes_max))
        }
    })
}

fn of_problem(name: &str, problem: &Problem) -> Failure {
    match problem.line {
        0 => Failure::usage(format!("{name}: {}", problem.message)),
        line => Failure::usage(format!("{name}, line {line}: {}", problem.message)),
    }
}

/// What was loaded.
#[derive(Debug, Default)]
struct Counts {
    rows: u64,
    transactions: u64,
    bytes: u64,
    interrupted: bool,
    how_to_go_on: String,
}

/// Why loading stopped.
enum Stop {
    End,
    Interrupted,
    Row(Problem),
    Store(Failure),
}

/// Puts rows into a bulk load, or into transactions.
struct Loader<'a> {
    db: &'a Db,
    /// Made if it is not there, by the first row.
    keyspace: Option<Keyspace>,
    args: &'a Load,
    /// Rows and bytes that are committed.
    counts: Counts,
    open: Option<Open>,
    in_doubt: Option<InDoubt>,
}

/// A commit that failed, and that may be there all the same when the store is opened again.
struct InDoubt {
    rows: u64,
    /// Its GLSN if it is there, unless another process that shares the store has committed first.
    glsn: Glsn,
}

/// A commit that is being filled.
struct Open {
    rows: u64,
    bytes: u64,
    writes: Writes,
}

/// What it is filled by.
enum Writes {
    All(Box<BulkLoad>),
    Batch(Box<Transaction>),
}

impl<'a> Loader<'a> {
    fn new(db: &'a Db, args: &'a Load) -> Self {
        Self { db, keyspace: None, args, counts: Counts::default(), open: None, in_doubt: None }
    }

    fn load(&mut self, rows: &Ahead, interrupt: &Interrupt, tell: &mut dyn FnMut()) -> Stop {
        let mut skip = self.args.skip;
        loop {
            if interrupt.came() {
                return Stop::Interrupted;
            }
            let block = rows.take();
            tell();
            for (line, key, value) in block.rows() {
                if skip > 0 {
                    skip -= 1;
                    continue;
                }
                if interrupt.came() {
                    return Stop::Interrupted;
                }
                if key.len() > MAX_KEY_BYTES {
                    let message = format!(
                        "a key of {} bytes; at most {} are possible",
                        show_count(key.len() as u64),
                        show_count(MAX_KEY_BYTES as u64)
                    );
                    return Stop::Row(Problem { line, message });
                }
                if let Err(failure) = self.put(key, value) {
                    return Stop::Store(failure);
                }
            }
            match block.end {
                Some(End::OfFile) => return Stop::End,
                Some(End::Problem(problem)) => return Stop::Row(problem),
                Some(End::Panic) => {
                    let message = "reading rows ended by a fault of Plimsoll, told above; please report it";
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
            let writes = match self.args.batch {
                Some(_) => Writes::Batch(Box::new(self.db.begin())),
                None => Writes::All(Box::new(self.db.begin_bulk_load(keyspace)?)),
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

    fn commit(&mut self) -> Result<(), Failure> {
        if let Some(open) = self.open.take() {
            let glsn = self.db.newest().next();
            let committed = match open.writes {
                Writes::All(load) => load.commit(),
                Writes::Batch(transaction) => transaction.commit(),
            };
            committed.inspect_err(|error| self.note_doubt(error, InDoubt { rows: open.rows, glsn }))?;
            self.counts.transactions += 1;
            self.counts.rows += open.rows;
            self.counts.bytes += open.bytes;
        }
        Ok(())
    }

    /// After any other error of a commit, nothing of it is there.
    fn note_doubt(&mut self, error: &Error, commit: InDoubt) {
        if matches!(error, Error::Poisoned { .. } | Error::Stalled { .. }) {
            self.in_doubt = Some(commit);
        }
    }

    /// Commits what may be committed, and says how to go on where not everything was.
    fn finish(mut self, name: &str, stop: Stop) -> Result<Counts, Failure> {
        let keep = match &stop {
            Stop::End => true,
            Stop::Interrupted | Stop::Row(_) => self.args.batch.is_some(),
            // The transaction at hand lacks a row.
            Stop::Store(_) => false,
        };
        let committed = if keep { self.commit() } else { Ok(()) };
        let how_to_go_on = self.how_to_go_on();
        match (stop, committed) {
            (Stop::End, Ok(())) => Ok(self.counts),
            (Stop::Interrupted, Ok(())) => Ok(Counts { interrupted: true, how_to_go_on, ..self.counts }),
            (Stop::Row(problem), Ok(())) => Err(of_problem(name, &problem).advise(&how_to_go_on)),
            (Stop::Store(failure), _) | (_, Err(failure)) => Err(failure.advise(&how_to_go_on)),
        }
    }

    fn how_to_go_on(&self) -> String {
        let rows = self.counts.rows + self.args.skip;
        if let Some(in_doubt) = &self.in_doubt {
            let loaded = match self.counts.rows {
                0 => String::new(),
                loaded => format!("{} loaded. ", count_of(loaded, "row was", "rows were")),
            };
            let store = self.args.store.display();
            let again =
                if rows == 0 { "run the command again".to_owned() } else { format!("go on with --skip {rows}") };
            let next = match self.args.batch {
                Some(_) => format!("go on with --skip {}", rows + in_doubt.rows),
                None => "all is loaded".to_owned(),
            };
            return format!(
                "{loaded}The last commit ({}) may or may not be there. Before anything else is written, `plimsoll log {store} --limit 1` \
                 tells: if the newest GLSN is {glsn}, it is there: {next}; if it is less, it is not: {again}. If other processes write to the store, \
                 see whether it is among the commits from GLSN {glsn} on.",
                count_of(in_doubt.rows, "row", "rows"),
                glsn = in_doubt.glsn
            );
        }
        match self.counts.rows {
            _ if self.args.batch.is_none() => {
                "Nothing was loaded; with --batch ROWS the rows before it stay.".to_owned()
            }
            0 if rows == 0 => "Nothing was loaded.".to_owned(),
            loaded => format!("{} loaded; go on with --skip {rows}.", count_of(loaded, "row was", "rows were")),
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll::Options;

    use super::*;
    use crate::args::InKeyspace;

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
            max_row: 4 << 20,
            keyspace: InKeyspace { keyspace: "default".to_owned() },
        }
    }

    /// What is said where the last commit, of two rows, failed; five rows were put before it.
    fn told(batch: Option<u64>, error: Error) -> String {
        let db = Db::in_memory(Options::new().memory_bytes(16 << 20)).unwrap();
        let args = args(batch);
        let mut loader = Loader::new(&db, &args);
        (0..5_u8).filter(|_| batch.is_some()).for_each(|row| loader.put(&[row], b"value").unwrap());
        assert!(loader.open.is_none());
        loader.note_doubt(&error, InDoubt { rows: 2, glsn: Glsn(8) });
        let failure = loader.finish("rows.csv", Stop::Store(error.into())).unwrap_err();
        let Failure::Said { message, .. } = failure else { panic!("{failure:?}") };
        message
    }

    #[test]
    fn a_commit_whose_sync_failed_is_told_to_be_in_doubt_and_its_glsn_tells() {
        let poisoned = || Error::Poisoned { cause: "a sync failed".to_owned() };
        let all = told(None, poisoned());
        for words in ["may or may not be there", "GLSN is 8", "there: all is loaded", "not: run the command again"] {
            assert!(all.contains(words), "{words:?}: {all}");
        }
        assert!(
            all.ends_with("If other processes write to the store, see whether it is among the commits from GLSN 8 on."),
            "{all}"
        );
        assert!(told(None, Error::Stalled { pid: None }).contains("may or may not be there"));
        assert!(!all.contains("Nothing was loaded"), "{all}");
        let batch = told(Some(5), poisoned());
        for words in ["5 rows were loaded.", "GLSN is 8", "there: go on with --skip 7", "not: go on with --skip 5"] {
            assert!(batch.contains(words), "{words:?}: {batch}");
        }
        let full = Error::Io { kind: std::io::ErrorKind::StorageFull, message: "full".to_owned(), source: None };
        assert!(told(None, full).contains("Nothing was loaded"));
    }
}
