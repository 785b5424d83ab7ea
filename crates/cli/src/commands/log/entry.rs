//! One entry of the log on one line: a transaction with what is known of it, or a payload of a stream.

use plimsoll::{Commit, Db, LogEntryRef, Op, OpChange};
use serde_json::{Map, Value, json};

use crate::bytes::{preview, put_json, show_bytes};
use crate::exit::Failure;
use crate::output::{Output, Reader, Style};
use crate::size::{count_of, show_size};
use crate::time::{of_micros, show_time};

/// Prints entries.
pub(super) struct Printer {
    ops: bool,
    width: usize,
}

impl Printer {
    /// `ops`: with each operation.
    pub(super) fn new(ops: bool, output: &Output) -> Self {
        Self { ops, width: output.width() }
    }

    pub(super) fn print(&self, db: &Db, entry: &LogEntryRef<'_>, output: &mut Output) -> Result<(), Failure> {
        match db.log().changes(entry.glsn)? {
            Some(commit) => self.print_commit(&commit, output),
            None => self.print_payload(entry, output),
        }
    }

    fn print_commit(&self, commit: &Commit, output: &mut Output) -> Result<(), Failure> {
        let metadata = commit.metadata()?;
        if output.reader() == Reader::Json {
            return self.print_commit_json(commit, metadata, output);
        }
        let mut operations = 0;
        commit.for_each(|_| {
            operations += 1;
            Ok(())
        })?;
        let operations = count_of(operations, "op", "ops");
        self.line(commit.glsn(), commit.time_micros(), "commit", &operations, &summary(metadata), output)?;
        if self.ops {
            visit_ops(commit, |op| print_op(&op, output))?;
        }
        Ok(())
    }

    /// With `--ops` the operations are an array in the object, written one by one: there may be millions.
    fn print_commit_json(&self, commit: &Commit, metadata: &[u8], output: &mut Output) -> Result<(), Failure> {
        let mut object = head(commit.glsn(), 0, commit.time_micros());
        object.insert("read_at".to_owned(), commit.read_at().into());
        match serde_json::from_slice::<Value>(metadata) {
            Ok(value) => drop(object.insert("metadata".to_owned(), value)),
            Err(_) if metadata.is_empty() => drop(object.insert("metadata".to_owned(), Value::Null)),
            Err(_) => put_json(&mut object, "metadata", metadata),
        }
        if !self.ops {
            return output.json(&object);
        }
        output.open_object(&object)?;
        output.raw(b"\"ops\":[")?;
        let mut first = true;
        visit_ops(commit, |op| {
            let comma: &[u8] = if first { b"" } else { b"," };
            first = false;
            output.raw(comma)?;
            output.raw(op_json(&op).to_string().as_bytes())
        })?;
        output.raw(b"]}\n")
    }

    fn print_payload(&self, entry: &LogEntryRef<'_>, output: &mut Output) -> Result<(), Failure> {
        match output.reader() {
            Reader::Json => {
                let mut object = head(entry.glsn, entry.stream, entry.time_micros);
                put_json(&mut object, "payload", entry.payload);
                output.json(&object)
            }
            Reader::Pipe => {
                let (glsn, time) = (entry.glsn.to_string(), show_time(of_micros(entry.time_micros)));
                let (kind, bytes) = (format!("stream {}", entry.stream), entry.payload.len().to_string());
                output.fields(&[glsn.as_bytes(), time.as_bytes(), kind.as_bytes(), bytes.as_bytes(), entry.payload])
            }
            Reader::People => {
                let size = show_size(entry.payload.len() as u64);
                let shown = preview(entry.payload, entry.payload.len() as u64, self.width.max(80));
                self.line(entry.glsn, entry.time_micros, &format!("stream {}", entry.stream), &size, &shown, output)
            }
        }
    }

    fn line(
        &self,
        glsn: u64,
        micros: u64,
        kind: &str,
        size: &str,
        rest: &str,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let time = show_time(of_micros(micros));
        if output.reader() == Reader::Pipe {
            let glsn = glsn.to_string();
            let size = size.split(' ').next().unwrap_or_default().replace(',', "");
            return output.fields(&[
                glsn.as_bytes(),
                time.as_bytes(),
                kind.as_bytes(),
                size.as_bytes(),
                rest.as_bytes(),
            ]);
        }
        let left = self.width.saturating_sub(8 + 2 + 24 + 2 + 10 + 2 + 10 + 2).max(30);
        let rest = preview(rest.as_bytes(), rest.len() as u64, left);
        let time = output.paint(Style::Faint, &time);
        let kind = format!("{kind:<10}");
        output.line(&format!("{glsn:>8}  {time}  {kind}  {size:>10}  {rest}"))
    }
}

fn head(glsn: u64, stream: u32, micros: u64) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("glsn".to_owned(), glsn.into());
    object.insert("stream".to_owned(), stream.into());
    object.insert("time".to_owned(), show_time(of_micros(micros)).into());
    object
}

/// Visits the operations with a visitor that fails in the command's own way.
fn visit_ops(commit: &Commit, mut visit: impl FnMut(Op<'_>) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut outcome = Ok(());
    commit.for_each(|op| {
        if outcome.is_ok() {
            outcome = visit(op);
        }
        Ok(())
    })?;
    outcome
}

fn print_op(op: &Op<'_>, output: &mut Output) -> Result<(), Failure> {
    let keyspace = op.keyspace.as_deref().unwrap_or("(the store's own)");
    let (sign, style, bytes) = match op.change {
        OpChange::Put { bytes } => ("+", Style::Good, Some(bytes)),
        _ => ("-", Style::Bad, None),
    };
    if output.reader() == Reader::Pipe {
        let bytes = bytes.map_or_else(String::new, |bytes| bytes.to_string());
        return output.fields(&[b"", sign.as_bytes(), keyspace.as_bytes(), bytes.as_bytes(), op.key]);
    }
    let key = output.paint(style, &format!("{sign} {}", show_bytes(op.key)));
    let size = bytes.map(show_size).unwrap_or_default();
    output.line(&format!("          {key}  {}", output.paint(Style::Faint, &format!("{size} {keyspace}"))))
}

fn op_json(op: &Op<'_>) -> Value {
    let mut object = Map::new();
    object.insert("keyspace".to_owned(), json!(op.keyspace.as_deref()));
    put_json(&mut object, "key", op.key);
    match op.change {
        OpChange::Put { bytes } => {
            object.insert("op".to_owned(), "put".into());
            object.insert("bytes".to_owned(), bytes.into());
        }
        _ => drop(object.insert("op".to_owned(), "delete".into())),
    }
    Value::Object(object)
}

/// What metadata says, in a few words: a Git commit as `1a2b3c4d Ada Lovelace: subject`, other text by its first line.
fn summary(metadata: &[u8]) -> String {
    if let Ok(Value::Object(object)) = serde_json::from_slice(metadata) {
        let text = |name: &str| object.get(name).and_then(Value::as_str);
        if let (Some(commit), Some(message)) = (text("commit"), text("message")) {
            let short: String = commit.chars().take(8).collect();
            let subject = message.lines().next().unwrap_or_default();
            return format!("{short} {}: {subject}", text("author").unwrap_or("?"));
        }
    }
    match std::str::from_utf8(metadata) {
        Ok(text) => text.lines().next().unwrap_or_default().to_owned(),
        Err(_) => format!("{} of metadata", show_size(metadata.len() as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_git_commit_is_summed_up_by_its_subject() {
        let metadata = br#"{"commit":"0123456789abcdef","author":"Ada","message":"first\n\nbody"}"#;
        assert_eq!(summary(metadata), "01234567 Ada: first");
    }

    #[test]
    fn other_metadata_is_summed_up_by_its_first_line_or_size() {
        assert_eq!(summary(b"by hand\nsecond"), "by hand");
        assert_eq!(summary(b""), "");
        assert_eq!(summary(&[0xff, 0xfe]), "2 B of metadata");
    }
}
