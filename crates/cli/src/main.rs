//! The `plimsoll` command: parses the command line, runs one command, reports the outcome.

#![deny(
    clippy::print_stderr,
    reason = "it panics where stderr cannot be written: `stderr::say` does not"
)]

mod args;
mod branches;
mod bytes;
mod changes;
mod commands;
mod commit_summary;
mod disk_use;
mod duration;
mod effort;
mod exit;
mod interrupt;
mod key_range;
mod keyspaces;
mod load;
mod member;
mod memory_use;
mod moment;
mod number;
mod output;
mod progress;
mod retention;
mod script;
mod size;
mod stderr;
mod store;
mod time;
mod values;
mod wait;

use std::process::ExitCode;

use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::stderr::say;

fn main() -> ExitCode {
    let cli = args::parse();
    let mut output = Output::new(cli.globals.json, cli.globals.colour);
    let outcome =
        interrupt::ignore_file_size_signal().and_then(|()| commands::run(cli, &mut output));
    end(outcome, &mut output).into()
}

/// Flushes the output, and reports the error if there is one.
fn end(outcome: Outcome, output: &mut Output) -> Exit {
    // Flush printed output before reporting, even after a failure.
    let flushed = match output.flush() {
        // A closed output does not change the outcome.
        Err(Failure::ReaderLeft) => Ok(()),
        flushed => flushed,
    };
    match outcome.and_then(|exit| flushed.map(|()| exit)) {
        Ok(exit) => exit,
        Err(Failure::ReaderLeft) => Exit::Done,
        Err(Failure::Message { exit, message, .. }) => {
            say(message);
            exit
        }
    }
}
