//! Concurrent commits that change keys at the edges of a transaction's reads.

use crate::content::Content;
use crate::driver::Driver;
use crate::driver::step::said;
use crate::failure::Outcome;
use crate::judge::show;
use crate::model::{Entry, Writes};

/// Number and bytes of the rows that make the commit large enough to be written as a run.
const ROWS: u32 = 320;
const ROW_BYTES: u32 = 900;

impl Driver {
    /// Another transaction changes a key at an edge of the reads of `tx`.
    pub(super) fn change_at_edge(
        &mut self,
        tx: u8,
        pick: u32,
        value: Content,
        spilled: bool,
    ) -> Outcome<String> {
        let Some(open) = self.txs.get(&tx) else { return said("no transaction") };
        let Some((space, key)) = open.reads.key_at_edge(&self.model, pick) else {
            return said("nothing was read");
        };
        if self.model.current_space(space) != space {
            return said("dropped");
        }
        let Some(keyspace) = self.keyspace(space)? else { return said("failed") };
        // The key is the last of the run, or the first.
        let beside: &[u8] = if pick.is_multiple_of(2) { b"\0" } else { b"~" };
        let row = |number: u32| [beside, &number.to_be_bytes()].concat();
        let rows = if spilled { ROWS } else { 0 };
        let content =
            |number: u32| Content { bytes: ROW_BYTES, seed: value.seed.wrapping_add(number) };
        let mut writes: Writes =
            (0..rows).map(|number| ((space, row(number)), Some(content(number)))).collect();
        let deletes = pick.is_multiple_of(5);
        writes.insert((space, key.clone()), Some(value).filter(|_| !deletes));
        let mut handle = self.db().begin();
        let read_at = handle.at().0;
        for ((_, key), value) in &writes {
            let written = match value {
                Some(value) => handle.put(&keyspace, key, value.make()),
                None => handle.delete(&keyspace, key),
            };
            if self.expect("a write at an edge", written)?.is_none() {
                return said("failed");
            }
        }
        let committed = handle.commit().map(|glsn| glsn.0);
        let entry = Entry::Commit { writes, metadata: Content::default(), read_at };
        let what = format!("commit of {} at an edge", show(&key));
        self.submitted(&what, vec![entry], committed, true)
    }
}
