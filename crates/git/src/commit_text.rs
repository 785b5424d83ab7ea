//! The bytes of a commit object, made from the metadata of its transaction.

use std::time::SystemTime;

use jiff::Timestamp;
use plimsoll::Commit;
use serde_json::Value;

use crate::object_id::ObjectId;

/// The author of commits whose metadata names none.
const AUTHOR: (&str, &str) = ("Plimsoll", "plimsoll@localhost");

/// The bytes of an imported commit with this root tree; `None` if the metadata lacks a part of it.
/// The caller compares the id, because the metadata does not record every detail, for example an
/// unusual spelling of the time zone.
pub(crate) fn of_imported(metadata: &Value, tree: &ObjectId) -> Option<Vec<u8>> {
    if metadata["message_cut"] == true {
        return None;
    }
    let undecoded = |name: &str| match &metadata["undecoded"][name] {
        Value::String(digits) => hex::decode(digits).ok(),
        _ => None,
    };
    let author = (&metadata["author"], &metadata["email"], &metadata["date"]);
    let committer = &metadata["committer"];
    let committer = (&committer["name"], &committer["email"], &committer["date"]);
    let mut text = format!("tree {tree}\n").into_bytes();
    for parent in metadata["parents"].as_array()? {
        text.extend_from_slice(format!("parent {}\n", parent.as_str()?).as_bytes());
    }
    for (role, person) in [("author", author), ("committer", committer)] {
        text.extend_from_slice(role.as_bytes());
        text.push(b' ');
        text.extend(undecoded(role).or_else(|| line(person))?);
        text.push(b'\n');
    }
    if let Some(headers) = metadata["headers"].as_str() {
        text.extend_from_slice(headers.as_bytes());
        text.push(b'\n');
    }
    text.push(b'\n');
    let message = metadata["message"].as_str()?;
    text.extend(undecoded("message").unwrap_or_else(|| message.as_bytes().to_vec()));
    Some(text)
}

fn line((name, email, date): (&Value, &Value, &Value)) -> Option<Vec<u8>> {
    let (name, email) = (name.as_str()?, email.as_str()?);
    Some(format!("{name} <{email}> {}", date_of(date.as_str()?)?).into_bytes())
}

/// `1706702403 +0100` of `2024-01-31T13:00:03+01:00`.
fn date_of(date: &str) -> Option<String> {
    let seconds = date.parse::<Timestamp>().ok()?.as_second();
    let zone = match date.strip_suffix('Z') {
        Some(_) => "+0000".to_owned(),
        None => date.get(date.len().checked_sub(6)?..)?.replace(':', ""),
    };
    Some(format!("{seconds} {zone}"))
}

/// The bytes of a Git commit for a commit that was made in the store. The same commit always gives
/// the same bytes.
///
/// Metadata that is JSON with a `message` may also name `author`, `email` and `date`. Other
/// metadata is the message.
pub(crate) fn of_own(
    commit: &Commit,
    time: SystemTime,
    tree: &ObjectId,
    parents: &[ObjectId],
) -> Result<Vec<u8>, plimsoll::Error> {
    let metadata = commit.metadata()?;
    let json: Value = serde_json::from_slice(metadata).unwrap_or_default();
    let message = match json["message"].as_str() {
        Some(message) => message.to_owned(),
        None => String::from_utf8_lossy(metadata).into_owned(),
    };
    let part = |name: &str| Some(clean(json[name].as_str()?)).filter(|text| !text.is_empty());
    let name = part("author").unwrap_or_else(|| AUTHOR.0.to_owned());
    let email = part("email").unwrap_or_else(|| match json["author"].is_string() {
        true => String::new(),
        false => AUTHOR.1.to_owned(),
    });
    let time = Timestamp::try_from(time).unwrap_or_default().as_second().max(0);
    let committed = format!("{time} +0000");
    let date = json["date"].as_str().and_then(date_of).filter(|date| !date.starts_with('-'));
    let date = date.as_ref().unwrap_or(&committed);
    let mut text = format!("tree {tree}\n");
    for parent in parents {
        text += &format!("parent {parent}\n");
    }
    text += &format!("author {name} <{email}> {date}\n");
    text += &format!("committer {} <{}> {committed}\n\n", AUTHOR.0, AUTHOR.1);
    text += &message.replace('\0', "\u{fffd}");
    if !message.is_empty() && !message.ends_with('\n') {
        text.push('\n');
    }
    Ok(text.into_bytes())
}

/// A name or an email without the characters that a commit cannot have there.
fn clean(text: &str) -> String {
    text.replace(['<', '>', '\n', '\0'], " ").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit;

    fn again(object: &[u8]) -> Option<Vec<u8>> {
        let id = ObjectId::parse(&[b'a'; 40]).unwrap();
        let commit = commit::parse(id, object, false).unwrap();
        of_imported(&serde_json::from_slice(&commit.metadata).unwrap(), &commit.tree)
    }

    #[test]
    fn commits_are_made_again() {
        let tree = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
        let parent = "b".repeat(40);
        let plain = "author Ada <ada@x> 1706702403 +0100\ncommitter Bob <> 1706702404 -0530\n";
        for (parents, rest, message) in [
            (0, "", ""),
            (1, "", "m\n"),
            (3, "gpgsig -----BEGIN\n \n iQ\n -----END\n", "m\n\nbody"),
            (2, "mergetag object x\n type commit\nHG:extra x\n", "\n\nm\0"),
        ] {
            let parents = format!("parent {parent}\n").repeat(parents);
            let object = format!("tree {tree}\n{parents}{plain}{rest}\n{message}");
            let text = again(object.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(text).unwrap(), object);
        }
        // Latin-1 without a declared encoding.
        let object = [b"tree ", tree.as_bytes(), b"\n", plain.as_bytes(), b"\ncaf\xe9"].concat();
        assert_eq!(again(&object), Some(object));
    }

    #[test]
    fn other_commits_differ_visibly() {
        let tree = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
        for line in ["A  <a> 1 +0000", "A <a> 1 -0000", "A <a> 1", "A a 1 +0000", "A <a> x"] {
            let object = format!("tree {tree}\nauthor {line}\ncommitter A <a> 1 +0000\n\nm");
            assert_ne!(again(object.as_bytes()), Some(object.into_bytes()), "{line}");
        }
    }
}
