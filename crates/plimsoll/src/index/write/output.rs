//! Writes a run: a sequence of tables that are cut only between keys.

use std::collections::VecDeque;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Budget;

use crate::borders::{Border, hit};
use crate::index::manifest::files::{FileGuard, Files, Member, Reserve};
use crate::index::plan::superseding::Sample;
use crate::index::run::builder::TableBuilder;
use crate::index::run::file::RunFileSink;
use crate::index::run::table::TableInfo;
use crate::index::run::warmth::Warmth;
use crate::types::error::Result;
use crate::types::keyspaces::SIDE;
use crate::types::version::Version;

/// Maximum number of chunks of one output: three for the builder, one for a tall tree, one for the
/// sink, and one for the list of blob files. The directory of a packed file takes a chunk of the
/// store's budget or, if none is free there, one that the tree or the list does not use.
pub(crate) const OUTPUT_CHUNKS: u64 = 6;

/// A table is cut when its values are in this many blob files, because their list takes memory.
const BLOBS_MAX: usize = 1024;

/// Maximum number of small tables that are cut so that the expiring values of a table are in one
/// keyspace.
const EXPIRING_SMALL_MAX: usize = 16;
/// Divisor: such a table is small if it is below this part of a table's full size.
const EXPIRING_SMALL_PART: u64 = 64;

/// A run that is being written. If it is dropped before it is finished, its files are removed.
#[derive(Debug)]
pub(crate) struct Output {
    files: Arc<Files>,
    budget: Budget,
    table_bytes: u64,
    reserve: Reserve,
    /// A table ends before each of these keys, so that it overlaps with fewer tables of other runs.
    /// Ascending; only those after the last key added.
    cuts: VecDeque<Vec<u8>>,
    sample: Sample,
    /// Range deletions up to this GLSN are absorbed in the versions written.
    absorbed: Glsn,
    open: Option<OpenTable>,
    done: Vec<Member>,
    written_bytes: u64,
    /// How many small tables were cut because of their expiring values.
    expiring_small: usize,
}

#[derive(Debug)]
struct OpenTable {
    guard: Arc<FileGuard>,
    builder: TableBuilder<RunFileSink>,
}

impl Output {
    /// An empty run. It takes [`OUTPUT_CHUNKS`] of `budget` at the first version.
    pub(crate) fn new(
        files: &Arc<Files>,
        budget: &Budget,
        table_bytes: u64,
        reserve: Reserve,
    ) -> Self {
        Self {
            files: Arc::clone(files),
            budget: budget.clone(),
            table_bytes,
            reserve,
            cuts: VecDeque::new(),
            sample: Sample::default(),
            absorbed: Glsn::NONE,
            open: None,
            done: Vec::new(),
            written_bytes: 0,
            expiring_small: 0,
        }
    }

    /// Also ends a table before each of these keys, which ascend.
    pub(crate) fn cut_before(mut self, keys: impl IntoIterator<Item = Vec<u8>>) -> Self {
        self.cuts = keys.into_iter().collect();
        self
    }

    /// Declares that the versions include the point deletions of all ranges up to this GLSN.
    pub(crate) fn absorbing(mut self, upto: Glsn) -> Self {
        self.absorbed = upto;
        self
    }

    /// Adds a version: keys ascending, one key's versions newest first. `starts_key`: it is the
    /// first of its key in this run. `warmth`: how often it was read in its source.
    pub(crate) fn add(
        &mut self,
        version: &Version<'_>,
        starts_key: bool,
        warmth: Warmth,
    ) -> Result<()> {
        if starts_key {
            self.begin_key(version.key)?;
            self.divide_expiring(version)?;
        }
        if starts_key && self.open.as_ref().is_some_and(|open| open.is_full(self.table_bytes)) {
            hit(Border::TableFull);
            self.cut()?;
        }
        if self.open.is_none() {
            let (guard, sink) = self.files.create(&self.budget)?;
            let builder = TableBuilder::new(sink, &self.budget, false)?;
            self.open = Some(OpenTable { guard, builder });
        }
        let open = self.open.as_mut().expect("made above");
        let inline = version.stored.value().inline_value().map_or(0, <[u8]>::len);
        open.builder.add(version)?;
        // Weigh the version after it was added, because adding it may have written the page before
        // its own.
        open.builder.sink_mut().weigh((version.key.len() + inline) as u64, warmth);
        Ok(())
    }

    fn begin_key(&mut self, key: &[u8]) -> Result<()> {
        self.sample.add(key);
        let mut is_cut = false;
        while self.cuts.front().is_some_and(|cut| &cut[..] <= key) {
            self.cuts.pop_front();
            is_cut = true;
        }
        if is_cut && self.files.may_cut() { self.cut() } else { Ok(()) }
    }

    /// Ends the open table before a version that expires if the table has expiring values of
    /// another keyspace. No merge could determine how many values of such a table it may drop
    /// ([`ExpiryRange`]).
    ///
    /// [`ExpiryRange`]: crate::types::expiry::ExpiryRange
    fn divide_expiring(&mut self, version: &Version<'_>) -> Result<()> {
        let Some(open) = self.open.as_ref().filter(|_| version.stored.expiry().is_some()) else {
            return Ok(());
        };
        let keyspace = version.keyspace();
        let others = open.builder.expiries().filter(|expiries| expiries.keyspace != keyspace);
        if keyspace == SIDE || others.is_none() || !self.files.may_cut() {
            return Ok(());
        }
        let is_small = open.builder.bytes() < self.table_bytes / EXPIRING_SMALL_PART;
        if is_small && self.expiring_small == EXPIRING_SMALL_MAX {
            return Ok(());
        }
        self.expiring_small += usize::from(is_small);
        self.cut()
    }

    /// Adds an existing table unchanged. Its keys are after all keys added before.
    pub(crate) fn link(&mut self, member: Member) -> Result<()> {
        self.cut()?;
        self.done.push(member);
        Ok(())
    }

    /// Whether a table is being written.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Size of the table that is being written.
    pub(crate) fn open_bytes(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.builder.bytes())
    }

    /// Size of the finished tables.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// The finished tables.
    pub(crate) fn done(&self) -> &[Member] {
        &self.done
    }

    /// Ends the table that is being written, if any.
    pub(crate) fn cut(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let (sink, info) = open.builder.finish()?;
        let info = TableInfo { absorbed: self.absorbed, ..info };
        let (info, file) = sink.finish(info)?;
        let member = self.files.open_new(info, open.guard, file, self.reserve)?;
        self.written_bytes += member.bytes();
        self.done.push(member);
        Ok(())
    }

    /// A sample of the keys that were added.
    pub(crate) fn take_sample(&mut self) -> Sample {
        std::mem::take(&mut self.sample)
    }

    /// Finishes the run. Returns its tables, synced except for their names, and the bytes written.
    pub(crate) fn finish(mut self) -> Result<(Vec<Member>, u64)> {
        self.cut()?;
        Ok((self.done, self.written_bytes))
    }
}

impl OpenTable {
    fn is_full(&self, table_bytes: u64) -> bool {
        self.builder.bytes() >= table_bytes || self.builder.blobs() >= BLOBS_MAX
    }
}
