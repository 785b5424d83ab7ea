//! Parses a commit object: its tree, its time, and the metadata of its transaction.

use jiff::Timestamp;
use serde::Serialize;

use crate::date::Date;
use crate::encoding::TextEncoding;
use crate::error::Error;
use crate::object_id::ObjectId;

/// Maximum metadata of a transaction.
const METADATA_BYTES_MAX: usize = 64 * 1024;

/// A commit.
#[derive(Debug)]
pub(crate) struct Commit {
    /// Its id.
    pub(crate) id: ObjectId,
    /// Its root tree.
    pub(crate) tree: ObjectId,
    /// The committer's time; `None` if the date is malformed.
    pub(crate) time: Option<Timestamp>,
    /// The metadata of the transaction, as JSON.
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
    /// The headers after the committer, for example a signature.
    #[serde(skip_serializing_if = "str::is_empty")]
    headers: &'a str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    message_cut: bool,
    #[serde(skip_serializing_if = "Undecoded::is_empty")]
    undecoded: Undecoded,
}

/// The bytes of text that is not valid in the commit's encoding, in hexadecimal. In the text
/// itself, U+FFFD replaces invalid bytes.
#[derive(Default, Serialize)]
struct Undecoded {
    /// The encoding that the commit declares, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<String>,
    /// The whole line: name, email and date.
    #[serde(skip_serializing_if = "Option::is_none")]
    author: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    committer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

impl Undecoded {
    fn is_empty(&self) -> bool {
        self.author.is_none() && self.committer.is_none() && self.message.is_none()
    }
}

#[derive(Default, Serialize)]
struct Person {
    name: String,
    email: String,
    date: Option<String>,
}

/// Parses a commit object. `cut` means that `object` is only the beginning of it. Returns `None` if
/// the object has no tree and thus is not a commit.
pub(crate) fn parse(id: ObjectId, object: &[u8], cut: bool) -> Option<Commit> {
    let (headers, message) = split_at_blank_line(object);
    let mut tree = None;
    let (mut author_line, mut committer_line): (&[u8], &[u8]) = (b"", b"");
    let mut parents = Vec::new();
    let mut encoding_name = None;
    for line in headers.split(|&byte| byte == b'\n') {
        let (name, value) = split_once(line, b' ').unwrap_or((line, b""));
        match name {
            b"tree" => tree = ObjectId::parse(value),
            b"parent" => parents.extend(std::str::from_utf8(value)),
            b"author" => author_line = value,
            b"committer" => committer_line = value,
            b"encoding" => encoding_name = Some(value),
            _ => {}
        }
    }
    let encoding = encoding_name.map_or(TextEncoding::UTF_8, TextEncoding::named);
    let decode = |bytes: &[u8]| {
        let (text, is_valid) = encoding.decode(bytes);
        (text, (!is_valid).then(|| hex::encode(bytes)))
    };
    let (author, undecoded_author) = decode(author_line);
    let (committer, undecoded_committer) = decode(committer_line);
    let (message, undecoded_message) = decode(message);
    let ((author, _), (committer, time)) = (person(&author), person(&committer));
    let metadata = Metadata {
        commit: id.as_str(),
        author: author.name,
        email: author.email,
        date: author.date,
        committer,
        message,
        parents,
        headers: further_headers(headers),
        message_cut: cut,
        undecoded: Undecoded {
            encoding: encoding_name.map(|name| String::from_utf8_lossy(name).into_owned()),
            author: undecoded_author,
            committer: undecoded_committer,
            message: undecoded_message,
        },
    };
    Some(Commit { id, tree: tree?, time, metadata: fit(metadata) })
}

/// The headers after the committer; empty if they are not UTF-8.
fn further_headers(headers: &[u8]) -> &str {
    let mut rest = headers.split_inclusive(|&byte| byte == b'\n');
    let mut bytes = 0;
    for line in &mut rest {
        bytes += line.len();
        if line.starts_with(b"committer ") {
            return std::str::from_utf8(&headers[bytes..]).unwrap_or_default();
        }
    }
    ""
}

/// Encodes metadata as JSON; shortens the message until it fits, then drops everything else.
fn fit(mut metadata: Metadata<'_>) -> Vec<u8> {
    loop {
        let json = serde_json::to_vec(&metadata).expect("text and lists of text are always JSON");
        let surplus = json.len().saturating_sub(METADATA_BYTES_MAX);
        if surplus == 0 {
            return json;
        }
        metadata.message_cut = true;
        if !metadata.headers.is_empty() {
            metadata.headers = "";
            continue;
        }
        if let Some(bytes) = &mut metadata.undecoded.message {
            // Two digits per byte.
            let keep = bytes.len().saturating_sub(surplus.max(256)) & !1;
            bytes.truncate(keep);
            if keep > 0 {
                continue;
            }
            metadata.undecoded.message = None;
        }
        if metadata.message.is_empty() {
            // The names and parents alone are too long. No tool creates such commits, but the
            // format allows them.
            metadata.parents.clear();
            metadata.undecoded = Undecoded::default();
            for text in [
                &mut metadata.author,
                &mut metadata.email,
                &mut metadata.committer.name,
                &mut metadata.committer.email,
            ] {
                shorten(text, 256);
            }
            continue;
        }
        // A byte of the message takes at most six bytes of JSON, so this removes at most the
        // surplus, or 256 bytes.
        let keep = metadata.message.len().saturating_sub((surplus / 6).max(256));
        shorten(&mut metadata.message, keep);
    }
}

fn shorten(text: &mut String, bytes: usize) {
    text.truncate(text.floor_char_boundary(bytes));
}

/// Parses `Ada Lovelace <ada@example.org> 1706702403 +0100`.
fn person(text: &str) -> (Person, Option<Timestamp>) {
    let Some(open) = text.find('<') else {
        return (Person { name: text.to_owned(), ..Person::default() }, None);
    };
    let close = text.rfind('>').filter(|&close| close > open).unwrap_or(text.len());
    let date = text.get(close + 1..).and_then(Date::parse);
    let person = Person {
        name: text[..open].trim_ascii().to_owned(),
        email: text[open + 1..close].trim_ascii().to_owned(),
        date: date.map(|date| date.to_string()),
    };
    (person, date.map(|date| date.time))
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

/// The error of a commit object that cannot be parsed.
pub(crate) fn malformed(id: &ObjectId) -> Error {
    Error::unreadable(format!("commit {id} is malformed; run `git fsck`"))
}

/// The root tree of a commit.
pub(crate) fn tree_of(commit: &[u8]) -> Option<ObjectId> {
    let line = commit.split(|&byte| byte == b'\n').next()?;
    ObjectId::parse(line.strip_prefix(b"tree ")?)
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
            "tree {TREE}\nparent {parent}\nauthor Ada <ada@x.org> 1706702403 +0100\ncommitter Bob \
             <bob@x.org> 1706702404 -0530\ngpgsig -----BEGIN\n author fake <x> 1 \
             +0000\n\nsubject\n\nbody\n"
        );
        let expected = serde_json::json!({
            "commit": "a".repeat(40),
            "author": "Ada",
            "email": "ada@x.org",
            "date": "2024-01-31T13:00:03+01:00",
            "committer": {"name": "Bob", "email": "bob@x.org", "date": "2024-01-31T06:30:04-05:30"},
            "message": "subject\n\nbody\n",
            "parents": [parent],
            "headers": "gpgsig -----BEGIN\n author fake <x> 1 +0000",
        });
        assert_eq!(metadata(object.as_bytes()), expected);
    }

    #[test]
    fn text_is_decoded_in_the_declared_encoding() {
        let cases: [(&str, &[u8], &str); 3] = [
            ("ISO-8859-1", b"J\xe9r\x85", "Jér\u{85}"),
            ("cp1251", b"\xcf\xf0\xe8\xe2\xe5\xf2", "Привет"),
            ("Shift_JIS", b"\x93\xfa\x96{\x8c\xea", "日本語"),
        ];
        for (encoding, bytes, text) in cases {
            let head = format!("tree {TREE}\nauthor ");
            let tail = format!(" <j@x> 1 +0000\nencoding {encoding}\n\n");
            let read = metadata(&[head.as_bytes(), bytes, tail.as_bytes(), bytes].concat());
            assert_eq!(
                (read["author"].as_str(), read["message"].as_str()),
                (Some(text), Some(text))
            );
            assert_eq!((read["email"].as_str(), &read["undecoded"]), (Some("j@x"), &Value::Null));
        }
    }

    #[test]
    fn undecodable_bytes_are_kept() {
        let broken =
            [format!("tree {TREE}\nauthor A <a> 1 +0000\n\n").as_bytes(), b"caf\xe9"].concat();
        let read = metadata(&broken);
        assert_eq!(
            (read["message"].as_str(), read["author"].as_str()),
            (Some("caf\u{fffd}"), Some("A"))
        );
        assert_eq!(read["undecoded"], serde_json::json!({"message": "636166e9"}));
        let broken =
            [b"tree ", TREE.as_bytes(), b"\nauthor J\xe9r <a> 1 +0000\nencoding x-own\n\nm"]
                .concat();
        let author = hex::encode(b"J\xe9r <a> 1 +0000");
        let read = metadata(&broken);
        assert_eq!(read["date"], "1970-01-01T00:00:01Z");
        assert_eq!(read["undecoded"], serde_json::json!({"encoding": "x-own", "author": author}));
    }

    #[test]
    fn malformed_zone_keeps_the_time() {
        for (zone, written) in [
            ("+0100", "2011-03-13T08:06:40+01:00"),
            ("-3407", "2011-03-13T07:06:40Z"),
            ("+051800", "2011-03-13T07:06:40Z"),
            ("--700", "2011-03-13T07:06:40Z"),
            ("UTC", "2011-03-13T07:06:40Z"),
            ("", "2011-03-13T07:06:40Z"),
        ] {
            let object = format!(
                "tree {TREE}\nauthor A <a> 1 +0000\ncommitter A <a> 1300000000 {zone}\n\nm"
            );
            let commit =
                parse(ObjectId::parse(&[b'a'; 40]).unwrap(), object.as_bytes(), false).unwrap();
            assert_eq!(commit.time, Some(Timestamp::from_second(1_300_000_000).unwrap()), "{zone}");
            assert_eq!(metadata(object.as_bytes())["committer"]["date"], written, "{zone}");
        }
    }

    #[test]
    fn unrepresentable_time_is_null() {
        for date in ["", "x", "99999999999999999 +0000", "zone 1"] {
            let object = format!("tree {TREE}\nauthor A <a> {date}\n\nm");
            assert_eq!(metadata(object.as_bytes())["date"], Value::Null, "{date}");
        }
    }

    #[test]
    fn long_message_is_truncated_and_marked() {
        for letter in ["x", "\u{1}", "é"] {
            let message = letter.repeat(100_000);
            let read =
                metadata(format!("tree {TREE}\nauthor A <a> 1 +0000\n\n{message}").as_bytes());
            assert_eq!(read["message_cut"], true);
            assert!(read["message"].as_str().unwrap().len() > 8_000);
        }
        let broken =
            [format!("tree {TREE}\nauthor A <a> 1 +0000\n\n").as_bytes(), &[b'x'; 40_000], b"\xe9"]
                .concat();
        let read = metadata(&broken);
        assert_eq!(
            (read["message_cut"].as_bool(), read["message"].as_str().unwrap().len()),
            (Some(true), 40_003)
        );
        assert!(read["undecoded"]["message"].as_str().unwrap().len() > 20_000);
    }

    #[test]
    fn commit_with_ten_thousand_parents_fits() {
        let parents = format!("parent {}\n", "b".repeat(40)).repeat(10_000);
        let read = metadata(format!("tree {TREE}\n{parents}author A <a> 1 +0000\n\nm").as_bytes());
        assert_eq!(read["author"], "A");
    }

    #[test]
    fn object_without_a_tree_is_not_a_commit() {
        assert!(parse(ObjectId::parse(&[b'a'; 40]).unwrap(), b"object x\n\n", false).is_none());
    }
}
