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

/// A receiver with a temporary branch whose commits main contains, as a transfer has between two
/// commits.
fn at_work(db: &Db) -> Receiver {
    let ids = Ids::open(db).unwrap();
    let tip = ids.tip_of(&db.main()).unwrap().unwrap();
    let mut receiver = Receiver::of_any(&ids, "main", false).unwrap();
    receiver.fork(tip.state()).unwrap();
    receiver
}

#[test]
fn a_transfer_keeps_the_temporary_branches_of_another_one_that_runs() {
    let (source, target) = (history(), store());
    target.fetch_from(&source, "main", "main").unwrap();
    let running = at_work(&target);
    target.fetch_from(&source, "main", "main").unwrap();
    source.put(&source.keyspace("notes").unwrap(), "c", "0").unwrap();
    target.fetch_from(&source, "main", "main").unwrap();
    assert_eq!(target.branches().unwrap().len(), 1);
    drop(running);
    target.fetch_from(&source, "main", "main").unwrap();
    assert_eq!(target.branches().unwrap(), []);
}

#[test]
fn a_transfer_keeps_the_temporary_branches_of_living_processes() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Db::open(dir.path(), Options::new().memory_bytes(16 << 20).shared(true)).unwrap();
    let (source, one, two) = (history(), open(), open());
    one.fetch_from(&source, "main", "main").unwrap();
    let running = at_work(&one);
    two.fetch_from(&source, "main", "main").unwrap();
    assert_eq!(two.branches().unwrap().len(), 1);
    drop(running);
    one.close().unwrap();
    two.fetch_from(&source, "main", "main").unwrap();
    assert_eq!(two.branches().unwrap(), []);
    two.close().unwrap();
}

#[test]
fn transfers_have_temporary_branches_of_their_own() {
    let db = history();
    let [one, two] = [at_work(&db), at_work(&db)];
    assert_ne!(one.transfer.prefix(), two.transfer.prefix());
    drop((one, two));
    let three = at_work(&db);
    assert_eq!(
        db.branches().unwrap().iter().filter(|it| it.name.starts_with("incoming/")).count(),
        3
    );
    drop(three);
}

#[test]
fn a_push_over_a_connection_without_commits_deletes_leftovers() {
    let (source, target) = (history(), store());
    target.fetch_from(&source, "main", "main").unwrap();
    drop(at_work(&target));
    assert_eq!(target.branches().unwrap().len(), 1);
    let (from_client, to_server) = std::io::pipe().unwrap();
    let (from_server, to_client) = std::io::pipe().unwrap();
    let served = target.clone();
    let serve = move || served.serve_sync(from_client, to_client);
    let server = plimsoll_disk::thread::spawn("server", serve).unwrap();
    let mut connection = crate::SyncConnection::new(from_server, to_server).unwrap();
    assert!(source.push_over(&mut connection, "main").unwrap().is_up_to_date());
    drop(connection);
    server.join().unwrap().unwrap();
    assert_eq!(target.branches().unwrap(), []);
}

#[test]
fn a_branch_that_moves_before_it_is_replaced_stays() {
    let db = history();
    let notes = db.keyspace("notes").unwrap();
    let old = db.create_branch("old", &db.main()).unwrap();
    db.create_branch("new", &db.main()).unwrap();
    let committer = &db.store.committer;
    let at = db.store.newest().unwrap();
    let floor = committer.open_floor(committer.as_of(at).unwrap()).unwrap();
    let glsn = old.put(&notes, "kept", "1").unwrap();
    let moved = Err(InvalidInput::BranchMoved { name: "old".to_owned() }.into());
    assert_eq!(crate::sync::replace::replace(&db, "new", &old, at), moved);
    assert_eq!(db.branch("old").unwrap().tip().unwrap(), db.commit_id(glsn).unwrap());
    assert!(db.branch("new").is_ok());
    let now = db.store.newest().unwrap();
    crate::sync::replace::replace(&db, "new", &old, now).unwrap();
    assert_eq!(db.branch("old").unwrap().get(&notes, "kept").unwrap(), None);
    assert!(db.branch("new").is_err());
    drop(floor);
}

#[test]
fn commits_without_keys_are_conflicts_on_their_branch() {
    let db = history();
    let ids = Ids::open(&db).unwrap();
    let tip = ids.tip_of(&db.main()).unwrap().unwrap().id;
    let push = |receiver: &mut Receiver, micros| {
        let parents = [tip];
        let id = ContentHash::default().id(&parents, micros, b"");
        let (parents, metadata, is_on_line) = (&parents[..], &b""[..], true);
        let head = Head { id, parents, micros, metadata, is_on_line, is_boundary: false };
        receiver.commit(&head, &mut |_| Ok(()))
    };
    let mut one = Receiver::new(&ids, "main", Some(tip), false).unwrap();
    let mut two = Receiver::new(&ids, "main", Some(tip), false).unwrap();
    push(&mut one, 1).unwrap();
    let moved = Error::from(InvalidInput::BranchMoved { name: "main".to_owned() });
    assert_eq!(push(&mut two, 2), Err(moved));
}
