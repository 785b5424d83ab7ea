//! Clusters: one store with a copy on several machines.

use plimsoll::Options;
use pyo3::prelude::*;

use crate::calls::interruptible;
use crate::errors::{invalid, raised_by_cluster};
use crate::options::{Folder, Size};

/// Creates a cluster from the store at `path`, which becomes its first member. `url` is a folder,
/// or its URL `file:///path`: the bucket that orders the commits of all members. The store must be
/// closed; open it again with `cluster`.
///
/// >>> bucket = path + ".bucket"
/// >>> plimsoll.open(path, memory="16MiB").close()
/// >>> plimsoll.create_cluster(path, bucket, memory="16MiB")
/// >>> with plimsoll.open(path, memory="16MiB", cluster=bucket) as db:
/// ...     glsn = db.put(b"a", b"1")
/// >>> with plimsoll.open(path + ".replica", memory="16MiB", cluster=bucket) as replica:
/// ...     replica[b"a"]
/// b'1'
#[pyfunction]
#[pyo3(signature = (path, url, *, memory = None))]
pub(crate) fn create_cluster(
    py: Python<'_>,
    path: Folder,
    url: Folder,
    memory: Option<Size>,
) -> PyResult<()> {
    let Some(url) = url.0.to_str().map(str::to_owned) else {
        return Err(invalid("the path of a bucket must be valid Unicode"));
    };
    let options = match memory {
        Some(Size(bytes)) => Options::new().memory_bytes(bytes),
        None => Options::new(),
    };
    let created = interruptible(py, move || plimsoll_replica::create(&url, path.0, options))?;
    created.map(drop).map_err(raised_by_cluster)
}
