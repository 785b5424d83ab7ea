//! Damage to single bytes and blocks of closed stores.

use std::path::Path;
use std::process::{Command, Stdio};

use plimsoll_sim::case::Mode;

use crate::run_seeds;

/// Limit on the address space of the process that reads damaged stores, so that it dies if it
/// allocates a corrupt length.
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

/// A sample. `.ci/run` changes every byte, with optimization, and a third of the rich store's
/// bytes; `crates/sim/nightly` changes all of these.
#[test]
fn changed_byte_is_reported_or_harmless() {
    flip(26, &[]);
}

/// Of the zero padding of pages and segments, only every 16th byte of the sample is changed.
#[test]
fn changed_byte_in_tables_blobs_and_history_is_reported_or_harmless() {
    flip(98, &["--rich", "--filler-every", "16"]);
}

/// Sectors of zeros or noise, misdirected writes, truncated files.
#[test]
fn rot_in_a_closed_store_is_reported_or_harmless() {
    run_seeds(Mode::Rot, (0..60).step_by(2));
}

#[test]
fn rot_in_a_killed_store_is_reported_harmless_or_a_torn_tail() {
    run_seeds(Mode::Rot, (1..60).step_by(2));
}
