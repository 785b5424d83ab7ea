//! The log: commits, user-defined streams, cursors, trimming.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use plimsoll::Glsn;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyDict};

use crate::bytes_like::BytesLike;
use crate::calls::interruptible;
use crate::commits::{Commit, Commits};
use crate::errors::{self, OrRaise};
use crate::feed::Feed;
use crate::moments::to_datetime;
use crate::options::timeout as timeout_of;
use crate::store::{Store, ended_by_exit};
use crate::ticket::Ticket;

/// The log of a store: its commits and user-defined streams in one total order. Each entry has a
/// GLSN.
///
/// >>> db = plimsoll.in_memory()
/// >>> first, last = db.log.append(7, b"started", b"stopped")
/// >>> [(entry.glsn - first, entry.payload) for entry in db.log.scan(stream=7)]
/// [(0, b'started'), (1, b'stopped')]
#[pyclass(module = "plimsoll", frozen)]
pub struct Log {
    store: Arc<Store>,
}

impl Log {
    pub(crate) fn new(store: &Arc<Store>) -> Self {
        Self { store: Arc::clone(store) }
    }
}

#[pymethods]
impl Log {
    /// The log's first entry, its next GLSN, and the last durable one.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> first, last = db.log.append(7, b"started", b"stopped")
    /// >>> db.log.bounds.next == last + 1, db.log.bounds.durable == last
    /// (True, True)
    #[getter]
    fn bounds(&self) -> PyResult<LogBounds> {
        let bounds = self.store.db()?.log().bounds();
        Ok(LogBounds { first: bounds.first.0, next: bounds.next.0, durable: bounds.durable.0 })
    }

    /// Appends entries to a stream (1 or higher), all or none; returns the GLSNs of the first and
    /// the last once they are durable. The payloads of one call total at most 1 MiB.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> first, last = db.log.append(7, b"started", b"stopped")
    /// >>> last - first, db.log.read(last).payload
    /// (1, b'stopped')
    #[pyo3(signature = (stream, *payloads))]
    fn append(
        &self,
        py: Python<'_>,
        stream: u32,
        payloads: Vec<BytesLike<'_>>,
    ) -> PyResult<(u64, u64)> {
        let db = self.store.db()?;
        let payloads: Vec<&[u8]> = payloads.iter().map(BytesLike::get).collect();
        let glsns = py.detach(|| db.log().append(stream, &payloads)).or_raise()?;
        Ok((glsns.start().0, glsns.end().0))
    }

    /// Like `append`, but does not wait until the entries are durable.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> tickets = [db.log.append_submit(7, payload) for payload in (b"started", b"stopped")]
    /// >>> glsns = [ticket.wait() for ticket in tickets]
    /// >>> db.log.read(glsns[0]).payload
    /// b'started'
    #[pyo3(signature = (stream, *payloads))]
    fn append_submit(
        &self,
        py: Python<'_>,
        stream: u32,
        payloads: Vec<BytesLike<'_>>,
    ) -> PyResult<Ticket> {
        let db = self.store.db()?;
        let payloads: Vec<&[u8]> = payloads.iter().map(BytesLike::get).collect();
        Ok(Ticket::new(py.detach(|| db.log().append_submit(stream, &payloads)).or_raise()?))
    }

    /// Reads one entry.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> first, last = db.log.append(7, b"started", b"stopped")
    /// >>> entry = db.log.read(first)
    /// >>> entry.stream, entry.payload
    /// (7, b'started')
    fn read(&self, py: Python<'_>, glsn: u64) -> PyResult<LogEntry> {
        let db = self.store.db()?;
        let entry = py.detach(|| db.log().read(Glsn(glsn))).or_raise()?;
        Ok(LogEntry::new(entry.glsn, entry.stream, entry.time, entry.payload()))
    }

    /// The entries from `start` (inclusive) to `stop` (exclusive), of one stream or of all: an
    /// iterator up to the newest entry.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> first, last = db.log.append(7, b"started", b"stopped")
    /// >>> [entry.payload for entry in db.log.scan(last, stream=7)]
    /// [b'stopped']
    #[pyo3(signature = (start = None, stop = None, *, stream = None))]
    fn scan(
        &self,
        start: Option<u64>,
        stop: Option<u64>,
        stream: Option<u32>,
    ) -> PyResult<LogScan> {
        let first = self.store.db()?.log().bounds().first;
        let walk = LogWalk {
            next: Glsn(start.unwrap_or(first.0)),
            stop: stop.map(Glsn),
            stream,
            ahead: Vec::new().into_iter(),
            at_end: false,
        };
        Ok(LogScan { store: Arc::clone(&self.store), walk: Mutex::new(walk) })
    }

    /// Follows the entries from `start` on, of one stream or of all: an iterator that waits for the
    /// next one.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> follow = db.log.follow(stream=7)
    /// >>> follow.next(timeout=0) is None
    /// True
    /// >>> glsns = db.log.append(7, b"started")
    /// >>> next(follow).payload
    /// b'started'
    #[pyo3(signature = (start = None, *, stream = None))]
    fn follow(
        &self,
        py: Python<'_>,
        start: Option<u64>,
        stream: Option<u32>,
    ) -> PyResult<LogFollow> {
        let db = self.store.db()?;
        let from = match start {
            Some(start) => Glsn(start),
            None => self.store.newest(py, plimsoll::Db::newest)?.next(),
        };
        let follow = db.log().follow(from, stream).or_raise()?;
        Ok(LogFollow { _store: Arc::clone(&self.store), follow: Feed::new(follow) })
    }

    /// The commits from `start` on, in order. With `keyspace`, only its changes to keys that begin
    /// with `prefix` are returned, and commits without such changes are skipped.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> first = db.put(b"user/ada", b"Ada")
    /// >>> second = db.put(b"visits", b"1")
    /// >>> [commit.glsn - first for commit in db.log.commits(first)]
    /// [0, 1]
    /// >>> users = db.log.commits(first, keyspace="default", prefix=b"user/")
    /// >>> [commit.glsn - first for commit in users]
    /// [0]
    #[pyo3(signature = (start = None, *, keyspace = None, prefix = None))]
    fn commits(
        &self,
        py: Python<'_>,
        start: Option<u64>,
        keyspace: Option<&Bound<'_, PyAny>>,
        prefix: Option<BytesLike<'_>>,
    ) -> PyResult<Commits> {
        let db = self.store.db()?;
        let from = Glsn(start.unwrap_or_else(|| db.log().bounds().first.0));
        let commits = match (keyspace, prefix) {
            (None, None) => db.log().commits(from),
            (None, Some(_)) => {
                return Err(errors::invalid(
                    "a prefix needs a keyspace, e.g. keyspace=\"default\"",
                ));
            }
            (Some(keyspace), prefix) => {
                let keyspace = crate::keyspace::existing(py, &self.store, keyspace)?;
                db.watch(&keyspace, prefix.as_ref().map_or(&b""[..], BytesLike::get), from)
            }
        };
        Ok(Commits::new(&self.store, commits.or_raise()?))
    }

    /// The commit with this GLSN; `None` if the entry belongs to a user-defined stream.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> glsn = db.put(b"a", b"1")
    /// >>> [(change.key, change.value()) for change in db.log.commit(glsn)]
    /// [(b'a', b'1')]
    fn commit(&self, py: Python<'_>, glsn: u64) -> PyResult<Option<Commit>> {
        let db = self.store.db()?;
        let commit = py.detach(|| db.log().commit(Glsn(glsn))).or_raise()?;
        Ok(commit.map(|commit| Commit::new(&self.store, commit)))
    }

    /// The next GLSN to read of a follower's named cursor; the cursor is created at `start` if it
    /// does not exist. The log is never trimmed past a cursor.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> glsn = db.put(b"a", b"1")
    /// >>> start = db.log.cursor("mailer", glsn)
    /// >>> next(db.log.commits(start)).glsn == glsn
    /// True
    #[pyo3(signature = (name, start = None))]
    fn cursor(&self, py: Python<'_>, name: &str, start: Option<u64>) -> PyResult<u64> {
        let db = self.store.db()?;
        let from = match start {
            Some(start) => Glsn(start),
            None => self.store.newest(py, plimsoll::Db::newest)?.next(),
        };
        Ok(py.detach(|| db.log().cursor(name, from)).or_raise()?.0)
    }

    /// Advances a cursor: everything below `next` has been processed. Costs a commit.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> glsn = db.put(b"a", b"1")
    /// >>> for commit in db.log.commits(db.log.cursor("mailer", glsn), keyspace="default"):
    /// ...     db.log.advance_cursor("mailer", commit.glsn + 1)
    /// >>> db.log.cursor("mailer") == glsn + 1
    /// True
    fn advance_cursor(&self, py: Python<'_>, name: &str, next: u64) -> PyResult<()> {
        let db = self.store.db()?;
        py.detach(|| db.log().advance_cursor(name, Glsn(next))).or_raise()
    }

    /// Drops a cursor.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> start = db.log.cursor("mailer")
    /// >>> db.log.drop_cursor("mailer")
    /// >>> db.log.cursors()
    /// {}
    fn drop_cursor(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let db = self.store.db()?;
        py.detach(|| db.log().drop_cursor(name)).or_raise()
    }

    /// All cursors and the next GLSN of each.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> start = db.log.cursor("mailer")
    /// >>> db.log.cursors() == {"mailer": start}
    /// True
    fn cursors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for cursor in self.store.db()?.log().cursors() {
            all.set_item(cursor.name, cursor.next.0)?;
        }
        Ok(all)
    }

    /// Resets the log's time to the clock, after commits were made under a clock that was ahead.
    /// Returns the last commit before the reset, or `None` if the log's time is not ahead. Commits
    /// raise `ClockBehind` while the log's time is more than a day ahead. Set this machine's clock
    /// right before the call.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> db.log.restart_time() is None
    /// True
    fn restart_time(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        let db = self.store.db()?.clone();
        Ok(interruptible(py, move || db.log().restart_time())?.or_raise()?.map(|last| last.0))
    }

    /// Frees whole segments of the log below `until`; returns the first remaining GLSN. Keys and
    /// their retained versions stay readable. Reading a freed commit or entry raises `Trimmed`.
    /// With `db.newest + 1` it can free the whole log, including the segment of the newest commit.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> glsn = db.put(b"a", b"1")
    /// >>> db.log.trim(db.newest + 1) == glsn + 1
    /// True
    /// >>> db[b"a"]
    /// b'1'
    fn trim(&self, py: Python<'_>, until: u64) -> PyResult<u64> {
        let db = self.store.db()?.clone();
        Ok(interruptible(py, move || db.log().trim(Glsn(until)))?.or_raise()?.0)
    }
}

/// The bounds of a log.
///
/// >>> db = plimsoll.in_memory()
/// >>> glsn = db.put(b"a", b"1")
/// >>> bounds = db.log.bounds
/// >>> bounds.first <= glsn < bounds.next, bounds.durable == glsn
/// (True, True)
#[pyclass(module = "plimsoll", frozen, get_all)]
pub struct LogBounds {
    /// The lowest GLSN that is not trimmed.
    first: u64,
    /// The GLSN that the next entry will get.
    next: u64,
    /// Every entry up to here survives a power cut.
    durable: u64,
}

#[pymethods]
impl LogBounds {
    fn __repr__(&self) -> String {
        format!(
            "<plimsoll log bounds: first {}, next {}, durable {}>",
            self.first, self.next, self.durable
        )
    }
}

/// An entry of the log.
///
/// >>> db = plimsoll.in_memory()
/// >>> glsns = db.log.append(7, b"started")
/// >>> entry = next(db.log.scan(stream=7))
/// >>> entry.glsn in glsns, entry.stream, entry.payload
/// (True, 7, b'started')
#[pyclass(module = "plimsoll", frozen)]
pub struct LogEntry {
    glsn: Glsn,
    stream: u32,
    time: SystemTime,
    payload: Vec<u8>,
}

impl LogEntry {
    fn new(glsn: Glsn, stream: u32, time: SystemTime, payload: &[u8]) -> Self {
        Self { glsn, stream, time, payload: payload.to_vec() }
    }
}

#[pymethods]
impl LogEntry {
    /// Its position in the log's total order.
    #[getter]
    fn glsn(&self) -> u64 {
        self.glsn.0
    }

    /// Its stream; 0 for commits.
    #[getter]
    fn stream(&self) -> u32 {
        self.stream
    }

    /// Time of the append.
    #[getter]
    fn time<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_datetime(py, self.time)
    }

    /// The appended bytes.
    #[getter]
    fn payload<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.payload)
    }

    fn __repr__(&self) -> String {
        format!(
            "<plimsoll log entry of GLSN {}, stream {}, {} bytes>",
            self.glsn,
            self.stream,
            self.payload.len()
        )
    }
}

/// Entries of the log, from `Log.scan`, read ahead in batches. An unreadable entry is not skipped;
/// each call reads it again.
///
/// >>> db = plimsoll.in_memory()
/// >>> first, last = db.log.append(7, b"started", b"stopped")
/// >>> for entry in db.log.scan(first):
/// ...     print(entry.stream, entry.payload)
/// 7 b'started'
/// 7 b'stopped'
#[pyclass(module = "plimsoll", frozen)]
pub struct LogScan {
    store: Arc<Store>,
    walk: Mutex<LogWalk>,
}

struct LogWalk {
    next: Glsn,
    stop: Option<Glsn>,
    stream: Option<u32>,
    ahead: std::vec::IntoIter<LogEntry>,
    at_end: bool,
}

impl LogWalk {
    /// Reads entries ahead.
    fn fill(&mut self, db: &plimsoll::Db) -> plimsoll::Result<()> {
        const ENTRIES: usize = 1024;
        const BYTES: usize = 1 << 20;
        let log = db.log();
        let mut scan = match self.stop {
            Some(stop) => log.scan(self.next..stop.max(self.next), self.stream)?,
            None => log.scan(self.next.., self.stream)?,
        };
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while entries.len() < ENTRIES && bytes < BYTES {
            match scan.next() {
                Some(Ok(entry)) => {
                    bytes += entry.payload.len();
                    self.next = entry.glsn.next();
                    entries.push(LogEntry::new(
                        entry.glsn,
                        entry.stream,
                        entry.time,
                        entry.payload,
                    ));
                }
                Some(Err(error)) if entries.is_empty() => return Err(error),
                // Return the entries before it first; the next batch reads it again.
                Some(Err(_)) => break,
                None => {
                    self.at_end = true;
                    break;
                }
            }
        }
        self.ahead = entries.into_iter();
        Ok(())
    }
}

#[pymethods]
impl LogScan {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<LogEntry>> {
        let mut walk = self.walk.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = walk.ahead.next() {
            return Ok(Some(entry));
        }
        if walk.at_end {
            return Ok(None);
        }
        py.check_signals()?;
        let db = self.store.db()?;
        let filled = &mut *walk;
        py.detach(|| filled.fill(db)).or_raise()?;
        Ok(walk.ahead.next())
    }
}

/// Follows the log, from `Log.follow`: an iterator that waits for the next entry.
///
/// >>> db = plimsoll.in_memory()
/// >>> first, last = db.log.append(7, b"started", b"stopped")
/// >>> follow = db.log.follow(first, stream=7)
/// >>> next(follow).payload
/// b'started'
/// >>> next(db.log.follow(follow.position, stream=7)).payload
/// b'stopped'
#[pyclass(module = "plimsoll", frozen)]
pub struct LogFollow {
    _store: Arc<Store>,
    follow: Arc<Feed<plimsoll::LogFollow>>,
}

#[pymethods]
impl LogFollow {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<LogEntry>> {
        ended_by_exit(py, self.next(py, None))
    }

    /// Waits up to `timeout` seconds for the next entry (`None`: without limit). Returns `None` if
    /// there was none.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> follow = db.log.follow(stream=7)
    /// >>> glsns = db.log.append(7, b"started")
    /// >>> follow.next().payload, follow.next(timeout=0)
    /// (b'started', None)
    #[pyo3(signature = (timeout = None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<LogEntry>> {
        let next = self.follow.next(py, timeout_of(timeout)?)?;
        Ok(next.map(|entry| LogEntry::new(entry.glsn, entry.stream, entry.time, entry.payload())))
    }

    /// The GLSN from which a new follower continues this one.
    #[getter]
    fn position(&self) -> PyResult<u64> {
        Ok(self.follow.position()?.0)
    }
}
