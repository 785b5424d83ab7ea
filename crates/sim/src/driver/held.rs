//! Iterators and value readers that stay open across other operations.
//!
//! They continue at their position and moment, regardless of flushes, merges, freed memory and
//! commits in between.

use std::collections::VecDeque;
use std::io::Read;

use plimsoll::{Error, Range, Snapshot, ValueReader};

use crate::content::Content;
use crate::driver::Driver;
use crate::failure::{Failure, Outcome, ensure, same};
use crate::judge::{Place, View, cause_of, show};
use crate::model::{Writes, space_name};
use crate::op::{Key, Reader, Span};

/// The most bytes requested per read of a value; not a multiple of any block size.
const PIECE_BYTES: usize = 9001;

/// An open iterator.
pub(super) struct OpenWalk {
    range: Range<'static>,
    /// Retains the moment.
    snapshot: Snapshot,
    space: u8,
    keys_only: bool,
    what: String,
    /// The pairs that it has not returned yet.
    wanted: VecDeque<(Key, Content)>,
}

/// An open reader.
pub(super) struct OpenReader {
    reader: ValueReader,
    at: u64,
    what: String,
    wanted: Vec<u8>,
    read: usize,
}

/// The result of a step of an open iterator or reader.
enum StepResult {
    On,
    ToItsEnd,
    Failed,
}

impl OpenWalk {
    /// Bytes charged for it, and bytes that it holds.
    pub(super) fn charges(&self) -> (u64, u64) {
        self.range.charges()
    }
}

impl Driver {
    /// Number of moments that iterators and readers keep open.
    pub(super) fn moments_held(&self) -> u64 {
        (self.walks.len() + self.readers.len()) as u64
    }

    /// The moments that iterators and readers keep open.
    pub(super) fn held_moments(&self) -> impl Iterator<Item = u64> {
        let walks = self.walks.values().map(|walk| walk.snapshot.at().0);
        walks.chain(self.readers.values().map(|reader| reader.at))
    }

    pub(super) fn begin_walk(
        &mut self,
        slot: u8,
        from: Reader,
        space: u8,
        span: &Span,
        reverse: bool,
        keys_only: bool,
    ) -> Outcome<String> {
        self.walks.remove(&slot);
        let Some(keyspace) = self.keyspace(space)? else { return Ok("failed".to_owned()) };
        let Some(snapshot) = self.own_moment(from)? else { return Ok("failed".to_owned()) };
        let at = snapshot.at();
        let what =
            format!("walk {span} at {at} in {}, held open (reverse: {reverse})", space_name(space));
        let mut wanted = self.model.walk(space, span, at.0, &Writes::new());
        if reverse {
            wanted.reverse();
        }
        let walk = View::Snapshot(&snapshot).walk_apart(self.place(space, &keyspace), span);
        let excuse = |error: &Error| self.excused(error);
        let Some(range) = self.judge(&excuse).settle(|| what.clone(), Some((space, at.0)), walk)?
        else {
            return Ok("refused".to_owned());
        };
        let range = if reverse { range.reverse() } else { range };
        let range = if keys_only { range.keys_only() } else { range };
        self.walks.insert(
            slot,
            OpenWalk { range, snapshot, space, keys_only, what, wanted: wanted.into() },
        );
        Ok(format!("at {at}"))
    }

    pub(super) fn walk_on(&mut self, slot: u8, count: u32) -> Outcome<String> {
        let Some(mut walk) = self.walks.remove(&slot) else { return Ok("no walk".to_owned()) };
        for _ in 0..count {
            match self.walk_one(&mut walk)? {
                StepResult::On => {}
                StepResult::ToItsEnd => return Ok("ended".to_owned()),
                StepResult::Failed => return Ok("failed".to_owned()),
            }
        }
        self.walks.insert(slot, walk);
        Ok("answered".to_owned())
    }

    fn walk_one(&self, walk: &mut OpenWalk) -> Outcome<StepResult> {
        let excuse = |error: &Error| self.excused(error);
        let what = || walk.what.clone();
        let at = Some((walk.space, walk.snapshot.at().0));
        let Some(found) = self.judge(&excuse).settle(what, at, walk.range.advance())? else {
            ensure(matches!(walk.range.advance(), Ok(None)), || {
                format!("{} continues after an error", walk.what)
            })?;
            return Ok(StepResult::Failed);
        };
        let wanted = walk.wanted.pop_front();
        let Some((key, value)) = found else {
            ensure(wanted.is_none(), || {
                format!("{} ended before {:?}", walk.what, wanted.map(|(key, _)| show(&key)))
            })?;
            return Ok(StepResult::ToItsEnd);
        };
        same(
            format!("{}: key", walk.what),
            &Some(show(key)),
            &wanted.as_ref().map(|(key, _)| show(key)),
        )?;
        let right = match wanted {
            _ if walk.keys_only => value.is_empty(),
            Some((_, content)) => content.is(value),
            None => false,
        };
        ensure(right, || format!("{}: wrong value of {}", walk.what, show(key)))?;
        Ok(StepResult::On)
    }

    pub(super) fn begin_reader(
        &mut self,
        slot: u8,
        from: Reader,
        space: u8,
        key: &Key,
    ) -> Outcome<String> {
        self.readers.remove(&slot);
        let Some(keyspace) = self.keyspace(space)? else { return Ok("failed".to_owned()) };
        let Some(snapshot) = self.own_moment(from)? else { return Ok("failed".to_owned()) };
        let at = snapshot.at();
        let what = format!("reader of {} at {at} in {}, held open", show(key), space_name(space));
        let wanted = self.model.get(space, key, at.0);
        let excuse = |error: &Error| self.excused(error);
        let opened = snapshot.get_reader(&keyspace, key);
        let Some(reader) =
            self.judge(&excuse).settle(|| what.clone(), Some((space, at.0)), opened)?
        else {
            return Ok("refused".to_owned());
        };
        same(format!("{what}: whether there is a value"), &reader.is_some(), &wanted.is_some())?;
        let (Some(reader), Some(wanted)) = (reader, wanted) else {
            return Ok("nothing".to_owned());
        };
        same(format!("{what}: length"), &reader.len(), &u64::from(wanted.bytes))?;
        self.readers
            .insert(slot, OpenReader { reader, at: at.0, what, wanted: wanted.make(), read: 0 });
        Ok(format!("at {at}"))
    }

    pub(super) fn read_on(&mut self, slot: u8, bytes: u32) -> Outcome<String> {
        let Some(mut open) = self.readers.remove(&slot) else { return Ok("no reader".to_owned()) };
        let mut left = bytes as usize;
        while left > 0 {
            match self.read_piece(&mut open, left.min(PIECE_BYTES))? {
                (StepResult::On, bytes) => left -= bytes,
                (StepResult::ToItsEnd, _) => return Ok("ended".to_owned()),
                // A retry resumes at the same position.
                (StepResult::Failed, _) => {
                    self.readers.insert(slot, open);
                    return Ok("failed".to_owned());
                }
            }
        }
        self.readers.insert(slot, open);
        Ok("answered".to_owned())
    }

    fn read_piece(&self, open: &mut OpenReader, most: usize) -> Outcome<(StepResult, usize)> {
        let mut piece = vec![0; most];
        let rest = &open.wanted[open.read..];
        match open.reader.read(&mut piece) {
            Ok(bytes) => {
                let right = bytes <= rest.len()
                    && piece[..bytes] == rest[..bytes]
                    && (bytes > 0 || rest.is_empty());
                ensure(right, || format!("{}: wrong bytes from {} on", open.what, open.read))?;
                open.read += bytes;
                Ok((if bytes == 0 { StepResult::ToItsEnd } else { StepResult::On }, bytes))
            }
            Err(error) => {
                if cause_of(&error).is_some_and(|cause| self.excused(cause)) {
                    return Ok((StepResult::Failed, 0));
                }
                Err(Failure::new(format!("{} failed at {}: {error}", open.what, open.read)))
            }
        }
    }

    /// A separate snapshot of the same moment.
    fn own_moment(&mut self, from: Reader) -> Outcome<Option<Snapshot>> {
        let at = match from {
            Reader::Snapshot(slot) => self.snapshots.get(&slot).map(Snapshot::at),
            Reader::Back(back) => Some(plimsoll::Glsn(self.back(back))),
            Reader::Tx(_) => None,
        };
        let opened = match at {
            Some(at) => self.db().snapshot_at(plimsoll::Moment::Glsn(at)),
            None => Ok(self.db().snapshot()),
        };
        self.expect("snapshot", opened)
    }
}

impl View<'_> {
    /// An iterator that does not borrow the view; only in a snapshot.
    fn walk_apart(&self, place: Place<'_>, span: &Span) -> plimsoll::Result<Range<'static>> {
        let View::Snapshot(snapshot) = self else {
            unreachable!("a held walk belongs to a snapshot")
        };
        match span {
            Span::Range(lower, upper) => snapshot
                .range(place.keyspace, (crate::judge::bound(lower), crate::judge::bound(upper))),
            Span::Prefix(prefix) => snapshot.prefix(place.keyspace, prefix),
        }
    }
}
