//! Failing system calls: `strace` makes the n-th call of a kind fail in each thread of a child.
//!
//! The child may exit with an error, or continue if the call does not matter. It must not panic,
//! and its acknowledged commits must survive.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use plimsoll_disk::random::Random;

use crate::failure::{Failure, Outcome, ensure};
use crate::kill::{Kills, Life, Numbers, Running, Scenario, look};
use crate::real::tool;

/// The system calls and their errors.
const FAULTS: [(&str, &str); 18] = [
    ("fdatasync", "EIO"),
    ("fsync", "EIO"),
    ("fsync", "ENOSPC"),
    ("pwrite64", "EIO"),
    ("pwrite64", "ENOSPC"),
    ("pwritev", "EIO"),
    ("pread64", "EIO"),
    ("preadv", "EIO"),
    ("rename,renameat,renameat2", "EIO"),
    ("rename,renameat,renameat2", "ENOSPC"),
    ("openat", "EIO"),
    ("openat", "EMFILE"),
    ("openat", "ENOSPC"),
    ("getdents64", "EIO"),
    ("fallocate,ftruncate", "ENOSPC"),
    ("unlink,unlinkat", "EIO"),
    ("link,linkat", "EIO"),
    ("statx,newfstatat,fstat", "EIO"),
];

/// Number of calls before the failing one; mostly few, because opening makes few of a kind.
fn choose_call(random: &mut Random) -> u64 {
    let most = [4, 16, 64, 400][random.below(4) as usize];
    1 + random.below(most)
}

/// Makes calls of this many children fail, one child after the other; `program` is the binary that
/// can be a child, `dir` a folder to work in.
///
/// # Errors
/// An acknowledged commit is gone, a transaction is partly present, the store does not open, a
/// child panicked, or `strace` is missing.
pub fn fail_calls(program: &Path, dir: &Path, children: u64, seed: u64) -> Outcome<Kills> {
    tool("strace", &["--version"])?;
    let mut random = Random::new(seed);
    let mut report = Kills::default();
    let mut numbers = Numbers::default();
    for life in 0..children {
        let store = dir.join(format!("store{}", life / FAULTS.len() as u64));
        if life.is_multiple_of(FAULTS.len() as u64) {
            numbers = Numbers::default();
        }
        let (calls, error) = FAULTS[(life % FAULTS.len() as u64) as usize];
        let at = choose_call(&mut random);
        let scenario = [Scenario::Write, Scenario::Buffered, Scenario::Compact, Scenario::Backup]
            [random.below(4) as usize];
        let failed = |failure: Failure| {
            Failure::new(format!(
                "child {life}, call {at} of {calls} fails with {error}, seed {seed}, {scenario}: \
                 {failure}"
            ))
        };
        let mut command = Command::new("strace");
        // Run the tracer as a grandchild, so that killing the child ends both.
        command.args(["-D", "-f", "-qqq", "-o", "/dev/null", "-e", &format!("trace={calls}")]);
        command.args(["-e", &format!("inject={calls}:error={error}:when={at}")]).arg(program);
        let child = Running::start(command, scenario, &store).map_err(failed)?;
        child.await_end_of(Life::FromFirstCommit(Duration::from_millis(50 + random.below(400))));
        let ended = child.kill().map_err(failed)?;
        ensure(!ended.complaints.contains("panicked"), || {
            format!("it panicked: {}", ended.complaints)
        })
        .map_err(failed)?;
        report.kills += 1;
        report.with_commits += u64::from(!ended.acknowledged.is_empty());
        report.acknowledged += ended.acknowledged.len() as u64;
        numbers = look(&store, &numbers, &ended.acknowledged, ended.acknowledged.len(), scenario)
            .map_err(failed)?;
        remove_backups(&store).map_err(failed)?;
    }
    Ok(report)
}

/// Removes backups, because failed calls left some incomplete.
#[allow(clippy::disallowed_methods, reason = "a test that cleans up after itself")]
fn remove_backups(store: &Path) -> Outcome {
    for number in 0.. {
        let path = crate::kill::backup_path(store, number);
        if !path.exists() {
            break;
        }
        std::fs::remove_dir_all(&path)
            .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    }
    Ok(())
}
