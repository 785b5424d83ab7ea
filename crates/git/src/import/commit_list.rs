//! The commits of a whole history, parents before children, and the first-parent line of one
//! commit.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::ChildStdout;

use crate::blobs::{Header, read_header, skip};
use crate::error::{Error, Result};
use crate::object_id::ObjectId;
use crate::objects::missing;
use crate::process::{Git, Input, Process};

/// The commits reachable from some tips.
#[derive(Debug)]
pub(crate) struct CommitList {
    list: Process,
    objects: Process,
    output: BufReader<ChildStdout>,
}

impl CommitList {
    /// The commits reachable from `tips`, without those reachable from `known`.
    pub(crate) fn open(git: &Git, tips: &[ObjectId], known: &[ObjectId]) -> Result<Self> {
        let mut list = rev_list(git, &["--topo-order"], tips, known)?;
        let names = Input::Of(list.take_output());
        let mut objects = git.start(&["cat-file", "--batch", "--buffer"], names)?;
        let output = BufReader::with_capacity(64 * 1024, objects.take_output());
        Ok(Self { list, objects, output })
    }

    /// The next commit and its bytes; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<(ObjectId, Vec<u8>)>> {
        let broken = |error| Error::unreadable(format!("cannot read from git: {error}"));
        match read_header(&mut self.output).map_err(broken)? {
            Header::End => Ok(None),
            Header::Missing(id) => Err(missing(&id)),
            Header::Found { id, bytes } => {
                let mut object = Vec::new();
                let read = self.output.by_ref().take(bytes).read_to_end(&mut object);
                if read.map_err(broken)? as u64 != bytes {
                    return Err(broken(std::io::ErrorKind::UnexpectedEof.into()));
                }
                skip(&mut self.output, 1).map_err(broken)?;
                Ok(Some((id, object)))
            }
        }
    }

    /// Reports whether git has listed all commits.
    pub(crate) fn finish(self) -> Result<()> {
        self.list.finish()?;
        self.objects.finish()
    }
}

/// A commit, its first parent, the first parent of that and so on, the oldest first.
#[derive(Debug)]
pub(crate) struct Line {
    _list: Process,
    output: BufReader<ChildStdout>,
    next: Option<ObjectId>,
}

impl Line {
    pub(crate) fn open(git: &Git, tip: &ObjectId, known: &[ObjectId]) -> Result<Self> {
        let mut list = rev_list(git, &["--first-parent"], &[*tip], known)?;
        let output = BufReader::new(list.take_output());
        let mut line = Self { _list: list, output, next: None };
        line.advance()?;
        Ok(line)
    }

    /// The next commit of the line; `None` at the end.
    pub(crate) fn next(&self) -> Option<&ObjectId> {
        self.next.as_ref()
    }

    pub(crate) fn advance(&mut self) -> Result<()> {
        let mut line = Vec::new();
        self.output
            .by_ref()
            .take(256)
            .read_until(b'\n', &mut line)
            .map_err(|error| Error::unreadable(format!("cannot read from git: {error}")))?;
        self.next = ObjectId::parse(line.trim_ascii());
        Ok(())
    }
}

fn rev_list(git: &Git, options: &[&str], tips: &[ObjectId], known: &[ObjectId]) -> Result<Process> {
    let arguments = [&["rev-list", "--reverse", "--stdin"], options].concat();
    let mut process = git.start(&arguments, Input::Ours)?;
    let mut input = process.take_input();
    // Git reads all of its input before it writes. If it has ended, reading its output reports it.
    for (prefix, ids) in [("", tips), ("^", known)] {
        for id in ids {
            let _ = input.write_all(format!("{prefix}{id}\n").as_bytes());
        }
    }
    Ok(process)
}
