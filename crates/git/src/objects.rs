//! Objects of a repository, read one at a time from a `git cat-file --batch` process, and a cache
//! of trees.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, ChildStdout};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::import::blobs::skip;
use crate::object::Kind;
use crate::object_id::ObjectId;
use crate::process::{Git, Input, Process};

/// Maximum number of bytes of the cached trees.
const CACHE_BYTES: usize = 8 << 20;

/// A reader of objects.
#[derive(Debug)]
pub(crate) struct Objects {
    process: Process,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Unread bytes of the last object, including the line break after it.
    left: u64,
    trees: Trees,
}

impl Objects {
    pub(crate) fn open(git: &Git) -> Result<Self> {
        let mut process = git.start(&["cat-file", "--batch"], Input::Ours)?;
        let (input, output) = (process.take_input(), process.take_output());
        let output = BufReader::with_capacity(64 * 1024, output);
        Ok(Self { process, input, output, left: 0, trees: Trees::default() })
    }

    /// The kind and the length of an object, whose bytes [`Objects::content`] reads; `None` if the
    /// repository does not have it.
    pub(crate) fn find(&mut self, id: &ObjectId) -> Result<Option<(Kind, u64)>> {
        self.ask(id).map_err(|error| self.process.broken(&error.to_string()))
    }

    fn ask(&mut self, id: &ObjectId) -> io::Result<Option<(Kind, u64)>> {
        skip(&mut self.output, std::mem::take(&mut self.left))?;
        self.input.write_all(format!("{id}\n").as_bytes())?;
        let mut line = Vec::new();
        // Longer than any answer: 64 digits, a kind and a length.
        self.output.by_ref().take(256).read_until(b'\n', &mut line)?;
        let answer = std::str::from_utf8(&line).ok().and_then(|line| line.strip_suffix('\n'));
        let mut words = answer.unwrap_or_default().split(' ');
        let is_answer = words.next() == Some(id.as_str());
        match (is_answer, words.next(), words.next().map(str::parse)) {
            (true, Some("missing"), None) => Ok(None),
            (true, Some(kind), Some(Ok(bytes))) => {
                let kind = Kind::named(kind).ok_or_else(|| not_understood(&line))?;
                self.left = bytes + 1;
                Ok(Some((kind, bytes)))
            }
            _ => Err(not_understood(&line)),
        }
    }

    /// A reader of the unread bytes of the last object.
    pub(crate) fn content(&mut self) -> impl Read + '_ {
        Content(self)
    }

    /// A whole object that the repository must have.
    pub(crate) fn read(&mut self, id: &ObjectId) -> Result<(Kind, Vec<u8>)> {
        let (kind, bytes) = self.find(id)?.ok_or_else(|| missing(id))?;
        let mut content = Vec::with_capacity(usize::try_from(bytes).unwrap_or(0));
        let read = self.content().read_to_end(&mut content);
        read.map_err(|error| self.process.broken(&error.to_string()))?;
        Ok((kind, content))
    }

    /// The bytes of a tree that was read or cached lately.
    pub(crate) fn cached_tree(&mut self, id: &ObjectId) -> Option<Arc<[u8]>> {
        self.trees.get(id)
    }

    /// Keeps the bytes of a tree for later calls of [`Objects::tree`].
    pub(crate) fn cache_tree(&mut self, id: ObjectId, tree: Arc<[u8]>) {
        self.trees.put(id, tree);
    }

    /// The bytes of a tree that the repository must have.
    pub(crate) fn tree(&mut self, id: &ObjectId) -> Result<Arc<[u8]>> {
        if let Some(tree) = self.trees.get(id) {
            return Ok(tree);
        }
        let (kind, bytes) = self.read(id)?;
        if kind != Kind::Tree {
            return Err(Error::unreadable(format!("object {id} is a {}, not a tree", kind.name())));
        }
        let tree: Arc<[u8]> = bytes.into();
        self.trees.put(*id, Arc::clone(&tree));
        Ok(tree)
    }
}

fn not_understood(line: &[u8]) -> io::Error {
    let text = format!("not understood: {}", line.escape_ascii());
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// The error for an object that the repository lacks.
pub(crate) fn missing(id: &ObjectId) -> Error {
    Error::unreadable(format!(
        "object {id} is missing from the repository; fetch the whole history, for example with \
         `git fetch --unshallow` or `git fetch --refetch --no-filter`"
    ))
}

struct Content<'o>(&'o mut Objects);

impl Read for Content<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // The last byte is the line break after the object.
        let left = usize::try_from(self.0.left.saturating_sub(1)).unwrap_or(usize::MAX);
        let wanted = into.len().min(left);
        if wanted == 0 {
            return Ok(0);
        }
        let bytes = self.0.output.read(&mut into[..wanted])?;
        if bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.0.left -= bytes as u64;
        Ok(bytes)
    }
}

/// A cache of trees in two generations: when the younger one is full, it replaces the older one.
#[derive(Debug, Default)]
struct Trees {
    young: HashMap<ObjectId, Arc<[u8]>>,
    old: HashMap<ObjectId, Arc<[u8]>>,
    young_bytes: usize,
}

impl Trees {
    fn get(&mut self, id: &ObjectId) -> Option<Arc<[u8]>> {
        if let Some(tree) = self.young.get(id) {
            return Some(Arc::clone(tree));
        }
        let tree = self.old.remove(id)?;
        self.put(*id, Arc::clone(&tree));
        Some(tree)
    }

    fn put(&mut self, id: ObjectId, tree: Arc<[u8]>) {
        // The map itself takes some hundred bytes.
        let bytes = tree.len() + 256;
        if bytes > CACHE_BYTES / 4 {
            return;
        }
        if self.young_bytes + bytes > CACHE_BYTES / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        if self.young.insert(id, tree).is_none() {
            self.young_bytes += bytes;
        }
    }
}
