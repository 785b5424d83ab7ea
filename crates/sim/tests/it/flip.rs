//! Each byte of a small, cleanly closed store.

use std::path::Path;
use std::process::{Command, Stdio};

use plimsoll_sim::case::Mode;

use crate::run_seeds;

/// Address space of the process that reads damaged stores: a length that is believed and allocated
/// ends it.
const LIMIT_MIB: u64 = 1024;

/// Changes every `every`-th byte, in two processes at once.
fn flip(every: u64, arguments: &[&str]) {
    let children: Vec<_> = (0..2)
        .map(|half| {
            let from = half * every / 2;
            Command::new(Path::new(env!("CARGO_BIN_EXE_plimsoll-sim")))
                .args(["--mode", "flip", "--seed", "1", "--every", &every.to_string()])
                .args(["--from", &from.to_string(), "--limit-mib", &LIMIT_MIB.to_string()])
                .args(arguments)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        let (out, err) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        println!("{out}");
        assert!(output.status.success(), "{}: {out}{err}", output.status);
    }
}

/// A sample. `.ci/run` changes every byte, with optimization; and a third of the rich store's,
/// which `crates/sim/nightly` changes as a whole.
#[test]
fn a_byte_that_was_changed_is_reported_or_harmless() {
    flip(26, &[]);
}

/// Of the zeros that fill up pages and segments each 16th of the sample.
#[test]
fn so_is_one_of_a_table_a_blob_file_or_a_history_run() {
    flip(98, &["--rich", "--filler-every", "16"]);
}

/// Sectors that turn to zeros or noise, writes that went elsewhere, files that lost their end.
#[test]
fn whatever_rots_in_a_closed_store_is_reported_or_harmless() {
    run_seeds(Mode::Rot, (0..60).step_by(2));
}

#[test]
fn whatever_rots_in_a_killed_store_is_reported_harmless_or_a_torn_tail() {
    run_seeds(Mode::Rot, (1..60).step_by(2));
}
