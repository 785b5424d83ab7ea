//! Begins a segment in a log that several processes have open. The segment is durable under its
//! name before it is published to the other processes.

use crate::error::LogError;
use crate::file_log::append::{NewSegment, switch_to};
use crate::file_log::open_log::OpenLog;
use crate::file_log::segments::create::{NotCreated, create_segment};
use crate::file_log::segments::entry_offsets::EntryOffsets;
use crate::file_log::tail::order::Order;
use crate::format::segment_header::SegmentHeader;
use crate::members::Members;

/// Begins the segment with this header, under the turn; its first `zeroed` bytes are zeros. When
/// this returns, the previous segment is durable.
pub(crate) fn begin(
    log: &OpenLog,
    members: &Members,
    order: &mut Order,
    header: SegmentHeader,
    zeroed: u64,
    entry_offsets: EntryOffsets,
) -> Result<(), LogError> {
    log.durability.sync_to_end()?;
    let (disk, dir) = (&*log.env.options.disk, &log.env.options.dir);
    let file = create_segment(disk, dir, &header, zeroed).map_err(|error| match error {
        NotCreated::Cleanly(error) => LogError::from(error),
        NotCreated::Possibly(error) => log.durability.group.poison(&error.into()),
    })?;
    let mut writer = log.durability.writer()?;
    switch_to(log, order, &mut writer, NewSegment { header, file, zeroed, entry_offsets });
    writer.is_named();
    log.env.files.named(header.first);
    members.marks.set_end(&order.published_end());
    Ok(())
}
