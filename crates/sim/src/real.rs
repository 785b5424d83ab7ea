//! The real thing: children that write to a store on real file systems, whose power is cut, whose system calls fail, or beside which other
//! processes read.
//!
//! [`power`] needs root and loop devices, [`syscalls`] needs `strace`; `crates/sim/nightly` runs them all and says what is missing.
//! Afterwards the store is looked at as after a kill ([`crate::kill`]): every acknowledged commit is there, of each transaction all or
//! nothing, and no byte is wrong.

pub mod power;
pub mod readers;
pub mod syscalls;

use std::process::{Command, Stdio};

use crate::failure::{Failure, Outcome};

/// Runs a tool to its end; what it printed.
fn tool(name: &str, arguments: &[&str]) -> Outcome<String> {
    let told = |what: &str| Failure::new(format!("{name} {}: {what}", arguments.join(" ")));
    let output = Command::new(name).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| told(&format!("{error}; is it installed?")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(told(String::from_utf8_lossy(&output.stderr).trim()))
}
