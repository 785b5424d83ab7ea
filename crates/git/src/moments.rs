//! Finds the transaction of a Git commit, and the last commit up to a time.
//!
//! An import records the id and the time of each commit in the commit's transaction, as keys of
//! [`KEYSPACE`]. The GLSN of such a key's version is the answer.
//!
//! ```text
//! git:NAME               bookmark of the import into keyspace NAME
//! commit:LEN:NAME:ID     each commit; the value is the committer's time. LEN: bytes of NAME
//! time:LEN:NAME:TIME     each commit not newer than any later one; the value is the commit's id
//! ```
//!
//! Commit times need not ascend. Invariant: a commit removes recorded times later than its own.
//! Recorded times and their GLSNs therefore ascend together, and the last recorded time up to T
//! belongs to the last commit in log order whose time is not after T.

use std::ops::Bound;
use std::time::SystemTime;

use jiff::{RoundMode, Timestamp, TimestampRound, Unit};
use plimsoll::{Db, Keyspace, Transaction};

use crate::error::{Error, Result};
use crate::object_id::ObjectId;
use crate::records;

/// The keyspace of these records. It keeps every version, like the imported files, so that they can
/// be read at any moment.
pub const KEYSPACE: &str = "plimsoll.import";

/// Number of candidates listed for an ambiguous id.
const NAMED_MAX: usize = 4;

const BOOKMARK: &str = "git:";

/// The key of the bookmark of the import into a keyspace.
pub(crate) fn bookmark_key(keyspace: &str) -> Vec<u8> {
    format!("{BOOKMARK}{keyspace}").into_bytes()
}

fn commit_prefix(keyspace: &str) -> String {
    format!("commit:{}:{keyspace}:", keyspace.len())
}

fn time_prefix(keyspace: &str) -> String {
    format!("time:{}:{keyspace}:", keyspace.len())
}

/// The key of a time, truncated to the second, which is Git's precision. As text, times of the
/// years 0 to 9999 are in order.
fn time_key(keyspace: &str, time: Timestamp) -> Vec<u8> {
    let floor = TimestampRound::new().smallest(Unit::Second).mode(RoundMode::Floor);
    let time = time.round(floor).unwrap_or(time);
    let shown = if time.to_string().starts_with('-') {
        "0000-01-01T00:00:00Z".to_owned()
    } else {
        time.to_string()
    };
    [time_prefix(keyspace), shown].concat().into_bytes()
}

/// Records the commits of one import, in log order.
#[derive(Debug)]
pub(crate) struct Notes<'a> {
    db: &'a Db,
    notes: Keyspace,
    keyspace: String,
    /// The key of the latest recorded time.
    latest: Option<Vec<u8>>,
}

impl<'a> Notes<'a> {
    /// Resumes the records of `keyspace`; `notes` is [`KEYSPACE`].
    pub(crate) fn open(db: &'a Db, notes: Keyspace, keyspace: &str) -> Result<Self> {
        let latest =
            last_key(db, &notes, &time_prefix(keyspace), &time_key(keyspace, Timestamp::MAX))?;
        Ok(Self { db, notes, keyspace: keyspace.to_owned(), latest })
    }

    /// Records a commit in its transaction. A commit with a malformed date is found by its id only.
    pub(crate) fn add(
        &mut self,
        transaction: &mut Transaction,
        id: &str,
        time: Option<Timestamp>,
    ) -> Result<()> {
        let shown = time.map(|time| time.to_string()).unwrap_or_default();
        let commit = [&commit_prefix(&self.keyspace), id].concat();
        transaction.put(&self.notes, commit.as_bytes(), shown.as_bytes())?;
        let Some(time) = time else { return Ok(()) };
        let key = time_key(&self.keyspace, time);
        if self.latest.as_ref().is_some_and(|latest| *latest > key) {
            self.remove_later(&key, transaction)?;
        }
        transaction.put(&self.notes, &key, id.as_bytes())?;
        self.latest = Some(key);
        Ok(())
    }

    fn remove_later(&self, key: &[u8], transaction: &mut Transaction) -> Result<()> {
        let snapshot = self.db.snapshot();
        let last = time_key(&self.keyspace, Timestamp::MAX);
        let mut later = snapshot
            .range(&self.notes, (Bound::Excluded(key), Bound::Included(&last[..])))?
            .keys_only();
        while let Some((key, _)) = later.advance()? {
            transaction.delete(&self.notes, key)?;
        }
        Ok(())
    }
}

/// The last key with `prefix`, up to `upto`.
fn last_key(db: &Db, notes: &Keyspace, prefix: &str, upto: &[u8]) -> Result<Option<Vec<u8>>> {
    let snapshot = db.snapshot();
    let within = (Bound::Included(prefix.as_bytes()), Bound::Included(upto));
    let pair = snapshot.range(notes, within)?.keys_only().reverse().next().transpose()?;
    Ok(pair.map(|(key, _)| key))
}

/// The keyspaces that hold imported histories.
pub fn keyspaces(db: &Db) -> Result<Vec<String>> {
    let Some(notes) = notes(db)? else { return Ok(Vec::new()) };
    let snapshot = db.snapshot();
    let mut bookmarks = snapshot.prefix(&notes, BOOKMARK.as_bytes())?.keys_only();
    let mut names = Vec::new();
    while let Some((key, _)) = bookmarks.advance()? {
        names.push(String::from_utf8_lossy(&key[BOOKMARK.len()..]).into_owned());
    }
    Ok(names)
}

/// The keyspace of the records; `None` if nothing was imported.
fn notes(db: &Db) -> Result<Option<Keyspace>> {
    let known = db.keyspaces().iter().any(|keyspace| keyspace.name == KEYSPACE);
    if known { Ok(Some(db.keyspace(KEYSPACE)?)) } else { Ok(None) }
}

/// The GLSN of the last commit, in log order, of the history in `keyspace` whose committer's time
/// is not after `time`.
pub fn last_at(db: &Db, keyspace: &str, time: SystemTime) -> Result<Option<u64>> {
    let Some(notes) = notes(db)? else { return Ok(None) };
    match last_key(db, &notes, &time_prefix(keyspace), &time_key(keyspace, timestamp(time)))? {
        Some(key) => written_by(db, &notes, &key),
        None => Ok(None),
    }
}

/// The earliest time of the history in `keyspace`, in RFC 3339; `None` if there is no history.
pub fn earliest(db: &Db, keyspace: &str) -> Result<Option<String>> {
    let Some(notes) = notes(db)? else { return Ok(None) };
    let prefix = time_prefix(keyspace);
    let first = db.snapshot().prefix(&notes, prefix.as_bytes())?.keys_only().next().transpose()?;
    Ok(first.map(|(key, _)| String::from_utf8_lossy(&key[prefix.len()..]).into_owned()))
}

/// The GLSN of a commit that was imported with the whole repository; `None` if there is none. The
/// store has no index of the beginnings of these ids, so the id must be whole.
fn of_whole_import(db: &Db, keyspace: &str, id: &str) -> Result<Option<u64>> {
    let Some(object) = ObjectId::parse(id.to_ascii_lowercase().as_bytes()) else { return Ok(None) };
    let Some(commit) = db.find_imported(&object.to_bytes())? else { return Ok(None) };
    let Some(glsn) = db.find_commit(&commit)? else { return Ok(None) };
    let is_on_main = db.log().commit(glsn)?.map(|commit| commit.branch()).transpose()?;
    if is_on_main == Some(None) {
        return Ok(Some(glsn.0));
    }
    Err(Error::NoCommit {
        id: id.to_owned(),
        keyspace: keyspace.to_owned(),
        why: "it is not on main, and moments are those of main",
    })
}

/// The GLSN of the commit whose id has the prefix `id`. Commits of an import of a whole repository
/// are found only if they are on main, and only by their full id.
pub fn commit(db: &Db, keyspace: &str, id: &str) -> Result<u64> {
    if let Some(glsn) = of_whole_import(db, keyspace, id)? {
        return Ok(glsn);
    }
    let none = |why| Error::NoCommit { id: id.to_owned(), keyspace: keyspace.to_owned(), why };
    let Some(notes) = notes(db)? else {
        return Err(none(match records::begun(db)? {
            Some(_) => "it was not imported, or the id is incomplete",
            None => "nothing was imported into this store",
        }));
    };
    let prefix = commit_prefix(keyspace);
    let wanted = [&prefix, id].concat();
    let snapshot = db.snapshot();
    let mut keys = Vec::new();
    for pair in snapshot.prefix(&notes, wanted.as_bytes())?.keys_only().take(NAMED_MAX + 1) {
        keys.push(pair?.0);
    }
    match &keys[..] {
        [] => Err(none("it was not imported; an import follows first parents")),
        [key] => Ok(written_by(db, &notes, key)?.expect("the key was found a moment ago")),
        several => {
            let names = several
                .iter()
                .take(NAMED_MAX)
                .map(|key| String::from_utf8_lossy(&key[prefix.len()..]));
            let candidates = names.map(String::from).collect();
            Err(Error::Ambiguous { id: id.to_owned(), candidates, more: several.len() > NAMED_MAX })
        }
    }
}

/// The GLSN of the last transaction that wrote a key.
fn written_by(db: &Db, notes: &Keyspace, key: &[u8]) -> Result<Option<u64>> {
    Ok(db.history(notes, key)?.next().transpose()?.map(|version| version.glsn.0))
}

fn timestamp(time: SystemTime) -> Timestamp {
    let bound = if time < SystemTime::UNIX_EPOCH { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::try_from(time).unwrap_or(bound)
}

#[cfg(test)]
mod tests {
    use plimsoll::Options;

    use super::*;

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Finds the answer by a linear search.
    fn last_by_looking(commits: &[(u64, i64)], at: i64) -> Option<u64> {
        commits.iter().rev().find(|(_, second)| *second <= at).map(|(glsn, _)| *glsn)
    }

    #[test]
    fn last_commit_up_to_a_time_is_found_in_any_order() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path().join("s"), Options::new().memory_bytes(16 << 20)).unwrap();
        let notes = db.keyspace(KEYSPACE).unwrap();
        for seed in 0..10 {
            println!("seed {seed}");
            let mut random = fastrand::Rng::with_seed(seed);
            let name = format!("k:{seed}");
            let mut writer = Notes::open(&db, notes.clone(), &name).unwrap();
            let mut commits = Vec::new();
            for number in 0..60_u32 {
                if number.is_multiple_of(20) {
                    writer = Notes::open(&db, notes.clone(), &name).unwrap();
                }
                let second = i64::from(number) + random.i64(-15..15);
                let mut transaction = db.begin();
                writer
                    .add(&mut transaction, &format!("{number:040x}"), Some(time(second)))
                    .unwrap();
                commits.push((transaction.commit().unwrap().0, second));
                let at = random.i64(-20..80);
                assert_eq!(
                    last_at(&db, &name, time(at).into()).unwrap(),
                    last_by_looking(&commits, at),
                    "{commits:?} at {at}"
                );
            }
            for (number, (glsn, _)) in commits.iter().enumerate() {
                assert_eq!(commit(&db, &name, &format!("{number:040x}")).unwrap(), *glsn);
            }
            assert_eq!(
                earliest(&db, &name).unwrap(),
                commits.iter().map(|c| time(c.1).to_string()).min()
            );
        }
        assert_eq!(last_at(&db, "k", time(1000).into()).unwrap(), None);
        assert!(commit(&db, "k:0", "00000").is_err());
    }

    #[test]
    fn time_key_truncates_and_clamps() {
        let key = |time: Timestamp| String::from_utf8(time_key("k", time)).unwrap();
        assert_eq!(
            key("1969-12-31T23:59:58.75Z".parse().unwrap()),
            "time:1:k:1969-12-31T23:59:58Z"
        );
        assert_eq!(key(Timestamp::MIN), "time:1:k:0000-01-01T00:00:00Z");
        assert_eq!(key(Timestamp::MAX), "time:1:k:9999-12-30T22:00:00Z");
    }
}
