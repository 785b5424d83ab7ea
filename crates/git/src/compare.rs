//! Compares two trees with all trees below them.
//!
//! Differences come in the order of their paths. A directory comes before the paths in it.

use plimsoll::MAX_KEY_BYTES;

use crate::error::{Error, Result};
use crate::object::Format;
use crate::object_id::ObjectId;
use crate::objects::Objects;
use crate::tree::{Entry, Mode, Tree};

/// Maximum length of a path. The key of a directory has one byte more.
const PATH_BYTES_MAX: usize = MAX_KEY_BYTES - 1;

/// Maximum number of slashes in a path. Deeper directories are kept whole, because trees are
/// compared by recursion.
pub(crate) const SLASHES_MAX: usize = 400;

/// A file, symbolic link or submodule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    pub(crate) mode: Mode,
    pub(crate) id: ObjectId,
}

/// Receives the differences.
pub(crate) trait Differences {
    /// A directory had an irregular tree, has one now, or both. `extras` are the objects that its
    /// present tree names outside of its regular form.
    fn irregular(
        &mut self,
        path: &[u8],
        before: Option<ObjectId>,
        after: Option<ObjectId>,
        extras: &[ObjectId],
    ) -> Result<()>;

    /// A file, link or submodule was added, changed or removed. `objects` has no unread object.
    fn leaf(
        &mut self,
        objects: &mut Objects,
        path: &[u8],
        before: Option<Leaf>,
        after: Option<Leaf>,
    ) -> Result<()>;
}

/// Maximum length of the names in the regular form of the tree of a directory.
pub(crate) fn name_bytes_max(path: &[u8]) -> usize {
    if path.iter().filter(|&&byte| byte == b'/').count() >= SLASHES_MAX {
        return 0;
    }
    let slash = usize::from(!path.is_empty());
    PATH_BYTES_MAX.saturating_sub(path.len() + slash)
}

/// Parses the tree of a directory.
pub(crate) fn parse<'a>(bytes: &'a [u8], id: &ObjectId, path: &[u8]) -> Result<Tree<'a>> {
    Tree::parse(bytes, Format::of(id), name_bytes_max(path))
        .map_err(|_| Error::unreadable(format!("tree {id} is malformed; run `git fsck`")))
}

/// Compares two root trees.
pub(crate) fn compare(
    objects: &mut Objects,
    before: Option<ObjectId>,
    after: ObjectId,
    to: &mut impl Differences,
) -> Result<()> {
    directory(objects, &mut Vec::new(), before, Some(after), to)
}

fn directory(
    objects: &mut Objects,
    path: &mut Vec<u8>,
    before: Option<ObjectId>,
    after: Option<ObjectId>,
    to: &mut impl Differences,
) -> Result<()> {
    if before == after {
        return Ok(());
    }
    let mut read = |id: Option<ObjectId>| id.map(|id| objects.tree(&id)).transpose();
    let (old_bytes, new_bytes) = (read(before)?, read(after)?);
    let old =
        old_bytes.as_deref().zip(before).map(|(bytes, id)| parse(bytes, &id, path)).transpose()?;
    let new =
        new_bytes.as_deref().zip(after).map(|(bytes, id)| parse(bytes, &id, path)).transpose()?;
    let irregular = |tree: &Option<Tree<'_>>, id: Option<ObjectId>| {
        id.filter(|_| tree.as_ref().is_some_and(|tree| !tree.is_regular))
    };
    let (was, is) = (irregular(&old, before), irregular(&new, after));
    if was.is_some() || is.is_some() {
        let extras = new.iter().flat_map(|tree| &tree.extras);
        let extras = extras.filter(|entry| !entry.mode.is_commit()).map(Entry::id);
        to.irregular(path, was, is, &extras.collect::<Vec<_>>())?;
    }
    let old = old.as_ref().map_or(&[][..], |tree| &tree.entries);
    let new = new.as_ref().map_or(&[][..], |tree| &tree.entries);
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return Ok(()),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(old), Some(new)) => old.place(new.name, new.mode.is_tree()),
        };
        let one = if order.is_le() { old.next() } else { None };
        let other = if order.is_ge() { new.next() } else { None };
        entries(objects, path, one, other, to)?;
    }
}

/// Compares two entries of the same name. Either both are trees, or neither is.
fn entries(
    objects: &mut Objects,
    path: &mut Vec<u8>,
    before: Option<&Entry<'_>>,
    after: Option<&Entry<'_>>,
    to: &mut impl Differences,
) -> Result<()> {
    if let (Some(before), Some(after)) = (before, after)
        && before.has_id_of(after)
        && (before.mode == after.mode || after.mode.is_tree())
    {
        return Ok(());
    }
    let Some(entry) = before.or(after) else { return Ok(()) };
    let length = path.len();
    path.extend((length > 0).then_some(b'/'));
    path.extend_from_slice(entry.name);
    let done = if entry.mode.is_tree() {
        directory(objects, path, before.map(Entry::id), after.map(Entry::id), to)
    } else {
        let leaf = |entry: &Entry<'_>| Leaf { mode: entry.mode, id: entry.id() };
        to.leaf(objects, path, before.map(leaf), after.map(leaf))
    };
    path.truncate(length);
    done
}
