//! A commit object: what an import needs of it, and the metadata that travels with its transaction.

use jiff::Timestamp;
use serde::Serialize;

use crate::git::object_id::ObjectId;
use crate::time::show_seconds;

/// Metadata stays below what a transaction takes (64 KiB).
const METADATA_BYTES_MAX: usize = 64 * 1024;

/// A commit.
#[derive(Debug)]
pub(crate) struct Commit {
    /// Its name.
    pub(crate) id: ObjectId,
    /// Its files.
    pub(crate) tree: ObjectId,
    /// The committer's time; `None` if its date is broken.
    pub(crate) time: Option<Timestamp>,
    /// What travels with the transaction: JSON.
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

/// Reads a commit object. `cut`: the object was longer than `object`. `None`: it has no tree, so it is no commit.
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
    // A second pass, for the encoding stands behind the names that it is for.
    for line in headers.split(|&byte| byte == b'\n') {
        match split_once(line, b' ') {
            Some((b"author", value)) => author = person(value, encoding),
            Some((b"committer", value)) => committer = person(value, encoding),
            _ => {}
        }
    }
    // What was shown is a time that can be read back.
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

/// Writes metadata as JSON, with as much of the message and then of the rest as fits.
fn fit(mut metadata: Metadata<'_>) -> Vec<u8> {
    loop {
        let json = serde_json::to_vec(&metadata).expect("text and lists of text are always JSON");
        let surplus = json.len().saturating_sub(METADATA_BYTES_MAX);
        if surplus == 0 {
            return json;
        }
        metadata.message_cut = true;
        if metadata.message.is_empty() {
            // Names and parents alone are too long: no commit of people looks like this.
            metadata.parents.clear();
            for text in
                [&mut metadata.author, &mut metadata.email, &mut metadata.committer.name, &mut metadata.committer.email]
            {
                shorten(text, 256);
            }
            continue;
        }
        // A byte of the message is up to six of JSON, so this leaves at least half of what could stay.
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

/// `1706702403 +0100` as RFC 3339; `None` for the broken dates that old histories hold.
fn date(text: &str) -> Option<String> {
    let mut parts = text.split_ascii_whitespace();
    let seconds: i64 = parts.next()?.parse().ok()?;
    let zone = parts.next().unwrap_or("+0000");
    let offset: i32 = zone.parse().ok()?;
    show_seconds(seconds, offset / 100 * 60 + offset % 100)
}

/// How a commit's text was written.
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

    /// Text; what is none in UTF-8 becomes a replacement character.
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
    fn what_has_no_tree_is_no_commit() {
        assert!(parse(ObjectId::parse(&[b'a'; 40]).unwrap(), b"object x\n\n", false).is_none());
    }
}
