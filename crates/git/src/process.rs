//! A git process. Ctrl-C at the terminal does not reach it, dropping it kills it and its children,
//! and the end of its stderr is kept for messages.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;

use plimsoll_disk::thread;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::error::{Error, Result};

/// Bytes kept of the end of stderr, which explains why git failed.
const LAST_WORDS_BYTES: usize = 4096;
/// Size of a pipe for contents. The system may grant less.
const PIPE_BYTES: usize = 1 << 20;

/// A way to call git, including the repository if it is known.
#[derive(Clone, Debug)]
pub(crate) struct Git {
    git_dir: Option<PathBuf>,
    /// Reads objects from here rather than from the repository.
    objects: Option<PathBuf>,
    /// Reads objects as they are, without replacements and grafts.
    is_raw: bool,
}

/// The standard input of a process.
pub(crate) enum Input {
    /// Nothing.
    Nothing,
    /// A pipe that the import writes to.
    Ours,
    /// The output of another process.
    Of(ChildStdout),
}

impl Git {
    /// Git without a repository.
    pub(crate) fn anywhere() -> Self {
        Self { git_dir: None, objects: None, is_raw: false }
    }

    /// Git in a repository.
    pub(crate) fn in_repository(git_dir: &Path) -> Self {
        Self { git_dir: Some(git_dir.to_owned()), objects: None, is_raw: false }
    }

    /// The same git with the objects of another repository.
    pub(crate) fn with_objects(self, objects: PathBuf) -> Self {
        Self { objects: Some(objects), ..self }
    }

    /// The same git, which ignores replacements and grafts of commits.
    pub(crate) fn raw(self) -> Self {
        Self { is_raw: true, ..self }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("git");
        if let Some(git_dir) = &self.git_dir {
            command.arg("--git-dir").arg(git_dir);
        }
        command.args(arguments);
        // The caller's variables could name another repository. A missing object must be reported,
        // not fetched.
        for name in [
            "GIT_DIR",
            "GIT_WORK_TREE",
            "GIT_INDEX_FILE",
            "GIT_OBJECT_DIRECTORY",
            "GIT_COMMON_DIR",
            "GIT_NAMESPACE",
        ] {
            command.env_remove(name);
        }
        if let Some(objects) = &self.objects {
            command.env("GIT_OBJECT_DIRECTORY", objects);
        }
        if self.is_raw {
            command.env("GIT_NO_REPLACE_OBJECTS", "1").env("GIT_GRAFT_FILE", "/dev/null");
        }
        command.env("LC_ALL", "C").env("GIT_NO_LAZY_FETCH", "1").env("GIT_OPTIONAL_LOCKS", "0");
        command.process_group(0);
        command
    }

    /// Starts a process; its output goes to a pipe.
    pub(crate) fn start(&self, arguments: &[&str], input: Input) -> Result<Process> {
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(match input {
            Input::Nothing => Stdio::null(),
            Input::Ours => Stdio::piped(),
            Input::Of(output) => Stdio::from(output),
        });
        Process::spawn(arguments.first().copied().unwrap_or_default(), command)
    }

    /// Runs a process to its end and returns its output, which must be short.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Result<Answer> {
        self.ask_at(arguments, None)
    }

    /// Like [`Git::ask`], in a folder.
    pub(crate) fn ask_at(&self, arguments: &[&str], folder: Option<&Path>) -> Result<Answer> {
        let mut command = self.command(&[]);
        if let Some(folder) = folder {
            command.arg("-C").arg(folder);
        }
        let output = command.args(arguments).stdin(Stdio::null()).output().map_err(cannot_start)?;
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Ok(Answer { status: output.status, out: output.stdout, stderr })
    }
}

fn cannot_start(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => {
            Error::git("git is not installed, or not in PATH: install it and run the command again")
        }
        _ => Error::git(format!("cannot start git: {error}")),
    }
}

/// The result of [`Git::ask`].
#[derive(Debug)]
pub(crate) struct Answer {
    status: ExitStatus,
    out: Vec<u8>,
    /// Standard error without surrounding white space.
    pub(crate) stderr: String,
}

impl Answer {
    /// Whether the exit code is zero.
    pub(crate) fn succeeded(&self) -> bool {
        self.status.success()
    }

    /// The exit code; `None` if a signal ended the process.
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Standard output as a line of text, e.g. an object id.
    pub(crate) fn line(&self) -> &[u8] {
        self.out.trim_ascii()
    }

    /// Standard output.
    pub(crate) fn out(&self) -> &[u8] {
        &self.out
    }

    /// Standard output as a path, which need not be UTF-8 and may end in white space.
    pub(crate) fn path(self) -> PathBuf {
        let mut out = self.out;
        out.pop_if(|last| *last == b'\n');
        PathBuf::from(OsString::from_vec(out))
    }

    /// An error with git's message.
    pub(crate) fn error(&self, doing: &str) -> Error {
        Error::git(format!("git failed to {doing}: {}", self.stderr))
    }
}

/// A running process; killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    is_reaped: bool,
    listener: Option<JoinHandle<String>>,
}

impl Process {
    /// Starts a command in its own process group with a piped stderr.
    fn spawn(name: &str, mut command: Command) -> Result<Self> {
        let mut child = command.spawn().map_err(cannot_start)?;
        let stderr = child.stderr.take().expect("stderr was asked for");
        let listener = thread::spawn("git-stderr", move || last_words(stderr)).ok();
        Ok(Self { name: name.to_owned(), child, is_reaped: false, listener })
    }

    /// Its standard input; may be taken once.
    pub(crate) fn take_input(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("taken once, from a process started with Input::Ours")
    }

    /// Its standard output; may be taken once.
    pub(crate) fn take_output(&mut self) -> ChildStdout {
        let output = self.child.stdout.take().expect("taken once, and stdout was asked for");
        // A larger pipe lets git work further ahead; the default size is good enough.
        let _ = rustix::pipe::fcntl_setpipe_size(&output, PIPE_BYTES);
        output
    }

    /// Waits for the end of a process whose output has ended.
    pub(crate) fn finish(mut self) -> Result<()> {
        let (status, words) = self.reap();
        match status {
            Some(status) if status.success() => Ok(()),
            _ => Err(self.broken(&words)),
        }
    }

    /// Waits for the end of the process and returns the end of its stderr.
    pub(crate) fn last_words(mut self) -> String {
        self.reap().1
    }

    /// The error of a process whose output is malformed or ends too early.
    pub(crate) fn broken(&self, words: &str) -> Error {
        let words = if words.is_empty() { "it exited without a message" } else { words };
        Error::unreadable(format!("git {} failed: {words}", self.name))
    }

    fn reap(&mut self) -> (Option<ExitStatus>, String) {
        self.is_reaped = true;
        let status = self.child.wait().ok();
        let words =
            self.listener.take().and_then(|listener| listener.join().ok()).unwrap_or_default();
        (status, words)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Kill the group before reaping the process, because git may be a script that waits for
        // another process.
        if !self.is_reaped {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        }
        self.reap();
    }
}

/// Reads stderr to its end, so that the process never blocks on it, and returns the last bytes.
fn last_words(mut stderr: ChildStderr) -> String {
    let mut kept = Vec::new();
    let mut piece = [0; 1024];
    while let Ok(bytes @ 1..) = stderr.read(&mut piece) {
        kept.extend_from_slice(&piece[..bytes]);
        let surplus = kept.len().saturating_sub(LAST_WORDS_BYTES);
        kept.drain(..surplus);
    }
    String::from_utf8_lossy(&kept).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dropped_process_is_killed_with_its_children() {
        let mut command = Command::new("sh");
        // The child keeps stderr open.
        command
            .args(["-c", "sleep 100000; true"])
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let process = Process::spawn("log", command).unwrap();
        let (told, dropped) = std::sync::mpsc::channel();
        let dropping = move || {
            drop(process);
            told.send(()).unwrap();
        };
        thread::spawn("drop-process", dropping).unwrap();
        dropped.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}
