//! Remotes: the addresses of other stores under names, and clone, fetch, pull and push with them.

use std::path::Path;

use crate::api::db::Db;
use crate::sync::address::Address;
use crate::sync::ids::{Ids, space};
use crate::sync::local::{Local, open_folder};
use crate::sync::partial::CloneDepth;
use crate::sync::peer::{Haves, Peer, Wanted};
use crate::sync::transfer::{Moved, Pulled};
use crate::sync::wire::client::SyncConnection;
use crate::types::branches::{MAIN, TEMPORARY, check_branch_name};
use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::options::Options;

/// The memory budget of the other store.
const MEMORY_BYTES: u64 = 32 << 20;

/// The name that a clone gives the store that it was made from.
pub const ORIGIN: &str = "origin";

/// The first byte of the key of an address; the name follows.
const REMOTE: u8 = b'u';

/// The name and address of another store; from [`Db::remotes`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteInfo {
    /// The name, from [`Db::add_remote`].
    pub name: String,
    /// The address, in one of the forms that [`Db::add_remote`] accepts.
    pub address: String,
}

impl Db {
    /// Clones the store at `address` into a new store at `dest`. The clone has the same commits,
    /// with the same ids: main with its history, and each other branch as `origin/NAME`. Branches
    /// that the other store has fetched are not cloned. The address is stored under the name
    /// `origin`, for [`Db::fetch`], [`Db::pull`] and [`Db::push`]. The settings of keyspaces are
    /// copied; cursors, tags and streams are not.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (hub, copy) = (dir.path().join("hub"), dir.path().join("copy"));
    /// # let options = Options::new().memory_bytes(16 << 20);
    /// let db = Db::open(&hub, options.clone())?;
    /// db.put(&db.keyspace("notes")?, "a", "one")?;
    /// db.close()?;
    ///
    /// let copy = Db::clone_store(hub.to_str().unwrap(), &copy, options)?;
    /// copy.put(&copy.keyspace("notes")?, "b", "two")?;
    /// assert_eq!(copy.push("origin", "main")?.commits, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If a clone is interrupted, open the store at `dest`, call [`Db::pull`] for main and
    /// [`Db::fetch`] for each other branch. Retention and time to live are copied last and may be
    /// missing then.
    ///
    /// # Errors
    /// [`InvalidInput::CloneTarget`] if `dest` exists and is not an empty folder; the errors of
    /// [`Db::open`], [`Db::fetch`] and commits.
    pub fn clone_store(address: &str, dest: impl AsRef<Path>, options: Options) -> Result<Self> {
        Self::clone_store_with(address, dest, options, CloneDepth::Full)
    }

    /// As [`Db::clone_store`], with all of the history or a part of it. Without all of it, the new
    /// store is a *partial clone*. Its commits have the ids of the original ones. The oldest one of
    /// a branch, a *boundary commit*, has the complete state of the original commit, and earlier
    /// commits are missing. Commits that were merged into a branch are missing, too.
    ///
    /// A partial clone can fetch and pull later commits, and be pushed from. It cannot transfer
    /// commits to a store that lacks its boundary commits, and it cannot merge branches whose
    /// common ancestor it lacks; both fail with [`InvalidInput::BelowBoundary`]. To get more of the
    /// history, clone again.
    ///
    /// The state of a boundary commit is compared with the hash that the other store sends
    /// ([`Snapshot::state_hash`](crate::Snapshot::state_hash)). The id of a boundary commit is not
    /// verified, because it covers the commit's changes, which are not sent.
    ///
    /// # Errors
    /// As for [`Db::clone_store`]; [`InvalidInput::StateNotRetained`] if the other store retains no
    /// state with which the clone can begin; [`InvalidInput::NoCommitToClone`] if main there
    /// does not contain the commit of [`CloneDepth::At`].
    pub fn clone_store_with(
        address: &str,
        dest: impl AsRef<Path>,
        options: Options,
        depth: CloneDepth,
    ) -> Result<Self> {
        let dest = dest.as_ref();
        let mut other = open(&options, address)?;
        match options.disk.list(dest) {
            Ok(names) if names.is_empty() => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Ok(_) => return Err(InvalidInput::CloneTarget { path: dest.to_owned() }.into()),
            Err(error) => return Err(error.into()),
        }
        // This is the first request, so a server that cannot open its store reports that here.
        let keyspaces = other.keyspaces()?;
        if let CloneDepth::At(id) = depth {
            match other.line(Wanted { branch: MAIN, id }, 1, &Haves::default()) {
                Err(Error::InvalidInput(InvalidInput::BranchMoved { .. })) => {
                    return Err(InvalidInput::NoCommitToClone { id: id.to_string() }.into());
                }
                found => drop(found?),
            }
        }
        let db = Self::open(dest, options.create(true))?;
        other.charge_to(&db);
        db.add_remote(ORIGIN, address)?;
        for info in &keyspaces {
            db.set_compression(&db.keyspace(&info.name)?, info.compression)?;
        }
        if let Some(commits) = depth.commits() {
            Ids::reading(&db).set_depth(commits)?;
        }
        let wanted = match depth {
            CloneDepth::At(id) => Some(id),
            CloneDepth::Full | CloneDepth::Commits(_) => None,
        };
        let moved = db.fetch_commit(&mut *other, (MAIN, wanted), MAIN)?;
        if let Some(tip) = &moved.to {
            db.follow(&tracking(ORIGIN, MAIN), &db.main(), tip)?;
        }
        let others = if wanted.is_none() { other.branches()? } else { Vec::new() };
        for name in others {
            db.fetch_as(&mut *other, &name, &tracking(ORIGIN, &name))?;
        }
        // Last, because the transfers above need the past states at which branches fork.
        for info in keyspaces {
            let keyspace = db.keyspace(&info.name)?;
            db.set_retention(&keyspace, info.retention)?;
            db.set_ttl(&keyspace, info.ttl)?;
        }
        Ok(db)
    }

    /// Stores the address of another store under a name, which replaces an earlier address. The
    /// other store is not opened. `name` has the limits of a branch name, no `/`, and is not
    /// `incoming`. `address` is one of these:
    /// - the path of a folder, without a `:` before its first `/`; or `file://` and an absolute
    ///   path;
    /// - `ssh://[USER@]HOST[:PORT]/PATH` or `[USER@]HOST:PATH`, which runs `ssh HOST plimsoll
    ///   sync-server PATH`. The environment variable `PLIMSOLL_SSH` names another program than
    ///   `ssh`, and `PLIMSOLL_SYNC_SERVER` another command than `plimsoll sync-server`;
    /// - `exec:COMMAND`, which runs a command, split at spaces and without a shell, that serves a
    ///   store on its standard input and output. Such an address can do whatever this process can,
    ///   so it is used only if the environment variable `PLIMSOLL_ALLOW_EXEC` is `1`.
    ///
    /// # Errors
    /// [`InvalidInput::RemoteName`], [`InvalidInput::RemoteAddress`]; errors of a commit.
    pub fn add_remote(&self, name: &str, address: &str) -> Result<()> {
        if name.contains('/') || check_branch_name(name).is_err() {
            return Err(InvalidInput::RemoteName { name: name.to_owned() }.into());
        }
        if name == TEMPORARY.trim_end_matches('/') {
            return Err(InvalidInput::RemoteName { name: name.to_owned() }.into());
        }
        Address::parse(address)?;
        let space = space(&self.store);
        self.transact(|tx| tx.put(&space, remote_key(name), address))
    }

    /// Removes a name and its address. The branches that were fetched from there are kept.
    ///
    /// # Errors
    /// [`InvalidInput::NoRemote`]; errors of a commit.
    pub fn remove_remote(&self, name: &str) -> Result<()> {
        let space = space(&self.store);
        self.transact(|tx| match tx.contains_key(&space, remote_key(name))? {
            true => tx.delete(&space, remote_key(name)),
            false => Err(InvalidInput::NoRemote { name: name.to_owned() }.into()),
        })
    }

    /// The names and addresses from [`Db::add_remote`], sorted by name.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// db.add_remote("hub", "/srv/hub")?;
    /// let remote: RemoteInfo = db.remotes()?.remove(0);
    /// assert_eq!((&*remote.name, &*remote.address), ("hub", "/srv/hub"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Errors of reads.
    pub fn remotes(&self) -> Result<Vec<RemoteInfo>> {
        let mut remotes = Vec::new();
        for row in self.snapshot().prefix(&space(&self.store), [REMOTE])? {
            let (key, address) = row?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            remotes.push(RemoteInfo { name: text(&key[1..]), address: text(&address) });
        }
        Ok(remotes)
    }

    /// As [`Db::fetch_from`], from the store at the other end of a connection.
    ///
    /// # Errors
    /// As for [`Db::fetch_from`]; [`Error::Remote`](crate::Error::Remote) if the connection fails.
    pub fn fetch_over(
        &self,
        connection: &mut SyncConnection,
        branch: &str,
        into: &str,
    ) -> Result<Moved> {
        self.fetch_as(connection, branch, into)
    }

    /// As [`Db::push_to`], to the store at the other end of a connection.
    ///
    /// # Errors
    /// As for [`Db::push_to`]; [`Error::Remote`](crate::Error::Remote) if the connection fails.
    pub fn push_over(&self, connection: &mut SyncConnection, branch: &str) -> Result<Moved> {
        self.push_if(connection, branch, false)
    }

    /// As [`Db::push_forced_to`], to the store at the other end of a connection.
    ///
    /// # Errors
    /// As for [`Db::push_forced_to`]; [`Error::Remote`](crate::Error::Remote) if the connection
    /// fails.
    pub fn push_forced_over(&self, connection: &mut SyncConnection, branch: &str) -> Result<Moved> {
        self.push_if(connection, branch, true)
    }

    /// Transfers the new commits of a branch of another store to the branch `REMOTE/BRANCH` of this
    /// one. `remote` is a name from [`Db::add_remote`].
    ///
    /// A store in a folder is opened with its own memory budget of 32 MiB, and shared with other
    /// processes if its file system supports that. It must be writable, because the ids of its
    /// commits are stored in it.
    ///
    /// # Errors
    /// [`InvalidInput::NoRemote`]; [`InvalidInput::RemoteIsSelf`]; [`InvalidInput::ExecAddress`];
    /// [`Error::Remote`](crate::Error::Remote) if the connection fails; the errors of [`Db::open`]
    /// and [`Db::fetch_from`].
    pub fn fetch(&self, remote: &str, branch: &str) -> Result<Moved> {
        let mut other = self.open_remote(remote)?;
        self.fetch_as(&mut *other, branch, &tracking(remote, branch))
    }

    /// Fetches a branch of another store ([`Db::fetch`]), and updates the branch of the same name
    /// with it ([`Db::catch_up`]): fast-forwards it, or merges if both have new commits. If the
    /// merge has conflicts, nothing is written to the branch.
    ///
    /// # Errors
    /// As for [`Db::fetch`] and [`Db::catch_up`].
    pub fn pull(&self, remote: &str, branch: &str) -> Result<Pulled> {
        let (mut other, theirs) = (self.open_remote(remote)?, tracking(remote, branch));
        if other.tip(branch)?.is_none() {
            return Ok(Pulled::UpToDate);
        }
        self.fetch_as(&mut *other, branch, &theirs)?;
        drop(other);
        let pulled = self.catch_up(branch, &theirs)?;
        if let Pulled::FastForward(Moved { to: Some(tip), .. }) = &pulled {
            // The branch itself has the commits now. Do not keep them twice.
            self.follow(&theirs, &self.branch(branch)?, tip)?;
        }
        Ok(pulled)
    }

    /// Transfers the new commits of a branch to the branch of the same name of another store, as
    /// [`Db::push_to`] does. `remote` is a name from [`Db::add_remote`]; any other text is an
    /// address. The other store is opened as by [`Db::fetch`].
    ///
    /// # Errors
    /// As for [`Db::push_to`] and [`Db::fetch`]; [`InvalidInput::RemoteAddress`].
    pub fn push(&self, remote: &str, branch: &str) -> Result<Moved> {
        self.push_by_name(remote, branch, false)
    }

    /// As [`Db::push`], but also if the other branch has commits that this one does not contain,
    /// as [`Db::push_forced_to`] does.
    ///
    /// # Errors
    /// As for [`Db::push_forced_to`] and [`Db::fetch`]; [`InvalidInput::RemoteAddress`].
    pub fn push_forced(&self, remote: &str, branch: &str) -> Result<Moved> {
        self.push_by_name(remote, branch, true)
    }

    fn push_by_name(&self, remote: &str, branch: &str, is_forced: bool) -> Result<Moved> {
        let is_name = self.remotes()?.iter().any(|it| it.name == remote);
        let mut other = match is_name {
            true => self.open_remote(remote)?,
            false => self.open_address(remote)?,
        };
        let moved = self.push_if(&mut *other, branch, is_forced)?;
        other.close()?;
        if let Some(tip) = moved.to.as_ref().filter(|_| is_name) {
            self.follow(&tracking(remote, branch), &self.branch(branch)?, tip)?;
        }
        Ok(moved)
    }

    fn open_remote(&self, name: &str) -> Result<Box<dyn Peer>> {
        let remotes = self.remotes()?;
        let known = remotes.iter().find(|it| it.name == name);
        let known = known.ok_or_else(|| InvalidInput::NoRemote { name: name.to_owned() })?;
        self.open_address(&known.address)
    }

    fn open_address(&self, address: &str) -> Result<Box<dyn Peer>> {
        if let Address::Folder(path) = Address::parse(address)? {
            let folder = self.store.options.disk.resolve(&path);
            if folder.is_ok_and(|folder| self.folder().is_ok_and(|own| own == folder)) {
                return Err(InvalidInput::RemoteIsSelf.into());
            }
        }
        open(&self.store.options, address)
    }
}

/// The name of the branch to which a branch of another store is fetched.
fn tracking(remote: &str, branch: &str) -> String {
    format!("{remote}/{branch}")
}

fn remote_key(name: &str) -> Vec<u8> {
    [&[REMOTE][..], name.as_bytes()].concat()
}

/// Opens the store at an address. A folder is opened with a budget of [`MEMORY_BYTES`].
fn open(options: &Options, address: &str) -> Result<Box<dyn Peer>> {
    Address::permit(address)?;
    Ok(match Address::parse(address)? {
        Address::Folder(path) => {
            let options = Options { disk: options.disk.clone(), ..Options::new() };
            let options = options.memory_bytes(MEMORY_BYTES).create(false).warm(false);
            Box::new(Local::owning(open_folder(&path, options)?)?)
        }
        Address::Program { program, arguments, name } => {
            Box::new(SyncConnection::to_program(&program, &arguments, name)?)
        }
    })
}
