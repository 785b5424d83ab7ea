//! A commit's metadata as people read it: its author, its time, and the first line of its message.

use std::time::SystemTime;

use jiff::Timestamp;
use plimsoll::{Db, Error, Glsn};
use serde_json::{Map, Value};

use crate::exit::Failure;
use crate::size::show_size;
use crate::time::of_system;

/// A summary of a commit's metadata; every field is empty if the commit has none.
#[derive(Debug, Default)]
pub(crate) struct About {
    /// Id of the imported Git commit.
    commit: Option<String>,
    author: Option<String>,
    /// The committer's time of an imported commit.
    committed: Option<Timestamp>,
    /// The first line of the message, or of metadata that is text.
    subject: String,
}

impl About {
    /// Reads metadata: that of an imported Git commit, or text.
    pub(crate) fn of(metadata: &[u8]) -> Self {
        let first_line = |text: &str| text.lines().next().unwrap_or_default().to_owned();
        if let Ok(Value::Object(object)) = serde_json::from_slice(metadata) {
            let text = |name: &str| object.get(name).and_then(Value::as_str);
            if let (Some(commit), Some(message)) = (text("commit"), text("message")) {
                let committed =
                    object.get("committer").and_then(|committer| committer.get("date")?.as_str());
                return Self {
                    commit: Some(commit.to_owned()),
                    author: text("author").map(str::to_owned),
                    committed: committed.and_then(|date| date.parse().ok()),
                    subject: first_line(message),
                };
            }
        }
        let subject = match std::str::from_utf8(metadata) {
            Ok(text) => first_line(text),
            Err(_) => format!("{} of metadata", show_size(metadata.len() as u64)),
        };
        Self { subject, ..Self::default() }
    }

    /// Reads the summary of a commit. It is empty if the log is trimmed or the commit was dropped.
    pub(crate) fn at(db: &Db, glsn: u64) -> Result<Self, Failure> {
        match db.log().commit(Glsn(glsn)) {
            Ok(Some(commit)) => Ok(Self::of(commit.metadata()?)),
            Ok(None) | Err(Error::Trimmed { .. } | Error::Dropped { .. }) => Ok(Self::default()),
            Err(error) => Err(error.into()),
        }
    }

    /// The time to show for a commit that the store recorded at `stored`: the committer's time if
    /// that is earlier, otherwise `stored`.
    pub(crate) fn time(&self, stored: SystemTime) -> Timestamp {
        let stored = of_system(stored);
        self.committed.map_or(stored, |committed| committed.min(stored))
    }

    /// Whether the commit was imported and has a committer's time.
    pub(crate) fn has_time(&self) -> bool {
        self.committed.is_some()
    }

    /// One line: a Git commit as `1a2b3c4d Ada Lovelace: subject`, other metadata as its first
    /// line.
    pub(crate) fn line(&self) -> String {
        match &self.commit {
            Some(commit) => {
                let short: String = commit.chars().take(8).collect();
                format!("{short} {}: {}", self.author.as_deref().unwrap_or("?"), self.subject)
            }
            None => self.subject.clone(),
        }
    }

    /// Adds the known fields to a JSON object.
    pub(crate) fn put_json(&self, object: &mut Map<String, Value>) {
        let subject = Some(&self.subject).filter(|subject| !subject.is_empty());
        for (name, value) in [
            ("commit", self.commit.as_ref()),
            ("author", self.author.as_ref()),
            ("subject", subject),
        ] {
            if let Some(value) = value {
                object.insert(name.to_owned(), value.as_str().into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn git_commit_is_summarized_by_its_subject() {
        let metadata = br#"{"commit":"0123456789abcdef","author":"Ada","message":"first\n\nbody"}"#;
        assert_eq!(About::of(metadata).line(), "01234567 Ada: first");
    }

    #[test]
    fn other_metadata_is_summarized_by_its_first_line_or_size() {
        assert_eq!(About::of(b"by hand\nsecond").line(), "by hand");
        assert_eq!(About::of(b"").line(), "");
        assert_eq!(About::of(&[0xff, 0xfe]).line(), "2 B of metadata");
    }

    #[test]
    fn committer_time_is_shown_if_it_is_before_the_stored_time() {
        let metadata =
            br#"{"commit":"0123","message":"m","committer":{"date":"2024-01-31T13:00:00+01:00"}}"#;
        let about = About::of(metadata);
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(about.time(at(1_800_000_000)).to_string(), "2024-01-31T12:00:00Z");
        assert_eq!(about.time(at(1_000_000_000)).to_string(), "2001-09-09T01:46:40Z");
        assert_eq!(About::default().time(at(0)).to_string(), "1970-01-01T00:00:00Z");
    }
}
