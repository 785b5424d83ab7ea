//! `plimsoll shell`: commands one at a time, from a person or from a pipe.

mod editor;

use std::io::{self, BufReader, IsTerminal};

use plimsoll::{Db, Durability};

use crate::args::{Globals, Shell};
use crate::commands::batch::Lines;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::script::session::{Done, Mode, Session};
use crate::script::statement::parse;
use crate::store;

use self::editor::{Editor, Typed};

pub(crate) fn run(globals: &Globals, args: &Shell, output: &mut Output) -> Outcome {
    let (db, is_newest) = match args.read_only {
        true => store::open_to_follow(globals, &args.store)?,
        false => (store::open_to_write(globals, &args.store, args.create, Durability::Sync)?, true),
    };
    let keyspace = args.keyspace.keyspace.clone();
    let outcome = match io::stdin().is_terminal() {
        true => converse(&db, args, is_newest, keyspace, output),
        false => run_lines(&db, keyspace, output),
    };
    store::close_after_commits(db);
    outcome
}

/// Lines that a person types: a failure is shown, and the next line is asked for.
fn converse(db: &Db, args: &Shell, is_newest: bool, keyspace: String, output: &mut Output) -> Outcome {
    let mut editor = Editor::new()?;
    output.line(&format!(
        "{}, newest GLSN {}{}. `.help` lists the commands, `.quit` or Ctrl-D leaves.",
        args.store.display(),
        db.newest(),
        match (args.read_only, is_newest) {
            (false, _) => "",
            (true, true) => ", read-only",
            (true, false) => ", read-only: it shows what was durable now",
        }
    ))?;
    let mut session = Session::new(db, Mode::Answered, keyspace);
    loop {
        output.flush()?;
        let prompt = if session.is_in_transaction() { "plimsoll*> " } else { "plimsoll> " };
        let line = match editor.ask(prompt)? {
            Typed::Line(line) => line,
            Typed::Nothing => continue,
            Typed::End => break,
        };
        let done = match parse(line.as_bytes()) {
            Ok(None) => continue,
            Ok(Some(statement)) => session.run(statement, output),
            Err(message) => Err(Failure::usage(message)),
        };
        match done {
            Ok(Done::Quit) => break,
            Ok(Done::Yes | Done::Missing) => {}
            Err(Failure::Said { message, .. }) => {
                output.flush()?;
                eprintln!("plimsoll: {message}");
            }
            Err(left @ Failure::ReaderLeft) => return Err(left),
        }
    }
    if session.is_in_transaction() {
        eprintln!("plimsoll: the open transaction was not committed; it is gone");
    }
    editor.keep_history();
    Ok(Exit::Done)
}

/// Lines of a pipe or a file: the first failure ends them.
fn run_lines(db: &Db, keyspace: String, output: &mut Output) -> Outcome {
    let mut session = Session::new(db, Mode::Answered, keyspace);
    let mut reader = BufReader::new(io::stdin());
    let mut lines = Lines { reader: &mut reader, line: Vec::new(), number: 0 };
    let mut exit = Exit::Done;
    loop {
        // Who writes the lines may wait for the answer to one before the next.
        output.flush()?;
        if !lines.next().map_err(|failure| at_line(failure, lines.number))? {
            break;
        }
        let number = lines.number;
        let Some(statement) = parse(&lines.line).map_err(|message| at_line(Failure::usage(message), number))? else {
            continue;
        };
        match session.run(statement, output).map_err(|failure| at_line(failure, number))? {
            Done::Yes => {}
            Done::Missing => exit = Exit::No,
            Done::Quit => break,
        }
    }
    if session.is_in_transaction() {
        return Err(Failure::usage("the last `begin` has no `commit`: the commands after it are not committed"));
    }
    Ok(exit)
}

fn at_line(failure: Failure, number: u64) -> Failure {
    match failure {
        Failure::Said { exit, message, .. } => Failure::new(exit, format!("line {number}: {message}")),
        Failure::ReaderLeft => Failure::ReaderLeft,
    }
}
