//! The commits to import, oldest first: `git rev-list` pipes their ids directly into `git
//! cat-file`.
//!
//! If a commit is missing, the history is truncated: the import begins with the oldest commit after
//! it. The history of a shallow clone is truncated too.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::process::ChildStdout;

use crate::commit::{self, Commit};
use crate::error::{Error, Result};
use crate::import::blobs::{Header, read_header, skip};
use crate::import::cut::{self, Cut};
use crate::object_id::ObjectId;
use crate::process::{Input, Process};
use crate::repository::{Repository, range};

/// Maximum number of bytes read of a commit object: more than a transaction's metadata holds, even
/// with a signature before the message.
const OBJECT_BYTES_MAX: u64 = 256 * 1024;

/// An item of the stream.
#[derive(Debug)]
pub(crate) enum Next {
    /// A commit.
    Commit(Box<Commit>),
    /// A commit that is listed but cannot be read.
    Missing(ObjectId),
    /// The end of the stream.
    End,
}

/// A stream of commits.
#[derive(Debug)]
pub(crate) struct CommitStream<'r> {
    repository: &'r Repository,
    /// Arguments of the remaining `rev-list` calls; the stream is the concatenation of their
    /// outputs.
    lists: VecDeque<Vec<String>>,
    open: Option<Open>,
    cut: Option<Cut>,
}

#[derive(Debug)]
struct Open {
    list: Process,
    objects: Process,
    output: BufReader<ChildStdout>,
    object: Vec<u8>,
}

impl<'r> CommitStream<'r> {
    /// Opens a stream of the branch's commits that are not ancestors of `after`.
    pub(crate) fn open(repository: &'r Repository, after: Option<&ObjectId>) -> Result<Self> {
        let range = range(after, repository.tip());
        let mut stream = Self { repository, lists: VecDeque::new(), open: None, cut: None };
        match walk(repository, &range)? {
            Walk::Complete { last } => {
                stream.cut = last.map_or(Ok(None), |last| cut::shallow(repository, last))?;
                stream.lists.push_back(list(&["--reverse"], &range));
            }
            Walk::Broken { whole, oldest } => {
                stream.cut = Some(Cut::Missing { first: oldest });
                stream.lists.push_back(vec!["--no-walk".to_owned(), oldest.to_string()]);
                let count = format!("--max-count={whole}");
                stream.lists.push_back(list(&["--reverse", &count], &range));
            }
        }
        Ok(stream)
    }

    /// The start of the history, if earlier commits are missing.
    pub(crate) fn cut(&self) -> Option<Cut> {
        self.cut
    }

    /// The next commit.
    pub(crate) fn next(&mut self) -> Result<Next> {
        loop {
            if self.open.is_none() {
                match self.lists.pop_front() {
                    Some(list) => self.open = Some(Open::start(self.repository, &list)?),
                    None => return Ok(Next::End),
                }
            }
            let open = self.open.as_mut().expect("opened above");
            match open.next()? {
                Some(next) => return Ok(next),
                None => self.open.take().expect("still open").finish()?,
            }
        }
    }
}

fn list(options: &[&str], range: &[String]) -> Vec<String> {
    let options = ["--first-parent"].iter().chain(options).map(|&option| option.to_owned());
    options.chain(range.iter().cloned()).collect()
}

/// The result of listing the commits from the tip to the oldest one that git can find.
enum Walk {
    /// No commit is missing. `last` is the oldest commit.
    Complete { last: Option<ObjectId> },
    /// The history ends at a commit whose parent is missing. `whole` commits, counted from the tip,
    /// have all their parents; `oldest` is the parent of the last of them.
    Broken { whole: u64, oldest: ObjectId },
}

/// Lists the history once, without reading the commits, to find out whether it is complete.
fn walk(repository: &Repository, range: &[String]) -> Result<Walk> {
    let arguments = list(&[], range);
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.insert(0, "rev-list");
    let mut process = repository.git().start(&arguments, Input::Nothing)?;
    let (mut whole, mut last) = (0, None);
    for line in BufReader::new(process.take_output()).split(b'\n') {
        let line =
            line.map_err(|error| Error::unreadable(format!("cannot read from git: {error}")))?;
        last = ObjectId::parse(&line);
        whole += 1;
    }
    let Err(failure) = process.finish() else { return Ok(Walk::Complete { last }) };
    let oldest = match last {
        None => *repository.tip(),
        Some(last) => {
            let parent = repository.git().ask(&[
                "rev-parse",
                "--verify",
                "--quiet",
                &format!("{last}^1"),
            ])?;
            ObjectId::parse(parent.line()).ok_or(failure)?
        }
    };
    Ok(Walk::Broken { whole, oldest })
}

impl Open {
    fn start(repository: &Repository, list: &[String]) -> Result<Self> {
        let mut arguments = vec!["rev-list"];
        arguments.extend(list.iter().map(String::as_str));
        let mut list = repository.git().start(&arguments, Input::Nothing)?;
        let names = Input::Of(list.take_output());
        let mut objects = repository.git().start(&["cat-file", "--batch", "--buffer"], names)?;
        let output = BufReader::with_capacity(64 * 1024, objects.take_output());
        Ok(Self { list, objects, output, object: Vec::new() })
    }

    fn next(&mut self) -> Result<Option<Next>> {
        let broken = |error| Error::unreadable(format!("cannot read from git: {error}"));
        match read_header(&mut self.output).map_err(broken)? {
            Header::End => Ok(None),
            Header::Missing(id) => Ok(Some(Next::Missing(id))),
            Header::Found { id, bytes } => {
                self.read_object(bytes).map_err(broken)?;
                Ok(Some(match commit::parse(id, &self.object, bytes > OBJECT_BYTES_MAX) {
                    Some(commit) => Next::Commit(Box::new(commit)),
                    None => Next::Missing(id),
                }))
            }
        }
    }

    fn read_object(&mut self, bytes: u64) -> std::io::Result<()> {
        let kept = bytes.min(OBJECT_BYTES_MAX);
        self.object.resize(kept as usize, 0);
        std::io::Read::read_exact(&mut self.output, &mut self.object)?;
        skip(&mut self.output, bytes - kept + 1)
    }

    fn finish(self) -> Result<()> {
        self.list.finish()?;
        self.objects.finish()
    }
}
