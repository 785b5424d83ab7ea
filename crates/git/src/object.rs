//! The kinds of Git objects, and how their ids are computed.

use sha1::{Digest, Sha1};
use sha2::Sha256;

use crate::object_id::ObjectId;

/// The hash function of a repository's object ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Sha1,
    Sha256,
}

impl Format {
    /// The format of an id.
    pub(crate) fn of(id: &ObjectId) -> Self {
        if id.as_str().len() == 64 { Self::Sha256 } else { Self::Sha1 }
    }

    /// The name that git uses.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
        }
    }

    /// Length of an id in bytes.
    pub(crate) fn id_bytes(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    /// The id of an object.
    pub(crate) fn id(self, kind: Kind, bytes: &[u8]) -> ObjectId {
        let mut hasher = Hasher::of_object(self, kind, bytes.len() as u64);
        hasher.update(bytes);
        hasher.id()
    }
}

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Commit = 1,
    Tree = 2,
    Blob = 3,
    Tag = 4,
}

impl Kind {
    const ALL: [(Self, &'static str); 4] =
        [(Self::Commit, "commit"), (Self::Tree, "tree"), (Self::Blob, "blob"), (Self::Tag, "tag")];

    /// The name that git uses.
    pub(crate) fn name(self) -> &'static str {
        Self::ALL[self as usize - 1].1
    }

    /// The kind with a name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|known| known.1 == name).map(|known| known.0)
    }

    /// The kind with a number, as packs have it.
    pub(crate) fn numbered(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).map(|known| known.0)
    }
}

/// Computes a hash.
pub(crate) enum Hasher {
    Sha1(Sha1),
    Sha256(Sha256),
}

impl Hasher {
    pub(crate) fn new(format: Format) -> Self {
        match format {
            Format::Sha1 => Self::Sha1(Sha1::new()),
            Format::Sha256 => Self::Sha256(Sha256::new()),
        }
    }

    /// A hasher for the id of an object of this length, which is fed with the object's bytes.
    pub(crate) fn of_object(format: Format, kind: Kind, bytes: u64) -> Self {
        let mut hasher = Self::new(format);
        hasher.update(format!("{} {bytes}\0", kind.name()).as_bytes());
        hasher
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha1(hasher) => hasher.update(bytes),
            Self::Sha256(hasher) => hasher.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        match self {
            Self::Sha1(hasher) => hasher.finalize().to_vec(),
            Self::Sha256(hasher) => hasher.finalize().to_vec(),
        }
    }

    pub(crate) fn id(self) -> ObjectId {
        ObjectId::of_bytes(&self.finish()).expect("a hash has 20 or 32 bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_equal_those_of_git() {
        let id = |format: Format, kind, bytes| format.id(kind, bytes).to_string();
        assert_eq!(
            id(Format::Sha1, Kind::Blob, b"hello\n"),
            "ce013625030ba8dba906f756967f9e9ca394464a"
        );
        assert_eq!(id(Format::Sha1, Kind::Tree, b""), "4b825dc642cb6eb9a060e54bf8d69288fbee4904");
        assert_eq!(
            id(Format::Sha256, Kind::Tree, b""),
            "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321"
        );
        for number in 1..=4 {
            let kind = Kind::numbered(number).unwrap();
            assert_eq!(Kind::named(kind.name()), Some(kind));
        }
        assert_eq!((Kind::numbered(0), Kind::numbered(5)), (None, None));
    }
}
