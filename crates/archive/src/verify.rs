//! Reads and checks an archive.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use plimsoll::Glsn;

use crate::bucket::{Bucket, Call};
use crate::error::{Damage, Error, MISSING, Result};
use crate::manifest::{self, BaseFile, Dropped, Found};
use crate::object::{self, ObjectRef};
use crate::plan::{Bad, restorable};
use crate::view::View;

/// The note about an object that no manifest names.
const UNNAMED: &str = "no manifest names it: a pass was stopped, or its manifest was removed";

/// Progress of a verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Objects read.
    pub done: u64,
    /// Objects that are known so far.
    pub total: u64,
}

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyReport {
    /// The newest GLSN in the archive.
    pub glsn: Glsn,
    /// The moments that can be restored.
    pub restorable: Vec<RangeInclusive<Glsn>>,
    /// Objects that are damaged or missing.
    pub damage: Vec<Damage>,
    /// Leftovers of a pass that was stopped, which need no action.
    pub notes: Vec<Damage>,
    /// Objects that were read, without manifests.
    pub objects: u64,
    /// Bytes of their contents.
    pub bytes: u64,
}

pub(crate) fn verify(
    call: &Call<'_>,
    progress: &mut dyn FnMut(VerifyProgress),
) -> Result<VerifyReport> {
    let mut report = VerifyReport::default();
    manifests(call.bucket, &mut report)?;
    let view = View::load(call.bucket, call.place)?;
    let (newest, catalog) = (view.manifest(), &view.catalog);
    let is_list = |damage: &&Damage| newest.lists.iter().any(|list| list.name == damage.object);
    report.damage.extend(view.damage.iter().filter(is_list).cloned());
    // The names in a list that cannot be read are unknown.
    let mut knows_all_names = !view.lacks_lists;
    report.glsn = newest.end.glsn.into();
    let mut bad: Bad =
        report.damage.iter().map(|it| (it.object.clone(), it.what.clone())).collect();
    let mut check = Check {
        call,
        view: &view,
        newer: None,
        named: newest.lists.iter().map(|list| list.name.clone()).collect(),
    };
    // Read the newest first, because an active archiver replaces them soonest.
    let pieces = catalog.pieces().rev().map(|piece| &piece.object);
    let objects: Vec<&ObjectRef> =
        pieces.chain(catalog.blobs.values().map(|blob| &blob.object)).collect();
    let mut total = (objects.len() + catalog.bases.len()) as u64;
    for object in objects {
        if let Some(what) = check.read(object, &object.name, &mut report)? {
            bad.insert(object.name.clone(), what.clone());
            report.damage.push(Damage { object: object.name.clone(), what });
        }
        progress(VerifyProgress { done: report.objects, total });
    }
    for base in &catalog.bases {
        check.named.insert(base.list.name.clone());
        match manifest::read_json::<Vec<BaseFile>>(call.bucket, &base.list)? {
            Err(what) if check.is_dropped(&what, &base.list.name)? => knows_all_names = false,
            Ok(files) => {
                total += files.len() as u64;
                for file in files {
                    let name = file.object.name.clone();
                    let read = check.read(&file.object, &base.list.name, &mut report)?;
                    progress(VerifyProgress { done: report.objects, total });
                    if let Some(what) = read {
                        // The base cannot be used without this file.
                        bad.insert(base.list.name.clone(), name);
                        report.damage.push(Damage { object: file.object.name, what });
                    }
                }
            }
            Err(what) => {
                knows_all_names = false;
                bad.insert(base.list.name.clone(), what.clone());
                report.damage.push(Damage { object: base.list.name.clone(), what });
            }
        }
    }
    report.restorable = restorable(catalog, &bad);
    if report.restorable.is_empty() && report.damage.is_empty() {
        let what = "no moment can be restored, because the manifest names no intact index and log"
            .to_owned();
        report.damage.push(Damage { object: manifest::name_of(newest.number), what });
    }
    for Dropped { object, .. } in &newest.dropped {
        if check.read(object, &object.name, &mut report)?.is_some() {
            let what = "it is damaged, and will be deleted: only older manifests need it";
            report.notes.push(Damage { object: object.name.clone(), what: what.to_owned() });
        }
    }
    let last = manifest::numbers(call.bucket)?.last().copied();
    if knows_all_names && last == Some(newest.number) {
        report.notes.extend(check.unnamed()?);
    }
    report.damage.sort_by(|a, b| a.object.cmp(&b.object));
    report.damage.dedup();
    Ok(report)
}

/// Reads all manifests that are kept.
fn manifests(bucket: &dyn Bucket, report: &mut VerifyReport) -> Result<()> {
    let numbers = manifest::numbers(bucket)?;
    let last = numbers.last().copied().unwrap_or(0);
    let mut newest: Option<Found> = None;
    // Skip older manifests, which were being removed.
    for number in numbers.into_iter().filter(|number| number + manifest::KEPT > last) {
        let mut damage = Vec::new();
        let found = manifest::read_if_possible(bucket, number, &mut damage)?;
        if number == last && manifest::is_unfinished(&damage) {
            let what = format!("{MISSING}; the next pass writes it");
            report.notes.extend(damage.drain(..).map(|it| Damage { what: what.clone(), ..it }));
        }
        // The archiver may be removing this manifest.
        let is_old = |last: &u64| number + manifest::KEPT <= *last;
        if !damage.is_empty() && manifest::numbers(bucket)?.last().is_some_and(is_old) {
            continue;
        }
        report.damage.extend(damage);
        let Some(found) = found else { continue };
        if newest.as_ref().is_some_and(|before| !found.follows(before)) {
            let what = "it does not follow the manifest before it: one of the two was replaced";
            let object = manifest::name_of(number);
            report.damage.push(Damage { object, what: what.to_owned() });
        }
        newest = Some(found);
    }
    Ok(())
}

struct Check<'a> {
    call: &'a Call<'a>,
    view: &'a View,
    /// The archive as of a later moment, if an object was missing.
    newer: Option<View>,
    /// Objects that were read or are known in another way.
    named: BTreeSet<String>,
}

impl Check<'_> {
    /// Whether a missing object was deleted by an active archiver because it is no longer needed.
    fn is_dropped(&mut self, what: &str, object: &str) -> Result<bool> {
        if what != MISSING {
            return Ok(false);
        }
        if self.newer.as_ref().is_none_or(|newer| newer.names(object)) {
            let newest = self.newer.as_ref().unwrap_or(self.view);
            self.newer = newest.newer(self.call.bucket, self.call.place)?.or(self.newer.take());
        }
        Ok(self.newer.as_ref().is_some_and(|newer| !newer.names(object)))
    }

    /// Reads an object, unless it was read before. `planned` is the object that the catalog names:
    /// itself, or the list of its base.
    fn read(
        &mut self,
        object: &ObjectRef,
        planned: &str,
        report: &mut VerifyReport,
    ) -> Result<Option<String>> {
        if !self.named.insert(object.name.clone()) {
            let known = report.damage.iter().find(|damage| damage.object == object.name);
            return Ok(known.map(|damage| damage.what.clone()));
        }
        self.call.check()?;
        report.objects += 1;
        report.bytes += object.length;
        match object::read(self.call.bucket, object, &mut |_| self.call.check())? {
            Some(what) if self.is_dropped(&what, planned)? => Ok(None),
            what => Ok(what),
        }
    }

    /// The objects that no manifest names.
    fn unnamed(&self) -> Result<Vec<Damage>> {
        let mut unnamed = Vec::new();
        for folder in ["segments", "blobs", "index", "lists"] {
            let listed =
                self.call.bucket.list(folder).map_err(|error| Error::storage(folder, error))?;
            let unknown = listed.into_iter().filter(|name| !self.named.contains(name));
            unnamed.extend(unknown.map(|object| Damage { object, what: UNNAMED.to_owned() }));
        }
        Ok(unnamed)
    }
}
