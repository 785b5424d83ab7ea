//! Runs fio, the reference for disk performance, and parses its output.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

/// One run of reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    /// Whether offsets are random.
    pub(crate) random: bool,
    pub(crate) block_bytes: usize,
    /// Threads, each with one read in flight.
    pub(crate) threads: u64,
    /// `None`: read the file once.
    pub(crate) seconds: Option<f64>,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reads {
    pub(crate) per_second: f64,
    pub(crate) bytes_per_second: f64,
}

/// An error with a remedy if fio is missing.
pub(crate) fn check() -> Result<()> {
    let output = Command::new("fio").arg("--version").output();
    ensure!(
        output.is_ok_and(|output| output.status.success()),
        "this measurement needs fio: install it (apt-get install fio, dnf install fio, brew install fio)"
    );
    Ok(())
}

/// Reads a file past the page cache with the thread engine (`psync`).
pub(crate) fn run(file: &Path, job: Job) -> Result<Reads> {
    let bytes = std::fs::metadata(file)?.len();
    let mut fio = Command::new("fio");
    fio.args([
        "--name=bench",
        "--ioengine=psync",
        "--direct=1",
        "--thread",
        "--group_reporting",
        "--output-format=json",
    ])
    .args(["--norandommap", "--randrepeat=0", "--readonly"])
    .arg(format!("--filename={}", file.display()))
    .arg(format!("--rw={}", if job.random { "randread" } else { "read" }))
    .arg(format!("--bs={}", job.block_bytes))
    .arg(format!("--numjobs={}", job.threads));
    if !job.random {
        // Each thread has its part of the file.
        let part = bytes / job.threads / job.block_bytes as u64 * job.block_bytes as u64;
        fio.arg(format!("--size={part}")).arg(format!("--offset_increment={part}"));
    }
    if let Some(seconds) = job.seconds {
        fio.arg("--time_based").arg(format!("--runtime={}ms", (seconds * 1e3).ceil()));
    }
    let output = fio.output().context("cannot run fio")?;
    if !output.status.success() {
        bail!("fio failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    parse(&String::from_utf8_lossy(&output.stdout))
}

fn parse(text: &str) -> Result<Reads> {
    // fio may print notes before the result.
    let start = text.find('{').context("fio gave no answer")?;
    let answer: Value =
        serde_json::from_str(&text[start..]).context("fio gave an answer that is no JSON")?;
    let read = &answer["jobs"][0]["read"];
    let number =
        |name: &str| read[name].as_f64().with_context(|| format!("fio's answer has no {name}"));
    Ok(Reads { per_second: number("iops")?, bytes_per_second: number("bw_bytes")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_parsed_after_notes() {
        let text = "note: both iodepth >= 1\n{\"jobs\": [{\"read\": {\"iops\": 1500.5, \"bw_bytes\": 24584192}}]}";
        assert_eq!(
            parse(text).unwrap(),
            Reads { per_second: 1500.5, bytes_per_second: 24_584_192.0 }
        );
        assert!(parse("{}").is_err() && parse("").is_err());
    }
}
