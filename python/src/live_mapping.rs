//! The current state of a keyspace, with operations that only the present supports, such as
//! history, watches and bulk loads.

use pyo3::PyClass;
use pyo3::prelude::*;

use crate::bytes_like::BytesLike;
use crate::diff::{self, Diff};
use crate::errors::OrRaise;
use crate::history::History;
use crate::many;
use crate::place::Place;
use crate::read_mapping::ReadMapping;
use crate::span::KeySpan;
use crate::watch::Watch;
use crate::write_mapping::{self, WriteMapping};

/// A keyspace of an open store, as it is now. Each change is a separate commit.
///
/// >>> db = plimsoll.in_memory()
/// >>> cats = db.keyspace("cats")
/// >>> first = cats.put(b"tom", b"grey")
/// >>> second = cats.put(b"tom", b"black")
/// >>> second - first, [version.value() for version in cats.history(b"tom")]
/// (1, [b'black', b'grey'])
#[pyclass(module = "plimsoll", frozen, subclass, mapping, extends = WriteMapping)]
pub struct LiveMapping;

/// The initializer of a live mapping in `place`, with its base classes.
pub(crate) fn layers(place: Place) -> PyClassInitializer<LiveMapping> {
    write_mapping::layers(place).add_subclass(LiveMapping)
}

/// The initializer of an instance of a subclass, with its base classes.
pub(crate) fn init<T: PyClass<BaseType = LiveMapping>>(
    place: Place,
    top: T,
) -> PyClassInitializer<T> {
    layers(place).add_subclass(top)
}

/// The place of a live mapping.
pub(crate) fn place<'a>(this: &'a PyRef<'_, LiveMapping>) -> &'a Place {
    let read: &ReadMapping = this.as_super().as_super();
    &read.place
}

#[pymethods]
impl LiveMapping {
    /// The retained versions of a key, newest first, in all keyspaces that have or had this name.
    /// Dropping a keyspace counts as a deletion of each of its keys.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db[b"tea"] = b"3.10"
    /// >>> db[b"tea"] = b"3.20"
    /// >>> [version.value() for version in db.history(b"tea")]
    /// [b'3.20', b'3.10']
    fn history(this: PyRef<'_, Self>, key: BytesLike<'_>) -> PyResult<History> {
        let (py, place) = (this.py(), place(&this));
        let db = place.store.db()?;
        let key = key.get();
        let history = py.detach(|| db.history(&place.keyspace, key)).or_raise()?;
        Ok(History::new(key, history))
    }

    /// The keys beginning with `prefix` whose values differ between two states, in key order. A
    /// state is a GLSN, a branch as it is now, or a snapshot, which may be one of a branch. Each
    /// state is read in the keyspace that had this name then.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> before = db.put(b"tea", b"3.10")
    /// >>> after = db.put(b"tea", b"3.20")
    /// >>> [(d.key, d.before.value(), d.after.value()) for d in db.diff(before, after)]
    /// [(b'tea', b'3.10', b'3.20')]
    /// >>> draft = db.create_branch("draft")
    /// >>> draft[b"cocoa"] = b"4.00"
    /// >>> [d.key for d in db.diff(db.main, draft)]
    /// [b'cocoa']
    #[pyo3(signature = (first, second, prefix = None))]
    fn diff(
        this: PyRef<'_, Self>,
        first: &Bound<'_, PyAny>,
        second: &Bound<'_, PyAny>,
        prefix: Option<BytesLike<'_>>,
    ) -> PyResult<Diff> {
        diff::between(this.py(), place(&this), [first, second], prefix)
    }

    /// Watches the keys that begin with `prefix`: an iterator over their changes that waits for the
    /// next one. It starts at the commit `start`, or with the next commit. Only commits on branch
    /// main are watched: `Branch.watch` watches another one.
    ///
    /// With `expiries`, it also returns when a value expires, within a second and before the changes
    /// with a later time: a change whose `expired` is true, with the GLSN of the commit that put the
    /// value. Each expiry after the call is returned once, unless the value is replaced before it.
    /// The store retains the current versions until the next change is requested.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> with db.watch(b"user/") as watch:
    /// ...     db[b"user/ada"] = b"Ada"
    /// ...     change = next(watch)
    /// >>> change.key, change.value()
    /// (b'user/ada', b'Ada')
    #[pyo3(signature = (prefix = None, *, start = None, expiries = false))]
    fn watch(
        this: PyRef<'_, Self>,
        prefix: Option<BytesLike<'_>>,
        start: Option<u64>,
        expiries: bool,
    ) -> PyResult<Watch> {
        Watch::of_place(this.py(), place(&this), prefix, start, expiries)
    }

    /// Like `watch`, for asyncio: `async for change in db.watch_async(b"user/")`.
    ///
    /// >>> import asyncio
    /// >>> async def first_change(db):
    /// ...     async with db.watch_async(b"user/") as watch:
    /// ...         db[b"user/ada"] = b"Ada"
    /// ...         async for change in watch:
    /// ...             return change.key, change.value()
    /// >>> asyncio.run(first_change(plimsoll.in_memory()))
    /// (b'user/ada', b'Ada')
    #[pyo3(signature = (prefix = None, *, start = None, expiries = false))]
    fn watch_async<'py>(
        this: PyRef<'py, Self>,
        prefix: Option<BytesLike<'py>>,
        start: Option<u64>,
        expiries: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = this.py();
        let watch = Self::watch(this, prefix, start, expiries)?;
        py.import("plimsoll._watch_async")?.getattr("AsyncWatch")?.call1((watch,))
    }

    /// Loads any number of pairs in any order in one commit, several times as fast as `put_many`.
    /// Sorting them uses up to a quarter of the memory budget. Of pairs with the same key the last
    /// one wins. Returns the commit's GLSN.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> glsn = db.bulk_load((b"%06d" % n, b"x") for n in range(20_000))
    /// >>> db.approximate_len() > 10_000
    /// True
    fn bulk_load(this: PyRef<'_, Self>, pairs: Bound<'_, PyAny>) -> PyResult<u64> {
        let (py, place) = (this.py(), place(&this));
        let mut load = place.store.db()?.begin_bulk_load(&place.keyspace).or_raise()?;
        many::for_pairs(&pairs, |batch, _| {
            let rows: Vec<(&[u8], &[u8])> =
                batch.iter().map(|(key, value)| (key.get(), value.get())).collect();
            py.detach(|| rows.iter().try_for_each(|(key, value)| load.put(key, value))).or_raise()
        })?;
        Ok(py.detach(|| load.commit()).or_raise()?.0)
    }

    /// Estimates the number of keys from `start` to `stop` that begin with `prefix`. It costs some
    /// dozens of gets, regardless of the number of keys. For many keys the error is about an
    /// eighth. `len` and `count` are exact.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> glsn = db.put_many((b"user/%05d" % n, b"x") for n in range(1000))
    /// >>> 500 < db.approximate_len(prefix=b"user/") < 1500
    /// True
    #[pyo3(signature = (start = None, stop = None, *, prefix = None))]
    fn approximate_len(
        this: PyRef<'_, Self>,
        start: Option<BytesLike<'_>>,
        stop: Option<BytesLike<'_>>,
        prefix: Option<BytesLike<'_>>,
    ) -> PyResult<u64> {
        let (py, place) = (this.py(), place(&this));
        let bounds = KeySpan::new(start, stop, prefix)?.behind(None, false);
        let db = place.store.db()?;
        py.detach(|| db.approximate_len(&place.keyspace, bounds)).or_raise()
    }
}
