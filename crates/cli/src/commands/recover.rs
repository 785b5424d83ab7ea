//! `plimsoll recover`: builds a sound store from everything readable in a damaged one.

use serde_json::{Value, json};

use plimsoll::{DamagedKey, DamagedKeys, Db, Glsn, IndexSource, RecoverReport};

use crate::args::{Globals, Recover};
use crate::bytes::show_bytes;
use crate::commands::verify::{as_json, key_as_json, range_as_json, show_range};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Fact, Output, Reader};
use crate::progress::Progress;
use crate::{store, wait};

pub(crate) fn run(globals: &Globals, args: &Recover, output: &mut Output) -> Outcome {
    let options = || store::options(globals);
    let report = match (&args.destination, args.dry_run) {
        (_, true) => wait::for_lock(globals, || Db::recover_dry_run(&args.store, options()))?,
        (Some(destination), false) => {
            let progress = Progress::of_bytes(Some(0));
            let mut tell = |done, total| progress.set_of(done, total);
            wait::for_lock(globals, || Db::recover(&args.store, destination, options(), &mut tell))?
        }
        (None, false) => {
            return Err(Failure::usage("name the folder of the new store, or use --dry-run"));
        }
    };
    let done = match (args.dry_run, report.is_whole()) {
        (true, _) => "Nothing was written.".to_owned(),
        (false, true) => format!(
            "The store is recovered, and nothing is lost; the newest GLSN is {}.",
            report.glsn
        ),
        (false, false) => format!(
            "The store is recovered, and something is lost; the newest GLSN is {}.",
            report.glsn
        ),
    };
    output.report(&done, |output| print(&report, args.dry_run, output))?;
    Ok(if report.is_whole() { Exit::Done } else { Exit::No })
}

fn print(report: &RecoverReport, is_dry_run: bool, output: &mut Output) -> Result<(), Failure> {
    if output.reader() == Reader::Json {
        return output.json(&report_json(report, is_dry_run));
    }
    for line in losses(report) {
        output.line(&line)?;
    }
    let mut facts = vec![
        Fact::new("newest GLSN", report.glsn.to_string(), report.glsn.0),
        Fact::new("index from", source(report.index).to_owned(), source(report.index)),
    ];
    if report.deleted > 0 {
        facts.push(Fact::count("keys deleted, because their newest value is lost", report.deleted));
    }
    if report.readable_from > Glsn::NONE {
        facts.push(Fact::new(
            "readable from GLSN",
            report.readable_from.to_string(),
            report.readable_from.0,
        ));
    }
    if !is_dry_run {
        facts.push(Fact::bytes("bytes copied", report.bytes_copied));
        facts.push(Fact::bytes("bytes linked", report.bytes_linked));
    }
    output.facts(&facts)?;
    if output.reader() == Reader::People {
        let lost =
            if report.is_whole() { "nothing is lost" } else { "something is lost, see above" };
        let what =
            if is_dry_run { "nothing was written" } else { "the new store was read and verified" };
        output.line(&format!("{lost}; {what}"))?;
    }
    Ok(())
}

/// Lists the losses, one sentence each.
fn losses(report: &RecoverReport) -> Vec<String> {
    let range = |glsns: &std::ops::RangeInclusive<Glsn>| match (glsns.start(), glsns.end()) {
        (first, last) if first == last => format!("GLSN {first}"),
        (first, last) => format!("GLSN {first} to {last}"),
    };
    let mut lines: Vec<String> = report
        .damage
        .iter()
        .map(|damage| {
            let glsns = damage
                .glsns
                .as_ref()
                .map_or_else(String::new, |glsns| format!(" ({})", range(glsns)));
            format!("damaged: {}, offset {}{glsns}: {}", damage.file, damage.offset, damage.what)
        })
        .collect();
    lines.extend(
        report.lost_entries.iter().map(|lost| format!("lost: the log's entry {}", range(lost))),
    );
    lines.extend(
        report
            .lost_commits
            .iter()
            .map(|lost| format!("lost: everything that {} wrote", range(lost))),
    );
    lines.extend(report.values.iter().map(|value| {
        let DamagedKey { keyspace, key, glsn, bytes, .. } = value;
        format!(
            "lost: the value of {} in keyspace {keyspace} at GLSN {glsn}, {bytes} bytes",
            show_bytes(key)
        )
    }));
    let more = report.value_count - report.values.len() as u64;
    lines.extend((more > 0).then(|| format!("lost: the values of {more} more versions")));
    let keys = |keys: &DamagedKeys| {
        format!(
            "lost: keys of keyspace {} {}, unless another run of the index has them",
            keys.keyspace,
            show_range(keys)
        )
    };
    lines.extend(report.lost_ranges.iter().map(keys));
    lines.extend(report.renamed.iter().map(|name| {
        format!(
            "lost: the record of a keyspace; its keys are in keyspace {name}, which keeps all \
             versions"
        )
    }));
    lines.extend(report.unresolved.iter().map(|what| format!("note: {what}")));
    lines
}

fn source(index: IndexSource) -> &'static str {
    match index {
        IndexSource::Index => "the index",
        IndexSource::Log => "the log",
        _ => "the log and the runs",
    }
}

fn report_json(report: &RecoverReport, is_dry_run: bool) -> Value {
    let glsns = |ranges: &[std::ops::RangeInclusive<Glsn>]| -> Vec<[u64; 2]> {
        ranges.iter().map(|lost| [lost.start().0, lost.end().0]).collect()
    };
    json!({
        "newest_glsn": report.glsn.0,
        "index_from": source(report.index),
        "is_whole": report.is_whole(),
        "damage": report.damage.iter().map(as_json).collect::<Vec<_>>(),
        "lost_entries": glsns(&report.lost_entries),
        "lost_commits": glsns(&report.lost_commits),
        "values": report.values.iter().map(key_as_json).collect::<Vec<_>>(),
        "value_count": report.value_count,
        "lost_ranges": report.lost_ranges.iter().map(range_as_json).collect::<Vec<_>>(),
        "deleted": report.deleted,
        "readable_from": report.readable_from.0,
        "renamed": report.renamed,
        "unresolved": report.unresolved,
        "bytes_linked": report.bytes_linked,
        "bytes_copied": report.bytes_copied,
        "dry_run": is_dry_run,
    })
}
