//! Opening a store.

use std::path::PathBuf;

use plimsoll::{Db as Engine, Options};
use pyo3::prelude::*;

use crate::calls::interruptible;
use crate::cluster::url_of;
use crate::db::Db;
use crate::errors::{OrRaise, invalid, raised_by_cluster};
use crate::options::{Compresses, Folder, Keeps, Size, durability as durability_of, io as io_of};
use crate::store::Store;

/// Opens the store in a folder, or creates one there.
///
/// - `memory`: the budget for everything that grows with the data, as a number of bytes or as text
///   ("256MB", "1GiB"); at least 16 MiB. By default a quarter of the container's or the machine's
///   memory. Python's own objects (keys, values, results) come on top.
/// - `durability`: "sync" (a commit returns once it survives a power cut) or "buffered" (a crash
///   may lose the last 200 ms).
/// - `retention`: the past versions kept by the keyspace "default", and by keyspaces created
///   without their own retention: "forever", "latest", a `timedelta`, or a number of GLSNs.
/// - `compression`: how values above 1 KiB and pages of the index are compressed in the keyspace
///   "default" and in keyspaces created from now on, unless theirs was set: "none" (the default),
///   "lz4" or "zstd:LEVEL".
/// - `read_only`: opens the store for reading, even while another process writes to it; shows the
///   state that was durable at opening.
/// - `create`: whether to create the store if it does not exist.
/// - `warm`: whether to save the hot set and reload it after a restart.
/// - `io`: "auto", "direct" (bypasses the page cache) or "cached".
/// - `shared`: whether other processes may have the store open at the same time, to read and to
///   write, each with `shared=True`. Commits of one are visible to the others at once.
/// - `memory_total`: with `shared`, the budget of all sharing processes together; each gets an
///   equal part, limited by its own `memory` if given.
/// - `cluster`: the folder of a bucket, or its URL `file:///path`: the store is a member of the
///   cluster there, and its commits are in the bucket when they return. If the folder `path` does
///   not exist, the store joins the cluster first. `plimsoll cluster create` creates one.
///
/// >>> with plimsoll.open(path, memory="64MB") as db:
/// ...     db[b"ada"] = b"Ada Lovelace"
/// >>> with plimsoll.open(path, memory="64MB") as db:
/// ...     db[b"ada"]
/// b'Ada Lovelace'
#[pyfunction]
#[pyo3(signature = (
    path, *, memory = None, durability = "sync", retention = None, compression = None,
    read_only = false, create = true, warm = true, io = "auto", shared = false,
    memory_total = None, cluster = None
))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn open(
    py: Python<'_>,
    path: Folder,
    memory: Option<Size>,
    durability: &str,
    retention: Option<Keeps>,
    compression: Option<Compresses>,
    read_only: bool,
    create: bool,
    warm: bool,
    io: &str,
    shared: bool,
    memory_total: Option<Size>,
    cluster: Option<Folder>,
) -> PyResult<Py<Db>> {
    let given =
        Given { memory, durability, retention, compression, warm, io, shared, memory_total };
    let options = options(given)?.read_only(read_only).create(create);
    // So that the folder stays the same if the process changes its working directory.
    let path = std::path::absolute(&path.0)?;
    let folder = path.clone();
    let engine = match cluster {
        None => interruptible(py, move || Engine::open(folder, options))?.or_raise()?,
        Some(_) if shared || read_only => {
            return Err(invalid(
                "a member of a cluster is open for writing in one process; leave out shared and \
                 read_only, or leave out cluster to read the member beside that process",
            ));
        }
        Some(cluster) => {
            if !create && !path.exists() {
                let what =
                    "there is no store here; leave out create=False to join the cluster".to_owned();
                return Err(crate::errors::raised(&plimsoll::Error::NotAStore { path, what }));
            }
            let url = url_of(&cluster)?;
            interruptible(py, move || plimsoll_replica::open(folder, &url, options))?
                .map_err(raised_by_cluster)?
        }
    };
    Db::new(py, Store::new(engine, path, read_only)?)
}

/// Creates an empty store in memory: the ordinary store on files in memory, discarded when it is
/// closed. For tests, and for data that need not outlive the process. Its data does not count
/// towards the budget.
///
/// >>> db = plimsoll.in_memory()
/// >>> db[b"a"] = b"1"
/// >>> len(db)
/// 1
#[pyfunction]
#[pyo3(signature = (*, memory = None, retention = None, compression = None))]
pub(crate) fn in_memory(
    py: Python<'_>,
    memory: Option<Size>,
    retention: Option<Keeps>,
    compression: Option<Compresses>,
) -> PyResult<Py<Db>> {
    const MEMORY: Size = Size(16 << 20);
    let options = basic(memory.or(Some(MEMORY)), "sync", retention, compression)?;
    let engine = py.detach(|| Engine::in_memory(options)).or_raise()?;
    Db::new(py, Store::new(engine, PathBuf::new(), false)?)
}

/// The keywords of functions that open a store for writing.
pub(crate) struct Given<'a> {
    pub(crate) memory: Option<Size>,
    pub(crate) durability: &'a str,
    pub(crate) retention: Option<Keeps>,
    pub(crate) compression: Option<Compresses>,
    pub(crate) warm: bool,
    pub(crate) io: &'a str,
    pub(crate) shared: bool,
    pub(crate) memory_total: Option<Size>,
}

/// The options that keywords mean.
pub(crate) fn options(given: Given<'_>) -> PyResult<Options> {
    let Given { memory, durability, retention, compression, shared, .. } = given;
    let options = basic(memory, durability, retention, compression)?
        .warm(given.warm)
        .io(io_of(given.io)?)
        .shared(shared);
    match given.memory_total {
        None => Ok(options),
        Some(Size(bytes)) if shared => Ok(options.memory_total(bytes)),
        Some(_) => Err(invalid(
            "memory_total needs shared=True, because it is the budget of all processes that share \
             the store; otherwise give memory",
        )),
    }
}

fn basic(
    memory: Option<Size>,
    durability: &str,
    retention: Option<Keeps>,
    compression: Option<Compresses>,
) -> PyResult<Options> {
    let mut options = Options::new().durability(durability_of(durability)?);
    if let Some(Size(bytes)) = memory {
        options = options.memory_bytes(bytes);
    }
    if let Some(Keeps(retention)) = retention {
        options = options.retention(retention);
    }
    if let Some(Compresses(compression)) = compression {
        options = options.compression(compression);
    }
    Ok(options)
}
