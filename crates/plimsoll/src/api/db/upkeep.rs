//! Checks and copies of a whole store: verify, backup, dump, restore, recover.

use std::io::{Read, Write};
use std::path::Path;

use crate::api::admin::backup::{self, BackupReport};
use crate::api::admin::backup_options::BackupOptions;
use crate::api::admin::dump::{self, DumpOptions, DumpReport};
use crate::api::admin::files::{self, FileScope, LogPosition, StoreFile};
use crate::api::admin::recover::{self, RecoverReport};
use crate::api::admin::restore::{self, RestoreReport};
use crate::api::admin::verify::{self, VerifyProgress, VerifyReport};
use crate::api::db::Db;
use crate::api::snapshot::Moment;
use crate::types::error::Result;
use crate::types::options::Options;

impl Db {
    /// Reads and checks every byte of the store. Problems are listed in the report and do not stop
    /// the run.
    ///
    /// # Errors
    /// Disk errors, or the budget.
    pub fn verify(&self, progress: &mut dyn FnMut(VerifyProgress)) -> Result<VerifyReport> {
        verify::verify_open(&self.store, progress)
    }

    /// Copies the store, as it is at one moment, into a new folder while it is in use. Immutable
    /// files are hard-linked where possible. The copy is durable when this returns.
    ///
    /// # Errors
    /// `dest` exists already or lies inside the store; disk errors, or the budget. A failed backup
    /// leaves nothing that opens as a store. [`crate::Error::Trimmed`] if this store is open
    /// read-only and another process has since merged or trimmed away files that it was opened
    /// with: open it again.
    pub fn backup(&self, dest: impl AsRef<Path>) -> Result<BackupReport> {
        self.backup_with(dest, BackupOptions::new())
    }

    /// As [`Db::backup`], but copies every file: the copy shares no bytes with the store, so damage
    /// to one does not affect the other.
    ///
    /// # Errors
    /// As for [`Db::backup`].
    pub fn backup_copy(&self, dest: impl AsRef<Path>) -> Result<BackupReport> {
        self.backup_with(dest, BackupOptions::new().copy(true))
    }

    /// As [`Db::backup`], with options.
    ///
    /// # Errors
    /// As for [`Db::backup`]; or it was cancelled.
    pub fn backup_with(
        &self,
        dest: impl AsRef<Path>,
        options: BackupOptions,
    ) -> Result<BackupReport> {
        backup::backup(&self.store, dest.as_ref(), &options)
    }

    /// Calls `each` with the files of a consistent copy of the store; the files remain until this
    /// call returns. Returns the position at which the copy's log ends. Everything up to this
    /// position is durable. Blob files come before the segments that name them, and the active
    /// segment after all others. Readers and writers are not blocked; nothing is trimmed meanwhile.
    /// Trims, backups, dumps, verifications and new cursors wait for this call, so `each` must not
    /// begin one. The crate `plimsoll-archive` uses this call to archive a store.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # use plimsoll::*;
    /// # use std::io::Read;
    /// # let options = Options::new().memory_bytes(16 << 20);
    /// # let db = Db::open(dir.path().join("store"), options.clone())?;
    /// let glsn = db.put(&db.keyspace("notes")?, "a", "one")?;
    /// let copy = dir.path().join("copy");
    /// # std::fs::create_dir_all(copy.join("log"))?;
    /// # std::fs::create_dir_all(copy.join("index"))?;
    /// let end = db.files(FileScope::Whole, &mut |file| {
    ///     let mut bytes = Vec::new();
    ///     file.read_from(0)?.read_to_end(&mut bytes)?;
    ///     Ok(std::fs::write(copy.join(file.name()), bytes)?)
    /// })?;
    /// assert_eq!(Db::complete_files(&copy, options.clone(), Moment::Newest)?, end);
    /// assert_eq!(Db::open(&copy, options)?.newest(), glsn);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Errors of `each`. [`crate::Error::Forked`] if this log does not have the position of
    /// [`FileScope::LogFrom`], and [`crate::Error::Trimmed`] if it no longer has everything after
    /// it, or as for [`Db::backup`]. Disk errors, the budget, or corruption.
    pub fn files(
        &self,
        scope: FileScope,
        each: &mut dyn FnMut(&StoreFile<'_>) -> Result<()>,
    ) -> Result<LogPosition> {
        files::for_each(&self.store, scope, each)
    }

    /// Turns a folder of files that [`Db::files`] returned into a store that ends at a moment: cuts
    /// the log after the moment, and brings the index up to it. The folder must have all segments
    /// up to the one that contains the moment, and none after it. Without a manifest of the index,
    /// the log must begin with GLSN 1. No file may have a second hard link. Returns the position at
    /// which the store ends: that of the last record before the moment. The store is durable when
    /// this returns.
    ///
    /// # Errors
    /// [`crate::Error::Forked`] or [`crate::Error::Corrupt`] if the files do not belong together;
    /// disk errors, or the budget.
    pub fn complete_files(
        path: impl AsRef<Path>,
        options: Options,
        until: Moment,
    ) -> Result<LogPosition> {
        files::complete(path.as_ref(), options, until)
    }

    /// Writes the store as a stream that any later version reads back on any machine
    /// ([`Db::restore`]): the newest value of each key, or, with [`DumpOptions::history`], every
    /// commit that is retained. `docs/reference/dump.md` specifies the stream. The store stays in
    /// use meanwhile; with history, the log is not trimmed until the dump ends.
    ///
    /// # Errors
    /// The keyspace of the options does not exist; `to` fails; it was cancelled; disk errors, the
    /// budget, or corruption. With history, [`crate::Error::Dropped`] if a recovery has lost a
    /// value that a retained commit wrote.
    pub fn dump(&self, options: DumpOptions, mut to: impl Write) -> Result<DumpReport> {
        dump::dump(&self.store, &options, &mut to)
    }

    /// Makes a store at `dest`, which must not exist or be an empty folder, from a dump
    /// ([`Db::dump`]). A dump with history keeps every GLSN and time. The store appears at `dest`
    /// once the whole dump has been read and verified. An interrupted restore leaves a folder
    /// `dest.new-restore`; the same call with the same dump continues it.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`]: the dump is damaged or cut short. [`crate::Error::Format`]: it is
    /// not a dump, or one of a newer version. [`crate::Error::InvalidInput`]: `dest` is in use.
    /// [`crate::Error::Locked`]: it is being restored already. `from` fails; disk errors, or the
    /// budget.
    pub fn restore(
        dest: impl AsRef<Path>,
        options: Options,
        mut from: impl Read,
    ) -> Result<RestoreReport> {
        restore::restore(dest.as_ref(), options, &mut from)
    }

    /// Makes a store at `dest`, which must not exist or be an empty folder, from a backup
    /// ([`Db::backup`]). Every file is copied, and checked on the way; the backup is not changed.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # use plimsoll::*;
    /// # let options = Options::new().memory_bytes(16 << 20);
    /// # let (backup, store) = (dir.path().join("backup"), dir.path().join("store"));
    /// # let db = Db::open(dir.path().join("first"), options.clone())?;
    /// # let glsn = db.put(&db.keyspace("notes")?, "a", "one")?;
    /// # db.backup(&backup)?;
    /// let report = Db::restore_backup(&backup, &store, options.clone())?;
    /// assert_eq!(Db::open(&store, options)?.newest(), report.glsn);
    /// # assert_eq!(report.glsn, glsn);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Db::open`] and [`Db::backup`].
    pub fn restore_backup(
        backup: impl AsRef<Path>,
        dest: impl AsRef<Path>,
        options: Options,
    ) -> Result<BackupReport> {
        let options = options.read_only(true).shared(false).create(false).warm(false);
        let backup = Self::open(backup, options)?;
        let report = backup.backup_copy(dest)?;
        backup.close()?;
        Ok(report)
    }

    /// Builds a consistent store at `dest` from everything readable in the store at `path`, which
    /// is left unchanged, and reports the losses. `dest` must not exist, or be an empty folder.
    /// Entries keep their GLSNs and times; sound files are hard-linked where possible. `progress`
    /// receives the bytes read of the log, and their total.
    ///
    /// # Errors
    /// [`crate::Error::Locked`]; [`crate::Error::InvalidInput`] if `dest` is in use or inside the
    /// store; [`crate::Error::Corrupt`] if nothing can be read; disk errors, the budget. Then there
    /// is no store at `dest`.
    pub fn recover(
        path: impl AsRef<Path>,
        dest: impl AsRef<Path>,
        options: Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<RecoverReport> {
        recover::recover(path.as_ref(), dest.as_ref(), options, progress)
    }

    /// Reports what [`Db::recover`] would lose, without writing anything.
    ///
    /// # Errors
    /// As for [`Db::recover`].
    pub fn recover_dry_run(path: impl AsRef<Path>, options: Options) -> Result<RecoverReport> {
        recover::dry_run(path.as_ref(), options)
    }
}
