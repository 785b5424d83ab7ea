//! Runs the command and git.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn of(output: Output) -> Self {
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        Self { code: output.status.code().unwrap_or(-1), out: output.stdout, err }
    }

    /// Stdout as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.out.clone()).unwrap()
    }

    /// Stdout as lines of JSON.
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Stdout as one JSON value.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.out).unwrap()
    }

    /// Asserts success.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{}", self.err);
        self
    }

    /// Asserts an exit code and parts of the message.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, parts: &[&str]) -> Self {
        assert_eq!(self.code, code, "{}", self.err);
        for part in parts {
            assert!(self.err.contains(part), "{part:?} is not in {:?}", self.err);
        }
        self
    }
}

/// The command, with a small budget.
pub(crate) fn plimsoll() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.env("PLIMSOLL_MEMORY", "32MiB").env_remove("NO_COLOR").stdin(Stdio::null());
    command
}

/// Runs the command with arguments.
pub(crate) fn run(arguments: &[&str]) -> Ran {
    Ran::of(plimsoll().args(arguments).output().unwrap())
}

/// Runs the command with `input` on stdin.
pub(crate) fn run_with_input(arguments: &[&str], input: &[u8]) -> Ran {
    let mut command = plimsoll();
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that fails early does not read all input.
    let _ = child.stdin.take().unwrap().write_all(input);
    Ran::of(child.wait_with_output().unwrap())
}

/// Runs the command with `input` on stdin. Its standard output is a pipe that no process reads.
pub(crate) fn run_without_reader(arguments: &[&str], input: &[u8]) -> Ran {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = plimsoll();
    command.args(arguments).stdin(Stdio::piped()).stdout(writer).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(input);
    Ran::of(child.wait_with_output().unwrap())
}

/// A folder for one test.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// A path inside the folder, as an argument.
    pub(crate) fn at(&self, name: &str) -> String {
        self.path().join(name).to_str().unwrap().to_owned()
    }

    /// Creates a file in the folder.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path: PathBuf = self.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Creates a program in the folder with the bytes of a file.
    ///
    /// Another process writes it. A thread that spawns a command at that moment would inherit our
    /// write handle, and starting the program would fail with "text file busy" until that command
    /// runs.
    pub(crate) fn program(&self, name: &str, from: &str) -> String {
        let path = self.at(name);
        let installed = Command::new("install").args(["-m", "755", from, &path]).output().unwrap();
        assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
        path
    }
}
