//! The `plimsoll` command: reads the command line, runs one command, says how it ended.

#![deny(
    clippy::print_stderr,
    reason = "it panics where stderr cannot be written: `stderr::say` does not"
)]

mod about;
mod args;
mod bytes;
mod changes;
mod commands;
mod disk_use;
mod duration;
mod effort;
mod exit;
mod interrupt;
mod key_range;
mod keyspaces;
mod load;
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
        interrupt::outlive_file_size_limit().and_then(|()| commands::run(cli, &mut output));
    end(outcome, &mut output).into()
}

/// Hands out what is still buffered, and says what went wrong, if anything did.
fn end(outcome: Outcome, output: &mut Output) -> Exit {
    // What was printed comes out first, also before a failure.
    let flushed = match output.flush() {
        // It does not change how the command ended.
        Err(Failure::ReaderLeft) => Ok(()),
        flushed => flushed,
    };
    match outcome.and_then(|exit| flushed.map(|()| exit)) {
        Ok(exit) => exit,
        Err(Failure::ReaderLeft) => Exit::Done,
        Err(Failure::Said { exit, message, .. }) => {
            say(message);
            exit
        }
    }
}
