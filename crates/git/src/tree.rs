//! Tree objects: their entries, and the one form of them that paths and modes determine.
//!
//! The *regular form* of a tree has its entries in Git's order, one for each name, with modes that
//! Git writes. It is a function of the paths below the tree, their modes and ids. A tree that has
//! another form is *irregular*: its bytes are kept whole.

use std::cmp::Ordering;

use crate::object::{Format, Kind};
use crate::object_id::ObjectId;

const TYPE: u32 = 0o170_000;
const TREE: u32 = 0o040_000;
const LINK: u32 = 0o120_000;
const REGULAR: u32 = 0o100_000;
const COMMIT: u32 = 0o160_000;

/// The mode of a file that is not executable.
pub(crate) const PLAIN: Mode = Mode(0o100_644);

/// The mode of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode(u32);

impl Mode {
    /// The mode of a directory.
    pub(crate) const TREE: Self = Self(TREE);

    /// Parses octal digits.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let valid = !text.is_empty()
            && text.len() <= 8
            && text.iter().all(|digit| (b'0'..=b'7').contains(digit));
        valid.then(|| Self(text.iter().fold(0, |mode, digit| mode << 3 | u32::from(digit - b'0'))))
    }

    /// Its octal digits.
    pub(crate) fn digits(self) -> String {
        format!("{:o}", self.0)
    }

    pub(crate) fn is_tree(self) -> bool {
        self.0 & TYPE == TREE
    }

    /// Whether it is that of a submodule.
    pub(crate) fn is_commit(self) -> bool {
        self.0 & TYPE == COMMIT
    }

    /// Whether the entry has a content: that of a file, or the target of a symbolic link.
    pub(crate) fn has_content(self) -> bool {
        matches!(self.0 & TYPE, REGULAR | LINK)
    }
}

/// An entry of a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) mode: Mode,
    pub(crate) name: &'a [u8],
    id: &'a [u8],
    /// Its bytes in the tree.
    bytes: &'a [u8],
}

impl<'a> Entry<'a> {
    pub(crate) fn id(&self) -> ObjectId {
        ObjectId::of_bytes(self.id).expect("an id has as many bytes as the format says")
    }

    /// Whether two entries have the same id.
    pub(crate) fn has_id_of(&self, other: &Self) -> bool {
        self.id == other.id
    }

    /// Its bytes in the tree, if a tree in regular form has the same.
    pub(crate) fn regular_bytes(&self) -> Option<&'a [u8]> {
        let digits = &self.bytes[..self.bytes.len() - self.id.len() - self.name.len() - 2];
        let mode = if self.mode.is_tree() { Mode::TREE } else { self.mode };
        (digits == mode.digits().as_bytes()).then_some(self.bytes)
    }

    /// Compares with the place of another entry in a tree.
    pub(crate) fn place(&self, name: &[u8], is_tree: bool) -> Ordering {
        compare((self.name, self.mode.is_tree()), (name, is_tree))
    }
}

/// Git's order: by names, where the name of a tree ends in a slash. This is the order of whole
/// paths.
pub(crate) fn compare(one: (&[u8], bool), other: (&[u8], bool)) -> Ordering {
    let key = |is_tree: bool| if is_tree { &b"/"[..] } else { b"" };
    let one = one.0.iter().chain(key(one.1));
    one.cmp(other.0.iter().chain(key(other.1)))
}

/// Appends an entry to the bytes of a tree.
pub(crate) fn append(bytes: &mut Vec<u8>, mode: Mode, name: &[u8], id: &ObjectId) {
    bytes.extend_from_slice(mode.digits().as_bytes());
    bytes.push(b' ');
    bytes.extend_from_slice(name);
    bytes.push(0);
    bytes.extend_from_slice(&id.to_bytes());
}

/// A tree.
#[derive(Debug)]
pub(crate) struct Tree<'a> {
    /// The entries of the regular form.
    pub(crate) entries: Vec<Entry<'a>>,
    /// The entries that are not part of the regular form.
    pub(crate) extras: Vec<Entry<'a>>,
    /// Whether its bytes are those of the regular form.
    pub(crate) is_regular: bool,
}

/// The tree's bytes cannot be parsed.
#[derive(Debug)]
pub(crate) struct Malformed;

impl<'a> Tree<'a> {
    /// Parses a tree. Longer names than `name_bytes_max` are not in the regular form.
    pub(crate) fn parse(
        bytes: &'a [u8],
        format: Format,
        name_bytes_max: usize,
    ) -> Result<Self, Malformed> {
        let empty = format.id(Kind::Tree, b"").to_bytes();
        let mut tree = Self { entries: Vec::new(), extras: Vec::new(), is_regular: true };
        let mut rest = bytes;
        while !rest.is_empty() {
            let (entry, behind) = first(rest, format).ok_or(Malformed)?;
            rest = behind;
            let fits = (entry.mode.is_tree() && entry.id != empty)
                || entry.mode.has_content()
                || entry.mode.is_commit();
            let fits = fits && !entry.name.is_empty() && !entry.name.contains(&b'/');
            if fits && entry.name.len() <= name_bytes_max {
                tree.entries.push(entry);
            } else {
                tree.extras.push(entry);
            }
        }
        tree.is_regular = tree.extras.is_empty()
            && tree.entries.iter().all(|entry| entry.regular_bytes().is_some());
        tree.sort();
        Ok(tree)
    }

    /// Brings the entries into order. If several entries have the same name, the first one stays.
    fn sort(&mut self) {
        let order =
            |one: &Entry<'_>, other: &Entry<'_>| one.place(other.name, other.mode.is_tree());
        if !self.entries.is_sorted_by(|one, other| order(one, other).is_lt()) {
            self.is_regular = false;
        }
        let mut names = std::collections::HashSet::new();
        let extras = &mut self.extras;
        self.entries.retain(|entry| {
            let is_new = names.insert(entry.name);
            extras.extend((!is_new).then_some(*entry));
            is_new
        });
        self.is_regular &= extras.is_empty();
        self.entries.sort_by(order);
    }
}

fn first(bytes: &[u8], format: Format) -> Option<(Entry<'_>, &[u8])> {
    let space = bytes.iter().position(|&byte| byte == b' ')?;
    let mode = Mode::parse(&bytes[..space])?;
    let name = &bytes[space + 1..];
    let name = &name[..name.iter().position(|&byte| byte == 0)?];
    let at = space + name.len() + 2;
    let end = at + format.id_bytes();
    let id = bytes.get(at..end)?;
    Some((Entry { mode, name, id, bytes: &bytes[..end] }, &bytes[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(digit: u8) -> ObjectId {
        ObjectId::parse(&[digit; 40]).unwrap()
    }

    fn tree(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (mode, name) in entries {
            bytes.extend([mode.as_bytes(), b" ", name, b"\0", &[0x11; 20]].concat());
        }
        bytes
    }

    fn names(bytes: &[u8]) -> (Vec<String>, bool, usize) {
        let tree = Tree::parse(bytes, Format::Sha1, 100).unwrap();
        let names = tree.entries.iter();
        let names = names.map(|entry| String::from_utf8_lossy(entry.name).into_owned()).collect();
        (names, tree.is_regular, tree.extras.len())
    }

    #[test]
    fn regular_trees_are_recognized() {
        let good =
            tree(&[("100644", b"a"), ("100664", b"a.c"), ("40000", b"a0"), ("120000", b"b")]);
        assert!(names(&good).1);
        let good = tree(&[("100644", b"a.c"), ("40000", b"a"), ("160000", b"a0")]);
        assert_eq!(names(&good), (vec!["a.c".into(), "a".into(), "a0".into()], true, 0));
        assert_eq!(names(b""), (vec![], true, 0));
    }

    #[test]
    fn irregular_trees_are_recognized() {
        type Entries = &'static [(&'static str, &'static [u8])];
        let cases: [(Entries, usize, usize); 7] = [
            (&[("100644", b"b"), ("100644", b"a")], 2, 0),
            (&[("040000", b"a")], 1, 0),
            (&[("0100644", b"a")], 1, 0),
            (&[("100644", b"a"), ("40000", b"a")], 1, 1),
            (&[("100644", b"a/b")], 0, 1),
            (&[("100644", &[b'x'; 101])], 0, 1),
            (&[("40755", b"a")], 1, 0),
        ];
        for (entries, kept, extras) in cases {
            let (names, is_regular, left) = names(&tree(entries));
            assert_eq!((names.len(), is_regular, left), (kept, false, extras), "{entries:?}");
        }
        let mut empty = Vec::new();
        append(&mut empty, Mode::TREE, b"e", &Format::Sha1.id(Kind::Tree, b""));
        assert_eq!(names(&empty), (vec![], false, 1));
    }

    #[test]
    fn malformed_trees_are_errors() {
        for bytes in [&b"100644 a"[..], b"x a\0", b"100644 a\0short", b"100644"] {
            assert!(Tree::parse(bytes, Format::Sha1, 100).is_err());
        }
    }

    #[test]
    fn encoded_entries_are_parsed() {
        let mut bytes = Vec::new();
        append(&mut bytes, PLAIN, b"a", &id(b'2'));
        let tree = Tree::parse(&bytes, Format::Sha1, 100).unwrap();
        assert_eq!((tree.entries[0].mode, tree.entries[0].id()), (PLAIN, id(b'2')));
        assert_eq!(tree.entries[0].regular_bytes(), Some(&bytes[..]));
    }
}
