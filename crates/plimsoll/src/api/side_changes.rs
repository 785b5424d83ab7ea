//! The keys that branches of one group wrote: where two of them may differ.

use plimsoll_log::glsn::Glsn;

use crate::api::history::Changes;
use crate::engine::Engine;
use crate::read::span::Span;
use crate::types::branch_key;
use crate::types::error::{Error, Result};
use crate::types::index_key::IndexKey;

/// An iterator over the user's keys that some chains of a group wrote or deleted in a range of
/// commits, in ascending order, each once. Costs as much as all changes of the group in the range.
pub(crate) struct SideChanges {
    changes: Changes,
    /// The last key, in main's form.
    key: Vec<u8>,
}

impl SideChanges {
    /// The keys in `span`, which is one of main, that a chain in `chains` wrote after `after` and
    /// not after `upto`. Both moments must be readable.
    pub(crate) fn new(
        store: &Engine,
        span: &Span,
        (group, mut chains): (u32, Vec<u32>),
        (after, upto): (Glsn, Glsn),
    ) -> Result<Self> {
        chains.sort_unstable();
        let side = Span::between(
            branch_key::lower_bound(group, span.lower()),
            branch_key::upper_bound(group, span.upper()),
        );
        let changes = Changes::new(store, side, (after, upto), [after, upto])?.of_chains(chains);
        Ok(Self { changes, key: Vec::new() })
    }

    /// The next user's key.
    pub(crate) fn next(&mut self, store: &Engine) -> Result<Option<&[u8]>> {
        loop {
            if !self.changes.advance(store)? {
                return Ok(None);
            }
            self.changes.pass();
            let (stem, _) = branch_key::split(self.changes.index_key());
            let before = std::mem::take(&mut self.key);
            branch_key::main_key_into(stem, &mut self.key)
                .ok_or_else(|| Error::damaged("a key on a branch cannot be decoded"))?;
            if self.key != before {
                return Ok(Some(IndexKey::new(&self.key).user_key()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound;

    use super::*;
    use crate::api::db::Db;
    use crate::types::options::Options;

    #[test]
    fn the_keys_that_chains_wrote_in_a_range_of_commits_come_once_and_in_order() {
        let db = Db::in_memory(Options::new().memory_bytes(16 << 20).background(false)).unwrap();
        let [notes, others] = ["notes", "others"].map(|name| db.keyspace(name).unwrap());
        let a = db.create_branch("a", &db.main()).unwrap();
        a.put(&notes, "before", "").unwrap();
        let after = db.newest();
        let b = db.create_branch("b", &a).unwrap();
        let c = db.create_branch("c", &a).unwrap();
        a.put(&notes, "k", "").unwrap();
        b.put(&notes, "k", "").unwrap();
        b.delete(&notes, "a\0").unwrap();
        c.put(&notes, "c", "").unwrap();
        b.put(&others, "other", "").unwrap();
        db.put(&notes, "main", "").unwrap();
        let upto = db.newest();
        b.put(&notes, "later", "").unwrap();
        let group = a.lens.as_ref().unwrap().ancestry().group;
        let span = Span::of_keyspace(db.store.reader.keyspaces.id_of(&notes).unwrap());
        let found = |chains: &[u32]| {
            let chains = (group, chains.to_vec());
            let mut keys = SideChanges::new(&db.store, &span, chains, (after, upto)).unwrap();
            let mut found = Vec::new();
            while let Some(key) = keys.next(&db.store).unwrap() {
                found.push(String::from_utf8(key.to_vec()).unwrap());
            }
            found
        };
        for _ in 0..2 {
            assert_eq!(found(&[1, 2]), ["a\0", "k"]);
            assert_eq!(found(&[3]), ["c"]);
            assert_eq!(found(&[3, 2, 1]), ["a\0", "c", "k"]);
            assert_eq!(found(&[4]), [""; 0]);
            db.flush().unwrap();
            db.compact().unwrap();
        }
        let bounds = (Bound::Excluded(&b"a\0"[..]), Bound::Included(&b"c"[..]));
        let part = Span::new(db.store.reader.keyspaces.id_of(&notes).unwrap(), &bounds);
        let mut keys =
            SideChanges::new(&db.store, &part, (group, vec![1, 2, 3]), (after, upto)).unwrap();
        assert_eq!(keys.next(&db.store).unwrap(), Some(&b"c"[..]));
        assert_eq!(keys.next(&db.store).unwrap(), None);
    }
}
