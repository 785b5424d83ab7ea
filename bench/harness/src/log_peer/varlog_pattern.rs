//! The access pattern of Varlog's storage: the Go program beside this workspace, called through its
//! standard input and output.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{LogPeer, Operation, Setting, Slices};

/// The running program.
#[derive(Debug)]
pub(crate) struct VarlogPattern {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl VarlogPattern {
    /// Builds the program and starts it with `entries` entries of `payload_bytes` each.
    pub(crate) fn start(folder: &Path, entries: u64, payload_bytes: usize) -> Result<Self> {
        let mut child = Command::new(build()?)
            .arg("-serve")
            .arg("-dir")
            .arg(folder)
            .args([
                "-entries",
                &entries.to_string(),
                "-bytes",
                &payload_bytes.to_string(),
                "-n",
                "1",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let requests = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("standard output is piped")?);
        Ok(Self { child, requests, answers })
    }
}

impl LogPeer for VarlogPattern {
    fn name(&self) -> &'static str {
        "varlog-pattern"
    }

    fn takes(&self, _: Setting, operation: Operation) -> bool {
        operation != Operation::Read
    }

    fn measure(&mut self, setting: Setting, operation: Operation, slices: usize) -> Result<Slices> {
        let variant = match setting {
            Setting::Resident => "sst",
            Setting::ResidentFresh => "memtable",
            Setting::SmallCache => "small-cache",
        };
        let requests = self.requests.as_mut().context("the program is running")?;
        writeln!(requests, "{variant} {} {slices}", operation.entries())?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        parse(&answer).with_context(|| format!("varlog-pattern answered {answer:?}"))
    }
}

impl Drop for VarlogPattern {
    fn drop(&mut self) {
        // It exits once its input is closed.
        self.requests = None;
        let _ = self.child.wait();
    }
}

fn parse(answer: &str) -> Result<Slices> {
    let answer: Value = serde_json::from_str(answer)?;
    let nanos = answer["ns_of_each_slice"]
        .as_array()
        .context("no times")?
        .iter()
        .filter_map(Value::as_f64)
        .collect();
    Ok(Slices { nanos, allocations: answer["allocs_per_scan"].as_f64().context("no allocations")? })
}

/// Builds the program beside this one.
fn build() -> Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name("varlog-pattern");
    let status = Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../varlog-pattern"))
        .status()
        .context("cannot run go: log-scan compares with a Go program and needs Go 1.24 or newer")?;
    ensure!(status.success(), "bench/varlog-pattern does not build");
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read() {
        let slices =
            parse("{\"variant\":\"sst\",\"allocs_per_scan\":3.5,\"ns_of_each_slice\":[10.5,11]}")
                .unwrap();
        assert_eq!((slices.nanos, slices.allocations), (vec![10.5, 11.0], 3.5));
        assert!(parse("").is_err());
    }
}
