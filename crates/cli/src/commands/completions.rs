//! `plimsoll completions`: a script for a shell.

use clap::CommandFactory;

use crate::args::{Cli, Completions};
use crate::exit::{Exit, Outcome};
use crate::output::Output;

pub(crate) fn run(args: &Completions, output: &mut Output) -> Outcome {
    // Collected first: the generator panics when its writer fails, and a closed pipe is no reason
    // to.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "plimsoll", &mut script);
    output.raw(&script)?;
    Ok(Exit::Done)
}
