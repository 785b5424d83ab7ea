//! `plimsoll get`: the value of a key, raw to a pipe.

use std::io::Read;

use plimsoll::ValueReader;
use serde_json::Map;

use crate::args::{Get, Globals};
use crate::bytes::{key_bytes, put_json, show_bytes};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Output, Reader};
use crate::{moment, store};

const PIECE_BYTES: usize = 64 * 1024;

pub(crate) fn run(globals: &Globals, args: Get, output: &mut Output) -> Outcome {
    let key = key_bytes(args.key, args.keys.hex).map_err(Failure::usage)?;
    let db = store::open_to_read(globals, &args.store)?;
    let keyspace = store::known_keyspace(&db, &args.keyspace.keyspace)?;
    let snapshot = moment::snapshot(&db, args.at.at)?;
    let Some(mut value) = snapshot.get_reader(&keyspace, &key)? else {
        let message = format!("there is no key `{}` at GLSN {}", show_bytes(&key), snapshot.at());
        return Err(Failure::new(Exit::No, message));
    };
    match output.reader() {
        Reader::Pipe => pour(&mut value, output)?,
        Reader::People => show(&mut value, output)?,
        Reader::Json => {
            let mut object = Map::new();
            put_json(&mut object, "key", &key);
            put_json(&mut object, "value", &whole(&mut value)?);
            object.insert("at".to_owned(), snapshot.at().into());
            output.json(&object)?;
        }
    }
    Ok(Exit::Done)
}

/// The value's bytes, a piece at a time.
fn pour(value: &mut ValueReader, output: &mut Output) -> Result<(), Failure> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match value.read(&mut piece).map_err(unreadable)? {
            0 => return Ok(()),
            bytes => output.raw(&piece[..bytes])?,
        }
    }
}

/// Text as it is and with a line break at its end; anything else escaped, so that it cannot confuse the terminal.
fn show(value: &mut ValueReader, output: &mut Output) -> Result<(), Failure> {
    let bytes = whole(value)?;
    match std::str::from_utf8(&bytes) {
        Ok(text) if !text.chars().any(is_unfit) => {
            output.raw(text.as_bytes())?;
            if text.ends_with('\n') { Ok(()) } else { output.raw(b"\n") }
        }
        _ => output.line(&show_bytes(&bytes)),
    }
}

fn is_unfit(character: char) -> bool {
    character.is_control() && !matches!(character, '\n' | '\t' | '\r')
}

/// The most bytes that are shown on a terminal or put into JSON, where they have to be held at once.
const WHOLE_BYTES_MAX: u64 = 16 << 20;

fn whole(value: &mut ValueReader) -> Result<Vec<u8>, Failure> {
    if value.len() > WHOLE_BYTES_MAX {
        let size = crate::size::show_size(value.len());
        return Err(Failure::usage(format!(
            "the value has {size}, too much for a terminal or JSON; send it to a file or a pipe"
        )));
    }
    let mut bytes = Vec::with_capacity(value.len() as usize);
    value.read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

/// What the store said when a read failed half-way, with its own exit code.
fn unreadable(error: std::io::Error) -> Failure {
    match error.downcast::<plimsoll::Error>() {
        Ok(error) => error.into(),
        Err(error) => Failure::system(format!("cannot read the value: {error}")),
    }
}
