//! Makes a store from an archive.
//!
//! ```text
//! DEST.new-archive/  the store while it is made
//!   log/             the segments up to the requested moment, and their blob files
//!   index/           of the base, if there is one
//! DEST               that folder, in the end
//! ```
//!
//! An unusable object changes the plan: to another base, or to an earlier end. An interrupted
//! restore leaves a folder, which the next restore to the same destination removes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use plimsoll::{Db, Glsn, Moment, Options};
use plimsoll_disk::vfs::{Caching, Disk, File, NEW_FOLDER_MARK, Open};

use crate::bucket::Call;
use crate::catalog::Catalog;
use crate::error::{Damage, Error, MISSING, Result};
use crate::manifest::{self, BaseFile, BaseKind};
use crate::object::{self, ObjectRef};
use crate::plan::{Bad, Plan, Target, plan, restorable, target_of_time};
use crate::view::View;

/// The result of a restore.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreReport {
    /// The newest GLSN of the new store.
    pub glsn: Glsn,
    /// Whether the store ends at the requested moment. Otherwise it ends earlier, because damage is
    /// in the way.
    pub is_whole: bool,
    /// Unusable objects: those in the way, and others that were found.
    pub damage: Vec<Damage>,
    /// Problems of the restored store that it already had when it was archived.
    pub problems: Vec<String>,
    /// Objects that were read.
    pub objects: u64,
    /// Bytes of the restored files.
    pub bytes: u64,
}

pub(crate) fn restore(
    call: &Call<'_>,
    disk: &Arc<dyn Disk>,
    dest: &Path,
    options: Options,
    at: Moment,
) -> Result<RestoreReport> {
    let mut view = View::load(call.bucket, call.place)?;
    loop {
        let aim = aim(&view, at)?;
        let new = Place::find(&**disk, dest)?;
        let made = make(call, &new, &options, at, &view, aim);
        match made.inspect_err(|_| new.remove())? {
            Made::Store(report) => {
                call.check().inspect_err(|_| new.remove())?;
                new.finish()?;
                return Ok(report);
            }
            Made::Newer(newer) => {
                new.remove();
                view = *newer;
            }
        }
    }
}

/// The result of an attempt.
enum Made {
    Store(RestoreReport),
    /// The archive has a newer manifest, and an object of the view was deleted.
    Newer(Box<View>),
}

/// Makes the store from the objects of a view.
fn make(
    call: &Call<'_>,
    new: &Place<'_>,
    options: &Options,
    at: Moment,
    view: &View,
    aim: Aim,
) -> Result<Made> {
    let (catalog, mut damage) = (&view.catalog, view.damage.clone());
    // Damage to objects can hide moments only if lists are missing.
    let hides = if view.lacks_lists { &damage[..] } else { &[] };
    let mut bad: Bad = hides.iter().map(|it| (it.object.clone(), it.what.clone())).collect();
    let mut report = RestoreReport::default();
    let (glsn, problems, is_whole) = loop {
        let Some(plan) = plan(catalog, aim.span, &bad) else {
            return Err(out_of_reach(catalog, at, damage, &bad));
        };
        new.clear()?;
        let mut fetch = Fetch { call, disk: new.disk, new: &new.path, report: &mut report };
        let Some(Broken { found, planned }) = fetch.all(catalog, &plan)? else {
            break complete(call, new, options.clone(), at, &plan)?;
        };
        if found.what == MISSING
            && let Some(newer) = view.without(call.bucket, call.place, &planned)?
        {
            return Ok(Made::Newer(Box::new(newer)));
        }
        bad.insert(planned, found.what.clone());
        damage.push(found);
    };
    // A blob file whose entry is missing is a problem of the new store.
    let is_complete = !view.lacks_lists || problems.is_empty();
    report.is_whole = is_whole && aim.is_exact && is_complete;
    (report.glsn, report.problems, report.damage) = (glsn, problems, damage);
    Ok(Made::Store(report))
}

struct Aim {
    span: Target,
    /// Whether it is the requested moment, and not just the newest known moment before it.
    is_exact: bool,
}

/// Finds the requested moment in the archive.
fn aim(view: &View, at: Moment) -> Result<Aim> {
    let (catalog, end) = (&view.catalog, view.manifest().end.glsn);
    let has_newer = view.has_newer;
    match at {
        Moment::Glsn(glsn) if glsn.0 <= end => {
            Ok(Aim { span: Target::glsn(glsn.0), is_exact: true })
        }
        Moment::Glsn(_) if !has_newer => Err(not_archived(catalog, at, &Bad::new())),
        Moment::Time(time) => {
            let micros = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
            let micros = u64::try_from(micros).unwrap_or(u64::MAX);
            match target_of_time(catalog, end, micros) {
                Some((span, true)) => Ok(Aim { span, is_exact: !has_newer || span.from < end }),
                Some((span, false)) if view.lacks_lists => Ok(Aim { span, is_exact: false }),
                None if view.lacks_lists => Err(Error::Damaged { damage: view.damage.clone() }),
                _ => Err(not_archived(catalog, at, &Bad::new())),
            }
        }
        _ => Ok(Aim { span: Target::glsn(end), is_exact: !has_newer }),
    }
}

fn not_archived(catalog: &Catalog, at: Moment, bad: &Bad) -> Error {
    let asked = match at {
        Moment::Glsn(glsn) => format!("GLSN {glsn}"),
        Moment::Time(_) => "the state at the given time".to_owned(),
        _ => "the newest moment".to_owned(),
    };
    Error::NotArchived { asked, restorable: restorable(catalog, bad) }
}

/// The error if no plan is left.
fn out_of_reach(catalog: &Catalog, at: Moment, damage: Vec<Damage>, bad: &Bad) -> Error {
    match bad.is_empty() {
        true => not_archived(catalog, at, bad),
        false => Error::Damaged { damage },
    }
}

/// Completes and verifies the store. Returns its newest GLSN, its problems, and whether the plan
/// reaches the requested moment.
fn complete(
    call: &Call<'_>,
    new: &Place<'_>,
    options: Options,
    at: Moment,
    plan: &Plan<'_>,
) -> Result<(Glsn, Vec<String>, bool)> {
    // If damage is in the way, end with the last piece.
    let until = if plan.is_whole { at } else { Moment::Newest };
    call.check()?;
    let end = Db::complete_files(&new.path, options.clone(), until)?;
    call.check()?;
    let last = plan.end().position();
    if end.glsn == last.glsn && end.chain != last.chain {
        return Err(Error::Store(plimsoll::Error::Forked {
            glsn: Some(end.glsn),
            message: format!(
                "the history of the restored log differs from the archive's at GLSN {}; check the \
                 archive (`plimsoll verify ARCHIVE`), or restore an earlier moment",
                end.glsn
            ),
        }));
    }
    let found = plimsoll::verify(&new.path, options.shared(false), &mut |_| {})?;
    Ok((end.glsn, found.problems, plan.is_whole))
}

/// The folder in which the store is made, and its final name.
struct Place<'a> {
    disk: &'a dyn Disk,
    path: PathBuf,
    dest: &'a Path,
}

impl<'a> Place<'a> {
    fn find(disk: &'a dyn Disk, dest: &'a Path) -> Result<Self> {
        let exists = || Error::DestinationExists { path: dest.to_owned() };
        let entry = disk.entry(dest).map_err(failed(dest))?;
        if entry.as_ref().is_some_and(|entry| !entry.is_dir)
            || (entry.is_some() && !disk.names(dest).map_err(failed(dest))?.is_empty())
        {
            return Err(exists());
        }
        let mut name = dest.file_name().ok_or_else(exists)?.to_owned();
        name.push(format!("{NEW_FOLDER_MARK}archive"));
        Ok(Self { disk, path: dest.with_file_name(name), dest })
    }

    /// Creates the folder again, because an earlier attempt may have left one.
    fn clear(&self) -> Result<()> {
        let made = remove_folder(self.disk, &self.path).and_then(|()| {
            for folder in [self.path.clone(), self.path.join("log"), self.path.join("index")] {
                self.disk.create_dir(&folder)?;
            }
            self.disk.sync_dir(&self.path)
        });
        made.map_err(failed(&self.path))
    }

    fn remove(&self) {
        // The first failure is the one to report; the next restore removes the rest.
        let _ = remove_folder(self.disk, &self.path);
    }

    /// Gives the store its name.
    fn finish(&self) -> Result<()> {
        let parent = match self.dest.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let finished = self.disk.sync_dir(&self.path).and_then(|()| {
            if self.disk.entry(self.dest)?.is_some() {
                self.disk.remove_dir(self.dest)?;
            }
            self.disk.rename(&self.path, self.dest)?;
            self.disk.sync_dir(parent)
        });
        finished.map_err(failed(self.dest))
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let what = path.display().to_string();
    move |error| Error::storage(what, error)
}

fn remove_folder(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    if disk.entry(path)?.is_none() {
        return Ok(());
    }
    for entry in disk.list(path)? {
        let path = path.join(&entry.name);
        if entry.is_dir { remove_folder(disk, &path)? } else { disk.remove(&path)? }
    }
    disk.remove_dir(path)
}

/// Damage that changes the plan.
struct Broken {
    found: Damage,
    /// The object of the plan that is unusable: the damaged object, or the list of its base.
    planned: String,
}

impl From<Damage> for Broken {
    fn from(found: Damage) -> Self {
        Self { planned: found.object.clone(), found }
    }
}

/// Reads the objects of a plan into files.
struct Fetch<'a> {
    call: &'a Call<'a>,
    disk: &'a dyn Disk,
    new: &'a Path,
    report: &'a mut RestoreReport,
}

impl Fetch<'_> {
    /// Returns the first damage that it finds.
    fn all(&mut self, catalog: &Catalog, plan: &Plan<'_>) -> Result<Option<Broken>> {
        (self.report.objects, self.report.bytes) = (0, 0);
        // Read the newest first, because an active archiver replaces it soonest.
        let segments: Vec<_> = plan.pieces.chunk_by(|a, b| a.segment == b.segment).collect();
        for pieces in segments.into_iter().rev() {
            let path = self.new.join("log").join(format!("{:020}.seg", pieces[0].segment));
            let file = self.create(&path)?;
            for piece in pieces {
                if let Some(damage) = self.read(&piece.object, &path, &*file, piece.from)? {
                    return Ok(Some(damage.into()));
                }
            }
            let to = pieces.last().map_or(0, |piece| piece.to);
            file.set_len(to).and_then(|()| file.sync()).map_err(failed(&path))?;
        }
        for blob in catalog.blobs_of(&plan.pieces) {
            if let Some(damage) = self.file("log", &blob_name(blob.id), &blob.object)? {
                return Ok(Some(damage.into()));
            }
        }
        if let Some(base) = plan.base {
            let files = match manifest::read_json::<Vec<BaseFile>>(self.call.bucket, &base.list)? {
                Ok(files) => files,
                Err(what) => {
                    return Ok(Some(Damage { object: base.list.name.clone(), what }.into()));
                }
            };
            for BaseFile { kind, id, object } in files {
                let (folder, name) = match kind {
                    BaseKind::Run => ("index", format!("{id:020}.run")),
                    BaseKind::Index => ("index", format!("MANIFEST.{id:020}")),
                    BaseKind::Blob => ("log", blob_name(id)),
                };
                if let Some(damage) = self.file(folder, &name, &object)? {
                    return Ok(Some(Broken { found: damage, planned: base.list.name.clone() }));
                }
            }
        }
        for folder in ["log", "index"] {
            let path = self.new.join(folder);
            self.disk.sync_dir(&path).map_err(failed(&path))?;
        }
        Ok(None)
    }

    /// Reads an object into a new file.
    fn file(&mut self, folder: &str, name: &str, object: &ObjectRef) -> Result<Option<Damage>> {
        let path = self.new.join(folder).join(name);
        let file = self.create(&path)?;
        let damage = self.read(object, &path, &*file, 0)?;
        if damage.is_none() {
            file.sync().map_err(failed(&path))?;
        }
        Ok(damage)
    }

    fn create(&self, path: &Path) -> Result<Arc<dyn File>> {
        self.disk.open(path, Open::CreateNew, Caching::Buffered).map_err(failed(path))
    }

    /// Reads an object into a file at an offset.
    fn read(
        &mut self,
        object: &ObjectRef,
        path: &Path,
        file: &dyn File,
        mut at: u64,
    ) -> Result<Option<Damage>> {
        self.call.check()?;
        let what = object::read(self.call.bucket, object, &mut |piece| {
            self.call.check()?;
            file.write_at(piece, at).map_err(failed(path))?;
            at += piece.len() as u64;
            Ok(())
        })?;
        self.report.objects += 1;
        self.report.bytes += object.length;
        Ok(what.map(|what| Damage { object: object.name.clone(), what }))
    }
}

fn blob_name(id: u64) -> String {
    format!("{id:020}.blob")
}
