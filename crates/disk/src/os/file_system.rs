//! File systems on which processes cannot share a store, because writes or locks of one are not
//! visible to all others at once, or because hard links are not supported.

use std::io;

use rustix::fs::{OFlags, fstatfs};

use crate::os::call;
use crate::os::place::Place;

/// The identifiers of file systems (`statfs(2)`), and their names.
const REFUSED: [(u32, &str); 17] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x0bd0_0bd0, "Lustre"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x4750_4653, "GPFS"),
    // FUSE may serve a network file system, which cannot be detected.
    (0x6573_5546, "FUSE"),
    (0x6a65_6a63, "virtiofs"),
    // These have no hard links.
    (0x4d44, "FAT"),
    (0x2011_bab0, "exFAT"),
];

/// The name of the file system at a place, if processes cannot share a store there.
pub(super) fn not_for_sharing(place: &Place<'_>) -> io::Result<Option<&'static str>> {
    let fd = place.open(OFlags::PATH)?;
    let kind = call(place.path, || fstatfs(&fd))?.f_type;
    // A 32-bit number, which some machines sign-extend.
    Ok(name_of(kind as u32))
}

fn name_of(kind: u32) -> Option<&'static str> {
    REFUSED.iter().find(|(number, _)| *number == kind).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_refused_by_name() {
        assert_eq!(name_of(0x6969), Some("NFS"));
        assert_eq!(name_of(0xff53_4d42_u32), Some("CIFS"));
        assert_eq!(name_of(0xef53), None, "ext4");
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(not_for_sharing(&Place::by_path(dir.path())).unwrap(), None);
        assert!(not_for_sharing(&Place::by_path(&dir.path().join("missing"))).is_err());
    }
}
