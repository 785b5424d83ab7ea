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

/// Suffix of files that are not finished: they are removed at open.
pub(crate) const UNFINISHED: &str = ".tmp";

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
    fn a_name_comes_back_as_what_it_stands_for() {
        for file in [FileName::Segment(Glsn(1)), FileName::Table(Glsn(u64::MAX)), FileName::Blob(BlobId(7))] {
            assert_eq!(FileName::parse(&file.name()), Some(file));
        }
        for other in
            ["LOCK", "1.seg", "00000000000000000001.seg.tmp", "99999999999999999999.seg", "+0000000000000000001.seg"]
        {
            assert_eq!(FileName::parse(other), None, "{other}");
        }
        assert_eq!(unfinished(Path::new("a/b.seg")), Path::new("a/b.seg.tmp"));
    }
}
