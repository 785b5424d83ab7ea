//! `plimsoll verify`: reads and checks every byte.

use plimsoll::Db;
use serde_json::json;

use crate::args::{Globals, Verify};
use crate::exit::{Exit, Outcome};
use crate::output::{Output, Reader, Style};
use crate::progress::Progress;
use crate::size::{count_of, show_size};
use crate::store;

pub(crate) fn run(globals: &Globals, args: &Verify, output: &mut Output) -> Outcome {
    store::read_newest(globals, &args.store, output, check)
}

fn check(db: &Db, output: &mut Output) -> Outcome {
    let progress = Progress::of_bytes(Some(0));
    let report = db.verify(&mut |step| progress.set_of(step.done_bytes, step.total_bytes))?;
    drop(progress);
    let sound = report.problems.is_empty();
    match output.reader() {
        Reader::Json => output.json(&json!({
            "problems": report.problems,
            "notes": report.notes,
            "files": report.files,
            "bytes": report.bytes,
        }))?,
        // A pipe hears of success too: silence would look the same as a command that did nothing.
        Reader::Pipe | Reader::People => {
            for problem in &report.problems {
                let problem = output.paint(Style::Bad, problem);
                output.line(&problem)?;
            }
            report.notes.iter().try_for_each(|note| output.line(&format!("note: {note}")))?;
            let read = format!("{} in {}", show_size(report.bytes), count_of(report.files, "file", "files"));
            let verdict = match report.problems.len() {
                0 => output.paint(Style::Good, "no problems"),
                problems => output.paint(Style::Bad, &count_of(problems as u64, "problem", "problems")),
            };
            output.line(&format!("{verdict}; read {read}"))?;
        }
    }
    Ok(if sound { Exit::Done } else { Exit::No })
}
