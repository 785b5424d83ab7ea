//! Kùzu's own bulk load of a CSV of pairs of integers; requires its Python package.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::Result;

use crate::launch::{Limit, Outcome, launch};
use crate::payload;
use crate::work_folder::WorkFolder;

/// Loads a CSV of pairs into Kùzu.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../kuzu_pairs.py");

/// Loads this many pairs into an empty store with a buffer pool of the given size, within a limit.
pub(crate) fn load_pairs(
    work: &WorkFolder,
    python: &Path,
    pairs: u64,
    pool_bytes: u64,
    limit: &Limit,
) -> Result<Outcome> {
    let csv = work.path().join("pairs.csv");
    let store = work.path().join("pairs.kuzu");
    write_csv(&csv, pairs)?;
    let arguments =
        [PROGRAM.into(), csv.clone().into(), store.into(), pool_bytes.to_string().into()];
    let arguments =
        arguments.map(|argument: std::ffi::OsString| argument.to_string_lossy().into_owned());
    let outcome = launch(python, &arguments, limit);
    std::fs::remove_file(&csv)?;
    for name in ["pairs.kuzu", "pairs.kuzu.wal"] {
        let _ = std::fs::remove_file(work.path().join(name));
        work.remove(name);
    }
    outcome
}

fn write_csv(file: &Path, pairs: u64) -> Result<()> {
    let mut out = BufWriter::new(File::create(file)?);
    for number in 0..pairs {
        writeln!(out, "{},{number}", payload::mix(number) >> 1)?;
    }
    Ok(out.flush()?)
}
