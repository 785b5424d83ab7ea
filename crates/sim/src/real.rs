//! Tests on real file systems: children write to a store while the power is cut, their system calls
//! fail, or other processes read at the same time.
//!
//! [`power`] and [`members`] need root and loop devices, [`syscalls`] needs `strace`;
//! `crates/sim/nightly` runs them all and reports missing prerequisites. Afterwards the store is
//! checked as after a kill ([`crate::kill`]): every acknowledged commit is present, each
//! transaction is present in full or not at all, and no byte is wrong.

pub mod members;
pub mod power;
pub mod readers;
pub mod syscalls;

use std::process::{Command, Stdio};

use crate::failure::{Failure, Outcome};

/// Runs a tool; returns its output.
fn tool(name: &str, arguments: &[&str]) -> Outcome<String> {
    let failed = |what: &str| Failure::new(format!("{name} {}: {what}", arguments.join(" ")));
    let output = Command::new(name).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| failed(&format!("{error}; is it installed?")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim()))
}
