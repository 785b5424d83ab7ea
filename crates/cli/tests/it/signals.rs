//! Stops commands with signals.

use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::run::Ran;

/// Waits until a command has installed its signal handlers.
pub(crate) fn wait_until_signals_are_heard(child: &Child) {
    let begun = Instant::now();
    let caught = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("SigCgt:"))
            .unwrap_or("0")
            .trim()
            .to_owned();
        u64::from_str_radix(&line, 16).unwrap()
    };
    // SIGINT (2) and SIGTERM (15, installed last); signal n is bit n - 1. SIGHUP may be ignored.
    const HEARD: u64 = 1 << 1 | 1 << 14;
    while caught() & HEARD != HEARD {
        assert!(begun.elapsed() < Duration::from_secs(60), "signals are not heard");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The result of a command after one signal; kills a command that continues.
pub(crate) fn stopped(mut child: Child, signal: Signal) -> Ran {
    kill_process(Pid::from_child(&child), signal).unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(20) {
            child.kill().unwrap();
            panic!("{signal:?} has not ended the command");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ran::of(child.wait_with_output().unwrap())
}
