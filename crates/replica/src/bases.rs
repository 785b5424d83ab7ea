//! The bases of a cluster: archives of a member's state that replace the log up to a position.
//!
//! Base *n* is the object `bases/<n>`, stored by put-if-absent once its archive was read back. The
//! numbers are dense and begin at 1, and no such object is ever removed, so the newest one is found
//! without a list. Invariant: a batch is removed only after the base that replaces it is stored.
//!
//! A heal (`healing.rs`) begins a new *line* of the log: its positions follow those of all earlier
//! lines by far. It first stores a *fence*, a base without an archive, whose first position is that
//! of the next line: no member appends to the old line from then on. The base that follows states
//! where the history of the old line ends.
//!
//! A move to another bucket (`moving.rs`) ends the log in the old bucket by a fence, too, which
//! names the new bucket. A second such record states the last position that counts.

use std::io::Read;

use plimsoll_archive::{Bucket, Put};
use serde::{Deserialize, Serialize};

use crate::blobs::{Failure, PUT_BACK};
use crate::positions::find_end;
use crate::sealed_json::{self, Unusable};

/// The folder of the bases.
pub(crate) const FOLDER: &str = "bases";

/// Their title.
const TITLE: &str = "base";

/// The longest object.
const BYTES_MAX: u64 = 64 << 10;

/// The contents of a base's object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Base {
    /// The first position of the log that is needed after it. That batch is never removed before a
    /// later base is stored.
    pub(crate) first: u64,
    /// The last position whose batch it contains; at least `first`.
    pub(crate) position: u64,
    /// The newest GLSN that was read back. The archive may have more by now.
    pub(crate) glsn: u64,
    /// The folder of the archive.
    pub(crate) archive: String,
    /// The bytes of the files that were restored from it.
    pub(crate) bytes: u64,
    /// When it was stored, in microseconds since 1970 UTC.
    pub(crate) created_micros: u64,
    /// The number of the member that made it.
    pub(crate) replica: u16,
    /// If it begins a new line of the log: the end of the history before. No batch of an older line
    /// counts beyond it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) healed: Option<Healed>,
    /// If it ends the log in this bucket: where the log goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) moved: Option<Moved>,
}

/// The bucket in which the log goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Moved {
    /// Its URL, or the absolute path of its folder.
    pub(crate) url: String,
    /// The last position of the log in this bucket; `None` until it is known. A batch that was
    /// stored here after it does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last: Option<u64>,
}

/// The end of the history that a new line of the log continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Healed {
    /// The line that it continues: that of the member from which it was made.
    pub(crate) line: u64,
    pub(crate) glsn: u64,
    /// The chain hash of the log there.
    pub(crate) chain: u64,
    /// Whether no other history was found or is possible: the log was neither cut nor set back. A
    /// member whose history cannot be compared is taken in only then.
    #[serde(default)]
    pub(crate) is_sure: bool,
    /// Whether commits may have been given up, whose objects stay in the bucket.
    #[serde(default)]
    pub(crate) accepts_loss: bool,
}

/// The positions of a line: a line begins at a multiple of this.
const LINE: u64 = 1 << 40;

/// The number of lines.
pub(crate) const LINES: u64 = 1 << 24;

/// The number of the line of a position. Lines are not dense.
pub(crate) fn line_of(position: u64) -> u64 {
    position / LINE
}

/// The first position of a line.
pub(crate) fn begin_of(line: u64) -> u64 {
    line.saturating_mul(LINE)
}

impl Base {
    /// The base that ends all lines before that of `first`, until another one is stored.
    pub(crate) fn fence(first: u64, created_micros: u64) -> Self {
        let (position, glsn, archive) = (first, 0, String::new());
        let (bytes, replica, healed, moved) = (0, 0, None, None);
        Self { first, position, glsn, archive, bytes, created_micros, replica, healed, moved }
    }

    /// Whether it has no archive.
    pub(crate) fn is_fence(&self) -> bool {
        self.archive.is_empty()
    }
}

/// A base, and its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Numbered {
    pub(crate) number: u64,
    pub(crate) base: Base,
}

/// The object of a base.
pub(crate) fn name_of(number: u64) -> String {
    format!("{FOLDER}/{number:016x}")
}

/// The base with a number; `None` if there is none.
pub(crate) fn read(bucket: &dyn Bucket, number: u64) -> Result<Option<Numbered>, Failure> {
    let name = name_of(number);
    let found = bucket.get(&name).and_then(|found| {
        let Some(object) = found else { return Ok(None) };
        let mut text = Vec::new();
        object.reader.take(BYTES_MAX).read_to_end(&mut text)?;
        Ok(Some(text))
    });
    let Some(text) = found.map_err(|error| Failure::Io(name.clone(), error))? else {
        return Ok(None);
    };
    match sealed_json::decode::<Base>(TITLE, &text) {
        Ok(base) if base.first > 0 && base.first <= base.position => {
            Ok(Some(Numbered { number, base }))
        }
        Ok(_) => Err(Failure::Damaged(name, format!("its positions are impossible; {PUT_BACK}"))),
        Err(Unusable::Format(format)) => Err(Failure::Newer(name, format)),
        Err(Unusable::Damaged(what)) => Err(Failure::Damaged(name, format!("{what}; {PUT_BACK}"))),
    }
}

/// The newest base, searched from the number of an earlier one; `None` if there is none.
pub(crate) fn newest(bucket: &dyn Bucket, known: u64) -> Result<Option<Numbered>, Failure> {
    let exists = |number: u64| {
        // That of the known one is never removed.
        let name = name_of(number);
        Ok(number <= known || bucket.exists(&name).map_err(|error| Failure::Io(name, error))?)
    };
    match find_end(known, exists)? {
        0 => Ok(None),
        number => match read(bucket, number)? {
            Some(found) => Ok(Some(found)),
            None => Err(Failure::Damaged(name_of(number), format!("it is missing; {PUT_BACK}"))),
        },
    }
}

/// Stores a base. False if there is another one with its number.
pub(crate) fn store(bucket: &dyn Bucket, numbered: &Numbered) -> Result<bool, Failure> {
    let name = name_of(numbered.number);
    let failed = |error| Failure::Io(name.clone(), error);
    let text = sealed_json::encode(TITLE, &numbered.base).map_err(|error| failed(error.into()))?;
    match bucket.put_new(&name, &mut &text[..]) {
        Ok(Put::New) => Ok(true),
        // An earlier attempt, whose answer was lost, may have stored it.
        Ok(Put::Exists) => Ok(read(bucket, numbered.number)?.as_ref() == Some(numbered)),
        Err(error) => match read(bucket, numbered.number) {
            Ok(Some(found)) => {
                bucket.sync(FOLDER).map_err(failed)?;
                Ok(found == *numbered)
            }
            _ => Err(failed(error)),
        },
    }
}

/// Stores a base in place of a missing or damaged one: for a heal, which has stored a newer one.
pub(crate) fn replace(bucket: &dyn Bucket, numbered: &Numbered) -> Result<(), Failure> {
    let name = name_of(numbered.number);
    let failed = |error| Failure::Io(name.clone(), error);
    let text = sealed_json::encode(TITLE, &numbered.base).map_err(|error| failed(error.into()))?;
    bucket.replace(&name, &text).map_err(failed)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests damage real files")]
mod tests {
    use plimsoll_archive::{Folders, bucket_at};

    use super::*;

    fn base(first: u64) -> Base {
        let archive = "base-1-1".to_owned();
        let (glsn, bytes, created_micros, replica) = (9, 1, 1, 1);
        let position = first + 3;
        let (healed, moved) = (None, None);
        Base { first, position, glsn, archive, bytes, created_micros, replica, healed, moved }
    }

    #[test]
    fn the_newest_base_is_found_from_any_known_one() {
        let dir = tempfile::tempdir().unwrap();
        let bucket = bucket_at(dir.path().to_str().unwrap(), Folders::Create).unwrap();
        assert_eq!(newest(&*bucket, 0).unwrap(), None);
        for number in 1..=20 {
            let numbered = Numbered { number, base: base(number * 10) };
            assert!(store(&*bucket, &numbered).unwrap());
            assert!(store(&*bucket, &numbered).unwrap(), "its own");
            assert!(!store(&*bucket, &Numbered { number, base: base(7) }).unwrap(), "another");
            for known in 0..=number {
                assert_eq!(newest(&*bucket, known).unwrap().as_ref(), Some(&numbered));
            }
        }
    }

    #[test]
    fn a_damaged_base_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let bucket = bucket_at(dir.path().to_str().unwrap(), Folders::Create).unwrap();
        store(&*bucket, &Numbered { number: 1, base: base(3) }).unwrap();
        let path = dir.path().join(name_of(1));
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() - 1 {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            std::fs::write(&path, changed).unwrap();
            let refused = newest(&*bucket, 0).unwrap_err();
            let (Failure::Damaged(name, _) | Failure::Newer(name, _)) = &refused else {
                panic!("{refused:?}")
            };
            assert_eq!(*name, name_of(1), "{at}");
        }
    }
}
