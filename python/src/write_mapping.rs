//! A keyspace as a writable mapping: each call commits, or belongs to a transaction.

use std::time::{Duration, SystemTime};

use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDateTime, PySlice, PyTuple};

use crate::bytes_like::BytesLike;
use crate::errors::OrRaise;
use crate::many;
use crate::moments::from_datetime;
use crate::options::Lives;
use crate::place::{Place, When};
use crate::read_mapping::ReadMapping;
use crate::rows::{self, Part, Visit, Walk};
use crate::span::KeySpan;
use crate::transact::change;
use crate::updates::{self, update};

/// A sorted mapping of `bytes` to `bytes` that can be changed: a keyspace of an open store, where
/// each call is a commit, or of a transaction, where all calls form one commit.
///
/// >>> db = plimsoll.in_memory()
/// >>> db[b"a"] = b"1"
/// >>> with db.transaction() as tx:
/// ...     tx[b"b"] = b"2"
/// ...     del tx[b"a"]
/// >>> list(db.items())
/// [(b'b', b'2')]
#[pyclass(module = "plimsoll", frozen, subclass, mapping, extends = ReadMapping)]
pub struct WriteMapping;

/// The initializer of a mapping in `place`, with its base class.
pub(crate) fn layers(place: Place) -> PyClassInitializer<WriteMapping> {
    PyClassInitializer::from(ReadMapping { place }).add_subclass(WriteMapping)
}

/// Bytes that are counted for a write that also reads: so many that the GIL is released.
const READS_BYTES: usize = 1 << 20;

/// The place of a mapping.
fn place_of<'a>(this: &'a PyRef<'_, WriteMapping>) -> &'a Place {
    let read: &ReadMapping = this.as_super();
    &read.place
}

pub(crate) fn put(
    py: Python<'_>,
    place: &Place,
    key: &[u8],
    value: &[u8],
    ttl: Option<Duration>,
) -> PyResult<Option<u64>> {
    let space = &place.keyspace;
    match &place.when {
        When::Now => {
            let db = place.store.db()?;
            let put = || match ttl {
                None => db.put(space, key, value),
                Some(ttl) => db.put_with_ttl(space, key, value, ttl),
            };
            Ok(Some(py.detach(put).or_raise()?.0))
        }
        When::On(branch) => {
            let branch = branch.get()?;
            let put = || match ttl {
                None => branch.put(space, key, value),
                Some(ttl) => branch.put_with_ttl(space, key, value, ttl),
            };
            Ok(Some(py.detach(put).or_raise()?.0))
        }
        When::In(transaction) => transaction
            .write(py, key.len() + value.len(), |transaction| match ttl {
                None => transaction.put(space, key, value),
                Some(ttl) => transaction.put_with_ttl(space, key, value, ttl),
            })
            .map(|()| None),
        When::At(_) => unreachable!("a snapshot is not a WriteMapping"),
    }
}

/// Changes when the value of a key expires; `None`: it does not. Returns whether there is a value.
fn expire(py: Python<'_>, place: &Place, key: &[u8], at: Option<SystemTime>) -> PyResult<bool> {
    let space = &place.keyspace;
    match &place.when {
        When::Now => {
            let db = place.store.db()?;
            let expire = || match at {
                Some(at) => db.expire_at(space, key, at),
                None => db.persist(space, key),
            };
            py.detach(expire).or_raise()
        }
        When::On(branch) => {
            let branch = branch.get()?;
            let expire = || match at {
                Some(at) => branch.expire_at(space, key, at),
                None => branch.persist(space, key),
            };
            py.detach(expire).or_raise()
        }
        // It reads the value, which may wait for the disk.
        When::In(transaction) => transaction.write(py, READS_BYTES, |transaction| match at {
            Some(at) => transaction.expire_at(space, key, at),
            None => transaction.persist(space, key),
        }),
        When::At(_) => unreachable!("a snapshot is not a WriteMapping"),
    }
}

pub(crate) fn delete(py: Python<'_>, place: &Place, key: &[u8]) -> PyResult<Option<u64>> {
    match &place.when {
        When::Now => {
            let db = place.store.db()?;
            let glsn = py.detach(|| db.delete(&place.keyspace, key)).or_raise()?;
            Ok(Some(glsn.0))
        }
        When::On(branch) => {
            let branch = branch.get()?;
            let glsn = py.detach(|| branch.delete(&place.keyspace, key)).or_raise()?;
            Ok(Some(glsn.0))
        }
        When::In(transaction) => transaction
            .write(py, key.len(), |transaction| transaction.delete(&place.keyspace, key))
            .map(|()| None),
        When::At(_) => unreachable!("a snapshot is not a WriteMapping"),
    }
}

/// Removes and returns the first or the last row.
fn take_end<'py>(
    py: Python<'py>,
    place: &Place,
    reverse: bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let (taken, _) = change(py, place, |place| {
        let visit = Visit { reverse, limit: Some(1), ..Visit::default() };
        let mut taken = None;
        Walk::new(py, place, visit, false)?.for_each_batch(py, |batch| {
            for (key, value) in batch {
                taken = Some((key.to_vec(), rows::part_of(py, Part::Items, (key, value))?));
            }
            Ok(())
        })?;
        let Some((key, row)) = taken else { return Ok(None) };
        delete(py, place, &key)?;
        Ok(Some(row))
    })?;
    Ok(taken)
}

/// The value of a key, for a change that depends on it.
fn value<'py>(py: Python<'py>, place: &Place, key: &[u8]) -> PyResult<Option<Bound<'py, PyBytes>>> {
    Ok(place.load(py, key)?.map(|value| PyBytes::new(py, &value)))
}

#[pymethods]
impl WriteMapping {
    /// Sets the value of a key. Returns the commit's GLSN once it is durable; in a transaction:
    /// `None`.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> glsn = db.put(b"ada", b"Ada Lovelace")
    /// >>> db.at(glsn)[b"ada"]
    /// b'Ada Lovelace'
    ///
    /// With `ttl` (seconds, or a `timedelta`), the value expires after that time: from then on the
    /// key has no value. A put without it gives the value the time to live of the keyspace
    /// (`Keyspace.default_ttl`), or none.
    ///
    /// >>> glsn = db.put(b"code", b"1234", ttl=300)
    /// >>> 299 < db.ttl(b"code").total_seconds() <= 300
    /// True
    #[pyo3(signature = (key, value, *, ttl = None))]
    fn put(
        this: PyRef<'_, Self>,
        key: BytesLike<'_>,
        value: BytesLike<'_>,
        ttl: Option<Lives>,
    ) -> PyResult<Option<u64>> {
        put(this.py(), place_of(&this), key.get(), value.get(), ttl.map(|ttl| ttl.0))
    }

    /// Changes when the value of a key expires, to a `datetime` after now. Returns whether the key
    /// has a value; without one, nothing is written.
    ///
    /// >>> from datetime import datetime, timedelta, timezone
    /// >>> db = plimsoll.in_memory()
    /// >>> db[b"a"] = b"1"
    /// >>> soon = datetime.now(timezone.utc) + timedelta(hours=1)
    /// >>> db.expire_at(b"a", soon), db.expire_at(b"b", soon)
    /// (True, False)
    /// >>> db.ttl(b"a") <= timedelta(hours=1)
    /// True
    fn expire_at(
        this: PyRef<'_, Self>,
        key: BytesLike<'_>,
        time: Bound<'_, PyDateTime>,
    ) -> PyResult<bool> {
        let at = from_datetime(time.as_any())?;
        expire(this.py(), place_of(&this), key.get(), Some(at))
    }

    /// Removes the expiry of a key's value. Returns whether the key has a value.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> glsn = db.put(b"a", b"1", ttl=60)
    /// >>> db.persist(b"a"), db.ttl(b"a")
    /// (True, None)
    fn persist(this: PyRef<'_, Self>, key: BytesLike<'_>) -> PyResult<bool> {
        expire(this.py(), place_of(&this), key.get(), None)
    }

    /// Deletes a key, if it exists. Returns the commit's GLSN; in a transaction: `None`.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.update({b"a": b"1", b"b": b"2", b"c": b"3"})
    /// >>> glsn = db.delete(b"a")
    /// >>> b"a" in db, b"a" in db.at(glsn - 1)
    /// (False, True)
    fn delete(this: PyRef<'_, Self>, key: BytesLike<'_>) -> PyResult<Option<u64>> {
        delete(this.py(), place_of(&this), key.get())
    }

    /// Adds to the number that a key has, and returns the sum; in a transaction: `None`. A number
    /// is 8 bytes, little endian, signed; a key without a value counts as 0. Writers that add to
    /// one key do not conflict. `overflow` is "checked" (an error), "saturating" or "wrapping".
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.add(b"visits", 1), db.add(b"visits", 2)
    /// (1, 3)
    /// >>> with db.transaction() as tx:
    /// ...     tx.add(b"visits", 4)
    /// >>> int.from_bytes(db[b"visits"], "little", signed=True)
    /// 7
    #[pyo3(signature = (key, number = 1, *, overflow = "checked"))]
    fn add(
        this: PyRef<'_, Self>,
        key: BytesLike<'_>,
        number: i64,
        overflow: &str,
    ) -> PyResult<Option<i64>> {
        let (key, overflow) = (key.get(), updates::overflow(overflow)?);
        update(
            this.py(),
            place_of(&this),
            key.len(),
            |branch, space| branch.add(space, key, number, overflow),
            |tx, space| tx.add(space, key, number, overflow),
        )
    }

    /// Raises the number that a key has to at least `number`, and returns the greater of both; in a
    /// transaction: `None`. See `add`.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.max(b"most", 3), db.max(b"most", 1)
    /// (3, 3)
    fn max(this: PyRef<'_, Self>, key: BytesLike<'_>, number: i64) -> PyResult<Option<i64>> {
        let key = key.get();
        update(
            this.py(),
            place_of(&this),
            key.len(),
            |branch, space| branch.max(space, key, number),
            |tx, space| tx.max(space, key, number),
        )
    }

    /// Lowers the number that a key has to at most `number`, and returns the lesser of both; in a
    /// transaction: `None`. See `add`.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.min(b"least", 3), db.min(b"least", 1)
    /// (3, 1)
    fn min(this: PyRef<'_, Self>, key: BytesLike<'_>, number: i64) -> PyResult<Option<i64>> {
        let key = key.get();
        update(
            this.py(),
            place_of(&this),
            key.len(),
            |branch, space| branch.min(space, key, number),
            |tx, space| tx.min(space, key, number),
        )
    }

    /// Appends to the value of a key, and returns its new length; in a transaction: `None`.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.append(b"a", b"one"), db.append(b"a", b"two"), db[b"a"]
    /// (3, 6, b'onetwo')
    fn append(
        this: PyRef<'_, Self>,
        key: BytesLike<'_>,
        value: BytesLike<'_>,
    ) -> PyResult<Option<u64>> {
        let (key, value) = (key.get(), value.get());
        update(
            this.py(),
            place_of(&this),
            key.len() + value.len(),
            |branch, space| branch.append(space, key, value),
            |tx, space| tx.append(space, key, value),
        )
    }

    /// Sets the value of a key if it has none, and returns whether it had none; in a transaction:
    /// `None`.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.set_if_absent(b"a", b"1"), db.set_if_absent(b"a", b"2"), db[b"a"]
    /// (True, False, b'1')
    fn set_if_absent(
        this: PyRef<'_, Self>,
        key: BytesLike<'_>,
        value: BytesLike<'_>,
    ) -> PyResult<Option<bool>> {
        let (key, value) = (key.get(), value.get());
        update(
            this.py(),
            place_of(&this),
            key.len() + value.len(),
            |branch, space| branch.set_if_absent(space, key, value),
            |tx, space| tx.set_if_absent(space, key, value),
        )
    }

    /// Replaces the value `expected` of a key by `new`, where `None` is no value, and returns
    /// whether the key had it. In a transaction: `None`; its commit fails with `ValueError` if the
    /// key has another value.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.compare_and_swap(b"a", None, b"1"), db.compare_and_swap(b"a", b"2", b"3")
    /// (True, False)
    /// >>> db.compare_and_swap(b"a", b"1", None), b"a" in db
    /// (True, False)
    fn compare_and_swap(
        this: PyRef<'_, Self>,
        key: BytesLike<'_>,
        expected: Option<BytesLike<'_>>,
        new: Option<BytesLike<'_>>,
    ) -> PyResult<Option<bool>> {
        let key = key.get();
        let (expected, new) =
            (expected.as_ref().map(BytesLike::get), new.as_ref().map(BytesLike::get));
        let bytes = [Some(key), expected, new].into_iter().flatten().map(<[u8]>::len).sum();
        update(
            this.py(),
            place_of(&this),
            bytes,
            |branch, space| branch.compare_and_swap(space, key, expected, new),
            |tx, space| tx.compare_and_swap(space, key, expected, new),
        )
    }

    /// Sets a bit of the value of a key, and returns whether it was set; in a transaction: `None`.
    /// Bit `n` is bit `n % 8`, counted from the lowest, of byte `n // 8`.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.set_bit(b"seen", 9), db.set_bit(b"seen", 9), db[b"seen"]
    /// (False, True, b'\x00\x02')
    fn set_bit(this: PyRef<'_, Self>, key: BytesLike<'_>, bit: u64) -> PyResult<Option<bool>> {
        let key = key.get();
        update(
            this.py(),
            place_of(&this),
            key.len(),
            |branch, space| branch.set_bit(space, key, bit),
            |tx, space| tx.set_bit(space, key, bit),
        )
    }

    /// Clears a bit of the value of a key, and returns whether it was set; in a transaction:
    /// `None`. See `set_bit`.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.set_bit(b"seen", 9), db.clear_bit(b"seen", 9), db[b"seen"]
    /// (False, True, b'\x00\x00')
    fn clear_bit(this: PyRef<'_, Self>, key: BytesLike<'_>, bit: u64) -> PyResult<Option<bool>> {
        let key = key.get();
        update(
            this.py(),
            place_of(&this),
            key.len(),
            |branch, space| branch.clear_bit(space, key, bit),
            |tx, space| tx.clear_bit(space, key, bit),
        )
    }

    /// Sets the value of a key to the result of `function` for its current value, and returns it;
    /// `None` stands for no value. `function` is called again if another commit changes the key
    /// meanwhile.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db[b"a"] = b"ada"
    /// >>> db.modify(b"a", bytes.upper), db[b"a"]
    /// (b'ADA', b'ADA')
    fn modify<'py>(
        this: PyRef<'py, Self>,
        key: BytesLike<'py>,
        function: Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = this.py();
        let (new, _) = change(py, place_of(&this), |place| {
            let new = function.call1((value(py, place, key.get())?,))?;
            if new.is_none() {
                delete(py, place, key.get())?;
                return Ok(None);
            }
            put(py, place, key.get(), new.extract::<BytesLike<'_>>()?.get(), None)?;
            Ok(Some(new))
        })?;
        Ok(new)
    }

    fn __setitem__(
        this: PyRef<'_, Self>,
        key: BytesLike<'_>,
        value: BytesLike<'_>,
    ) -> PyResult<()> {
        put(this.py(), place_of(&this), key.get(), value.get(), None).map(drop)
    }

    fn __delitem__(this: PyRef<'_, Self>, key: Bound<'_, PyAny>) -> PyResult<()> {
        let py = this.py();
        if let Ok(slice) = key.cast::<PySlice>() {
            return delete_range(py, place_of(&this), &KeySpan::of_slice(slice)?).map(drop);
        }
        let bytes: BytesLike<'_> = key.extract()?;
        let (was_there, _) = change(py, place_of(&this), |place| {
            let was_there = place.contains(py, bytes.get())?;
            if was_there {
                delete(py, place, bytes.get())?;
            }
            Ok(was_there)
        })?;
        if was_there { Ok(()) } else { Err(PyKeyError::new_err(key.unbind())) }
    }

    /// Puts the pairs of a mapping or an iterable, all in one transaction. Returns the commit's
    /// GLSN; in a transaction: `None`.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> glsn = db.put_many((b"%03d" % n, b"x") for n in range(1000))
    /// >>> db.count()
    /// 1000
    fn put_many(this: PyRef<'_, Self>, pairs: Bound<'_, PyAny>) -> PyResult<Option<u64>> {
        let py = this.py();
        Ok(change(py, place_of(&this), |place| many::put_into(py, place, &pairs))?.1)
    }

    /// Deletes keys in one transaction, ignoring missing ones. Returns the same as `put_many`.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.update({b"a": b"1", b"b": b"2", b"c": b"3"})
    /// >>> glsn = db.delete_many([b"a", b"c", b"x"])
    /// >>> list(db)
    /// [b'b']
    fn delete_many(this: PyRef<'_, Self>, keys: Bound<'_, PyAny>) -> PyResult<Option<u64>> {
        let py = this.py();
        Ok(change(py, place_of(&this), |place| many::delete_from(py, place, &keys))?.1)
    }

    /// Deletes the keys from `start` (inclusive) to `stop` (exclusive) that begin with `prefix`, by
    /// one record, however many they are. `del db[start:stop]` does the same. Returns the commit's
    /// GLSN; in a transaction: `None`. A range that can hold no key is an error. On a branch, it
    /// takes as long as the deletion of each key.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.update({b"a": b"1", b"b": b"2", b"c": b"3"})
    /// >>> del db[b"b":]
    /// >>> list(db)
    /// [b'a']
    #[pyo3(signature = (start = None, stop = None, *, prefix = None))]
    fn delete_range(
        this: PyRef<'_, Self>,
        start: Option<BytesLike<'_>>,
        stop: Option<BytesLike<'_>>,
        prefix: Option<BytesLike<'_>>,
    ) -> PyResult<Option<u64>> {
        let py = this.py();
        let span = KeySpan::new(start, stop, prefix)?;
        delete_range(py, place_of(&this), &span)
    }

    /// Deletes the keys that begin with `prefix`, as `delete_range` does.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.update({b"a/1": b"", b"a/2": b"", b"b": b""})
    /// >>> glsn = db.delete_prefix(b"a/")
    /// >>> list(db), list(db.at(glsn - 1))
    /// ([b'b'], [b'a/1', b'a/2', b'b'])
    fn delete_prefix(this: PyRef<'_, Self>, prefix: BytesLike<'_>) -> PyResult<Option<u64>> {
        delete_range(this.py(), place_of(&this), &KeySpan::of_prefix(prefix.get()))
    }

    /// Deletes every key of the keyspace, as `delete_range` does.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.update({b"a": b"1", b"b": b"2", b"c": b"3"})
    /// >>> db.clear()
    /// >>> len(db)
    /// 0
    fn clear(this: PyRef<'_, Self>) -> PyResult<()> {
        delete_range(this.py(), place_of(&this), &KeySpan::default()).map(drop)
    }

    /// Like `dict.update` with one mapping or iterable of pairs, in one transaction.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.update({b"a": b"1", b"b": b"2"})
    /// >>> db.update([(b"b", b"3")])
    /// >>> dict(db.items())
    /// {b'a': b'1', b'b': b'3'}
    fn update(this: PyRef<'_, Self>, other: Bound<'_, PyAny>) -> PyResult<()> {
        let py = this.py();
        change(py, place_of(&this), |place| many::put_into(py, place, &other)).map(drop)
    }

    /// Removes a key and returns its value, or `default`; raises `KeyError` if there is neither.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db[b"a"] = b"1"
    /// >>> db.pop(b"a"), db.pop(b"a", None)
    /// (b'1', None)
    #[pyo3(signature = (key, *default), text_signature = "($self, key, default=...)")]
    fn pop<'py>(
        this: PyRef<'py, Self>,
        key: Bound<'py, PyAny>,
        default: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if default.len() > 1 {
            return Err(PyTypeError::new_err("pop takes a key and one default"));
        }
        let py = this.py();
        let bytes: BytesLike<'_> = key.extract()?;
        let (taken, _) = change(py, place_of(&this), |place| {
            let value = value(py, place, bytes.get())?;
            if value.is_some() {
                delete(py, place, bytes.get())?;
            }
            Ok(value)
        })?;
        match taken {
            Some(value) => Ok(value.into_any()),
            None if default.is_empty() => Err(PyKeyError::new_err(key.unbind())),
            None => default.get_item(0),
        }
    }

    /// Removes the first key and returns it with its value; raises `KeyError` if there is none.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.update({b"b": b"2", b"a": b"1"})
    /// >>> db.popitem(), list(db)
    /// ((b'a', b'1'), [b'b'])
    fn popitem<'py>(this: PyRef<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        take_end(this.py(), place_of(&this), false)?
            .ok_or_else(|| PyKeyError::new_err("there is no key"))
    }

    /// Removes the first key and returns it with its value; `None` if there is none. Concurrent
    /// consumers of one keyspace each get a different key.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.update({b"1": b"wash", b"2": b"dry"})
    /// >>> db.pop_first(), db.pop_last(), db.pop_last()
    /// ((b'1', b'wash'), (b'2', b'dry'), None)
    fn pop_first<'py>(this: PyRef<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        take_end(this.py(), place_of(&this), false)
    }

    /// Like `pop_first`, for the last key.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.update({b"b": b"2", b"a": b"1"})
    /// >>> db.pop_last(), list(db)
    /// ((b'b', b'2'), [b'a'])
    fn pop_last<'py>(this: PyRef<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        take_end(this.py(), place_of(&this), true)
    }

    /// The value of a key; if it has none, sets it to `default` first.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.setdefault(b"a", b"1"), db.setdefault(b"a", b"2")
    /// (b'1', b'1')
    fn setdefault<'py>(
        this: PyRef<'py, Self>,
        key: BytesLike<'py>,
        default: BytesLike<'py>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let py = this.py();
        let (value, _) = change(py, place_of(&this), |place| match value(py, place, key.get())? {
            Some(value) => Ok(value),
            None => {
                put(py, place, key.get(), default.get(), None)?;
                Ok(PyBytes::new(py, default.get()))
            }
        })?;
        Ok(value)
    }
}

fn delete_range(py: Python<'_>, place: &Place, span: &KeySpan) -> PyResult<Option<u64>> {
    let range = span.behind(None, false);
    match &place.when {
        When::Now => {
            let db = place.store.db()?;
            let glsn = py.detach(|| db.delete_range(&place.keyspace, range)).or_raise()?;
            Ok(Some(glsn.0))
        }
        When::On(branch) => {
            let branch = branch.get()?;
            let glsn = py.detach(|| branch.delete_range(&place.keyspace, range)).or_raise()?;
            Ok(Some(glsn.0))
        }
        When::In(transaction) => {
            let bytes = [&span.start, &span.stop].into_iter().flatten().map(Vec::len).sum();
            transaction
                .write(py, bytes, |transaction| transaction.delete_range(&place.keyspace, range))
                .map(|()| None)
        }
        When::At(_) => unreachable!("a snapshot is not a WriteMapping"),
    }
}
