//! Tags: named moments that stay readable until the tag is deleted.
//!
//! A tag is a key of an internal keyspace, so creating or deleting one is an ordinary commit. Its
//! record is the GLSN of the moment, the time of the moment in microseconds since 1970 UTC (both
//! u64, little-endian), and a byte: 1 if that time is the time of the commit. Reads at the moment
//! compare expiries with that time.
//!
//! Invariant: a moment in [`Tags::moments`] is released only after the deletion of its tag is
//! durable. After a crash, no tag names a moment whose versions were dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use plimsoll_disk::codec::Reader;
use plimsoll_log::glsn::Glsn;

use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::MAX_NAME_BYTES;
use crate::types::times::of_micros;

/// A tag: a name for a moment, whose versions are retained in every keyspace.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # use plimsoll::*;
/// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
/// # let notes = db.keyspace("notes")?;
/// db.put(&notes, "a", "one")?;
/// db.tag("first", Moment::Newest)?;
/// let tags = db.tags()?;
/// assert_eq!((&*tags[0].name, tags[0].glsn.next()), ("first", db.newest()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TagInfo {
    /// Its name.
    pub name: String,
    /// The moment: right after the commit with this GLSN.
    pub glsn: Glsn,
    /// The time of that commit; `None` for the empty store, or if the log no longer held the commit
    /// when the tag was made.
    pub time: Option<SystemTime>,
}

impl TagInfo {
    /// Whether a tag can have this name: see [`Db::tag`](crate::Db::tag).
    pub fn is_name(name: &str) -> bool {
        check_tag_name(name).is_ok()
    }
}

/// The moment of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tagged {
    pub(crate) at: Glsn,
    /// The time by which reads judge expiries, in microseconds since 1970 UTC: the time of the
    /// moment's commit, or a later one.
    pub(crate) micros: u64,
    /// Whether `micros` is the time of the commit.
    pub(crate) is_exact: bool,
}

impl Tagged {
    pub(crate) fn encode(self) -> [u8; 17] {
        let mut record = [u8::from(self.is_exact); 17];
        record[..8].copy_from_slice(&self.at.0.to_le_bytes());
        record[8..16].copy_from_slice(&self.micros.to_le_bytes());
        record
    }

    pub(crate) fn decode(record: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(record);
        match (reader.u64(), reader.u64(), reader.u8(), reader.remaining()) {
            (Some(at), Some(micros), Some(exact @ 0..=1), 0) => {
                Ok(Self { at: Glsn(at), micros, is_exact: exact == 1 })
            }
            _ => Err(damaged_tag()),
        }
    }

    pub(crate) fn info(self, name: &str) -> TagInfo {
        let time = self.is_exact.then(|| of_micros(self.micros));
        TagInfo { name: name.to_owned(), glsn: self.at, time }
    }
}

/// The error for a record of a tag that cannot be decoded.
pub(crate) fn damaged_tag() -> Error {
    Error::damaged("the record of a tag cannot be decoded")
}

/// The tags of an open store.
#[derive(Debug, Default)]
pub(crate) struct Tags {
    known: Mutex<Known>,
    /// Held while a tag is created or deleted.
    changing: Mutex<()>,
}

/// The known tags.
#[derive(Debug, Default)]
struct Known {
    by_name: BTreeMap<String, Tagged>,
    /// The last commit that is reflected in the tags.
    as_of: Glsn,
    /// The value of `as_of` when the tags were first loaded. Until that commit is durable, a crash
    /// may bring back deleted tags of which this process knows nothing.
    loaded: Option<Glsn>,
    /// Moments whose tags were deleted, each with a commit at or after the deletion. They are
    /// retained until that commit is durable.
    released: Vec<(Tagged, Glsn)>,
}

impl Known {
    /// Replaces the tags by those as of `at`.
    fn set(&mut self, by_name: BTreeMap<String, Tagged>, at: Glsn) {
        let before = std::mem::replace(&mut self.by_name, by_name);
        let gone = before.iter().filter(|(name, tag)| self.by_name.get(*name) != Some(*tag));
        self.released.extend(gone.map(|(_, tag)| (*tag, at)));
        self.as_of = at;
    }
}

impl Tags {
    fn known(&self) -> MutexGuard<'_, Known> {
        // No code under this lock panics with the tags half changed.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the creation and deletion of tags in this process.
    pub(crate) fn lock_changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets all tags as of `at`.
    pub(crate) fn load(&self, all: BTreeMap<String, Tagged>, at: Glsn) {
        let mut known = self.known();
        known.loaded.get_or_insert(at);
        if at >= known.as_of {
            known.set(all, at);
        }
    }

    /// Notes that a commit of this process has created a tag, or has deleted it.
    pub(crate) fn changed(&self, name: &str, tag: Option<Tagged>, glsn: Glsn) {
        let mut known = self.known();
        // The tags already reflect a later commit.
        if glsn <= known.as_of {
            return;
        }
        let mut all = known.by_name.clone();
        match tag {
            Some(tag) => _ = all.insert(name.to_owned(), tag),
            None => _ = all.remove(name),
        }
        known.set(all, glsn);
    }

    /// The moments that must stay readable, `None` if they are still unknown; `durable`: the newest
    /// durable commit.
    pub(crate) fn moments(&self, durable: Glsn) -> Option<Vec<Glsn>> {
        let mut known = self.known();
        known.loaded.filter(|loaded| *loaded <= durable)?;
        known.released.retain(|(_, by)| *by > durable);
        let released = known.released.iter().map(|(tag, _)| tag.at);
        Some(known.by_name.values().map(|tag| tag.at).chain(released).collect())
    }

    /// The moments of all tags, and the last commit that is reflected in them.
    pub(crate) fn named_moments(&self) -> (BTreeSet<Glsn>, Glsn) {
        let known = self.known();
        (known.by_name.values().map(|tag| tag.at).collect(), known.as_of)
    }

    /// The tag of a moment; if there are several, the one with the earliest time.
    pub(crate) fn of(&self, at: Glsn) -> Option<Tagged> {
        let known = self.known();
        let all = known.by_name.values().chain(known.released.iter().map(|(tag, _)| tag));
        all.filter(|tag| tag.at == at).min_by_key(|tag| tag.micros).copied()
    }

    pub(crate) fn find(&self, name: &str) -> Option<Tagged> {
        self.known().by_name.get(name).copied()
    }

    /// All tags, by name.
    pub(crate) fn all(&self) -> Vec<TagInfo> {
        self.known().by_name.iter().map(|(name, tag)| tag.info(name)).collect()
    }

    /// The number of tags.
    pub(crate) fn count(&self) -> usize {
        self.known().by_name.len()
    }
}

/// Rejects invalid names, and names that a command could read as another kind of moment: a GLSN, a
/// time, a moment on a branch, or a word with `:`.
pub(crate) fn check_tag_name(name: &str) -> Result<()> {
    let is_name = !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && name.trim() == name
        && !name.chars().any(|c| c.is_control() || c == ':')
        && !name.contains("@{");
    if is_name && !is_moment_name(name) {
        return Ok(());
    }
    Err(InvalidInput::TagName { name: name.to_owned(), limit_bytes: MAX_NAME_BYTES as u64 }.into())
}

/// Whether a text could be read as a moment that is not a tag: a number; `newest`, `now` or
/// `yesterday`; a text that begins like a date; or one that counts back from now, such as
/// `2 hours ago`.
pub(crate) fn is_moment_name(text: &str) -> bool {
    if ["newest", "now", "yesterday"].contains(&text) {
        return true;
    }
    let unsigned = text.trim_start_matches(['+', '-', '\u{2212}']);
    let digits = unsigned.bytes().take_while(u8::is_ascii_digit).count();
    let rest = &unsigned.as_bytes()[digits..];
    let is_number = digits > 0 && rest.is_empty();
    let is_month = matches!(rest, [b'-', month, ..] if month.is_ascii_digit());
    let is_date = digits >= 8 || (digits >= 4 && is_month);
    let counts = digits > 0 || unsigned.len() < text.len() || unsigned.starts_with(['P', 'p']);
    is_number || is_date || (counts && text.ends_with("ago"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(names: &[(&str, u64)]) -> BTreeMap<String, Tagged> {
        let tag = |(name, at): &(&str, u64)| {
            ((*name).to_owned(), Tagged { at: Glsn(*at), micros: at * 10, is_exact: true })
        };
        names.iter().map(tag).collect()
    }

    #[test]
    fn a_record_decodes_to_itself() {
        for is_exact in [true, false] {
            let tag = Tagged { at: Glsn(1 << 40), micros: 7, is_exact };
            assert_eq!(Tagged::decode(&tag.encode()), Ok(tag));
        }
        for len in [0, 8, 16, 18] {
            assert!(Tagged::decode(&vec![1; len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn a_moment_is_released_once_the_deletion_of_its_tag_is_durable() {
        let known = Tags::default();
        assert_eq!(known.moments(Glsn::MAX), None);
        known.load(tags(&[("a", 3), ("b", 5)]), Glsn(10));
        assert_eq!(known.moments(Glsn(9)), None, "a deletion that was loaded may be undone");
        let moments = |durable| known.moments(Glsn(durable)).unwrap();
        assert_eq!(moments(10), [Glsn(3), Glsn(5)]);
        known.load(tags(&[("b", 5)]), Glsn(12));
        assert_eq!(moments(11), [Glsn(5), Glsn(3)]);
        assert_eq!(known.of(Glsn(3)).map(|tag| tag.micros), Some(30));
        assert_eq!(moments(12), [Glsn(5)]);
        assert_eq!(known.of(Glsn(3)), None);
        assert_eq!(known.of(Glsn(5)).map(|tag| tag.micros), Some(50));
        // An older state changes nothing.
        known.load(tags(&[]), Glsn(11));
        known.changed("b", None, Glsn(12));
        assert_eq!((known.count(), known.find("b").map(|tag| tag.at)), (1, Some(Glsn(5))));
        known.changed("c", Some(Tagged { at: Glsn(9), micros: 90, is_exact: true }), Glsn(13));
        assert_eq!(moments(13), [Glsn(5), Glsn(9)]);
    }

    #[test]
    fn names_that_another_kind_of_moment_has_are_refused() {
        for name in
            ["v1.2", "1.0.0", "2026-q1", "release", "Chicago", "before the import", "é", "-"]
        {
            assert_eq!(check_tag_name(name), Ok(()), "{name}");
        }
        let long = "x".repeat(256);
        for name in [
            "",
            " a",
            "a ",
            "a\nb",
            &long,
            "7",
            "0120",
            "-1",
            "2026-1-31",
            "newest",
            "now",
            "yesterday",
            "commit:1a2b",
            "2026-01-31",
            "2026-01-31 12:00",
            "20260131T12",
            "-002026-01-31",
            "2 hours ago",
            "2hago",
            "-1d ago",
            "P1D ago",
            "p1dago",
        ] {
            assert!(check_tag_name(name).is_err(), "{name}");
        }
        assert!(check_tag_name(&long[1..]).is_ok());
    }
}
