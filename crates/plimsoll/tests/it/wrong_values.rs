//! A large value whose pages match their checksums and are not the ones that were written: `verify` names it and a command, which drops it and
//! nothing else.

use std::path::Path;

use plimsoll::{Db, DropTarget, Error, Glsn, Moment, salvage_drop, verify};
use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_log::blob::{BLOB_BYTES_PAGE, BlobId, BlobRef};
use plimsoll_log::format::blob_seed;
use plimsoll_log::format::blob_trailer::{BLOB_TRAILER_BYTES, BLOB_TRAILER_PAGE, BlobTrailer, extend_blob_hash};
use plimsoll_memory::page::{PAGE_BYTES, PAGE_HEADER_BYTES, PAGE_PAYLOAD_BYTES, seal_page};

use crate::repair::{STORE, files, mem_disk, options};

/// Another byte in the middle of a blob file, under right checksums of the page and, if wanted, of the file.
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
fn a_value_that_is_not_the_one_that_was_written_is_dropped_by_what_verify_names() {
    for (of_the_file, by_key) in [(false, false), (false, true), (true, false), (true, true)] {
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
            .find(|(path, bytes)| path.extension().is_some_and(|ending| ending == "blob") && holds(bytes))
            .expect("the value has a blob file");
        exchange_page(&*disk, log_id, path, bytes, of_the_file);
        let told = format!("of the file: {of_the_file}, by key: {by_key}");
        let mut rounds = 0;
        loop {
            let report = verify(STORE, options(&disk), &mut |_| {}).unwrap();
            let Some(damage) = report.damage.first() else { break };
            rounds += 1;
            assert!(rounds < 4, "{told}: {:?}", report.damage);
            assert_eq!(damage.command, Some(format!("plimsoll salvage {STORE} --drop {at}")), "{told}: {damage}");
            let key = DropTarget::Key { keyspace: "default".to_owned(), key: b"wrong".to_vec() };
            let target = if by_key { key } else { DropTarget::Glsn(at) };
            let dropped = salvage_drop(STORE, options(&disk), &[target], false).unwrap();
            assert_eq!((dropped.value_count, dropped.deleted), (1, 1), "{told}: {dropped:?}");
            assert_eq!((&dropped.values[0].key[..], dropped.values[0].glsn), (&b"wrong"[..], at), "{told}");
        }
        assert!(rounds > 0, "{told}: verify found nothing");
        let db = Db::open(STORE, options(&disk)).unwrap();
        let keyspace = db.keyspace("default").unwrap();
        let get = |at: Glsn| db.snapshot_at(Moment::Glsn(at))?.get(&keyspace, "wrong");
        assert_eq!(db.get(&keyspace, "wrong").unwrap(), None, "{told}");
        assert!(matches!(get(at), Err(Error::Dropped { .. })), "{told}");
        assert_eq!(get(Glsn(at.0 - 1)).unwrap().unwrap(), value(1), "{told}");
        assert_eq!(db.get(&keyspace, "sound").unwrap().unwrap(), value(3), "{told}");
    }
}
