//! Copies of a log: records and blob files that another log of the same id has ordered.

use std::io::Read;

use plimsoll_log::blob::BlobRef;
use plimsoll_log::draft::{CommitTimes, Draft, DraftEntry};
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::options::FileLogOptions;
use plimsoll_log::glsn::{Glsn, StreamId};

use crate::common::{Memory, mem_disk, options, payload, scan_all, submit, submit_with};

/// Two logs of one id, of which the second has smaller segments.
fn pair() -> [FileLog; 2] {
    [1 << 20, 64 << 10].map(|segment_bytes| {
        let (disk, memory) = (mem_disk(), Memory::new(16 << 20));
        let options = FileLogOptions { id: Some(7), segment_bytes, ..options(&disk, &memory) };
        FileLog::open(options).unwrap().0
    })
}

fn submit_ordered(
    log: &FileLog,
    bytes: &[u8],
    blobs: &[BlobRef],
    first: Glsn,
    micros: u64,
) -> Result<(), LogError> {
    let parts = [bytes];
    let entries = [DraftEntry { stream: StreamId(3), parts: &parts }];
    let times = CommitTimes::ANY;
    let draft = Draft { entries: &entries, read_at: Glsn::NONE, blobs, times };
    log.submit_ordered(&draft, first, micros).map(drop)
}

#[test]
fn a_copy_of_the_records_has_their_glsns_times_and_chain() {
    let [log, copy] = pair();
    for number in 0..40 {
        let bytes = payload(number, 9000);
        let ticket = submit(&log, 3, &bytes).unwrap();
        let micros = ticket.timestamp_micros;
        submit_ordered(&copy, &bytes, &[], ticket.first, micros).unwrap();
        // Neither the same place nor the same time again.
        let taken = submit_ordered(&copy, &bytes, &[], ticket.first, micros + 1);
        assert!(matches!(taken, Err(LogError::Conflict { .. })), "{taken:?}");
        let not_younger = submit_ordered(&copy, &bytes, &[], ticket.first.next(), micros);
        assert!(matches!(not_younger, Err(LogError::InvalidDraft { .. })), "{not_younger:?}");
    }
    for log in [&log, &copy] {
        log.sync().unwrap();
    }
    assert_eq!(scan_all(&log, 1, 41, None), scan_all(&copy, 1, 41, None));
    assert_eq!(log.position(), copy.position());
    assert_eq!(log.meta(Glsn(17)), copy.meta(Glsn(17)));
}

#[test]
fn a_copy_of_a_blob_file_is_the_file_that_the_record_names() {
    let [log, copy] = pair();
    log.set_node(5);
    let mut blob = log.create_blob().unwrap();
    blob.write(&payload(1, 50_000)).unwrap();
    let blob = blob.finish().unwrap();
    assert_eq!(blob.id.node(), 5);
    let mut bytes = Vec::new();
    log.read_blob_file(blob.id).unwrap().read_to_end(&mut bytes).unwrap();
    for at in (0..bytes.len()).step_by(997) {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        let copied = copy.copy_blob(blob, &mut &changed[..]);
        assert!(matches!(copied, Err(LogError::Corrupt { .. })), "{at}: {copied:?}");
        assert!(copy.copy_blob(blob, &mut &bytes[..at]).is_err(), "cut at {at}");
    }
    let longer = [&bytes[..], b"x"].concat();
    assert!(copy.copy_blob(blob, &mut &longer[..]).is_err());
    let other = BlobRef { hash: blob.hash ^ 1, ..blob };
    assert!(copy.copy_blob(other, &mut &bytes[..]).is_err());
    copy.copy_blob(blob, &mut &bytes[..]).unwrap();
    assert!(!copy.is_blob_named(blob.id).unwrap());
    let ticket = submit_with(&log, 3, b"names it", &[blob]).unwrap();
    submit_ordered(&copy, b"names it", &[blob], ticket.first, ticket.timestamp_micros).unwrap();
    assert!(copy.is_blob_named(blob.id).unwrap());
    copy.sync().unwrap();
    let mut found = Vec::new();
    copy.read_blob_file(blob.id).unwrap().read_to_end(&mut found).unwrap();
    assert!(found == bytes);
    // The number is not assigned again, by any node.
    let next = copy.create_blob().unwrap();
    assert!(next.id().number() > blob.id.number() && next.id().node() == 0);
}
