//! Point reads: memtables, then the row cache, then the pages of runs, then the log.
//!
//! The index finds the version that is current at a moment. A small value is stored in the index, a
//! large one in the log or in a blob file.

use std::io;
use std::sync::{Arc, Weak};

use plimsoll_disk::checksum::Running;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::account::Charge;
use plimsoll_memory::budget::{Kind, OutOfBudget};
use plimsoll_memory::buffer::Buffer;

use crate::borders::{self, Border};
use crate::compression::unpacker::{Fetch, Unpacker, unpack};
use crate::index::blob_bytes;
use crate::index::sources::view::{Hit, View};
use crate::read::open_moments::OpenMoment;
use crate::read::reader::Reader;
use crate::types::as_of::AsOf;
use crate::types::compression::{Packed, VALUE_CHUNK_BYTES};
use crate::types::error::{Error, Lift, Result};
use crate::types::expiry::Expiry;
use crate::types::value::Value;
use crate::types::version::{OwnedStored, Stored, running_value_sum, value_sum};

/// Bytes per step when two values are compared.
const COMPARED_BYTES: usize = 8 * 1024;

impl Reader {
    /// The value of an index key as of `at`.
    pub(crate) fn get(&self, key: &[u8], at: AsOf<'_>) -> Result<Option<Value>> {
        Ok(self.get_expiring(key, at)?.map(|(value, _)| value))
    }

    /// The value of an index key as of `at`, and when it expires.
    pub(crate) fn get_expiring(
        &self,
        key: &[u8],
        at: AsOf<'_>,
    ) -> Result<Option<(Value, Option<Expiry>)>> {
        self.read(|view| {
            let in_rows = |_: &mut (), is_past| {
                let row = match is_past {
                    false => view.rows.get(key, at, &self.budget),
                    true => view.rows.get_past(key, at, &self.budget),
                };
                Ok(row?.map(|answer| answer.noted(key, at)))
            };
            self.look_up(view, (key, at), &mut (), in_rows, |_, hit| {
                let mut missed = hit.is_miss();
                let value = self.value_of(&hit, &mut missed)?;
                borders::hit(Border::ValueLoaded);
                self.keep_row(view, &hit, missed, (key, at.glsn), &value);
                Ok(Some((value, hit.stored().expiry())))
            })
        })
    }

    /// Calls `look` with the value of an index key as of `at`. If the value is in memory in one
    /// piece, it is not copied.
    pub(crate) fn get_with<T>(
        &self,
        key: &[u8],
        at: AsOf<'_>,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>> {
        let mut look = Some(look);
        // No error can follow once `look` was called, so the retry does not call it twice.
        self.read(|view| self.get_in(view, key, at, &mut look))
    }

    /// As [`Reader::get_with`], in the sources of `view`. Takes `look` out of the option only if
    /// there is a value.
    pub(crate) fn get_in<T, L: FnOnce(&[u8]) -> T>(
        &self,
        view: &Arc<View>,
        key: &[u8],
        at: AsOf<'_>,
        look: &mut Option<L>,
    ) -> Result<Option<T>> {
        let in_rows = |look: &mut Option<L>, is_past| {
            let row = match is_past {
                false => view.rows.get_with(key, at, &self.budget, look),
                true => view.rows.get_past_with(key, at, &self.budget, look),
            };
            Ok(row?.map(|answer| answer.noted(key, at).map(|(looked, _)| looked)))
        };
        self.look_up(view, (key, at), look, in_rows, |look, hit| {
            let mut missed = hit.is_miss();
            let mut lend = |value: &[u8], missed| {
                self.keep_row(view, &hit, missed, (key, at.glsn), value);
                Ok(look.take().map(|look| look(value)))
            };
            if let Stored::Inline(value) = hit.stored() {
                return lend(value, missed);
            }
            let value = self.value_of(&hit, &mut missed)?;
            lend(&value, missed)
        })
    }

    /// Looks a key up as of `at`: in the sources that no run holds yet, in the row cache, then in
    /// the runs. `in_rows` reads the current row (`false`) or a past row (`true`); a row may show
    /// that the key has no value. `in_runs` reads a version. Both are given `state`.
    #[inline]
    fn look_up<S, T>(
        &self,
        view: &Arc<View>,
        (key, as_of): (&[u8], AsOf<'_>),
        state: &mut S,
        in_rows: impl Fn(&mut S, bool) -> Result<Option<Option<T>>, OutOfBudget>,
        in_runs: impl FnOnce(&mut S, Hit) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let at = as_of.glsn;
        let mut above = view.get_above(key, at)?;
        // If the key is in a deleted range, its row may be older than the deletion.
        if above.leaves_it_to_the_runs() && above.deleted_at(view, key, at) == Glsn::NONE {
            let mut kept = in_rows(state, false)?;
            if kept.is_none() && view.is_past(at) {
                kept = in_rows(state, true)?;
            }
            if let Some(answer) = kept {
                return Ok(answer);
            }
        }
        borders::hit(Border::SourcesTaken);
        let is_there = |hit: &Hit| as_of.sees(key, &hit.stored());
        match view.get_beneath(above, key, at)?.filter(is_there) {
            Some(hit) => in_runs(state, hit),
            None => Ok(None),
        }
    }

    /// Reads the value of a version. Sets `missed` if a page was not in memory.
    fn value_of(&self, hit: &Hit, missed: &mut bool) -> Result<Value> {
        let (glsn, stored) = (hit.glsn(), hit.stored());
        Value::of_len(&self.budget, stored.value_bytes(), |bytes| {
            *missed |= self.load(glsn, stored, bytes)?;
            Ok::<_, Error>(())
        })
    }

    /// Caches a value that was read as of `at` as a current or past row, if that is worthwhile.
    fn keep_row(
        &self,
        view: &View,
        hit: &Hit,
        missed: bool,
        (key, at): (&[u8], Glsn),
        value: &[u8],
    ) {
        let (glsn, expiry) = (hit.glsn(), hit.stored().expiry());
        if hit.is_newest_in_runs() {
            self.row_cache.fill((view.set, &view.rows), missed, key, (glsn, expiry), value);
        } else if view.is_past(at) && hit.is_in_a_run() {
            self.row_cache.fill_past(&view.rows, missed, key, (glsn, at), (value, expiry));
        }
    }

    /// Reads at the newest moment without opening it. If data that the read needs is dropped
    /// meanwhile, reads again at a newer moment.
    pub(crate) fn at_newest<'a, T>(
        &'a self,
        newest: impl Fn() -> Result<Glsn>,
        mut read: impl FnMut(AsOf<'a>) -> Result<T>,
    ) -> Result<T> {
        loop {
            let at = newest()?;
            match read(AsOf::now(at, &self.log)) {
                Err(Error::Trimmed { .. }) if newest()? > at => {}
                done => return done,
            }
        }
    }

    /// Whether an index key has a value as of `at`.
    pub(crate) fn contains(&self, key: &[u8], as_of: AsOf<'_>) -> Result<bool> {
        let at = as_of.glsn;
        self.read(|view| {
            let mut above = view.get_above(key, at)?;
            if above.leaves_it_to_the_runs()
                && above.deleted_at(view, key, at) == Glsn::NONE
                && let Some(answer) = view.rows.contains(key, as_of)
            {
                return Ok(answer.noted(key, as_of).is_some());
            }
            let is_there = |hit: Hit| as_of.sees(key, &hit.stored());
            Ok(view.get_beneath(above, key, at)?.is_some_and(is_there))
        })
    }

    /// When the value of an index key expires as of `at`; `None` if the key has no value.
    pub(crate) fn expiry(&self, key: &[u8], at: AsOf<'_>) -> Result<Option<Option<Expiry>>> {
        self.read(|view| Ok(find(view, key, at)?.map(|hit| hit.stored().expiry())))
    }

    /// A reader of an index key's value as of `at`, which must be an open moment.
    pub(crate) fn reader(
        self: &Arc<Self>,
        key: &[u8],
        at: AsOf<'_>,
    ) -> Result<Option<ValueReader>> {
        // The caller has a snapshot open at `at`, so the moment is retained until this second
        // snapshot is open.
        let moment = self.snapshots.open(&self.budget, || AsOf::new(at.glsn, at.micros()))?;
        let found = self.read(|view| {
            let hit = find(view, key, at)?;
            let copy = |hit: Hit| {
                let stored = hit.stored();
                (OwnedStored::new(stored), stored.expiry(), hit.glsn(), Arc::downgrade(view))
            };
            Ok(hit.map(copy))
        })?;
        let Some((stored, expiry, glsn, view)) = found else { return Ok(None) };
        let len = stored.get().value_bytes();
        let small = if matches!(stored, OwnedStored::Inline(_)) { len } else { 0 };
        let mut charge = self.index.iterators.charge();
        charge.set((size_of::<ValueReader>() + key.len()) as u64 + small)?;
        let origin = Some(Origin { key: key.to_vec(), view, moment, _charge: charge });
        let pieces = Pieces::Plain(running_value_sum());
        let reader = Arc::clone(self);
        Ok(Some(ValueReader { reader, glsn, stored, expiry, at: 0, len, pieces, origin }))
    }

    /// Replaces the contents of `into` by the whole value of a version that is not a deletion.
    /// Returns whether a page of the value was not in memory.
    pub(crate) fn load(&self, glsn: Glsn, stored: Stored<'_>, into: &mut Buffer) -> Result<bool> {
        into.clear();
        let stored = stored.value();
        if let Stored::Inline(value) = stored {
            into.extend_from_slice(value);
            return Ok(false);
        }
        into.resize(stored.value_bytes() as usize);
        if let (Some(elsewhere), Some(packed)) = (stored.elsewhere(), stored.packed()) {
            let mut missed = false;
            let fetch = &mut |at, bytes: &mut [u8]| {
                missed |= self.load_stored(glsn, stored, at, bytes)?;
                Ok(())
            };
            unpack(&self.budget, glsn, (elsewhere, packed), into, fetch)?;
            return Ok(missed);
        }
        let missed = self.load_stored(glsn, stored, 0, into)?;
        stored.check_sum(glsn, value_sum(into))?;
        Ok(missed)
    }

    /// Fills `into` with stored bytes of a version's value from `from` on. Returns whether a page
    /// of them was not in memory.
    pub(crate) fn load_stored(
        &self,
        glsn: Glsn,
        stored: Stored<'_>,
        from: u64,
        into: &mut [u8],
    ) -> Result<bool> {
        match stored.value() {
            Stored::Deleted | Stored::Expiring(_) => Ok(false),
            Stored::Inline(value) => {
                into.copy_from_slice(&value[from as usize..from as usize + into.len()]);
                Ok(false)
            }
            Stored::InLog { offset, .. } => {
                Ok(self.log.read_range(glsn, offset + from, into).lift()?)
            }
            Stored::InBlob { blob, offset, .. } => {
                blob_bytes::read(&self.log, glsn, blob, offset + from, into)
                    .map_err(|error| error.at_glsn(glsn))
            }
            Stored::Dropped { .. } => Err(Error::Dropped { glsn }),
        }
    }
}

/// The version of an index key that is current as of `at`, if it is a value that has not expired.
pub(crate) fn find(view: &Arc<View>, key: &[u8], at: AsOf<'_>) -> Result<Option<Hit>> {
    Ok(view.get(key, at.glsn)?.filter(|hit| at.sees(key, &hit.stored())))
}

/// Reads a value piece by piece, without holding it in memory. The bytes read are verified against
/// the value's checksum before the last piece is returned.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// use std::io::Read as _;
///
/// let films = db.keyspace("films")?;
/// let mut tx = db.begin();
/// tx.put_reader(&films, "metropolis", &mut std::io::repeat(7).take(3 << 20))?;
/// tx.commit()?;
/// let mut film = db.snapshot().get_reader(&films, "metropolis")?.expect("it was put");
/// assert_eq!(film.len(), 3 << 20);
/// let mut piece = [0; 4096];
/// assert!(film.read(&mut piece).expect("the disk is well") > 0);
/// # Ok(())
/// # }
/// ```
pub struct ValueReader {
    reader: Arc<Reader>,
    glsn: Glsn,
    stored: OwnedStored,
    /// When the value expires; known only of a stored value that was found by its key.
    expiry: Option<Expiry>,
    at: u64,
    len: u64,
    pieces: Pieces,
    /// `None` for a transaction's own value, and for a value that is read from the log.
    origin: Option<Origin>,
}

/// The progress of a reader.
enum Pieces {
    /// For a value that is not compressed, and for any value before its first piece: the checksum
    /// of the bytes that were read.
    Plain(Running),
    /// For a compressed value.
    Packed(Box<Unpacked>),
}

/// The current chunk of a compressed value.
struct Unpacked {
    unpacker: Unpacker,
    chunk: Buffer,
    /// The number of the chunk in `chunk`; `None` if there is none.
    number: Option<u64>,
}

/// The value's key and moment, to find it again after compaction has moved it.
struct Origin {
    key: Vec<u8>,
    /// Weak, so that a slow reader does not keep memtables alive.
    view: Weak<View>,
    moment: OpenMoment,
    /// The charge for the reader, the key, and a small value.
    _charge: Charge,
}

impl ValueReader {
    pub(crate) fn of_value(reader: &Arc<Reader>, value: Value) -> Self {
        let len = value.len() as u64;
        Self::of_stored(reader, Glsn::NONE, OwnedStored::Inline(value), len)
    }

    /// A reader of a value that a commit in the log wrote, read from where the commit stored it.
    pub(crate) fn of_logged(reader: &Arc<Reader>, glsn: Glsn, stored: Stored<'_>) -> Self {
        Self::of_stored(reader, glsn, OwnedStored::new(stored), stored.value_bytes())
    }

    fn of_stored(reader: &Arc<Reader>, glsn: Glsn, stored: OwnedStored, len: u64) -> Self {
        let (reader, pieces) = (Arc::clone(reader), Pieces::Plain(running_value_sum()));
        Self { reader, glsn, stored, expiry: None, at: 0, len, pieces, origin: None }
    }

    /// When the value expires; `None` if it does not, or if it was not found by its key.
    pub(crate) fn expiry(&self) -> Option<Expiry> {
        self.expiry
    }

    /// Length of the whole value in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The commit that wrote the value.
    pub(crate) fn glsn(&self) -> Glsn {
        self.glsn
    }

    /// Whether the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl io::Read for ValueReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.read_piece(buf).map_err(io::Error::other)
    }
}

impl ValueReader {
    /// Fills `into` as far as the rest of the value reaches; returns the number of bytes.
    pub(crate) fn read_piece(&mut self, into: &mut [u8]) -> Result<usize> {
        let fits = usize::try_from(self.len - self.at).unwrap_or(usize::MAX).min(into.len());
        while let Err(error) = self.fill(&mut into[..fits]) {
            self.find_again(error)?;
        }
        let end = self.at + fits as u64;
        if fits > 0 && !matches!(self.stored, OwnedStored::Inline(_)) {
            self.check(&into[..fits], end == self.len)?;
        }
        self.at = end;
        Ok(fits)
    }

    /// Whether two values have the same bytes. Both readers must be at the first byte, and are
    /// there again afterwards.
    pub(crate) fn has_bytes_of(&mut self, other: &mut Self) -> Result<bool> {
        if self.len != other.len {
            return Ok(false);
        }
        if let (OwnedStored::Inline(own), OwnedStored::Inline(other)) =
            (&self.stored, &other.stored)
        {
            return Ok(own[..] == other[..]);
        }
        let (mut own_piece, mut other_piece) = ([0; COMPARED_BYTES], [0; COMPARED_BYTES]);
        let is_same = loop {
            let bytes = self.read_piece(&mut own_piece)?;
            other.read_piece(&mut other_piece)?;
            if own_piece[..bytes] != other_piece[..bytes] {
                break false;
            }
            if bytes == 0 {
                break true;
            }
        };
        self.rewind();
        other.rewind();
        Ok(is_same)
    }

    fn rewind(&mut self) {
        (self.at, self.pieces) = (0, Pieces::Plain(running_value_sum()));
    }

    /// Adds a piece to the checksum; if it is the last piece, compares the checksum with the
    /// value's. A caller that continues to read after an error gets the error again, not the end of
    /// the value.
    fn check(&mut self, piece: &[u8], is_last: bool) -> Result<()> {
        let sum = match &mut self.pieces {
            Pieces::Packed(unpacked) if is_last => return unpacked.unpacker.check_all(),
            Pieces::Packed(_) => return Ok(()),
            Pieces::Plain(sum) => sum,
        };
        let before = is_last.then(|| sum.clone());
        sum.take(piece);
        if let Some(before) = before
            && let Err(error) = self.stored.get().check_sum(self.glsn, sum.sum())
        {
            *sum = before;
            return Err(error);
        }
        Ok(())
    }

    fn fill(&mut self, into: &mut [u8]) -> Result<()> {
        self.reader.check_open()?;
        match self.stored.get().packed() {
            Some(packed) => self.fill_unpacked(packed, into),
            None => {
                let stored = self.stored.get();
                self.reader.load_stored(self.glsn, stored, self.at, into).map(|_| ())
            }
        }
    }

    /// As [`ValueReader::fill`], of a compressed value.
    fn fill_unpacked(&mut self, packed: Packed, into: &mut [u8]) -> Result<()> {
        let (reader, glsn, stored) = (&self.reader, self.glsn, self.stored.get());
        let fetch =
            &mut |at, bytes: &mut [u8]| reader.load_stored(glsn, stored, at, bytes).map(|_| ());
        if let Pieces::Plain(_) = self.pieces {
            let stored = stored.elsewhere().expect("an inline value is not compressed");
            let unpacker = Unpacker::begin(&reader.budget, glsn, (stored, packed), fetch)?;
            let chunk_bytes = unpacker.chunk_bytes(0);
            let chunk = Buffer::with_capacity(&reader.budget, Kind::Staging, chunk_bytes)?;
            self.pieces = Pieces::Packed(Box::new(Unpacked { unpacker, chunk, number: None }));
        }
        let Pieces::Packed(unpacked) = &mut self.pieces else { unreachable!("made above") };
        let mut done = 0;
        while done < into.len() {
            let at = self.at + done as u64;
            let bytes = unpacked.chunk_at(at / VALUE_CHUNK_BYTES as u64, fetch)?;
            let bytes = &bytes[at as usize % VALUE_CHUNK_BYTES..];
            let fits = bytes.len().min(into.len() - done);
            into[done..done + fits].copy_from_slice(&bytes[..fits]);
            done += fits;
        }
        Ok(())
    }

    /// Finds the value's current location after a read failed with `error`; returns that error if
    /// nothing was moved.
    fn find_again(&mut self, error: Error) -> Result<()> {
        let Some(origin) = &mut self.origin else {
            return Err(self.reader.trimmed_or(self.glsn, error));
        };
        let Some(view) = self.reader.newer_view(&origin.view) else { return Err(error) };
        let Some(hit) = find(&view, &origin.key, origin.moment.as_of())? else { return Err(error) };
        borders::hit(Border::ValueMoved);
        self.stored = OwnedStored::new(hit.stored());
        origin.view = Arc::downgrade(&view);
        Ok(())
    }
}

impl Unpacked {
    /// A chunk of the value.
    fn chunk_at(&mut self, number: u64, fetch: Fetch<'_>) -> Result<&[u8]> {
        if self.number != Some(number) {
            self.number = None;
            self.chunk.resize(self.unpacker.chunk_bytes(number));
            self.unpacker.chunk(number, &mut self.chunk, fetch)?;
            self.number = Some(number);
        }
        Ok(&self.chunk)
    }
}

impl std::fmt::Debug for ValueReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ValueReader({} of {} bytes)", self.at, self.len)
    }
}
