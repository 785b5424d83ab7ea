//! Writes the versions that are older than the first entry of a dump as runs of a new index, and
//! begins the log after them.
//!
//! Values of more than [`INLINE_BYTES`] go into blob files. The manifest is written last. Without
//! it, the next attempt starts again.

use plimsoll_disk::codec;
use plimsoll_log::file_log::BlobWriter;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::options::{FileLogOptions, Mode};
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Budget;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::api::admin::diagnose::look_at;
use crate::api::admin::dump::records::{Header, Record};
use crate::api::admin::dump::stream::DumpReader;
use crate::api::admin::restore::place::Place;
use crate::api::admin::restore::{Owned, ValueOf};
use crate::compression::packer::{Bytes, Written};
use crate::index::manifest::limits::Limits;
use crate::index::manifest::{Head, Manifest, RunInfo};
use crate::index::run::builder::TableBuilder;
use crate::index::run::file::RunFileSink;
use crate::index::run::table::TableInfo;
use crate::read::system_records::STREAMS_MARK;
use crate::types::compression::Compression;
use crate::types::error::{Lift, Result};
use crate::types::index_key::KeyBuffer;
use crate::types::keyspaces::{Record as Settings, SYSTEM};
use crate::types::options::Options;
use crate::types::version::{INLINE_BYTES, MAX_VALUE_BYTES, Stored, Version};

/// Bytes of a blob file after which the next value goes into another one.
const BLOB_BYTES: u64 = 256 << 20;

/// Skips the old versions, which an earlier attempt has written; returns the limits of what can be
/// read.
pub(super) fn pass(from: &mut DumpReader<'_>) -> Result<Limits> {
    let limits = read_limits(from)?;
    loop {
        match from.read()? {
            Record::Version { .. } | Record::Piece(_) => {}
            Record::VersionsEnd { .. } => return Ok(limits),
            _ => return Err(from.out_of_place()),
        }
    }
}

fn read_limits(from: &mut DumpReader<'_>) -> Result<Limits> {
    match from.read()? {
        Record::Limits(bytes) => decode_limits(bytes).ok_or_else(|| from.out_of_place()),
        _ => Err(from.out_of_place()),
    }
}

/// Writes the old versions. Returns their number, and the limits of what can be read, which may be
/// above the newest of these versions; they apply once the log of the new store has reached them.
pub(super) fn write(
    place: &Place,
    options: &Options,
    header: &Header,
    from: &mut DumpReader<'_>,
) -> Result<(u64, Limits)> {
    let (disk, index) = (&*options.disk, place.store.join("index"));
    for folder in [&place.store, &place.store.join("log"), &index] {
        disk.create_dir(folder)?;
    }
    disk.sync_dir(&place.store)?;
    let limits = read_limits(from)?;
    let (log_options, budget) = look_at(&place.store.join("log"), options)?;
    let begin = (header.first, header.floor_micros);
    let log_options = FileLogOptions { mode: Mode::Create, begin, ..log_options };
    let (log, _) = FileLog::open(log_options).lift()?;
    let mut output = Output {
        options,
        index,
        log: &log,
        budget: &budget,
        next_run: 1,
        builder: None,
        tables: Vec::new(),
        blob: None,
        compressions: BTreeMap::new(),
        last: None,
    };
    let mut versions = 0;
    loop {
        match from.read()? {
            Record::Version { glsn, change } if glsn > Glsn::NONE && glsn < header.first => {
                let change = Owned::of(change)?;
                output.version(glsn, change, from)?;
                versions += 1;
            }
            Record::VersionsEnd { versions: all } if all == versions => break,
            _ => return Err(from.out_of_place()),
        }
    }
    output.finish(up_to(&limits, log.position().glsn))?;
    log.close().lift()?;
    Ok((versions, limits))
}

/// Writes the runs and the blob files.
struct Output<'a> {
    options: &'a Options,
    index: PathBuf,
    log: &'a FileLog,
    budget: &'a Budget,
    next_run: u64,
    builder: Option<TableBuilder<RunFileSink>>,
    tables: Vec<TableInfo>,
    blob: Option<BlobWriter>,
    /// The compression of each keyspace.
    compressions: BTreeMap<u32, Compression>,
    /// The index key and the GLSN of the last version.
    last: Option<(Vec<u8>, Glsn)>,
}

impl Output<'_> {
    fn version(&mut self, glsn: Glsn, change: Owned, from: &mut DumpReader<'_>) -> Result<()> {
        let (space, user_key) = match &change {
            Owned::Delete { space, key } | Owned::Put { space, key, .. } => (*space, key),
            Owned::DeleteRange { .. } => return Err(from.out_of_place()),
        };
        let key = KeyBuffer::new(space, user_key)?;
        let key = key.get();
        let is_new = self.last.as_ref().is_none_or(|(last, _)| last != key);
        let is_behind =
            |(last, at): &(Vec<u8>, Glsn)| last.as_slice() < key || (last == key && *at > glsn);
        if !self.last.as_ref().is_none_or(is_behind) {
            return Err(from.out_of_place());
        }
        match &change {
            Owned::Delete { .. } | Owned::DeleteRange { .. } => {
                self.add(&Version { key, glsn, stored: Stored::Deleted }, is_new)?;
            }
            Owned::Put { expiry, len, piece, .. } if *len <= INLINE_BYTES as u64 => {
                if space == SYSTEM && user_key != STREAMS_MARK.as_bytes() {
                    self.note_settings(piece)?;
                }
                let stored = Stored::Inline(piece).expiring(*expiry);
                self.add(&Version { key, glsn, stored }, is_new)?;
            }
            Owned::Put { expiry, len, piece, .. } => {
                let stored = self.in_blob(space, (*len, piece), from)?.expiring(*expiry);
                self.add(&Version { key, glsn, stored }, is_new)?;
            }
        }
        self.last = Some((key.to_vec(), glsn));
        Ok(())
    }

    /// Records the settings of a keyspace. The newest settings come first, and all come before its
    /// keys.
    fn note_settings(&mut self, settings: &[u8]) -> Result<()> {
        let settings = Settings::decode(settings)?;
        self.compressions.entry(settings.id).or_insert(settings.compression);
        Ok(())
    }

    /// Writes a value of a keyspace into a blob file.
    fn in_blob(
        &mut self,
        space: u32,
        (len, piece): (u64, &[u8]),
        from: &mut DumpReader<'_>,
    ) -> Result<Stored<'static>> {
        if len > MAX_VALUE_BYTES {
            return Err(from.out_of_place());
        }
        let compression = self.compressions.get(&space).copied().unwrap_or_default();
        if self.blob.as_ref().is_some_and(|blob| blob.position() >= BLOB_BYTES) {
            self.end_blob()?;
        }
        let blob = match &mut self.blob {
            Some(blob) => blob,
            none => none.insert(self.log.create_blob().lift()?),
        };
        let (id, offset) = (blob.id(), blob.position());
        let mut bytes = Bytes::begin(self.budget, compression);
        let mut out = |bytes: &[u8]| blob.write(bytes).lift();
        let left = len - piece.len() as u64;
        let mut value = ValueOf { from, piece: piece.to_vec(), at: 0, left, failure: None };
        loop {
            bytes.write(&value.piece, &mut out)?;
            if value.left == 0 {
                break;
            }
            value.next_piece()?;
        }
        let Written { len, sum, packed } = bytes.finish(&mut out)?;
        Ok(Stored::InBlob { blob: id, offset, len, sum, packed })
    }

    fn end_blob(&mut self) -> Result<()> {
        if let Some(blob) = self.blob.take() {
            let id = blob.finish().lift()?.id;
            self.log.hand_over_blob(id);
        }
        Ok(())
    }

    /// Adds a version; all versions of a key are in one table.
    fn add(&mut self, version: &Version<'_>, is_new: bool) -> Result<()> {
        let table_bytes = self.options.sizes.table_bytes;
        if is_new && self.builder.as_ref().is_some_and(|builder| builder.bytes() > table_bytes) {
            self.end_table()?;
        }
        let builder = match &mut self.builder {
            Some(builder) => builder,
            none => {
                let (disk, id) = (&self.options.disk, self.next_run);
                let sink = RunFileSink::create(disk, &self.index, id, self.log.id(), self.budget)?;
                self.next_run += 1;
                none.insert(TableBuilder::new(sink, self.budget, false)?)
            }
        };
        builder.add(version)
    }

    fn end_table(&mut self) -> Result<()> {
        if let Some(builder) = self.builder.take() {
            let (sink, info) = builder.finish()?;
            let (info, _) = sink.finish(info)?;
            self.tables.push(info);
        }
        Ok(())
    }

    fn finish(mut self, limits: Limits) -> Result<()> {
        self.end_table()?;
        self.end_blob()?;
        let runs = match std::mem::take(&mut self.tables) {
            tables if tables.is_empty() => Vec::new(),
            tables => vec![RunInfo { history: false, tables }],
        };
        let position = self.log.position();
        let head = Head {
            log_id: self.log.id(),
            number: 1,
            checkpoint: position,
            durable: position,
            next_run: self.next_run,
            limits,
            log_begins: Some(self.log.bounds().first),
            // Wherever a range deletion hid a version, the versions contain a point deletion.
            ranges: Arc::default(),
        };
        let disk = &*self.options.disk;
        disk.sync_dir(&self.index)?;
        Manifest { head, runs }.write(disk, &self.index)
    }
}

/// The limits, with each oldest readable GLSN lowered to at most `newest`.
fn up_to(limits: &Limits, newest: Glsn) -> Limits {
    let mut limits = limits.clone();
    limits.oldest_readable = limits.oldest_readable.min(newest);
    limits
        .readable_in
        .iter_mut()
        .for_each(|(_, readable)| readable.floor = readable.floor.min(newest));
    limits
}

fn decode_limits(bytes: &[u8]) -> Option<Limits> {
    let mut from = codec::Reader::new(bytes);
    let mut limits = Limits { deletions_moved: Glsn(from.varint()?), ..Limits::default() };
    let oldest = Glsn(from.varint()?);
    let mut floors = Vec::new();
    for _ in 0..from.varint()? {
        let space = u32::try_from(from.varint()?).ok()?;
        floors.push((space, Glsn(from.varint()?)));
    }
    for _ in 0..from.varint()? {
        let space = u32::try_from(from.varint()?).ok()?;
        limits.deletion_dropped(space, Glsn(from.varint()?));
    }
    // Format 1 has no single moments.
    let has_pins = from.remaining() > 0;
    for (space, floor) in floors {
        let count = if has_pins { from.varint()? } else { 0 };
        let pins = (0..count).map(|_| from.varint().map(Glsn));
        limits.dropped(space, floor, &pins.collect::<Option<Arc<[Glsn]>>>()?);
    }
    limits.oldest_readable = limits.oldest_readable.max(oldest);
    (from.remaining() == 0).then_some(limits)
}
