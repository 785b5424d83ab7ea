//! `plimsoll load`: loads the rows of a file, all at once or in batches.

mod left_out;
mod loader;

use std::sync::atomic::Ordering;

use plimsoll::Durability;

use crate::args::{Globals, Load};
use crate::branches;
use crate::commands::load::loader::Loader;
use crate::effort::Effort;
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::keyspaces;
use crate::load::Format;
use crate::load::ahead::Ahead;
use crate::load::delimited::Lines;
use crate::load::input::{self, Input};
use crate::load::layout::Layout;
use crate::output::{Fact, Output};
use crate::progress::Progress;
use crate::size::count_of;
use crate::stderr::say;
use crate::store;

pub(crate) fn run(globals: &Globals, args: &Load, output: &mut Output) -> Outcome {
    let interrupt = Interrupt::listen()?;
    let effort = Effort::start();
    keyspaces::check_writable(&args.keyspace.keyspace)?;
    let input = Input::find(&args.file)?;
    let format = args.format.map_or_else(|| input::format_of(&args.file), Ok)?;
    let (name, bytes_read) = (input.name.clone(), input.bytes_read.clone());
    let progress = Progress::of_bytes(input.total_bytes);
    let layout = layout(format, args)?;
    let rows = Ahead::of(move || layout.open(input))?;
    // Open the file before the store, so that an unreadable file does not leave an empty store
    // behind.
    if !rows.wait_until_open(|| interrupt.was_received())? {
        drop(progress);
        say("interrupted. Nothing was loaded.");
        return Ok(Exit::Interrupted);
    }
    let db = store::open_to_write_unless(
        Some(&interrupt),
        globals,
        &args.store,
        args.on.creates_store(),
        Durability::Sync,
    )?;
    let branch = branches::find(&db, args.on.name())?;
    let mut loader = Loader::new(&db, branch, args, &interrupt);
    let ended = loader.load(&rows, &mut || {
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
    if args.ignore_errors {
        facts.insert(1, Fact::count("rows left out", counts.left_out));
    }
    facts.extend(effort.facts(limit_bytes, ""));
    let loaded = count_of(counts.rows, "row is", "rows are");
    output.report(&format!("{loaded} committed; the newest GLSN is {newest}."), |output| {
        output.facts(&facts)
    })?;
    if counts.interrupted {
        say(format_args!("interrupted. {}", counts.resume_advice));
        return Ok(Exit::Interrupted);
    }
    Ok(Exit::Done)
}

/// The row layout of the file.
fn layout(format: Format, args: &Load) -> Result<Layout, Failure> {
    let (key, value) = (args.key.clone(), args.value.clone());
    // A row is held in memory whole.
    let row_bytes_max = usize::try_from(args.max_row).unwrap_or(usize::MAX);
    if args.delimiter.is_some() && format != Format::Csv {
        return Err(Failure::usage(
            "--delimiter is for CSV; fields of TSV are separated by tabs, and JSON lines have none",
        ));
    }
    let delimited = |delimiter, quotes| {
        let doubts_delimiter = quotes && args.delimiter.is_none();
        let lines =
            Lines { delimiter, quotes, doubts_delimiter, header: !args.no_header, row_bytes_max };
        Layout::Delimited { lines, key: key.clone(), value: value.clone() }
    };
    Ok(match format {
        Format::Csv => delimited(args.delimiter.unwrap_or(b','), true),
        Format::Tsv => delimited(b'\t', false),
        Format::Jsonl => match key {
            Some(key) => Layout::JsonLines { key, value, row_bytes_max },
            None => {
                return Err(Failure::usage(
                    "JSON lines have no first column; name the key field with --key",
                ));
            }
        },
    })
}
