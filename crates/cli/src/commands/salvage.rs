//! `plimsoll salvage`: drops what is damaged, keeps what lies before a damaged place, or what the index holds.

mod drop;

use serde_json::json;

use plimsoll::{Glsn, IndexSalvageReport, IndexSource};

use crate::args::{Globals, Salvage};
use crate::bytes::show_bytes;
use crate::commands::verify::show_range;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Output, Reader};
use crate::stderr::say;
use crate::{store, wait};

pub(crate) fn run(globals: &Globals, args: &Salvage, output: &mut Output) -> Outcome {
    match args.cut_at {
        Some(cut_at) => cut(globals, args, cut_at, output),
        None if args.from_index => from_index(globals, args, output),
        None if args.drop.is_empty() && !args.drop_damaged => {
            Err(Failure::usage("say what to salvage: --drop GLSN|KEY, --drop-damaged, --cut-at GLSN, or --from-index"))
        }
        None => drop::run(globals, args, output),
    }
}

fn cut(globals: &Globals, args: &Salvage, cut_at: u64, output: &mut Output) -> Outcome {
    let report = wait::for_lock(globals, || plimsoll::salvage(&args.store, store::options(globals), Glsn(cut_at)))?;
    output.report(&done(report.glsn), |output| match output.reader() {
        Reader::Json => output.json(&json!({
            "newest_glsn": report.glsn.0,
            "lost_to": report.lost_to.map(|lost_to| lost_to.0),
            "moved": report.moved,
        })),
        // A pipe gets the paths alone.
        Reader::Pipe if report.moved.is_empty() => {
            say(format_args!("there was nothing to cut; the newest GLSN is {}", report.glsn));
            Ok(())
        }
        Reader::Pipe => report.moved.iter().try_for_each(|path| output.line(path)),
        Reader::People => {
            let done = if report.moved.is_empty() { "there was nothing to cut" } else { "cut" };
            output.line(&format!("{done}; the newest GLSN is now {}", report.glsn))?;
            tell_moved(&report.moved, output)
        }
    })?;
    if let Some(lost_to) = report.lost_to {
        say(format_args!("GLSN {} to {lost_to}, which were durable, are given up", report.glsn.next()));
    }
    Ok(Exit::Done)
}

/// What is said where the report cannot be printed.
fn done(newest: Glsn) -> String {
    format!("The salvage is done; the newest GLSN is {newest}.")
}

fn from_index(globals: &Globals, args: &Salvage, output: &mut Output) -> Outcome {
    let report = wait::for_lock(globals, || plimsoll::salvage_from_index(&args.store, store::options(globals)))?;
    let lost: Vec<String> =
        report.lost.iter().map(|(keyspace, key)| format!("{keyspace}\t{}", show_bytes(key))).collect();
    let printed = output.report(&done(report.glsn), |output| print_from_index(&report, &lost, output));
    let exit = tell_losses(&report, &lost);
    printed.map(|()| exit)
}

fn print_from_index(report: &IndexSalvageReport, lost: &[String], output: &mut Output) -> Result<(), Failure> {
    let (from_manifest, from_runs) = match report.index_from {
        Some(IndexSource::Manifest(number)) => (Some(number), None),
        Some(IndexSource::Runs(runs)) => (None, Some(runs)),
        _ => (None, None),
    };
    let ranges: Vec<_> = report
        .lost_ranges
        .iter()
        .map(|range| {
            json!({
                "keyspace": range.keyspace,
                "first": show_bytes(&range.first),
                "last": show_bytes(&range.last),
                "last_keyspace": range.last_keyspace,
                "between": range.between,
            })
        })
        .collect();
    match output.reader() {
        Reader::Json => output.json(&json!({
            "newest_glsn": report.glsn.0,
            "front": report.front.0,
            "known": report.known.0,
            "written": report.written,
            "deleted": report.deleted,
            "lost": report.lost_count,
            "lost_keys": lost,
            "index_from_manifest": from_manifest,
            "index_from_runs": from_runs,
            "readable_from": report.readable_from.0,
            "lost_ranges": ranges,
            "recovered": report.recovered,
            "unknown": report.unknown,
            "lost_commits": report.lost_commits.as_ref().map(|commits| [commits.start().0, commits.end().0]),
            "losses": report.losses,
            "moved": report.moved,
        })),
        Reader::Pipe => report.moved.iter().try_for_each(|path| output.line(path)),
        Reader::People => {
            match report.index_from {
                Some(IndexSource::Manifest(number)) => output.line(&format!(
                    "the index was found again by its older manifest {number} and the log behind it; nothing of it is lost"
                ))?,
                Some(_) => output.line(&format!(
                    "the index was made anew from {} run files and the log; moments before GLSN {} can no longer be read",
                    from_runs.unwrap_or_default(),
                    report.readable_from
                ))?,
                None => {}
            }
            if report.written + report.deleted + report.lost_count == 0 && report.index_from.is_some() {
                output.line(&format!("the newest GLSN is {}", report.glsn))?;
            } else {
                output.line(&format!(
                    "kept the log up to GLSN {}; commit {} brings it to what the index held at {}: {} keys written, {} deleted",
                    report.front, report.glsn, report.known, report.written, report.deleted
                ))?;
            }
            tell_moved(&report.moved, output)
        }
    }
}

/// Says what is lost, and how the command ends.
fn tell_losses(report: &IndexSalvageReport, lost: &[String]) -> Exit {
    if let Some(commits) = &report.lost_commits {
        let (first, last) = (commits.start(), commits.end());
        say(format_args!("the commits with GLSN {first} to {last} are lost, and later ones if there were any"));
    }
    for key in lost {
        say(format_args!("the newest value is lost: {key}"));
    }
    if report.lost_count > lost.len() as u64 {
        say(format_args!("and {} more", report.lost_count - lost.len() as u64));
    }
    for range in &report.lost_ranges {
        say(format_args!("keys may be lost: {}\t{}", range.keyspace, show_range(range)));
    }
    tell_recovered(&report.recovered);
    report.unknown.iter().for_each(|what| say(format_args!("not known: {what}")));
    report.losses.iter().for_each(|path| say(format_args!("this list names what salvages of this store lost: {path}")));
    let is_whole = report.lost_count == 0
        && report.lost_ranges.is_empty()
        && report.recovered.is_empty()
        && report.unknown.is_empty()
        && report.lost_commits.is_none();
    if is_whole { Exit::Done } else { Exit::Corrupt }
}

/// Keyspaces whose records are lost.
fn tell_recovered(names: &[String]) {
    for name in names {
        say(format_args!(
            "the record of a keyspace is lost; its keys are in keyspace {name} now, which keeps all versions (`plimsoll keyspace retention` changes that)"
        ));
    }
}

fn tell_moved(moved: &[String], output: &mut Output) -> Result<(), Failure> {
    moved.iter().try_for_each(|path| output.line(&format!("moved aside: {path}")))
}
