//! Git repositories for tests, made by `git fast-import` and by hand, and git's view of them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A repository.
pub(crate) struct Repository {
    path: PathBuf,
}

/// Paths and contents.
pub(crate) type Files = BTreeMap<Vec<u8>, Vec<u8>>;

impl Repository {
    /// The repository at `path`.
    pub(crate) fn at(path: &str) -> Self {
        Self { path: path.into() }
    }

    /// Creates an empty repository at `path`.
    pub(crate) fn init(path: &Path) -> Self {
        fs::create_dir_all(path).unwrap();
        let repository = Self { path: path.to_owned() };
        repository.git(&["init", "--quiet", "--initial-branch=main"]);
        repository
    }

    pub(crate) fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("git");
        command.arg("-C").arg(&self.path).args(arguments);
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
        for role in ["AUTHOR", "COMMITTER"] {
            command
                .env(format!("GIT_{role}_NAME"), "Ada")
                .env(format!("GIT_{role}_EMAIL"), "ada@example.org");
        }
        command
    }

    /// Runs git, which must succeed; returns its output.
    #[track_caller]
    pub(crate) fn git(&self, arguments: &[&str]) -> Vec<u8> {
        let output = self.command(arguments).output().unwrap();
        assert!(
            output.status.success(),
            "git {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        output.stdout
    }

    /// Like `run`, returning trimmed text.
    #[track_caller]
    pub(crate) fn ask(&self, arguments: &[&str]) -> String {
        String::from_utf8(self.git(arguments)).unwrap().trim().to_owned()
    }

    /// Feeds `git fast-import`.
    pub(crate) fn fast_import(&self, stream: &[u8]) {
        let mut command = self.command(&["fast-import", "--quiet", "--force", "--date-format=raw"]);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(stream).unwrap();
        assert!(child.wait().unwrap().success());
    }

    /// Writes files and commits them, each object in its own file; returns the commit.
    pub(crate) fn commit(&self, message: &str, files: &[(&str, &[u8])]) -> String {
        for (name, content) in files {
            let path = self.path.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--allow-empty", "-m", message]);
        self.ask(&["rev-parse", "HEAD"])
    }

    /// Writes an object, which need not be one that git would write.
    pub(crate) fn write(&self, kind: &str, bytes: &[u8]) -> String {
        let mut command =
            self.command(&["hash-object", "-t", kind, "-w", "--stdin", "--literally"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(bytes).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Removes an object, as in a partial snapshot.
    pub(crate) fn lose(&self, revision: &str) -> String {
        let id = self.ask(&["rev-parse", revision]);
        fs::remove_file(self.object(&id)).unwrap();
        id
    }

    fn object(&self, id: &str) -> PathBuf {
        self.path.join(".git/objects").join(&id[..2]).join(&id[2..])
    }

    /// Commits of a branch by first parents, oldest first.
    pub(crate) fn commits(&self, branch: &str) -> Vec<String> {
        let list = self.ask(&["rev-list", "--first-parent", "--reverse", branch]);
        list.lines().map(str::to_owned).collect()
    }

    /// The files of a commit without submodules, according to git. `known` caches contents between
    /// calls.
    pub(crate) fn files(&self, commit: &str, known: &mut BTreeMap<String, Vec<u8>>) -> Files {
        let list = self.git(&["ls-tree", "-r", "-z", "--full-tree", commit]);
        let mut files = Files::new();
        for entry in list.split(|&byte| byte == 0).filter(|entry| !entry.is_empty()) {
            let tab = entry.iter().position(|&byte| byte == b'\t').unwrap();
            let facts = std::str::from_utf8(&entry[..tab]).unwrap();
            let (kind, id) = (facts.split(' ').nth(1).unwrap(), facts.split(' ').nth(2).unwrap());
            if kind == "blob" {
                let content = known
                    .entry(id.to_owned())
                    .or_insert_with(|| self.git(&["cat-file", "blob", id]));
                files.insert(entry[tab + 1..].to_vec(), content.clone());
            }
        }
        files
    }
}

/// Writes a stream for `git fast-import`: a history with unusual cases, determined by the seed.
pub(crate) struct Script {
    stream: Vec<u8>,
    random: fastrand::Rng,
    mark: u32,
    time: u64,
}

const AWKWARD_PATHS: [&[u8]; 8] = [
    b"plain.txt",
    b"with space.txt",
    "ünïcödé/文件.txt".as_bytes(),
    b"new\nline",
    b"tab\tand\\backslash",
    b"\"quoted\"",
    b"not utf8 \xff\xfe",
    b"deep/er/and/deeper/still.txt",
];

impl Script {
    pub(crate) fn new(seed: u64) -> Self {
        println!("seed {seed}");
        Self {
            stream: Vec::new(),
            random: fastrand::Rng::with_seed(seed),
            mark: 0,
            time: 1_700_000_000,
        }
    }

    pub(crate) fn into_stream(self) -> Vec<u8> {
        self.stream
    }

    /// `commits` commits on main; every tenth merges a branch of two commits.
    pub(crate) fn awkward_history(&mut self, commits: usize) {
        let mut tip = self.commit("main", None, None, "first", &self.first_files());
        for number in 2..=commits {
            tip = match number % 10 {
                0 => self.merged_branch(tip, number),
                _ => {
                    let changes = self.changes(number);
                    self.commit("main", Some(tip), None, &format!("commit {number}"), &changes)
                }
            };
        }
    }

    /// A branch of two commits that change their own file, and its merge.
    fn merged_branch(&mut self, tip: u32, number: usize) -> u32 {
        let path = format!("branches/{number}").into_bytes();
        let side = self.commit("side", Some(tip), None, "side", &[put(&path, b"on the way")]);
        let side = self.commit("side", Some(side), None, "side again", &[put(&path, b"arrived")]);
        self.commit("main", Some(tip), Some(side), "merge", &[put(&path, b"arrived")])
    }

    fn first_files(&self) -> Vec<Change> {
        let mut random = self.random.clone();
        let large: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(2 << 20).collect();
        let mut changes: Vec<Change> = AWKWARD_PATHS.iter().map(|path| put(path, path)).collect();
        changes.push(put(b"large.bin", &large));
        changes.push(put(b"empty", b""));
        changes.push(put(b"binary", &[0, 255, 10, 13, 0]));
        changes.push(Change::Put {
            mode: "120000",
            path: b"link".to_vec(),
            content: b"plain.txt".to_vec(),
        });
        changes.push(Change::Submodule { path: b"module".to_vec() });
        changes
    }

    fn changes(&mut self, number: usize) -> Vec<Change> {
        let mut changes = match number % 10 {
            // Nothing changes.
            1 => return Vec::new(),
            // A file becomes a folder and then a file again.
            2 => vec![Change::Delete { path: b"turns".to_vec() }, put(b"turns/into/folder", b"in")],
            3 => {
                vec![Change::Delete { path: b"turns/into/folder".to_vec() }, put(b"turns", b"out")]
            }
            // A file becomes a submodule and then a file again.
            4 => vec![Change::Submodule { path: b"plain.txt".to_vec() }],
            5 => vec![put(b"plain.txt", format!("plain {number}").as_bytes())],
            // Only the mode changes, and a link becomes a file.
            6 => vec![
                Change::Put {
                    mode: "100755",
                    path: b"binary".to_vec(),
                    content: vec![0, 255, 10, 13, 0],
                },
                put(b"link", b"file"),
            ],
            7 => vec![Change::Put {
                mode: "120000",
                path: b"link".to_vec(),
                content: b"empty".to_vec(),
            }],
            _ => vec![],
        };
        for _ in 0..self.random.usize(1..6) {
            let path = format!("files/{}", self.random.u8(..40)).into_bytes();
            changes.push(match self.random.u8(..4) {
                0 => Change::Delete { path },
                _ => {
                    let length = [0, 10, 1000, 5000, 100_000][self.random.usize(..5)];
                    let content: Vec<u8> =
                        std::iter::repeat_with(|| self.random.u8(..)).take(length).collect();
                    put(&path, &content)
                }
            });
        }
        let awkward = AWKWARD_PATHS[self.random.usize(1..AWKWARD_PATHS.len())];
        changes.push(put(awkward, format!("changed in {number}").as_bytes()));
        changes
    }

    /// Writes a commit; returns its mark.
    pub(crate) fn commit(
        &mut self,
        branch: &str,
        from: Option<u32>,
        merge: Option<u32>,
        message: &str,
        changes: &[Change],
    ) -> u32 {
        self.mark += 1;
        self.time += 60;
        let (mark, time) = (self.mark, self.time);
        self.text(&format!("commit refs/heads/{branch}\nmark :{mark}\n"));
        self.text(&format!("author Ada Lovelace <ada@example.org> {time} +0100\n"));
        self.text(&format!("committer Bob <bob@example.org> {time} -0530\n"));
        self.data(message.as_bytes());
        if let Some(from) = from {
            self.text(&format!("from :{from}\n"));
        }
        if let Some(merge) = merge {
            self.text(&format!("merge :{merge}\n"));
        }
        for change in changes {
            self.change(change);
        }
        self.text("\n");
        mark
    }

    fn change(&mut self, change: &Change) {
        match change {
            Change::Put { mode, path, content } => {
                self.text(&format!("M {mode} inline {}\n", quoted(path)));
                self.data(content);
            }
            Change::Submodule { path } => {
                let commit = "1".repeat(40);
                self.text(&format!("M 160000 {commit} {}\n", quoted(path)));
            }
            Change::Delete { path } => self.text(&format!("D {}\n", quoted(path))),
        }
    }

    fn text(&mut self, text: &str) {
        self.stream.extend_from_slice(text.as_bytes());
    }

    fn data(&mut self, bytes: &[u8]) {
        self.text(&format!("data {}\n", bytes.len()));
        self.stream.extend_from_slice(bytes);
        self.text("\n");
    }
}

/// A change of a commit.
pub(crate) enum Change {
    Put { mode: &'static str, path: Vec<u8>, content: Vec<u8> },
    Submodule { path: Vec<u8> },
    Delete { path: Vec<u8> },
}

/// A file with a content.
pub(crate) fn put(path: &[u8], content: &[u8]) -> Change {
    Change::Put { mode: "100644", path: path.to_vec(), content: content.to_vec() }
}

/// Quotes a path of any bytes for `git fast-import`.
fn quoted(path: &[u8]) -> String {
    let escaped: String = path.iter().map(|byte| format!("\\{byte:03o}")).collect();
    format!("\"{escaped}\"")
}
