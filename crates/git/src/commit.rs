//! Parses a commit object: its tree, its time, and the metadata of its transaction.

use jiff::Timestamp;
use jiff::tz::Offset;
use serde::Serialize;

use crate::object_id::ObjectId;

/// The most metadata that a transaction takes.
const METADATA_BYTES_MAX: usize = 64 * 1024;

/// A commit.
#[derive(Debug)]
pub(crate) struct Commit {
    /// Its id.
    pub(crate) id: ObjectId,
    /// Its root tree.
    pub(crate) tree: ObjectId,
    /// The committer's time; `None` if its date is broken.
    pub(crate) time: Option<Timestamp>,
    /// The metadata of its transaction, as JSON.
    pub(crate) metadata: Vec<u8>,
}

#[derive(Serialize)]
struct Metadata<'a> {
    commit: &'a str,
    author: String,
    email: String,
    date: Option<String>,
    committer: Person,
    message: String,
    parents: Vec<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    message_cut: bool,
}

#[derive(Default, Serialize)]
struct Person {
    name: String,
    email: String,
    date: Option<String>,
}

/// Parses a commit object. `cut`: the object is longer than `object`. `None` if it has no tree and so is not a commit.
pub(crate) fn parse(id: ObjectId, object: &[u8], cut: bool) -> Option<Commit> {
    let (headers, message) = split_at_blank_line(object);
    let mut tree = None;
    let (mut author, mut committer) = (Person::default(), Person::default());
    let mut parents = Vec::new();
    let mut encoding = Encoding::Utf8;
    for line in headers.split(|&byte| byte == b'\n') {
        let (name, value) = split_once(line, b' ').unwrap_or((line, b""));
        match name {
            b"tree" => tree = ObjectId::parse(value),
            b"parent" => parents.extend(std::str::from_utf8(value)),
            b"encoding" => encoding = Encoding::named(value),
            _ => {}
        }
    }
    // A second pass, because the encoding of the names follows them.
    for line in headers.split(|&byte| byte == b'\n') {
        match split_once(line, b' ') {
            Some((b"author", value)) => author = person(value, encoding),
            Some((b"committer", value)) => committer = person(value, encoding),
            _ => {}
        }
    }
    // A date in RFC 3339 always parses, unless it was broken and so is absent.
    let time = committer.date.as_deref().and_then(|date| date.parse().ok());
    let metadata = Metadata {
        commit: id.as_str(),
        author: author.name,
        email: author.email,
        date: author.date,
        committer,
        message: encoding.decode(message),
        parents,
        message_cut: cut,
    };
    Some(Commit { id, tree: tree?, time, metadata: fit(metadata) })
}

/// Writes metadata as JSON and shortens the message until it fits, then everything else.
fn fit(mut metadata: Metadata<'_>) -> Vec<u8> {
    loop {
        let json = serde_json::to_vec(&metadata).expect("text and lists of text are always JSON");
        let surplus = json.len().saturating_sub(METADATA_BYTES_MAX);
        if surplus == 0 {
            return json;
        }
        metadata.message_cut = true;
        if metadata.message.is_empty() {
            // The names and parents alone are too long: no tool makes such commits, but the format allows them.
            metadata.parents.clear();
            for text in
                [&mut metadata.author, &mut metadata.email, &mut metadata.committer.name, &mut metadata.committer.email]
            {
                shorten(text, 256);
            }
            continue;
        }
        // A byte of the message is at most six bytes of JSON, so this removes no more than necessary, or 256 bytes.
        let keep = metadata.message.len().saturating_sub((surplus / 6).max(256));
        shorten(&mut metadata.message, keep);
    }
}

fn shorten(text: &mut String, bytes: usize) {
    text.truncate(text.floor_char_boundary(bytes));
}

/// `Ada Lovelace <ada@example.org> 1706702403 +0100`.
fn person(value: &[u8], encoding: Encoding) -> Person {
    let Some(open) = value.iter().position(|&byte| byte == b'<') else {
        return Person { name: encoding.decode(value), ..Person::default() };
    };
    let close = value.iter().rposition(|&byte| byte == b'>').filter(|&close| close > open).unwrap_or(value.len());
    let trimmed = |bytes: &[u8]| encoding.decode(bytes.trim_ascii());
    let date = value.get(close + 1..).and_then(|date| std::str::from_utf8(date).ok()).and_then(date);
    Person { name: trimmed(&value[..open]), email: trimmed(&value[open + 1..close]), date }
}

/// `1706702403 +0100` as RFC 3339; `None` for the broken dates of some old histories.
fn date(text: &str) -> Option<String> {
    let mut parts = text.split_ascii_whitespace();
    let seconds: i64 = parts.next()?.parse().ok()?;
    let zone = parts.next().unwrap_or("+0000");
    let offset: i32 = zone.parse().ok()?;
    write_date(seconds, offset / 100 * 60 + offset % 100)
}

/// Seconds since 1970 in RFC 3339, with an offset from UTC in minutes; `None` if the year or the offset cannot be written.
fn write_date(seconds: i64, offset_minutes: i32) -> Option<String> {
    let offset =
        Offset::from_seconds(offset_minutes.checked_mul(60)?).ok().filter(|_| offset_minutes.abs() < 24 * 60)?;
    let time = Timestamp::from_second(seconds).ok()?;
    let has_year = (0..=9999).contains(&offset.to_datetime(time).year());
    has_year
        .then(|| if offset == Offset::UTC { time.to_string() } else { time.display_with_offset(offset).to_string() })
}

/// The encoding of a commit's text.
#[derive(Clone, Copy)]
enum Encoding {
    Utf8,
    Latin1,
}

impl Encoding {
    fn named(name: &[u8]) -> Self {
        match name.to_ascii_lowercase().as_slice() {
            b"iso-8859-1" | b"iso8859-1" | b"latin1" | b"latin-1" => Self::Latin1,
            _ => Self::Utf8,
        }
    }

    /// Decodes text. Invalid UTF-8 becomes replacement characters.
    fn decode(self, bytes: &[u8]) -> String {
        match self {
            Self::Utf8 => String::from_utf8_lossy(bytes).into_owned(),
            Self::Latin1 => bytes.iter().copied().map(char::from).collect(),
        }
    }
}

fn split_at_blank_line(object: &[u8]) -> (&[u8], &[u8]) {
    match object.windows(2).position(|pair| pair == b"\n\n") {
        Some(at) => (&object[..at], &object[at + 2..]),
        None => (object, b""),
    }
}

fn split_once(bytes: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|&byte| byte == separator)?;
    Some((&bytes[..at], &bytes[at + 1..]))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

    fn metadata(object: &[u8]) -> Value {
        let id = ObjectId::parse(&[b'a'; 40]).unwrap();
        let commit = parse(id, object, false).unwrap();
        assert!(commit.metadata.len() <= METADATA_BYTES_MAX);
        serde_json::from_slice(&commit.metadata).unwrap()
    }

    #[test]
    fn a_commit_becomes_json() {
        let parent = "b".repeat(40);
        let object = format!(
            "tree {TREE}\nparent {parent}\nauthor Ada <ada@x.org> 1706702403 +0100\n\
             committer Bob <bob@x.org> 1706702404 -0530\ngpgsig -----BEGIN\n author fake <x> 1 +0000\n\nsubject\n\nbody\n"
        );
        let expected = serde_json::json!({
            "commit": "a".repeat(40),
            "author": "Ada",
            "email": "ada@x.org",
            "date": "2024-01-31T13:00:03+01:00",
            "committer": {"name": "Bob", "email": "bob@x.org", "date": "2024-01-31T06:30:04-05:30"},
            "message": "subject\n\nbody\n",
            "parents": [parent],
        });
        assert_eq!(metadata(object.as_bytes()), expected);
    }

    #[test]
    fn latin1_is_decoded_and_other_broken_text_replaced() {
        let object = format!("tree {TREE}\nauthor J\u{e9}r <j@x> 1 +0000\nencoding ISO-8859-1\n\n");
        let latin1: Vec<u8> = object.chars().map(|character| character as u8).chain(*b"caf\xe9").collect();
        let read = metadata(&latin1);
        assert_eq!((read["author"].as_str(), read["message"].as_str()), (Some("Jér"), Some("café")));
        let broken = [format!("tree {TREE}\nauthor A <a> 1 +0000\n\n").as_bytes(), b"caf\xe9"].concat();
        assert_eq!(metadata(&broken)["message"], "caf\u{fffd}");
    }

    #[test]
    fn a_date_is_written_with_its_own_offset() {
        let written = |seconds, minutes| write_date(seconds, minutes).unwrap();
        assert_eq!(written(1_706_702_403, 60), "2024-01-31T13:00:03+01:00");
        assert_eq!(written(1_706_702_403, -330), "2024-01-31T06:30:03-05:30");
        assert_eq!(written(-1, 0), "1969-12-31T23:59:59Z");
        assert_eq!(write_date(i64::MAX, 0), None);
        assert_eq!(write_date(0, 6000), None);
    }

    #[test]
    fn a_broken_date_is_null() {
        for date in ["", "x", "99999999999999999 +0000", "1 +9999", "1 zone"] {
            let object = format!("tree {TREE}\nauthor A <a> {date}\n\nm");
            assert_eq!(metadata(object.as_bytes())["date"], Value::Null, "{date}");
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_cut_and_says_so() {
        for letter in ["x", "\u{1}", "é"] {
            let message = letter.repeat(100_000);
            let read = metadata(format!("tree {TREE}\nauthor A <a> 1 +0000\n\n{message}").as_bytes());
            assert_eq!(read["message_cut"], true);
            assert!(read["message"].as_str().unwrap().len() > 8_000);
        }
    }

    #[test]
    fn a_commit_of_ten_thousand_parents_still_fits() {
        let parents = format!("parent {}\n", "b".repeat(40)).repeat(10_000);
        let read = metadata(format!("tree {TREE}\n{parents}author A <a> 1 +0000\n\nm").as_bytes());
        assert_eq!(read["author"], "A");
    }

    #[test]
    fn an_object_without_a_tree_is_not_a_commit() {
        assert!(parse(ObjectId::parse(&[b'a'; 40]).unwrap(), b"object x\n\n", false).is_none());
    }
}
