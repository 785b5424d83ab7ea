//! `plimsoll load`: rows of a file, all at once or in batches.

mod loader;

use std::sync::atomic::Ordering;

use plimsoll::Durability;

use crate::args::{Globals, Load};
use crate::commands::load::loader::{Loader, of_problem};
use crate::effort::Effort;
use crate::exit::{Exit, Outcome};
use crate::interrupt::Interrupt;
use crate::load::ahead::Ahead;
use crate::load::delimited::{Delimited, Layout};
use crate::load::input::{self, Input};
use crate::load::json_lines::JsonLines;
use crate::load::{Format, Problem, Rows};
use crate::output::{Fact, Output};
use crate::progress::Progress;
use crate::size::count_of;
use crate::stderr::say;
use crate::store;

pub(crate) fn run(globals: &Globals, args: &Load, output: &mut Output) -> Outcome {
    let interrupt = Interrupt::listen()?;
    let effort = Effort::start();
    let format = args.format.map_or_else(|| input::format_of(&args.file), Ok)?;
    // Before the store: a file that cannot be read leaves no empty store behind.
    let input = input::open(&args.file)?;
    let (name, bytes_read) = (input.name.clone(), input.bytes_read.clone());
    let progress = Progress::of_bytes(input.total_bytes);
    let rows = rows(input, format, args).map_err(|problem| of_problem(&name, &problem))?;
    let db = store::open_to_write(globals, &args.store, true, Durability::Sync)?;
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
