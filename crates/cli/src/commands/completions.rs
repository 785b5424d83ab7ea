//! `plimsoll completions`: a script for a shell.

use clap::CommandFactory;

use crate::args::{Cli, Completions};
use crate::exit::{Exit, Outcome};
use crate::output::Output;

pub(crate) fn run(args: &Completions, output: &mut Output) -> Outcome {
    // Collected first, because the generator panics on a write error and a closed pipe is not a
    // fault.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "plimsoll", &mut script);
    output.raw(&script)?;
    Ok(Exit::Done)
}
