//! Names of the log's files.

use std::path::{Path, PathBuf};

use crate::blob::BlobId;
use crate::glsn::Glsn;

/// A file of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum FileName {
    /// The segment that begins with a GLSN.
    Segment(Glsn),
    /// Its offset table.
    Table(Glsn),
    /// A blob file.
    Blob(BlobId),
}

impl FileName {
    /// The name in the log's folder.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Segment(first) => format!("{:020}.seg", first.0),
            Self::Table(first) => format!("{:020}.idx", first.0),
            Self::Blob(id) => id.file_name(),
        }
    }

    /// The path in a log's folder.
    pub(crate) fn path(self, dir: &Path) -> PathBuf {
        dir.join(self.name())
    }

    /// The temporary path of a file that several members may be writing at the same time; `member`
    /// is the number of this one.
    pub(crate) fn draft_of(self, member: usize, dir: &Path) -> PathBuf {
        dir.join(format!("{}.{member}{UNFINISHED}", self.name()))
    }

    /// Whether a name is that of a file of the log that is not finished.
    pub(crate) fn is_unfinished(name: &str) -> bool {
        let of = |name: &str| Self::parse(name).is_some();
        name.strip_suffix(UNFINISHED).is_some_and(|name| {
            let of_member = name
                .rsplit_once('.')
                .filter(|(_, member)| member.bytes().all(|byte| byte.is_ascii_digit()));
            of(name) || of_member.is_some_and(|(name, _)| of(name))
        })
    }

    /// The file that a name belongs to; `None` for files that are not the log's.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (number, kind) = name.split_once('.')?;
        if number.len() != 20 || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let number = number.parse().ok()?;
        match kind {
            "seg" => Some(Self::Segment(Glsn(number))),
            "idx" => Some(Self::Table(Glsn(number))),
            "blob" => Some(Self::Blob(BlobId(number))),
            _ => None,
        }
    }
}

/// The paths of an offset table that is written.
#[derive(Clone, Debug)]
pub(crate) struct TablePlace {
    pub(crate) path: PathBuf,
    /// The temporary path, if other members may be writing the table at the same time.
    pub(crate) draft: Option<PathBuf>,
}

/// Suffix of files that are not finished. An opening removes them.
pub const UNFINISHED: &str = ".tmp";

/// The path of a file until it is finished.
pub(crate) fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(UNFINISHED);
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_parses_back_to_the_same_file() {
        for file in
            [FileName::Segment(Glsn(1)), FileName::Table(Glsn(u64::MAX)), FileName::Blob(BlobId(7))]
        {
            assert_eq!(FileName::parse(&file.name()), Some(file));
        }
        for other in [
            "LOCK",
            "1.seg",
            "00000000000000000001.seg.tmp",
            "99999999999999999999.seg",
            "+0000000000000000001.seg",
        ] {
            assert_eq!(FileName::parse(other), None, "{other}");
        }
        assert_eq!(unfinished(Path::new("a/b.seg")), Path::new("a/b.seg.tmp"));
        let draft = FileName::Table(Glsn(1)).draft_of(12, Path::new("a"));
        assert_eq!(draft, Path::new("a/00000000000000000001.idx.12.tmp"));
        for unfinished in ["00000000000000000001.idx.12.tmp", "00000000000000000001.seg.tmp"] {
            assert!(FileName::is_unfinished(unfinished), "{unfinished}");
        }
        for other in [
            "00000000000000000001.idx.x.tmp",
            "00000000000000000001.idx",
            "1.idx.tmp",
            "00000000000000000001.idx.1.1.tmp",
        ] {
            assert!(!FileName::is_unfinished(other), "{other}");
        }
    }
}
