//! Restores the image of pages: segment after segment, hottest first, until the pool has no free
//! frame.

use std::sync::atomic::Ordering;

use plimsoll_memory::budget::Kind as Memory;
use plimsoll_memory::chunk::Chunk;
use plimsoll_memory::page::PAGE_BYTES;
use plimsoll_memory::pool::Warmed;

use crate::warm::files::Files;
use crate::warm::image::{self, Name};
use crate::warm::pages::{BodyReader, PageRun};
use crate::warm::segment::{HEADER_BYTES, Kind, Rejection, SegmentOnDisk, open};
use crate::warm::{Context, Counts};

/// A step reads about this many pages, and examines at most this many ranges of them.
const PAGES_AT_ONCE: u32 = 64;
const RUNS_AT_ONCE: usize = 1024;

/// The progress of the restore.
#[derive(Debug)]
pub(super) struct Restorer {
    /// The next segment to read.
    number: u32,
    open: Option<OpenSegment>,
}

/// A segment that was read and accepted.
#[derive(Debug)]
struct OpenSegment {
    bytes: Chunk,
    len: usize,
    reader: BodyReader,
    /// The rest of the range that was read last.
    rest: Option<PageRun>,
}

/// The result of a step.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    /// Bytes that were read.
    pub(super) bytes: u64,
    /// Set at the end: whether all of the image was restored.
    pub(super) ended: Option<bool>,
    /// The segment that was read, if one was.
    pub(super) segment: Option<SegmentOnDisk>,
}

impl Step {
    /// The step at the end of the restore. `took_all`: whether all of the image was restored.
    pub(super) fn end(took_all: bool) -> Self {
        Self { ended: Some(took_all), ..Self::default() }
    }
}

impl Restorer {
    pub(super) fn new() -> Self {
        Self { number: 0, open: None }
    }

    /// The segment that is read next, or was rejected.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Reads a segment, or loads some pages of the current one.
    pub(super) fn step(&mut self, context: &Context, counts: &Counts) -> Result<Step, Rejection> {
        match self.open.take() {
            None => self.open_next(context),
            Some(segment) => self.load_some(segment, context, counts),
        }
    }

    fn open_next(&mut self, context: &Context) -> Result<Step, Rejection> {
        // Do not charge it as `Staging`, because it is held across steps.
        let Some(mut bytes) = context.budget.try_take(Memory::Metadata) else {
            return Ok(Step::end(false));
        };
        let Some(len) =
            image::read(&*context.disk, &context.dir, Name::Pages(self.number), &mut bytes)?
        else {
            return Ok(Step::end(true));
        };
        let number = u64::from(self.number);
        let (header, _, sum) = open(&bytes[..len], Kind::Pages, number)?;
        // Names of pages are safe to use even where the history cannot be compared, below the trim
        // point.
        image::check_past(&header, &context.log)?;
        let segment = SegmentOnDisk { number: self.number, sum, bytes: len as u64 };
        self.number += 1;
        self.open = Some(OpenSegment { bytes, len, reader: BodyReader::default(), rest: None });
        Ok(Step { bytes: len as u64, ended: None, segment: Some(segment) })
    }

    fn load_some(
        &mut self,
        mut segment: OpenSegment,
        context: &Context,
        counts: &Counts,
    ) -> Result<Step, Rejection> {
        let files = match Files::now(context) {
            Ok(files) => files,
            // There is no room for the list of files, so there is none for pages.
            Err(crate::types::error::Error::OutOfBudget(_)) => return Ok(Step::end(false)),
            Err(error) => return Err(error.into()),
        };
        let (mut read, mut looked) = (0, 0);
        let mut step = Step::default();
        let body = &segment.bytes[HEADER_BYTES..segment.len];
        while read < PAGES_AT_ONCE && looked < RUNS_AT_ONCE {
            looked += 1;
            let Some(run) = segment.rest.take().or_else(|| segment.reader.next(body)) else {
                step.bytes = u64::from(read) * PAGE_BYTES as u64;
                return Ok(step);
            };
            let now = run.count.min(PAGES_AT_ONCE);
            if run.count > now {
                segment.rest =
                    Some(PageRun { first: run.first + now, count: run.count - now, ..run });
            }
            let there = files
                .find(run.file)
                .map(|file| (file, file.pages.saturating_sub(run.first).min(now)));
            let count = there.map_or(0, |(_, count)| count);
            counts.gone.fetch_add(u64::from(now - count), Ordering::Relaxed);
            let warmed = there
                .map_or(Warmed::Read(0), |(file, count)| file.file.warm(run.first, count, run.hot));
            let (Warmed::Read(pages) | Warmed::NoRoom(pages)) = warmed;
            read += pages;
            counts.restored.fetch_add(u64::from(pages), Ordering::Relaxed);
            if matches!(warmed, Warmed::NoRoom(_)) {
                step.ended = Some(false);
                break;
            }
        }
        step.bytes = u64::from(read) * PAGE_BYTES as u64;
        self.open = Some(segment);
        Ok(step)
    }
}
