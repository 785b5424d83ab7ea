//! Small JSON documents with a format and a checksum: `cluster.json` of a bucket, and `CLUSTER` of
//! a member's folder.
//!
//! ```json
//! {"plimsoll":"cluster","format":1,"body":{…},"sum":"<XXH3, 128 bits, of the body's text>"}
//! ```

use plimsoll_disk::checksum::Running;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The only format so far.
pub(crate) const FORMAT: u64 = 1;

#[derive(Serialize, Deserialize)]
struct Sealed {
    plimsoll: String,
    format: u64,
    body: Box<RawValue>,
    sum: String,
}

/// The part that every format has.
#[derive(Deserialize)]
struct Title {
    plimsoll: String,
    format: u64,
}

/// Why a document cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// It has this format.
    Format(u64),
    /// It is damaged.
    Damaged(String),
}

/// The text of a document with this title.
pub(crate) fn encode(title: &str, body: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let body = serde_json::value::to_raw_value(body)?;
    let sum = sum_of(&body);
    let sealed = Sealed { plimsoll: title.to_owned(), format: FORMAT, body, sum };
    let mut text = serde_json::to_vec(&sealed)?;
    text.push(b'\n');
    Ok(text)
}

/// The body of a document with this title.
pub(crate) fn decode<T: DeserializeOwned>(title: &str, text: &[u8]) -> Result<T, Unusable> {
    let damaged = |what: String| Unusable::Damaged(what);
    let head: Title = serde_json::from_slice(text)
        .map_err(|error| damaged(format!("it cannot be read: {error}")))?;
    if head.plimsoll != title {
        return Err(damaged(format!("it is of `{}`, not of `{title}`", head.plimsoll)));
    }
    if head.format != FORMAT {
        return Err(Unusable::Format(head.format));
    }
    let sealed: Sealed = serde_json::from_slice(text)
        .map_err(|error| damaged(format!("it cannot be read: {error}")))?;
    if sealed.sum != sum_of(&sealed.body) {
        return Err(damaged("its checksum does not match: it was changed".to_owned()));
    }
    serde_json::from_str(sealed.body.get())
        .map_err(|error| damaged(format!("it cannot be read: {error}")))
}

fn sum_of(body: &RawValue) -> String {
    let mut sum = Running::new(0);
    sum.take(body.get().as_bytes());
    format!("{:032x}", sum.sum128())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_document_is_refused() {
        let text = encode("cluster", &vec![1, 2]).unwrap();
        assert_eq!(decode("cluster", &text), Ok(vec![1, 2]));
        for at in 0..text.len() - 1 {
            let mut changed = text.clone();
            changed[at] ^= 1;
            assert!(decode::<Vec<u64>>("cluster", &changed).is_err(), "{at}");
            assert!(decode::<Vec<u64>>("cluster", &text[..at]).is_err(), "{at}");
        }
    }

    #[test]
    fn another_format_is_named() {
        let newer = br#"{"plimsoll":"cluster","format":2,"more":[]}"#;
        assert_eq!(decode::<u64>("cluster", newer), Err(Unusable::Format(2)));
    }
}
