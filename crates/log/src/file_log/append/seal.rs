//! Seals a segment: writes the offset table by which its entries are found from now on.

use crate::error::LogError;
use crate::file_log::durability::writer::SegmentWriter;
use crate::file_log::env::lock;
use crate::file_log::open_log::OpenLog;
use crate::file_log::segments::entry_offsets::EntryOffsets;
use crate::file_log::segments::named_blobs::NamedBlobs;
use crate::file_log::segments::table_writer::{TableSource, write_table};
use crate::file_log::tail::Tail;
use crate::file_log::tail::order::Order;
use crate::format::offset_table::{NamedBlob, TableHeader};
use crate::format::table_seed;
use crate::glsn::StreamId;

/// Writes the table of the active segment, whose bytes are all written. If it fails the segment stays as it is.
pub(crate) fn seal_segment(log: &OpenLog, order: &Order, writer: &mut SegmentWriter) -> Result<(), LogError> {
    let header = TableHeader {
        log_id: order.header.log_id,
        first: order.header.first,
        count: (order.end.next.0 - order.header.first.0) as u32,
        chain: order.end.chain,
        first_timestamp: log.tail.read().first_timestamp,
        last_timestamp: order.end.timestamp,
        end: order.end.offset,
        streams: 0,
        blobs: 0,
    };
    let mut scratch = lock(&log.segments.rebuilding);
    let mut source = FromTail { tail: &log.tail };
    let seed = table_seed(header.log_id, header.first);
    let (disk, dir) = (&*log.env.options.disk, &log.env.options.dir);
    write_table(disk, dir, header, seed, &mut source, &mut scratch, &mut writer.staging).map(|_| ())
}

/// The entries of the active segment. Appends are locked out; readers are not.
struct FromTail<'a> {
    tail: &'a Tail,
}

impl TableSource for FromTail<'_> {
    fn offsets(&mut self, each: &mut dyn FnMut(u32) -> Result<(), LogError>) -> Result<(), LogError> {
        let tail = self.tail.read();
        let entry_offsets: &EntryOffsets = &tail.entry_offsets;
        (0..entry_offsets.len()).filter_map(|index| entry_offsets.offset(index)).try_for_each(each)
    }

    fn streams(&mut self, each: &mut dyn FnMut(StreamId)) -> Result<(), LogError> {
        let tail = self.tail.read();
        let entry_offsets: &EntryOffsets = &tail.entry_offsets;
        (0..entry_offsets.len()).filter_map(|index| entry_offsets.stream(index)).for_each(each);
        Ok(())
    }

    fn blobs(&mut self, each: &mut dyn FnMut(NamedBlob) -> Result<(), LogError>) -> Result<(), LogError> {
        let tail = self.tail.read();
        let blobs: &NamedBlobs = &tail.blobs;
        blobs.list().iter().try_for_each(|blob| each(*blob))
    }
}
