//! `plimsoll history`: every retained version of a key.

use plimsoll::VersionInfo;
use serde_json::json;

use crate::args::{Globals, History};
use crate::bytes::{key_bytes, show_bytes};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Output, Reader, Style};
use crate::size::show_size;
use crate::store;
use crate::time::{of_micros, show_time};

pub(crate) fn run(globals: &Globals, args: History, output: &mut Output) -> Outcome {
    let key = key_bytes(args.key, args.keys.hex).map_err(Failure::usage)?;
    let db = store::open_to_read(globals, &args.store)?;
    let keyspace = store::known_keyspace(&db, &args.keyspace.keyspace)?;
    let mut versions = 0;
    for version in db.history(&keyspace, &key)?.take(usize_of(args.limit)) {
        if versions == 0 && output.reader() == Reader::People {
            let header = output.paint(Style::Faint, &format!("{:>10}  {:<24}  {:>12}", "GLSN", "time (UTC)", "size"));
            output.line(&header)?;
        }
        print(&version?, output)?;
        versions += 1;
    }
    if versions == 0 && args.limit != Some(0) {
        return Err(Failure::new(Exit::No, format!("there never was a key `{}`", show_bytes(&key))));
    }
    Ok(Exit::Done)
}

fn usize_of(limit: Option<u64>) -> usize {
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

fn print(version: &VersionInfo, output: &mut Output) -> Result<(), Failure> {
    let time = version.time_micros.map(|micros| show_time(of_micros(micros)));
    match output.reader() {
        Reader::Json => output.json(&json!({
            "glsn": version.glsn,
            "time": time,
            "bytes": version.bytes,
            "deleted": version.bytes.is_none(),
        })),
        Reader::Pipe => {
            let (glsn, time) = (version.glsn.to_string(), time.unwrap_or_default());
            let bytes = version.bytes.map_or_else(|| "deleted".to_owned(), |bytes| bytes.to_string());
            output.fields(&[glsn.as_bytes(), time.as_bytes(), bytes.as_bytes()])
        }
        Reader::People => {
            let size = match version.bytes {
                Some(bytes) => format!("{:>12}", show_size(bytes)),
                None => output.paint(Style::Bad, &format!("{:>12}", "deleted")),
            };
            output.line(&format!("{:>10}  {:<24}  {size}", version.glsn, time.as_deref().unwrap_or("-")))
        }
    }
}
