//! Clusters: one store with a copy on several machines.

use plimsoll::Options;
use plimsoll_replica::Heal;
use pyo3::prelude::*;

use crate::calls::interruptible;
use crate::errors::{invalid, raised_by_cluster};
use crate::options::{Folder, Size};

/// The URL of a bucket, or the path of its folder.
pub(crate) fn url_of(bucket: &Folder) -> PyResult<String> {
    let url = bucket.0.to_str().map(str::to_owned);
    url.ok_or_else(|| invalid("the path of a bucket must be valid Unicode"))
}

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
    let url = url_of(&url)?;
    let options = match memory {
        Some(Size(bytes)) => Options::new().memory_bytes(bytes),
        None => Options::new(),
    };
    let created = interruptible(py, move || plimsoll_replica::create(&url, path.0, options))?;
    created.map(drop).map_err(raised_by_cluster)
}

/// Heals the cluster of which the closed stores at `members` are members, after objects of its
/// bucket were deleted, damaged or set back: a new base from the member that has the most begins
/// the log anew. Returns the problems; an empty list, and nothing is changed, if the bucket is
/// whole.
/// `bucket` names the bucket if it is empty, or elsewhere. Fails if the bucket has commits that no
/// given member has, unless `accept_loss`.
///
/// >>> bucket = path + ".bucket"
/// >>> plimsoll.open(path, memory="16MiB").close()
/// >>> plimsoll.create_cluster(path, bucket, memory="16MiB")
/// >>> plimsoll.heal_cluster(path, memory="16MiB")
/// []
/// >>> import os
/// >>> os.remove(bucket + "/cluster.json")
/// >>> plimsoll.heal_cluster(path, memory="16MiB")
/// ['cluster.json: it is missing']
#[pyfunction]
#[pyo3(signature = (*members, bucket = None, accept_loss = false, memory = None))]
pub(crate) fn heal_cluster(
    py: Python<'_>,
    members: Vec<Folder>,
    bucket: Option<Folder>,
    accept_loss: bool,
    memory: Option<Size>,
) -> PyResult<Vec<String>> {
    let url = bucket.as_ref().map(url_of).transpose()?;
    let options = match memory {
        Some(Size(bytes)) => Options::new().memory_bytes(bytes),
        None => Options::new(),
    };
    let paths: Vec<_> = members.into_iter().map(|member| member.0).collect();
    let how = Heal { url, accept_loss };
    let healed = interruptible(py, move || plimsoll_replica::heal(&paths, &how, options))?;
    let report = healed.map_err(raised_by_cluster)?;
    Ok(report.problems.iter().map(ToString::to_string).collect())
}
