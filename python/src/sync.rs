//! Exchange of commits with other stores: clone, fetch, pull, push and their results.

use std::num::NonZeroU32;
use std::path::PathBuf;

use plimsoll::{CloneDepth, CommitId, Db as Engine, Error, InvalidInput, Options, Pulled};
use pyo3::prelude::*;
use pyo3::types::PyAny;

use crate::calls::interruptible;
use crate::db::Db;
use crate::errors::{OrRaise, invalid, pull_conflicts};
use crate::merge::MergeSteps;
use crate::open::{Given, options};
use crate::options::{Compresses, Folder, Keeps, Size};
use crate::store::Store;

/// The memory budget of a server, unless one is given.
const SERVER_MEMORY_BYTES: u64 = 32 << 20;

/// An address, or the name of a remote: text, bytes, or an object with `__fspath__`.
pub(crate) struct Address(String);

impl<'py> FromPyObject<'_, 'py> for Address {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        object.py().import("os")?.call_method1("fsdecode", (object,))?.extract().map(Self)
    }
}

impl Address {
    /// The name of the store that a clone was made from.
    pub(crate) fn origin() -> Self {
        Self(plimsoll::ORIGIN.to_owned())
    }

    /// The address with an absolute path, so that it means the same if the process changes its
    /// working directory.
    fn absolute(self) -> PyResult<String> {
        plimsoll::absolute_address(&self.0).or_raise()
    }
}

/// Makes a store at `path` with the commits of the store at `address`, and their ids, and opens it:
/// main with its history, and each other branch as `origin/NAME`. The address is remembered as
/// "origin", for `Db.fetch`, `Db.pull` and `Db.push`. The settings of keyspaces are copied, too;
/// cursors, tags and streams are not. After an interrupted clone, `Db.pull` continues main and
/// `Db.fetch` each other branch.
///
/// An address is the path of a folder; `file://` and an absolute path; or a store on another
/// machine: `ssh://[USER@]HOST[:PORT]/PATH` or `[USER@]HOST:PATH`, which runs `ssh HOST plimsoll
/// sync-server PATH`. The environment variable `PLIMSOLL_SSH` names another program than ssh, and
/// `PLIMSOLL_SYNC_SERVER` another command than `plimsoll sync-server`. `exec:COMMAND` runs a
/// command that serves a store on its standard input and output, if `PLIMSOLL_ALLOW_EXEC` is 1:
/// such an address can do whatever this process can. `RemoteError` is raised if a connection fails.
/// The store there must be writable, because the ids of its commits are stored in it. `path` must
/// not exist or must be an empty folder; `InvalidInput` is raised otherwise. The options are those
/// of `open`.
///
/// `depth` is the number of commits of each branch's first-parent line that are cloned; `at` clones
/// the state of the commit of main with this id. The oldest commit of a branch of such a partial
/// clone has the complete state (`Db.boundary_commits`). A partial clone can pull, fetch, and push
/// to a store that has its boundary commits. `InvalidInput` is raised if it lacks a commit that a
/// merge or a transfer needs; clone again then.
///
/// >>> with plimsoll.open(path, memory="16MiB") as hub:
/// ...     hub[b"tea"] = b"3.10"
/// >>> with plimsoll.clone(path, path + ".copy", memory="16MiB") as copy:
/// ...     copy[b"cocoa"] = b"4.00"
/// ...     copy.push().commits
/// 1
/// >>> with plimsoll.clone(path, path + ".last", depth=1, memory="16MiB") as last:
/// ...     len(last), last.boundary_commits() == [last.main.tip()]
/// (2, True)
#[pyfunction]
#[pyo3(signature = (
    address, path, *, depth = None, at = None, memory = None, durability = "sync",
    retention = None, compression = None, warm = true, io = "auto", shared = false,
    memory_total = None,
))]
#[allow(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn clone(
    py: Python<'_>,
    address: Address,
    path: Folder,
    depth: Option<u32>,
    at: Option<&str>,
    memory: Option<Size>,
    durability: &str,
    retention: Option<Keeps>,
    compression: Option<Compresses>,
    warm: bool,
    io: &str,
    shared: bool,
    memory_total: Option<Size>,
) -> PyResult<Py<Db>> {
    let given =
        Given { memory, durability, retention, compression, warm, io, shared, memory_total };
    let options: Options = options(given)?;
    let depth = clone_depth(depth, at)?;
    let (address, path): (String, PathBuf) = (address.absolute()?, std::path::absolute(&path.0)?);
    let folder = path.clone();
    let make = move || Engine::clone_store_with(&address, folder, options, depth);
    Db::new(py, Store::new(interruptible(py, make)?.or_raise()?, path, false)?)
}

fn clone_depth(depth: Option<u32>, at: Option<&str>) -> PyResult<CloneDepth> {
    match (depth, at) {
        (Some(_), Some(_)) => Err(invalid("a clone has either depth or at")),
        (None, Some(id)) => Ok(CloneDepth::At(id.parse().or_raise()?)),
        (None, None) => Ok(CloneDepth::Full),
        (Some(commits), None) => {
            let commits = NonZeroU32::new(commits);
            commits.map(CloneDepth::Commits).ok_or_else(|| invalid("depth is at least 1"))
        }
    }
}

/// Serves the store at `path` over the standard input and output of this process, to a `clone`,
/// `fetch`, `pull` or `push` that has started it, until that ends; like the command `plimsoll
/// sync-server`. The store is shared with other processes, with 32 MiB unless `memory` is given.
/// With `read_only`, pushes are refused. Nothing else may be written to standard output meanwhile.
#[pyfunction]
#[pyo3(signature = (path, *, memory = None, read_only = false))]
pub(crate) fn serve_sync(
    py: Python<'_>,
    path: Folder,
    memory: Option<Size>,
    read_only: bool,
) -> PyResult<()> {
    let options = Options::new().create(false).warm(false);
    let bytes = memory.map_or(SERVER_MEMORY_BYTES, |size| size.0);
    let (options, path) = (options.memory_bytes(bytes), std::path::absolute(&path.0)?);
    let serve = move || {
        let (reader, writer) = (std::io::stdin(), std::io::stdout());
        Engine::serve_sync_at(path, options, read_only, reader, writer)
    };
    interruptible(py, serve)?.or_raise()
}

pub(crate) fn add_remote(
    py: Python<'_>,
    db: &Engine,
    name: &str,
    address: Address,
) -> PyResult<()> {
    let address = address.absolute()?;
    py.detach(|| db.add_remote(name, &address)).or_raise()
}

pub(crate) fn fetch(
    py: Python<'_>,
    db: &Engine,
    remote: String,
    branch: String,
) -> PyResult<Moved> {
    let db = db.clone();
    let moved = interruptible(py, move || db.fetch(&remote, &branch))?.or_raise()?;
    Ok(Moved::new(&moved))
}

pub(crate) fn pull(py: Python<'_>, db: &Engine, remote: String, branch: String) -> PyResult<Moved> {
    let (db, theirs, name) = (db.clone(), format!("{remote}/{branch}"), branch.clone());
    let work = move || {
        let before = tip(&db, &branch)?;
        let pulled = db.pull(&remote, &branch)?;
        // Only a merge does not say where the branch ends now.
        let after = match pulled {
            Pulled::Merged(_) => tip(&db, &branch)?,
            _ => before,
        };
        Ok((before, pulled, after))
    };
    let (before, pulled, after) = interruptible(py, work)?.or_raise()?;
    let commits = Some(0);
    let ends = Moved { before: before.map(text), after: after.map(text), commits, glsn: None };
    match pulled {
        Pulled::FastForward(moved) => Ok(Moved::new(&moved)),
        Pulled::Merged(glsn) => Ok(Moved { commits: None, glsn: Some(glsn.0), ..ends }),
        Pulled::Conflicts(conflicts) => {
            let conflicts = MergeSteps::new(conflicts, Default::default());
            Err(pull_conflicts(py, &name, &theirs, conflicts)?)
        }
        // Up to date.
        _ => Ok(ends),
    }
}

pub(crate) fn push(
    py: Python<'_>,
    db: &Engine,
    remote: Address,
    branch: String,
    force: bool,
) -> PyResult<Moved> {
    let (db, remote) = (db.clone(), remote.0);
    let work = move || {
        // An unknown name would be read as a path.
        if !remote.contains('/') && !db.remotes()?.iter().any(|it| it.name == remote) {
            return Err(InvalidInput::NoRemote { name: remote }.into());
        }
        match force {
            true => db.push_forced(&remote, &branch),
            false => db.push(&remote, &branch),
        }
    };
    Ok(Moved::new(&interruptible(py, work)?.or_raise()?))
}

pub(crate) fn commit_id(py: Python<'_>, db: &Engine, glsn: u64) -> PyResult<Option<String>> {
    let db = db.clone();
    let id = interruptible(py, move || db.commit_id(plimsoll::Glsn(glsn)))?.or_raise()?;
    Ok(id.map(text))
}

pub(crate) fn find_commit(py: Python<'_>, db: &Engine, id: &str) -> PyResult<Option<u64>> {
    let (db, id) = (db.clone(), id.parse::<CommitId>().or_raise()?);
    let glsn = interruptible(py, move || db.find_commit(&id))?.or_raise()?;
    Ok(glsn.map(|glsn| glsn.0))
}

pub(crate) fn boundary_commits(py: Python<'_>, db: &Engine) -> PyResult<Vec<String>> {
    let commits = py.detach(|| db.boundary_commits()).or_raise()?;
    Ok(commits.into_iter().map(text).collect())
}

pub(crate) fn tip_of(py: Python<'_>, branch: &plimsoll::Branch) -> PyResult<Option<String>> {
    let branch = branch.clone();
    Ok(interruptible(py, move || branch.tip())?.or_raise()?.map(text))
}

/// The last commit of a branch; `None` also if there is no such branch.
fn tip(db: &Engine, name: &str) -> plimsoll::Result<Option<CommitId>> {
    match db.branch(name).and_then(|branch| branch.tip()) {
        Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) => Ok(None),
        tip => tip,
    }
}

fn text(id: CommitId) -> String {
    id.to_string()
}

/// The change of a branch by `Db.fetch`, `Db.pull` or `Db.push`.
///
/// >>> plimsoll.open(path, memory="16MiB").close()
/// >>> db = plimsoll.clone(path, path + ".copy", memory="16MiB")
/// >>> glsn = db.put(b"a", b"1")
/// >>> moved = db.push()
/// >>> moved.before, moved.after == db.commit_id(glsn), moved.commits, moved.is_up_to_date
/// (None, True, 1, False)
#[pyclass(module = "plimsoll", frozen, get_all)]
pub struct Moved {
    /// The id of the commit that the branch ended with before; `None` if it was empty or did not
    /// exist.
    before: Option<String>,
    /// The id of the commit that it ends with now.
    after: Option<String>,
    /// The number of commits that were added to it; 0 if the store had them on another branch,
    /// `None` if they were merged.
    commits: Option<u64>,
    /// The GLSN of the commit that merged them (`Db.pull`); `None` without a merge.
    glsn: Option<u64>,
}

impl Moved {
    fn new(moved: &plimsoll::Moved) -> Self {
        let (before, after) = (moved.from.map(text), moved.to.map(text));
        Self { before, after, commits: Some(moved.commits), glsn: None }
    }
}

#[pymethods]
impl Moved {
    /// Whether nothing changed.
    #[getter]
    fn is_up_to_date(&self) -> bool {
        self.before == self.after
    }

    fn __repr__(&self) -> String {
        let short = |id: &Option<String>| id.as_ref().map_or("nothing", |id| &id[..12]).to_owned();
        let (before, after) = (short(&self.before), short(&self.after));
        match (self.glsn, self.commits) {
            (Some(glsn), _) => format!("<plimsoll moved: {before} -> {after}, merge {glsn}>"),
            (None, commits) => {
                let commits = commits.unwrap_or_default();
                format!("<plimsoll moved: {before} -> {after}, {commits} commits>")
            }
        }
    }
}

/// Another store whose address a store remembers; from `Db.remotes`.
///
/// >>> db = plimsoll.in_memory()
/// >>> db.add_remote("hub", "/srv/hub")
/// >>> remote, = db.remotes()
/// >>> remote, remote.name, remote.address
/// (<plimsoll remote "hub" at "/srv/hub">, 'hub', '/srv/hub')
#[pyclass(module = "plimsoll", frozen, get_all)]
pub struct Remote {
    /// Its name.
    name: String,
    /// Its address.
    address: String,
}

impl Remote {
    pub(crate) fn new(remote: plimsoll::RemoteInfo) -> Self {
        Self { name: remote.name, address: remote.address }
    }
}

#[pymethods]
impl Remote {
    fn __repr__(&self) -> String {
        format!("<plimsoll remote {:?} at {:?}>", self.name, self.address)
    }
}
