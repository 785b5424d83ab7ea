//! `plimsoll shell`: runs commands one at a time, from a person or from a pipe.

mod editor;

use std::io::{self, BufReader, IsTerminal};

use plimsoll::{Branch, Durability};

use crate::args::{Globals, Shell};
use crate::branches;
use crate::bytes::show_bytes;
use crate::commands::batch::Lines;
use crate::commands::report::{self, Opened};
use crate::exit::{Exit, Failure, Outcome};
use crate::moment::MAIN;
use crate::output::Output;
use crate::script::session::{Done, Mode, Place, Session};
use crate::script::statement::parse;
use crate::stderr::say;
use crate::store;

use self::editor::{Editor, Typed};

pub(crate) fn run(globals: &Globals, args: &Shell, output: &mut Output) -> Outcome {
    let (db, is_newest) = match args.read_only {
        true => store::open_to_follow(globals, &args.store)?,
        false => {
            let create = args.create && args.on.creates_store();
            (store::open_to_write(globals, &args.store, create, Durability::Sync)?, true)
        }
    };
    let branch = branches::find(&db, args.on.name())?;
    let keyspace = args.keyspace.keyspace.clone();
    let opened = Opened { db: &db, globals, store: &args.store };
    let outcome = match io::stdin().is_terminal() {
        true => run_interactive(opened, args, is_newest, branch, keyspace, output),
        false => run_lines(opened, branch, keyspace, output),
    };
    store::close_after_commits(db);
    outcome
}

/// Interactive mode: an error is shown, and the prompt returns.
fn run_interactive(
    opened: Opened<'_>,
    args: &Shell,
    is_newest: bool,
    branch: Branch,
    keyspace: String,
    output: &mut Output,
) -> Outcome {
    let mut editor = Editor::new()?;
    output.line(&format!(
        "{}, newest GLSN {}{}. `.help` lists the commands, `.quit` or Ctrl-D exits.",
        args.store.display(),
        opened.db.newest(),
        match (args.read_only, is_newest) {
            (false, _) => "",
            (true, true) => ", read-only",
            (true, false) => ", read-only: a snapshot of what is durable now",
        }
    ))?;
    let answer = |what, words: &[_], place: Place<'_>, output: &mut _| {
        report::answer(what, words, opened, place, output)
    };
    let mut session = Session::new(opened.db, &answer, Mode::Answered, branch, keyspace);
    let ended = answer_all(&mut session, &mut editor, output);
    if session.is_in_transaction() {
        say("the open transaction was not committed and is discarded");
    }
    editor.keep_history();
    ended.map(|()| Exit::Done)
}

/// Runs lines until the session ends.
fn answer_all(
    session: &mut Session<'_>,
    editor: &mut Editor,
    output: &mut Output,
) -> Result<(), Failure> {
    loop {
        output.flush()?;
        let on = match session.branch() {
            MAIN => String::new(),
            branch => format!(" ({})", show_bytes(branch.as_bytes())),
        };
        let star = if session.is_in_transaction() { "*" } else { "" };
        let line = match editor.ask(&format!("plimsoll{on}{star}> "))? {
            Typed::Line(line) => line,
            Typed::Nothing => continue,
            Typed::End => return Ok(()),
        };
        let done = match parse(line.as_bytes()) {
            Ok(None) => continue,
            Ok(Some(statement)) => session.run(statement, output),
            Err(message) => Err(Failure::usage(message)),
        };
        match done {
            Ok(Done::Quit) => return Ok(()),
            Ok(Done::Yes | Done::Missing) => {}
            Err(Failure::Message { message, .. }) => {
                output.flush()?;
                say(message);
            }
            Err(left @ Failure::ReaderLeft) => return Err(left),
        }
    }
}

/// Runs the lines of a pipe or a file; the first error ends the session.
fn run_lines(opened: Opened<'_>, branch: Branch, keyspace: String, output: &mut Output) -> Outcome {
    let answer = |what, words: &[_], place: Place<'_>, output: &mut _| {
        report::answer(what, words, opened, place, output)
    };
    let mut session = Session::new(opened.db, &answer, Mode::Answered, branch, keyspace);
    let mut reader = BufReader::new(io::stdin());
    let mut lines = Lines { reader: &mut reader, line: Vec::new(), number: 0 };
    let ended = run_each(&mut session, &mut lines, output);
    let number = lines.number;
    match ended {
        Ok(_) if session.is_in_transaction() => Err(Failure::usage(
            "the last `begin` has no `commit`: the commands after it are not committed",
        )),
        // The lines that did not run may include writes.
        Err(Failure::ReaderLeft) => {
            let open = if session.is_in_transaction() {
                ", and the open transaction is not committed"
            } else {
                ""
            };
            Err(Failure::system(format!(
                "the output was closed: line {number} was the last to run{open}"
            )))
        }
        ended => ended.map_err(|failure| failure.lead(&format!("line {number}: "))),
    }
}

fn run_each(session: &mut Session<'_>, lines: &mut Lines<'_>, output: &mut Output) -> Outcome {
    let mut exit = Exit::Done;
    loop {
        // The writer of the lines may wait for each answer.
        output.flush()?;
        if !lines.next()? {
            return Ok(exit);
        }
        let Some(statement) = parse(&lines.line).map_err(Failure::usage)? else { continue };
        match session.run(statement, output)? {
            Done::Yes => {}
            Done::Missing => exit = Exit::No,
            Done::Quit => return Ok(exit),
        }
    }
}
