//! `plimsoll salvage --drop`: takes what is damaged out of a store.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use plimsoll::{DamagedKey, DropSalvageReport, DropTarget, salvage_drop};
use serde_json::json;

use crate::args::{Globals, Salvage};
use crate::bytes::{key_bytes, put_json, show_bytes};
use crate::commands::verify;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Output, Reader};
use crate::{store, wait};

pub(super) fn run(globals: &Globals, args: &Salvage, output: &mut Output) -> Outcome {
    let mut targets = args.drop.iter().map(|target| parse(target, args)).collect::<Result<Vec<_>, _>>()?;
    if args.drop_damaged {
        targets.push(DropTarget::Damaged);
    }
    let drop = || salvage_drop(&args.store, store::options(globals), &targets, args.dry_run);
    let report = wait::for_lock(globals, drop)?;
    let done = if args.dry_run { "Nothing was changed.".to_owned() } else { super::done(report.glsn) };
    let printed = output.report(&done, |output| print(&report, args.dry_run, output));
    if !args.dry_run {
        super::tell_recovered(&report.recovered);
    }
    let is_whole = report.recovered.is_empty() || args.dry_run;
    printed.map(|()| if is_whole { Exit::Done } else { Exit::Corrupt })
}

/// Digits are a GLSN, all else is a key; `key:` before it makes a key of digits, too.
fn parse(target: &OsStr, args: &Salvage) -> Result<DropTarget, Failure> {
    let bytes = target.as_bytes();
    if !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit) {
        let glsn = target.to_string_lossy().parse();
        return glsn.map(DropTarget::Glsn).map_err(|_| Failure::usage("a GLSN is a number below 2^64"));
    }
    let key = bytes.strip_prefix(b"key:").unwrap_or(bytes);
    let key = key_bytes(std::ffi::OsString::from_vec(key.to_vec()), args.keys.hex).map_err(Failure::usage)?;
    Ok(DropTarget::Key { keyspace: args.keyspace.keyspace.clone(), key })
}

fn print(report: &DropSalvageReport, is_dry_run: bool, output: &mut Output) -> Result<(), Failure> {
    if output.reader() == Reader::Json {
        let value = |value: &DamagedKey| {
            let mut object = serde_json::Map::new();
            object.insert("keyspace".to_owned(), value.keyspace.clone().into());
            put_json(&mut object, "key", &value.key);
            object.insert("glsn".to_owned(), value.glsn.0.into());
            object.insert("bytes".to_owned(), value.bytes.into());
            serde_json::Value::Object(object)
        };
        return output.json(&json!({
            "newest_glsn": report.glsn.0,
            "dropped": report.dropped.iter().map(verify::as_json).collect::<Vec<_>>(),
            "values": report.values.iter().map(value).collect::<Vec<_>>(),
            "value_count": report.value_count,
            "deleted": report.deleted,
            "recovered": report.recovered,
            "losses": report.losses,
            "moved": report.moved,
            "dry_run": is_dry_run,
        }));
    }
    if report.dropped.is_empty() && report.value_count == 0 && report.recovered.is_empty() {
        return output.line("Nothing is damaged; nothing was dropped.");
    }
    let (verb, would) = if is_dry_run { ("would drop", "; nothing was changed") } else { ("dropped", "") };
    for damage in &report.dropped {
        let glsns = damage.glsns.as_ref().map_or_else(String::new, |glsns| {
            if glsns.start() == glsns.end() {
                format!(", GLSN {}", glsns.start())
            } else {
                format!(", GLSN {} to {}", glsns.start(), glsns.end())
            }
        });
        let keys = damage.key_range.as_ref().map_or_else(String::new, |range| {
            format!(", keys of keyspace {} {}", range.keyspace, verify::show_range(range))
        });
        output.line(&format!("{verb}: {}, offset {}{glsns}{keys}", damage.file, damage.offset))?;
    }
    for value in &report.values {
        let (keyspace, key) = (&value.keyspace, show_bytes(&value.key));
        output.line(&format!("{verb}: {key} of keyspace {keyspace} at GLSN {}, {} bytes", value.glsn, value.bytes))?;
    }
    if report.value_count > report.values.len() as u64 {
        output.line(&format!("and {} more values", report.value_count - report.values.len() as u64))?;
    }
    let mut recovered = report.recovered.iter();
    let becomes = if is_dry_run { "would become" } else { "is now" };
    recovered.try_for_each(|name| {
        output.line(&format!("a keyspace that has lost its record {becomes} {name}, which keeps all versions"))
    })?;
    super::tell_moved(&report.moved, output)?;
    let mut losses = report.losses.iter();
    losses.try_for_each(|path| output.line(&format!("list of what salvages of this store lost: {path}")))?;
    let deleted = if is_dry_run {
        String::new()
    } else {
        format!("; {} keys were deleted, the newest GLSN is now {}", report.deleted, report.glsn)
    };
    output.line(&format!("{} places and {} values{deleted}{would}", report.dropped.len(), report.value_count))
}
