//! One of git's processes: started so that a Ctrl-C at the terminal does not reach it, ended when dropped, its last words kept.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;

use plimsoll_disk::thread;

use crate::exit::{Exit, Failure};

/// Kept of what a process says on stderr: the end, where git says why it died.
const LAST_WORDS_BYTES: usize = 4096;
/// Asked of the system for a pipe that carries contents; it may give less.
const PIPE_BYTES: usize = 1 << 20;

/// How git is called for one repository.
#[derive(Clone, Debug)]
pub(crate) struct Git {
    git_dir: Option<PathBuf>,
}

/// Where a process reads from.
pub(crate) enum Input {
    /// Nothing.
    Nothing,
    /// What we write.
    Ours,
    /// Another process.
    Of(ChildStdout),
}

impl Git {
    /// Git without a repository yet.
    pub(crate) fn anywhere() -> Self {
        Self { git_dir: None }
    }

    /// Git in a repository.
    pub(crate) fn in_repository(git_dir: &Path) -> Self {
        Self { git_dir: Some(git_dir.to_owned()) }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("git");
        if let Some(git_dir) = &self.git_dir {
            command.arg("--git-dir").arg(git_dir);
        }
        command.args(arguments);
        // A caller's variables would lead git to another repository; a missing object is reported, not fetched.
        for name in
            ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_NAMESPACE"]
        {
            command.env_remove(name);
        }
        command.env("LC_ALL", "C").env("GIT_NO_LAZY_FETCH", "1").env("GIT_OPTIONAL_LOCKS", "0");
        command.process_group(0);
        command
    }

    /// Starts a process whose output is read.
    pub(crate) fn start(&self, arguments: &[&str], input: Input) -> Result<Process, Failure> {
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(match input {
            Input::Nothing => Stdio::null(),
            Input::Ours => Stdio::piped(),
            Input::Of(output) => Stdio::from(output),
        });
        let mut child = command.spawn().map_err(cannot_start)?;
        let stderr = child.stderr.take().expect("stderr was asked for");
        let listener = thread::spawn("git-stderr", move || last_words(stderr)).ok();
        Ok(Process { name: arguments.first().copied().unwrap_or_default().to_owned(), child, listener })
    }

    /// Runs a process to its end. Its output is expected to be short.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Result<Answer, Failure> {
        self.ask_at(arguments, None)
    }

    /// The same, in a folder.
    pub(crate) fn ask_at(&self, arguments: &[&str], folder: Option<&Path>) -> Result<Answer, Failure> {
        let mut command = self.command(&[]);
        if let Some(folder) = folder {
            command.arg("-C").arg(folder);
        }
        let output = command.args(arguments).stdin(Stdio::null()).output().map_err(cannot_start)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        Ok(Answer { status: output.status, out: text(&output.stdout), error: text(&output.stderr) })
    }
}

fn cannot_start(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::NotFound => {
            Failure::system("git is not installed, or not in PATH: install it and run the command again")
        }
        _ => Failure::system(format!("cannot start git: {error}")),
    }
}

/// How a short process ended.
#[derive(Debug)]
pub(crate) struct Answer {
    status: ExitStatus,
    /// What it printed, without white space at the ends.
    pub(crate) out: String,
    /// What it complained about.
    pub(crate) error: String,
}

impl Answer {
    /// Whether it succeeded.
    pub(crate) fn succeeded(&self) -> bool {
        self.status.success()
    }

    /// Its exit code, if it was not killed.
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// A failure that passes on what git said.
    pub(crate) fn failure(&self, doing: &str) -> Failure {
        Failure::new(Exit::System, format!("git failed to {doing}: {}", self.error))
    }
}

/// A process at work; killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    listener: Option<JoinHandle<String>>,
}

impl Process {
    /// The end that it reads from. Once.
    pub(crate) fn take_input(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("taken once, from a process started with Input::Ours")
    }

    /// The end that it writes to. Once.
    pub(crate) fn take_output(&mut self) -> ChildStdout {
        let output = self.child.stdout.take().expect("taken once, and stdout was asked for");
        // A wider pipe lets git work further ahead; where it is refused, the usual one does.
        let _ = rustix::pipe::fcntl_setpipe_size(&output, PIPE_BYTES);
        output
    }

    /// Waits for its end after its output has ended.
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        let (status, words) = self.reap();
        match status {
            Some(status) if status.success() => Ok(()),
            _ => Err(self.broken(&words)),
        }
    }

    /// Its last words, after its output has ended too early.
    pub(crate) fn last_words(mut self) -> String {
        self.reap().1
    }

    /// What to say when its output makes no sense or ends too early.
    pub(crate) fn broken(&self, words: &str) -> Failure {
        let words = if words.is_empty() { "it ended without a word" } else { words };
        Failure::system(format!("git {} failed: {words}", self.name))
            .advise("`git fsck` tells whether the repository is sound; run the import again to continue.")
    }

    fn reap(&mut self) -> (Option<ExitStatus>, String) {
        let status = self.child.wait().ok();
        let words = self.listener.take().and_then(|listener| listener.join().ok()).unwrap_or_default();
        (status, words)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // After reap() these find nothing to do.
        let _ = self.child.kill();
        self.reap();
    }
}

/// Reads to the end and keeps the last bytes, so that the process never waits for somebody to listen.
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
