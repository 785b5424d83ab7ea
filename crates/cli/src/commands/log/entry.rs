//! One log entry per line: a transaction with its metadata, or a payload of a stream.

use jiff::Timestamp;
use plimsoll::{Branch, Change, Commit, CommitId, Db, Error, Glsn, LogEntry};
use serde_json::{Map, Value, json};

use crate::bytes::{preview, put_json, shorten, show_bytes, show_key};
use crate::commands::shown_change::{deleted_range_end, op_of, put_keys, show_keys};
use crate::commands::sync::{DIGITS, short};
use crate::commit_summary::About;
use crate::exit::Failure;
use crate::output::{Output, Reader, Style};
use crate::size::{count_of, show_size};
use crate::time::{of_system, show_time};

/// The entries that are wanted.
pub(super) enum Wanted {
    All,
    /// The commits that a branch contains.
    OnBranch(Branch),
    /// The commits of a deleted branch, under the name that commits report for it.
    OnDeleted(String),
}

impl Wanted {
    pub(super) fn branch(&self) -> Option<&Branch> {
        if let Self::OnBranch(branch) = self { Some(branch) } else { None }
    }

    fn has(&self, commit: &Commit) -> plimsoll::Result<bool> {
        match self {
            Self::All => Ok(true),
            Self::OnBranch(branch) => branch.contains(commit),
            Self::OnDeleted(name) => Ok(commit.branch()?.as_deref() == Some(name)),
        }
    }
}

/// An entry's GLSN, the id of its commit, and its time.
struct Place {
    glsn: u64,
    id: Option<CommitId>,
    time: Timestamp,
}

/// Prints entries.
pub(super) struct Printer {
    ops: bool,
    hex: bool,
    /// Skip entries after this time.
    until: Option<Timestamp>,
    /// Skip commits that only advance cursors.
    skip_cursors: bool,
    /// Show the ids of commits.
    ids: bool,
    width: usize,
}

impl Printer {
    /// `ops`: print each operation; `hex`: print keys as hexadecimal digits.
    pub(super) fn new(ops: bool, hex: bool, until: Option<Timestamp>, output: &Output) -> Self {
        Self { ops, hex, until, skip_cursors: false, ids: false, width: output.width() }
    }

    /// Skips commits that only advance cursors.
    pub(super) fn skip_cursors(self) -> Self {
        Self { skip_cursors: true, ..self }
    }

    /// Shows the ids of commits.
    pub(super) fn show_ids(self) -> Self {
        Self { ids: true, ..self }
    }

    /// Prints an entry, if it is wanted. Returns false if it is skipped.
    pub(super) fn print(
        &self,
        db: &Db,
        of: &Wanted,
        glsn: u64,
        output: &mut Output,
    ) -> Result<bool, Failure> {
        let wanted = |time| self.until.is_none_or(|until| time <= until);
        let changes = match db.log().commit(Glsn(glsn)) {
            Err(Error::Dropped { .. }) => return self.print_dropped(glsn, output).map(|()| true),
            changes => changes?,
        };
        match changes {
            Some(commit) if self.skip_cursors && commit.moves_cursor()? => Ok(false),
            Some(commit) if !of.has(&commit)? => Ok(false),
            None if !matches!(of, Wanted::All) => Ok(false),
            Some(commit) => {
                let metadata = commit.metadata()?;
                let about = About::of(metadata);
                let wanted = wanted(about.time(commit.time()));
                if wanted {
                    let id = if self.ids { db.commit_id(commit.glsn())? } else { None };
                    self.print_commit(&commit, id, metadata, &about, output)?;
                }
                Ok(wanted)
            }
            None => {
                let entry = db.log().read(Glsn(glsn))?;
                let wanted = wanted(of_system(entry.time));
                if wanted {
                    self.print_payload(&entry, output)?;
                }
                Ok(wanted)
            }
        }
    }

    fn print_commit(
        &self,
        commit: &Commit,
        id: Option<CommitId>,
        metadata: &[u8],
        about: &About,
        output: &mut Output,
    ) -> Result<(), Failure> {
        if output.reader() == Reader::Json {
            return self.print_commit_json(commit, id, metadata, about, output);
        }
        let (mut operations, mut first, mut on) = (0, String::new(), String::new());
        let mut is_own = true;
        let own = match commit {
            commit if commit.moves_cursor()? => "cursor",
            commit if commit.changes_tag()? => "tag",
            commit if commit.changes_branch()? => "branch",
            commit if commit.records_ids()? => "ids",
            _ => "keyspace",
        };
        for change in commit.changes()? {
            let change = change?;
            // The record of a commit from another store stands before its changes.
            if operations == 0 || is_own && change.keyspace().is_some() {
                is_own = change.keyspace().is_none();
                first = self.summary(&change, own);
                on = change.branch().map_or(on, |branch| format!("branch {branch}: "));
            }
            operations += 1;
        }
        let mut summary = about.line();
        if output.reader() == Reader::People {
            // Without metadata, people see a summary of the commit's operations.
            summary = match operations {
                _ if !summary.is_empty() => on + &show_bytes(summary.as_bytes()),
                0 | 1 => on + &first,
                _ => format!("{on}{first}, ..."),
            };
        }
        let operations = count_of(operations, "op", "ops");
        let time = about.time(commit.time());
        let place = Place { glsn: commit.glsn().0, id, time };
        self.line(&place, "commit", &operations, &summary, output)?;
        if self.ops {
            for change in commit.changes()? {
                self.print_op(&change?, output)?;
            }
        }
        Ok(())
    }

    /// A short description of an operation; `own` names the subject of an internal record.
    fn summary(&self, change: &Change, own: &str) -> String {
        let key = show_keys(change, self.hex);
        match (change.keyspace(), change.is_delete()) {
            (None, _) if own == "ids" => own.to_owned(),
            (None, _) => format!("{own} {key}"),
            (_, false) => format!("+ {key}"),
            (_, true) => format!("- {key}"),
        }
    }

    /// With `--ops` the object contains an array of operations. They are written one at a time,
    /// because there may be millions.
    fn print_commit_json(
        &self,
        commit: &Commit,
        id: Option<CommitId>,
        metadata: &[u8],
        about: &About,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let mut object = head(commit.glsn().0, 0, about.time(commit.time()));
        if about.has_time() {
            object.insert("stored".to_owned(), show_time(of_system(commit.time())).into());
        }
        if self.ids {
            object.insert("id".to_owned(), id.map(|id| id.to_string()).into());
        }
        object.insert("read_at".to_owned(), commit.read_at().0.into());
        // All changes of a commit are on one branch. Changes that cannot be read are not an error
        // here.
        if let Ok(mut changes) = commit.changes()
            && let Some(Ok(first)) = changes.next()
            && let Some(branch) = first.branch()
        {
            object.insert("branch".to_owned(), branch.into());
        }
        match serde_json::from_slice::<Value>(metadata) {
            Ok(value) => drop(object.insert("metadata".to_owned(), value)),
            Err(_) if metadata.is_empty() => {
                drop(object.insert("metadata".to_owned(), Value::Null))
            }
            Err(_) => put_json(&mut object, "metadata", metadata),
        }
        if !self.ops {
            return output.json(&object);
        }
        // Check that every operation is readable first, because half an object cannot be retracted.
        commit.changes()?.try_for_each(|change| change.map(drop))?;
        output.open_object(&object)?;
        output.raw(b"\"ops\":[")?;
        let mut first = true;
        for change in commit.changes()? {
            let comma: &[u8] = if first { b"" } else { b"," };
            first = false;
            output.raw(comma)?;
            output.raw(self.op_json(&change?).to_string().as_bytes())?;
        }
        output.raw(b"]}\n")
    }

    /// A damaged entry whose content is lost.
    fn print_dropped(&self, glsn: u64, output: &mut Output) -> Result<(), Failure> {
        let what = "is lost, because it was damaged when the store was recovered";
        match output.reader() {
            Reader::Json => output.json(
                &json!({ "glsn": glsn, "dropped": true }).as_object().cloned().unwrap_or_default(),
            ),
            Reader::Pipe => {
                self.fields(glsn, None, &[b"", b"dropped", b"", what.as_bytes()], output)
            }
            Reader::People => output.line(&format!("{glsn:>8}  {what}")),
        }
    }

    fn print_payload(&self, entry: &LogEntry, output: &mut Output) -> Result<(), Failure> {
        match output.reader() {
            Reader::Json => {
                let mut object = head(entry.glsn.0, entry.stream, of_system(entry.time));
                put_json(&mut object, "payload", entry.payload());
                output.json(&object)
            }
            Reader::Pipe => {
                let time = show_time(of_system(entry.time));
                let (kind, bytes) =
                    (format!("stream {}", entry.stream), entry.payload().len().to_string());
                let rest = [time.as_bytes(), kind.as_bytes(), bytes.as_bytes(), entry.payload()];
                self.fields(entry.glsn.0, None, &rest, output)
            }
            Reader::People => {
                let size = show_size(entry.payload().len() as u64);
                let shown =
                    preview(entry.payload(), entry.payload().len() as u64, self.width.max(80));
                let place = Place { glsn: entry.glsn.0, id: None, time: of_system(entry.time) };
                self.line(&place, &format!("stream {}", entry.stream), &size, &shown, output)
            }
        }
    }

    fn line(
        &self,
        place: &Place,
        kind: &str,
        size: &str,
        rest: &str,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let time = show_time(place.time);
        if output.reader() == Reader::Pipe {
            let size = size.split(' ').next().unwrap_or_default().replace(',', "");
            let rest = [time.as_bytes(), kind.as_bytes(), size.as_bytes(), rest.as_bytes()];
            return self.fields(place.glsn, place.id, &rest, output);
        }
        let id = match (self.ids, place.id) {
            (false, _) => String::new(),
            (true, id) => {
                format!("{:<width$}  ", id.map_or_else(String::new, short), width = DIGITS)
            }
        };
        let left = self.width.saturating_sub(8 + 2 + id.len() + 27 + 2 + 10 + 2 + 10 + 2).max(30);
        let rest = shorten(rest, left);
        let (id, time) = (output.paint(Style::Changed, &id), output.paint(Style::Faint, &time));
        let (kind, glsn) = (format!("{kind:<10}"), place.glsn);
        output.line(&format!("{glsn:>8}  {id}{time}  {kind}  {size:>10}  {rest}"))
    }

    /// A line for a pipe: the GLSN, the id if ids are shown, and other fields.
    fn fields(
        &self,
        glsn: u64,
        id: Option<CommitId>,
        rest: &[&[u8]],
        output: &mut Output,
    ) -> Result<(), Failure> {
        let (glsn, id) = (glsn.to_string(), id.map_or_else(String::new, |id| id.to_string()));
        let mut fields = vec![glsn.as_bytes()];
        if self.ids {
            fields.push(id.as_bytes());
        }
        fields.extend_from_slice(rest);
        output.fields(&fields)
    }

    fn print_op(&self, change: &Change, output: &mut Output) -> Result<(), Failure> {
        let key = show_key(change.key(), self.hex);
        let keyspace = change.keyspace().unwrap_or("(the store's own)");
        // The colon is unambiguous, because no branch name has one.
        let keyspace = match change.branch() {
            None => keyspace.to_owned(),
            Some(branch) => format!("{branch}:{keyspace}"),
        };
        let bytes = change.value_len();
        let (sign, style) = if change.is_delete() { ("-", Style::Bad) } else { ("+", Style::Good) };
        if output.reader() == Reader::Pipe {
            let bytes = bytes.map_or_else(String::new, |bytes| bytes.to_string());
            let end = deleted_range_end(change);
            let sign = if end.is_some() { "--" } else { sign };
            let end = end.map(|end| end.map_or_else(String::new, |end| show_key(end, self.hex)));
            let ends: Vec<&[u8]> = end.iter().map(String::as_bytes).collect();
            return output.fields_with_key(
                &[b"", sign.as_bytes(), keyspace.as_bytes(), bytes.as_bytes()],
                &key,
                &ends,
            );
        }
        let key = show_keys(change, self.hex);
        let key = output.paint(style, &format!("{sign} {key}"));
        let size = bytes.map(show_size).unwrap_or_default();
        output.line(&format!(
            "          {key}  {}",
            output.paint(Style::Faint, &format!("{size} {keyspace}"))
        ))
    }

    fn op_json(&self, change: &Change) -> Value {
        let mut object = Map::new();
        object.insert("keyspace".to_owned(), json!(change.keyspace()));
        if let Some(branch) = change.branch() {
            object.insert("branch".to_owned(), branch.into());
        }
        put_keys(&mut object, change, self.hex);
        object.insert("op".to_owned(), op_of(change).into());
        if let Some(bytes) = change.value_len() {
            object.insert("bytes".to_owned(), bytes.into());
        }
        Value::Object(object)
    }
}

fn head(glsn: u64, stream: u32, time: Timestamp) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("glsn".to_owned(), glsn.into());
    object.insert("stream".to_owned(), stream.into());
    object.insert("time".to_owned(), show_time(time).into());
    object
}
