//! A large value whose pages match their checksums but are not the pages that were written:
//! `verify` names it, and a recovery drops this value and nothing else.

use std::path::Path;

use plimsoll::{Db, Error, Glsn, Moment, verify};
use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_log::blob::{BLOB_BYTES_PAGE, BlobId, BlobRef};
use plimsoll_log::format::blob_seed;
use plimsoll_log::format::blob_trailer::{
    BLOB_TRAILER_BYTES, BLOB_TRAILER_PAGE, BlobTrailer, extend_blob_hash,
};
use plimsoll_memory::page::{PAGE_BYTES, PAGE_HEADER_BYTES, PAGE_PAYLOAD_BYTES, seal_page};

use crate::recover::{DEST, STORE, files, mem_disk, options, recover};

/// Changes a byte in the middle of a blob file, and corrects the checksum of the page and, if
/// wanted, that of the file.
fn exchange_page(disk: &dyn Disk, log_id: u128, path: &Path, bytes: &[u8], of_the_file: bool) {
    let id: u64 = path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
    let (mut bytes, seed) = (bytes.to_vec(), blob_seed(log_id, id));
    let pages = bytes.len() / PAGE_BYTES;
    let wrong = &mut bytes[5 * PAGE_BYTES..6 * PAGE_BYTES];
    wrong[700] ^= 1;
    seal_page(wrong, seed, 5, BLOB_BYTES_PAGE, PAGE_PAYLOAD_BYTES);
    if of_the_file {
        let last = pages - 1;
        let hash = bytes[..last * PAGE_BYTES].chunks(PAGE_BYTES).fold(0, extend_blob_hash);
        let blob = BlobRef { id: BlobId(id), pages: last as u32, hash };
        let page = &mut bytes[last * PAGE_BYTES..];
        page[PAGE_HEADER_BYTES..PAGE_HEADER_BYTES + BLOB_TRAILER_BYTES]
            .copy_from_slice(&BlobTrailer { log_id, blob }.encode());
        seal_page(page, seed, last as u32, BLOB_TRAILER_PAGE, BLOB_TRAILER_BYTES);
    }
    disk.open(path, Open::ReadWrite, Caching::Buffered).unwrap().write_at(&bytes, 0).unwrap();
}

#[test]
fn a_recovery_drops_a_value_that_differs_from_the_written_one() {
    for of_the_file in [false, true] {
        let disk = mem_disk();
        let db = Db::open(STORE, options(&disk)).unwrap();
        let keyspace = db.keyspace("default").unwrap();
        let value = |byte: u8| vec![byte; 400 << 10];
        db.put(&keyspace, "wrong", value(1)).unwrap();
        let at = db.put(&keyspace, "wrong", value(2)).unwrap();
        db.put(&keyspace, "sound", value(3)).unwrap();
        db.flush().unwrap();
        let log_id = db.id();
        db.close().unwrap();
        let blobs = files(&*disk, &Path::new(STORE).join("log"));
        let holds = |bytes: &[u8]| bytes.get(PAGE_BYTES + 100) == Some(&2);
        let (path, bytes) = blobs
            .iter()
            .find(|(path, bytes)| {
                path.extension().is_some_and(|ending| ending == "blob") && holds(bytes)
            })
            .expect("the value has a blob file");
        exchange_page(&*disk, log_id, path, bytes, of_the_file);
        let told = format!("of the file: {of_the_file}");
        let verified = verify(STORE, options(&disk), &mut |_| {}).unwrap();
        let command = verified.damage.first().and_then(|damage| damage.command.as_deref());
        assert_eq!(
            command,
            Some("plimsoll recover /store /store.recovered"),
            "{told}: {verified:?}"
        );
        let report = recover(&disk);
        assert_eq!((report.value_count, report.deleted), (1, 1), "{told}: {report:?}");
        assert_eq!(
            (&report.values[0].key[..], report.values[0].glsn),
            (&b"wrong"[..], at),
            "{told}"
        );
        let db = Db::open(DEST, options(&disk)).unwrap();
        let keyspace = db.keyspace("default").unwrap();
        let get = |at: Glsn| db.snapshot_at(Moment::Glsn(at))?.get(&keyspace, "wrong");
        assert_eq!(db.get(&keyspace, "wrong").unwrap(), None, "{told}");
        assert!(matches!(get(at), Err(Error::Dropped { .. })), "{told}");
        assert_eq!(get(Glsn(at.0 - 1)).unwrap().unwrap(), value(1), "{told}");
        assert_eq!(db.get(&keyspace, "sound").unwrap().unwrap(), value(3), "{told}");
    }
}
