//! `plimsoll salvage`: keeps what stands before a damaged place.

use serde_json::json;

use crate::args::{Globals, Salvage};
use crate::exit::{Exit, Outcome};
use crate::output::{Output, Reader};
use crate::store;

pub(crate) fn run(globals: &Globals, args: &Salvage, output: &mut Output) -> Outcome {
    let report = plimsoll::salvage(&args.store, store::options(globals), args.cut_at)?;
    match output.reader() {
        Reader::Json => output.json(&json!({ "newest_glsn": report.glsn, "moved": report.moved }))?,
        Reader::Pipe => report.moved.iter().try_for_each(|path| output.line(path))?,
        Reader::People => {
            let done = if report.moved.is_empty() { "there was nothing to cut" } else { "cut" };
            output.line(&format!("{done}; the newest GLSN is now {}", report.glsn))?;
            for path in &report.moved {
                output.line(&format!("moved aside: {path}"))?;
            }
        }
    }
    Ok(Exit::Done)
}
