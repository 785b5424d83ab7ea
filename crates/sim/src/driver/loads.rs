//! Bulk loads: each is one commit, or nothing. Some stay open across other operations.

use plimsoll::{BulkLoad, Error, Keyspace};

use crate::content::Content;
use crate::driver::Driver;
use crate::driver::step::{said, scatter};
use crate::failure::{Failure, Outcome, same};
use crate::model::{Entry, Writes};
use crate::op::{Key, numbered_key};

/// A load that is open.
pub(super) struct OpenLoad {
    load: BulkLoad,
    space: u8,
    writes: Writes,
    rows: u64,
}

impl Driver {
    pub(super) fn bulk_load(
        &mut self,
        space: u8,
        first: u32,
        count: u32,
        value: Content,
        scattered: bool,
    ) -> Outcome<String> {
        let Some(keyspace) = self.keyspace(space)? else { return said("failed") };
        let content = |number: u32| Content { seed: value.seed.wrapping_add(number), ..value };
        let key = |number: u32| numbered_key(first.wrapping_add(number));
        let load = || {
            let mut load = self.db().begin_bulk_load(&keyspace)?;
            for number in 0..count {
                let number = if scattered { scatter(number, count) } else { number };
                // Duplicate a row, because the last of two rows with one key wins. Without
                // duplicates, ascending rows skip the sort.
                if value.seed.is_multiple_of(2) && number.is_multiple_of(3) {
                    load.put(key(number), content(number.wrapping_add(1)).make())?;
                }
                load.put(key(number), content(number).make())?;
            }
            load.commit()
        };
        // A load reads nothing, but its record names the moment before it.
        let read_at = self.db().newest().0;
        let loaded = load();
        let writes =
            (0..count).map(|number| ((space, key(number)), Some(content(number)))).collect();
        let entry = Entry::Commit { writes, metadata: Content::default(), read_at };
        self.submitted("bulk load", vec![entry], loaded.map(|glsn| glsn.0), true)
    }

    pub(super) fn begin_load(&mut self, slot: u8, space: u8) -> Outcome<String> {
        self.loads.remove(&slot);
        let Some(keyspace) = self.keyspace(space)? else { return said("failed") };
        let Some(load) = self.open_load(&keyspace)? else { return said("failed") };
        self.loads.insert(slot, OpenLoad { load, space, writes: Writes::new(), rows: 0 });
        said("")
    }

    fn open_load(&self, keyspace: &Keyspace) -> Outcome<Option<BulkLoad>> {
        self.expect("begin_bulk_load", self.db().begin_bulk_load(keyspace))
    }

    pub(super) fn load_put(&mut self, slot: u8, key: &Key, value: Content) -> Outcome<String> {
        self.put_rows(slot, [(key.clone(), value)])
    }

    pub(super) fn load_many(
        &mut self,
        slot: u8,
        first: u32,
        count: u32,
        value: Content,
        scattered: bool,
    ) -> Outcome<String> {
        let row = |number: u32| {
            let number = if scattered { scatter(number, count) } else { number };
            let content = Content { seed: value.seed.wrapping_add(number), ..value };
            (numbered_key(first.wrapping_add(number)), content)
        };
        self.put_rows(slot, (0..count).map(row))
    }

    /// After a failed put, a load can only be dropped.
    fn put_rows(
        &mut self,
        slot: u8,
        rows: impl IntoIterator<Item = (Key, Content)>,
    ) -> Outcome<String> {
        let Some(mut open) = self.loads.remove(&slot) else { return said("no load") };
        for (key, content) in rows {
            let put = open.load.put(&key, content.make());
            if self.expect("put of a bulk load", put)?.is_none() {
                return said("failed");
            }
            open.writes.insert((open.space, key), Some(content));
            open.rows += 1;
        }
        same("rows of a bulk load", &open.load.len(), &open.rows)?;
        self.loads.insert(slot, open);
        said("")
    }

    pub(super) fn commit_load(&mut self, slot: u8) -> Outcome<String> {
        let Some(OpenLoad { load, space, writes, .. }) = self.loads.remove(&slot) else {
            return said("no load");
        };
        let newest = self.db().newest().0;
        let loaded = load.commit();
        if writes.is_empty() {
            let Some(glsn) = self.expect("commit of a bulk load", loaded)? else {
                return said("failed");
            };
            same("GLSN of a bulk load without rows", &glsn.0, &newest)?;
            return said(format!("glsn {glsn}"));
        }
        match &loaded {
            Err(Error::InvalidInput { .. }) if self.model.is_dropped(space) => {
                return said("dropped");
            }
            Ok(_) if self.model.is_dropped(space) => {
                return Err(Failure::new("a bulk load was committed into a dropped keyspace"));
            }
            _ => {}
        }
        let entry = Entry::Commit { writes, metadata: Content::default(), read_at: newest };
        self.submitted("bulk load", vec![entry], loaded.map(|glsn| glsn.0), true)
    }
}
