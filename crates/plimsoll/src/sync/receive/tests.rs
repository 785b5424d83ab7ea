//! Transfers that are interrupted, that send forged changes, or whose branch changes meanwhile.

use super::*;
use crate::sync::contents::Bytes;
use crate::sync::send::Missing;
use crate::types::expiry::Expiry;
use crate::types::options::Options;

fn store() -> Db {
    Db::in_memory(Options::new().memory_bytes(16 << 20).background(false)).unwrap()
}

/// A store with 11 commits: two branches, and a merge of them.
fn history() -> Db {
    let db = store();
    let notes = db.keyspace("notes").unwrap();
    db.put(&notes, "a", "0").unwrap();
    let side = db.create_branch("side", &db.main()).unwrap();
    for number in 1..5_u8 {
        db.put(&notes, [number], "main").unwrap();
        side.put(&notes, [10 + number], "side").unwrap();
    }
    db.merge(&side).run().unwrap();
    db.put(&notes, "b", "0").unwrap();
    db
}

fn everything(db: &Db, ids: &Ids) -> Missing {
    let tip = ids.tip_of(&db.main()).unwrap().unwrap();
    Missing::new(ids, tip.state(), &[]).unwrap()
}

/// Fails with [`Error::Cancelled`] after `left` commits.
struct Stopping {
    receiver: Receiver,
    left: usize,
}

impl CommitSink for Stopping {
    fn commit(
        &mut self,
        head: &Head<'_>,
        changes: &mut dyn FnMut(&mut dyn Sink) -> Result<()>,
    ) -> Result<()> {
        self.left = self.left.checked_sub(1).ok_or(Error::Cancelled)?;
        self.receiver.commit(head, changes)
    }
}

#[test]
fn an_interrupted_transfer_is_continued() {
    let source = history();
    let from = Ids::open(&source).unwrap();
    for left in 0..11 {
        let target = store();
        let to = Ids::open(&target).unwrap();
        let receiver = Receiver::new(&to, "main", None, false).unwrap();
        let mut stopping = Stopping { receiver, left };
        let sent = everything(&source, &from).send(&from, &mut stopping);
        assert_eq!(sent.is_err(), left < 11, "{left}");
        drop(stopping);
        let moved = target.fetch_from(&source, "main", "main").unwrap();
        assert_eq!(moved.commits as usize, 11 - left);
        assert_eq!(target.main().tip().unwrap(), source.main().tip().unwrap());
        assert_eq!(target.state_hash().unwrap(), source.state_hash().unwrap());
        assert_eq!(target.branches().unwrap(), []);
    }
}

/// Replaces each value by another one.
struct Forging<'s>(&'s mut dyn Sink);

impl Sink for Forging<'_> {
    fn range(&mut self, keyspace: &str, first: &[u8], end: Option<&[u8]>) -> Result<()> {
        self.0.range(keyspace, first, end)
    }

    fn delete(&mut self, keyspace: &str, key: &[u8]) -> Result<()> {
        self.0.delete(keyspace, key)
    }

    fn put(
        &mut self,
        keyspace: &str,
        key: &[u8],
        expiry: Option<Expiry>,
        _: Bytes<'_>,
    ) -> Result<()> {
        self.0.put(keyspace, key, expiry, Bytes::Whole(b"forged"))
    }
}

struct ForgedAt(Receiver, u64);

impl CommitSink for ForgedAt {
    fn commit(
        &mut self,
        head: &Head<'_>,
        changes: &mut dyn FnMut(&mut dyn Sink) -> Result<()>,
    ) -> Result<()> {
        if self.0.received < self.1 {
            return self.0.commit(head, changes);
        }
        self.0.commit(head, &mut |sink| changes(&mut Forging(sink)))
    }
}

#[test]
fn a_commit_with_other_contents_is_refused() {
    let source = history();
    let from = Ids::open(&source).unwrap();
    let target = store();
    let to = Ids::open(&target).unwrap();
    let receiver = Receiver::new(&to, "main", None, false).unwrap();
    let mut forged = ForgedAt(receiver, 3);
    let sent = everything(&source, &from).send(&from, &mut forged);
    assert!(matches!(sent, Err(Error::Corrupt { .. })), "{sent:?}");
    assert_eq!(forged.0.received, 3);
}

#[test]
fn a_branch_that_moves_meanwhile_is_not_changed() {
    let source = history();
    let from = Ids::open(&source).unwrap();
    let target = store();
    let notes = target.keyspace("notes").unwrap();
    let to = Ids::open(&target).unwrap();
    let mut receiver = Receiver::new(&to, "main", None, false).unwrap();
    let own = target.put(&notes, "own", "1").unwrap();
    let moved = Error::from(InvalidInput::BranchMoved { name: "main".to_owned() });
    let sent = everything(&source, &from).send(&from, &mut receiver);
    assert_eq!(sent, Err(moved.clone()));
    assert_eq!(target.main().tip().unwrap(), target.commit_id(own).unwrap());
    let stale = Receiver::new(&to, "main", None, false).err();
    assert_eq!(stale, Some(moved));
}

#[test]
fn a_transfer_without_commits_deletes_what_an_interrupted_one_has_left() {
    let (source, target) = (history(), store());
    target.fetch_from(&source, "main", "main").unwrap();
    let to = Ids::open(&target).unwrap();
    let tip = to.tip_of(&target.main()).unwrap().unwrap();
    let mut receiver = Receiver::new(&to, "main", Some(tip.id), false).unwrap();
    receiver.fork(tip.state()).unwrap();
    drop(receiver);
    assert_eq!(target.branches().unwrap().len(), 1);
    assert!(target.fetch_from(&source, "main", "main").unwrap().is_up_to_date());
    assert_eq!(target.branches().unwrap(), []);
}
