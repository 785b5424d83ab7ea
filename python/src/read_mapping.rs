//! A keyspace as a readable mapping: the base class of everything that has keys.

use std::time::Duration;

use plimsoll::{Resident, Ttl};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySlice};

use crate::bytes_like::BytesLike;
use crate::many;
use crate::place::{Place, When};
use crate::rows::{self, Part, Rows, Visit, Walk};
use crate::span::KeySpan;
use crate::value_reader::RawValueReader;

/// A sorted mapping of `bytes` to `bytes`: the keys of one keyspace, at one moment or now.
///
/// Keys and values are given as any object with a buffer (`bytes`, `bytearray`, `memoryview`,
/// arrays) and returned as `bytes`. Keys have up to 4 KiB and are sorted as bytes; values have up
/// to 1 GiB.
///
/// >>> db = plimsoll.in_memory()
/// >>> db.update({b"a": b"1", b"b": b"2", b"c": b"3"})
/// >>> with db.snapshot() as snapshot:
/// ...     snapshot[b"a"], b"x" in snapshot, len(snapshot), list(snapshot)
/// (b'1', False, 3, [b'a', b'b', b'c'])
#[pyclass(module = "plimsoll", frozen, subclass, mapping)]
pub struct ReadMapping {
    pub(crate) place: Place,
}

impl ReadMapping {
    #[inline]
    fn value<'py>(&self, py: Python<'py>, key: &[u8]) -> PyResult<Option<Bound<'py, PyBytes>>> {
        match self.place.look(py, key, |value| PyBytes::new(py, value))? {
            Resident::Value(value) => Ok(Some(value)),
            Resident::Absent => Ok(None),
            Resident::NotResident => {
                Ok(self.place.load(py, key)?.map(|value| PyBytes::new(py, &value)))
            }
        }
    }

    fn end<'py>(&self, py: Python<'py>, reverse: bool) -> PyResult<Option<Bound<'py, PyAny>>> {
        let visit = Visit { reverse, limit: Some(1), ..Visit::default() };
        let mut walk = Walk::new(py, &self.place, visit, false)?;
        let mut found = None;
        walk.for_each_batch(py, |batch| {
            found = batch.next().map(|row| rows::part_of(py, Part::Items, row)).transpose()?;
            Ok(())
        })?;
        Ok(found)
    }
}

#[pymethods]
impl ReadMapping {
    /// The value of a key, or `default` if it has none.
    ///
    /// A value in memory is returned without releasing the GIL; the GIL is released while other
    /// values are read.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db[b"ada"] = b"Ada Lovelace"
    /// >>> db.get(b"ada")
    /// b'Ada Lovelace'
    /// >>> db.get(b"alan", b"unknown")
    /// b'unknown'
    #[pyo3(signature = (key, default = None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: BytesLike<'_>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.value(py, key.get())?.map(Bound::into_any).or(default))
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        key: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(slice) = key.cast::<PySlice>() {
            let span = KeySpan::of_slice(slice)?;
            let rows = Rows::new(py, &self.place, Visit { span, ..Visit::default() }, Part::Items)?;
            return Ok(Bound::new(py, rows)?.into_any());
        }
        let bytes: BytesLike<'_> = key.extract()?;
        match self.value(py, bytes.get())? {
            Some(value) => Ok(value.into_any()),
            None => Err(PyKeyError::new_err(key.unbind())),
        }
    }

    /// The time until the value of a key expires; `None` if it does not. `KeyError` if the key has
    /// no value. A snapshot and a transaction count from the time at which they were made.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> glsn = db.put(b"a", b"1", ttl=60)
    /// >>> db[b"b"] = b"2"
    /// >>> db.ttl(b"a").total_seconds() <= 60, db.ttl(b"b")
    /// (True, None)
    fn ttl(&self, py: Python<'_>, key: BytesLike<'_>) -> PyResult<Option<Duration>> {
        match self.place.ttl(py, key.get())? {
            Ttl::Absent => Err(PyKeyError::new_err(PyBytes::new(py, key.get()).unbind())),
            Ttl::Unlimited => Ok(None),
            Ttl::Expires { left, .. } => Ok(Some(left)),
        }
    }

    fn __contains__(&self, py: Python<'_>, key: BytesLike<'_>) -> PyResult<bool> {
        self.place.contains(py, key.get())
    }

    /// The number of keys. Scans all of them; `LiveMapping.approximate_len` is fast.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(rows::count(py, &self.place, KeySpan::default())? as usize)
    }

    /// Whether there is any key.
    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.end(py, false)?.is_some())
    }

    fn __iter__(&self, py: Python<'_>) -> PyResult<Rows> {
        Rows::new(py, &self.place, Visit::default(), Part::Keys)
    }

    /// The keys from the last to the first.
    fn __reversed__(&self, py: Python<'_>) -> PyResult<Rows> {
        Rows::new(py, &self.place, Visit { reverse: true, ..Visit::default() }, Part::Keys)
    }

    /// The keys from `start` (inclusive) to `stop` (exclusive) that begin with `prefix`, in order;
    /// in reverse order with `reverse`.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.update({b"a": b"1", b"b": b"2", b"c": b"3"})
    /// >>> list(db.keys(b"b"))
    /// [b'b', b'c']
    /// >>> list(db.keys(reverse=True, limit=2))
    /// [b'c', b'b']
    #[pyo3(signature = (start = None, stop = None, *, prefix = None, reverse = false, limit = None))]
    fn keys(
        &self,
        py: Python<'_>,
        start: Option<BytesLike<'_>>,
        stop: Option<BytesLike<'_>>,
        prefix: Option<BytesLike<'_>>,
        reverse: bool,
        limit: Option<u64>,
    ) -> PyResult<Rows> {
        let span = KeySpan::new(start, stop, prefix)?;
        Rows::new(py, &self.place, Visit { span, reverse, limit }, Part::Keys)
    }

    /// The values of these keys: see `keys`.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.update({b"a": b"1", b"b": b"2", b"c": b"3"})
    /// >>> list(db.values(b"b")), list(db.values(reverse=True, limit=1))
    /// ([b'2', b'3'], [b'3'])
    #[pyo3(signature = (start = None, stop = None, *, prefix = None, reverse = false, limit = None))]
    fn values(
        &self,
        py: Python<'_>,
        start: Option<BytesLike<'_>>,
        stop: Option<BytesLike<'_>>,
        prefix: Option<BytesLike<'_>>,
        reverse: bool,
        limit: Option<u64>,
    ) -> PyResult<Rows> {
        let span = KeySpan::new(start, stop, prefix)?;
        Rows::new(py, &self.place, Visit { span, reverse, limit }, Part::Values)
    }

    /// Pairs of key and value: see `keys`. A slice gives the same: `db[b"a":b"m"]`.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.update({b"user/ada": b"1", b"user/alan": b"2", b"visits": b"3"})
    /// >>> dict(db.items(prefix=b"user/"))
    /// {b'user/ada': b'1', b'user/alan': b'2'}
    /// >>> list(db[b"user/alan":])
    /// [(b'user/alan', b'2'), (b'visits', b'3')]
    #[pyo3(signature = (start = None, stop = None, *, prefix = None, reverse = false, limit = None))]
    fn items(
        &self,
        py: Python<'_>,
        start: Option<BytesLike<'_>>,
        stop: Option<BytesLike<'_>>,
        prefix: Option<BytesLike<'_>>,
        reverse: bool,
        limit: Option<u64>,
    ) -> PyResult<Rows> {
        let span = KeySpan::new(start, stop, prefix)?;
        Rows::new(py, &self.place, Visit { span, reverse, limit }, Part::Items)
    }

    /// The pairs whose keys begin with `prefix`, as an iterator.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.update({b"user/ada": b"1", b"user/alan": b"2", b"visits": b"3"})
    /// >>> list(db.prefix(b"user/", reverse=True))
    /// [(b'user/alan', b'2'), (b'user/ada', b'1')]
    #[pyo3(signature = (prefix, *, reverse = false))]
    fn prefix(&self, py: Python<'_>, prefix: BytesLike<'_>, reverse: bool) -> PyResult<Rows> {
        let span = KeySpan::of_prefix(prefix.get());
        Rows::new(py, &self.place, Visit { span, reverse, limit: None }, Part::Items)
    }

    /// Like `items`, all at once as a list: the fastest way to read many rows that fit into memory.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.update({b"a": b"1", b"b": b"2", b"c": b"3"})
    /// >>> db.scan(b"b")
    /// [(b'b', b'2'), (b'c', b'3')]
    /// >>> db.scan(reverse=True, limit=1)
    /// [(b'c', b'3')]
    #[pyo3(signature = (start = None, stop = None, *, prefix = None, reverse = false, limit = None))]
    fn scan<'py>(
        &self,
        py: Python<'py>,
        start: Option<BytesLike<'_>>,
        stop: Option<BytesLike<'_>>,
        prefix: Option<BytesLike<'_>>,
        reverse: bool,
        limit: Option<u64>,
    ) -> PyResult<Bound<'py, PyList>> {
        let span = KeySpan::new(start, stop, prefix)?;
        let list = PyList::empty(py);
        let mut walk = Walk::new(py, &self.place, Visit { span, reverse, limit }, false)?;
        walk.for_each_batch(py, |batch| {
            for row in batch {
                list.append(rows::part_of(py, Part::Items, row)?)?;
            }
            Ok(())
        })?;
        Ok(list)
    }

    /// The values of many keys at one moment, in the order of the keys; `default` for keys without
    /// a value.
    ///
    /// Values in memory are read first, without releasing the GIL; it is released once for all the
    /// others.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.update({b"a": b"1", b"b": b"2"})
    /// >>> db.get_many([b"b", b"x", b"a"])
    /// [b'2', None, b'1']
    #[pyo3(signature = (keys, default = None))]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let default = default.unwrap_or_else(|| py.None().into_bound(py));
        many::get_many(py, &self.place, keys, &default)
    }

    /// The first key and its value; `None` if there is no key.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.update({b"a": b"1", b"b": b"2", b"c": b"3"})
    /// >>> db.first(), db.keyspace("cats").first()
    /// ((b'a', b'1'), None)
    fn first<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.end(py, false)
    }

    /// The last key and its value; `None` if there is no key.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.update({b"a": b"1", b"b": b"2", b"c": b"3"})
    /// >>> db.last(), db.keyspace("cats").last()
    /// ((b'c', b'3'), None)
    fn last<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.end(py, true)
    }

    /// The number of keys from `start` to `stop` that begin with `prefix`. Scans them without
    /// reading their values.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.update({b"user/ada": b"1", b"user/alan": b"2", b"visits": b"3"})
    /// >>> db.count(), db.count(prefix=b"user/")
    /// (3, 2)
    #[pyo3(signature = (start = None, stop = None, *, prefix = None))]
    fn count(
        &self,
        py: Python<'_>,
        start: Option<BytesLike<'_>>,
        stop: Option<BytesLike<'_>>,
        prefix: Option<BytesLike<'_>>,
    ) -> PyResult<u64> {
        rows::count(py, &self.place, KeySpan::new(start, stop, prefix)?)
    }

    /// A file object that reads a large value in pieces; raises `KeyError` if the key has no value.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db[b"film"] = b"x" * 3_000_000
    /// >>> with db.open_value(b"film") as film:
    /// ...     len(film.read(1_000_000))
    /// 1000000
    fn open_value<'py>(
        &self,
        py: Python<'py>,
        key: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let bytes: BytesLike<'_> = key.extract()?;
        match self.place.value_reader(py, bytes.get())? {
            Some(reader) => RawValueReader::open(py, reader),
            None => Err(PyKeyError::new_err(key.unbind())),
        }
    }

    /// The name of its keyspace.
    #[getter]
    fn keyspace_name(&self) -> &str {
        self.place.keyspace.name()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let name = self.place.keyspace.name();
        Ok(match &self.place.when {
            When::Now => format!("<plimsoll keyspace {name:?} of {:?}>", self.place.store.path),
            When::On(branch) => {
                format!("<plimsoll keyspace {name:?} on branch {:?}>", branch.get()?.name())
            }
            When::At(snapshot) => format!("<plimsoll keyspace {name:?} at GLSN {}>", snapshot.at),
            When::In(transaction) if transaction.is_open(py) => {
                format!(
                    "<plimsoll keyspace {name:?} in a transaction that reads at GLSN {}>",
                    transaction.at
                )
            }
            When::In(_) => format!("<plimsoll keyspace {name:?} in a transaction that has ended>"),
        })
    }
}
