//! The output of an import: the text next to the progress bar, the skipped files and commits, and
//! the final table.

use std::path::Path;

use plimsoll_git::{Counts, FileReason, LeftOut, LeftOutFile, Repository};

use crate::bytes::show_bytes;
use crate::disk_use::bytes_on_disk;
use crate::effort::Effort;
use crate::exit::Failure;
use crate::output::{Fact, Output, Reader};
use crate::size::{count_of, show_count, show_size};
use crate::stderr::say;

/// The text next to the progress bar.
pub(super) fn in_words(counts: &Counts) -> String {
    format!("{} versions, {}", show_count(counts.versions), show_size(counts.bytes_in))
}

/// Lists skipped files and commits on stderr, with reasons.
pub(super) fn print_left_out(counts: &Counts) {
    let files = ["file version", "file versions"];
    print_items(&counts.missing, files, "the repository lacks its content", show_file);
    print_items(
        &counts.unfit,
        files,
        "a store accepts paths up to 4 KiB and files up to 1 GiB",
        show_file,
    );
    let why = "the repository lacks some of its folders; the next commit includes its changes";
    print_items(&counts.commits, ["commit", "commits"], why, |commit| {
        format!("{}: {}", commit.id, commit.why)
    });
}

/// Lists the branches that were not moved.
pub(super) fn print_diverged(counts: &Counts) {
    let why = "the repository's branch does not contain the last imported commit, so it was \
               rewritten; delete the store's branch to import it again";
    print_items(&counts.diverged, ["branch", "branches"], why, Clone::clone);
}

pub(crate) fn print_items<T>(
    left_out: &LeftOut<T>,
    [one, many]: [&str; 2],
    why: &str,
    show: impl Fn(&T) -> String,
) {
    if left_out.count == 0 {
        return;
    }
    let mut lines = format!("{} left out: {why}", count_of(left_out.count, one, many));
    for thing in &left_out.first {
        lines = format!("{lines}\n  {}", show(thing));
    }
    let more = left_out.count - left_out.first.len() as u64;
    if more > 0 {
        lines = format!("{lines}\n  and {} more", show_count(more));
    }
    say(lines);
}

fn show_file(file: &LeftOutFile) -> String {
    let why = match &file.why {
        FileReason::PathTooLong => format!("a path of {}", show_size(file.path.len() as u64)),
        FileReason::TooLarge { bytes } => show_size(*bytes),
        FileReason::Missing { object } => format!("object {object}"),
        FileReason::Damaged { object, message } => format!("object {object}: {message}"),
        other => format!("{other:?}"),
    };
    let path = show_bytes(&file.path[..file.path.len().min(200)]);
    format!("{path} at commit {} ({why})", file.commit.short())
}

/// The table. `limit_bytes` is the budget of the store.
pub(super) fn facts(
    counts: &Counts,
    effort: &Effort,
    limit_bytes: u64,
    store: &Path,
    reader: Reader,
) -> Vec<Fact> {
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
    let shown = left_out.iter().filter(|(_, count)| *count > 0 || reader == Reader::Json);
    facts.extend(shown.map(|&(name, count)| Fact::count(name, count)));
    facts
}

/// Reports that there was nothing to import; a program also gets the table.
pub(super) fn print_up_to_date(
    repository: &Repository,
    mut facts: Vec<Fact>,
    output: &mut Output,
) -> Result<(), Failure> {
    let commit = repository.tip();
    if output.reader() != Reader::Json {
        let path = repository.path().display();
        return output
            .line(&format!("up to date: commit {} of {path} is the last one", commit.short()));
    }
    facts.push(Fact::new("up to date", "", true));
    facts.push(Fact::new("commit", "", commit.as_str()));
    output.facts(&facts)
}
