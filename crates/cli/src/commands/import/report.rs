//! What an import prints when it ends.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::json;

use crate::effort::Effort;
use crate::exit::Failure;
use crate::git::object_id::ObjectId;
use crate::git::repository::Repository;
use crate::output::{Fact, Output, Reader};

use super::apply::Counts;

/// The table.
pub(super) fn print(
    counts: &Counts,
    effort: &Effort,
    limit_bytes: u64,
    store: &Path,
    output: &mut Output,
) -> Result<(), Failure> {
    let mut facts = vec![
        Fact::count("transactions", counts.transactions),
        Fact::count("versions", counts.versions),
        Fact::bytes("bytes in", counts.bytes_in),
        Fact::bytes("bytes on disk", bytes_on_disk(store)),
    ];
    facts.extend(effort.facts(limit_bytes, " (git's own processes are not counted)"));
    let left_out = [
        ("submodules skipped", counts.submodules),
        ("files left out", counts.missing.count + counts.unfit.count),
        ("commits left out", counts.commits.count),
    ];
    let shown = left_out.iter().filter(|(_, count)| *count > 0 || output.reader() != Reader::People);
    facts.extend(shown.map(|&(name, count)| Fact::count(name, count)));
    output.facts(&facts)
}

/// What to say when there was nothing to do.
pub(super) fn print_up_to_date(commit: &ObjectId, repository: &Repository, output: &mut Output) -> Result<(), Failure> {
    match output.reader() {
        Reader::Json => output.json(&json!({ "up_to_date": true, "commit": commit.as_str(), "transactions": 0 })),
        _ => output.line(&format!(
            "up to date: commit {} of {} is the last one",
            commit.short(),
            repository.path().display()
        )),
    }
}

/// What the store's files take on disk.
fn bytes_on_disk(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_on_disk(&entry.path()),
        // The system counts blocks of 512 bytes, whatever the file system's own are.
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(bytes).sum()
}
