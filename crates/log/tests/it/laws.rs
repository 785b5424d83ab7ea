//! Properties of a log, checked on each kind of disk in memory.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::Disk;
use plimsoll_log::blob::{BLOB_BYTES_PAGE, BlobId};
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::{Glsn, StreamId};
use plimsoll_memory::page::{
    PAGE_BYTES, PAGE_HEADER_BYTES, PAGE_PAYLOAD_BYTES, page_kind, page_payload, seal_page,
};
use plimsoll_memory::pool::Touch;

use crate::common::{Memory, append, open, payload, scan_all, submit, submit_all, submit_with};

/// Runs `check` with a log on each kind of disk in memory.
fn for_each_log(check: impl Fn(&FileLog)) {
    let disks: [Arc<dyn Disk>; 2] = [Arc::new(MemDisk::new()), Arc::new(LyingDisk::new(1))];
    for disk in disks {
        check(&open(&disk, &Memory::new(16 << 20)));
    }
}

#[test]
fn glsns_are_dense_and_reads_return_the_submitted_bytes() {
    for_each_log(|log| {
        let mut random = Random::new(1);
        let mut expected = Vec::new();
        for _ in 0..200 {
            let stream = random.below(3) as u32;
            let payloads: Vec<_> = (0..1 + random.below(3))
                .map(|_| payload(random.next_u64(), random.below(3000) as usize))
                .collect();
            let ticket = submit_all(log, stream, &payloads).unwrap();
            assert_eq!(ticket.first.0, expected.len() as u64 + 1);
            expected.extend(payloads.into_iter().map(|payload| (stream, ticket, payload)));
            assert_eq!(ticket.last.0, expected.len() as u64);
        }
        log.wait_durable(Glsn(expected.len() as u64)).unwrap();
        for (glsn, (stream, ticket, payload)) in (1..).zip(&expected) {
            let entry = log.read(Glsn(glsn)).unwrap();
            assert_eq!(&&*entry, payload);
            assert_eq!(entry.meta, log.meta(Glsn(glsn)).unwrap());
            assert_eq!(
                (entry.meta.record_first, entry.meta.stream),
                (ticket.first, StreamId(*stream))
            );
            assert_eq!(
                (entry.meta.timestamp_micros, entry.meta.read_at),
                (ticket.timestamp_micros, Glsn(7))
            );
            let mut part = vec![0; payload.len() / 2];
            log.read_range(Glsn(glsn), (payload.len() / 3) as u64, &mut part).unwrap();
            assert_eq!(part, payload[payload.len() / 3..][..part.len()]);
        }
        let of_one: Vec<u64> =
            scan_all(log, 5, 150, Some(1)).iter().map(|(glsn, _)| *glsn).collect();
        let wanted: Vec<u64> =
            (5..150).filter(|glsn| expected[*glsn as usize - 1].0 == 1).collect();
        assert_eq!(of_one, wanted);
    });
}

#[test]
fn readers_see_only_durable_entries() {
    for_each_log(|log| {
        append(log, 0, b"one");
        submit(log, 0, b"two").unwrap();
        assert_eq!((log.readable(), log.bounds().next), (Glsn(1), Glsn(3)));
        assert_eq!(scan_all(log, 1, 9, None).len(), 1);
        log.wait_durable(Glsn(2)).unwrap();
        assert_eq!(scan_all(log, 1, 9, None).len(), 2);
    });
}

#[test]
fn a_scan_includes_entries_that_become_readable_while_it_runs() {
    for_each_log(|log| {
        append(log, 0, b"one");
        let mut scan = log.scan(Glsn(1)..Glsn::MAX, None).unwrap();
        assert_eq!(scan.next_entry().unwrap().unwrap().payload, b"one");
        append(log, 0, b"two");
        assert_eq!(scan.next_entry().unwrap().unwrap().payload, b"two");
    });
}

#[test]
fn a_waiter_gets_the_last_readable_glsn_and_does_not_wait_for_ever() {
    for_each_log(|log| {
        assert_eq!(
            log.wait_beyond(Glsn::NONE, Duration::from_millis(5), &|| false).unwrap(),
            Glsn::NONE
        );
        std::thread::scope(|scope| {
            let waiter = scope
                .spawn(|| log.wait_beyond(Glsn::NONE, Duration::from_secs(60), &|| false).unwrap());
            append(log, 0, b"one");
            assert_eq!(waiter.join().unwrap(), Glsn(1));
        });
    });
}

#[test]
fn the_chain_leads_from_record_to_record() {
    for_each_log(|log| {
        assert_eq!(log.chain_at(Glsn::NONE).unwrap(), Some(log.position().chain));
        let ticket = submit_all(log, 0, &[payload(1, 10), payload(2, 10)]).unwrap();
        log.wait_durable(ticket.last).unwrap();
        let after_two = log.position();
        append(log, 0, b"three");
        assert_eq!(log.chain_at(Glsn(2)).unwrap(), Some(after_two.chain));
        assert_eq!(log.chain_at(Glsn(1)).unwrap(), None);
        assert_eq!(log.chain_at(Glsn(3)).unwrap(), Some(log.position().chain));
        assert_eq!(log.chain_at(Glsn(4)).unwrap(), None);
    });
}

#[test]
fn plain_bytes_of_a_blob_file_are_read_by_offset() {
    for_each_log(|log| {
        let bytes = payload(5, 700_000);
        let mut writer = log.create_blob().unwrap();
        let (id, seed) = (writer.id(), writer.seed());
        for part in bytes.chunks(10_007) {
            writer.write(part).unwrap();
        }
        assert_eq!(writer.position(), bytes.len() as u64);
        for (offset, len) in [(0, 100), (16_300, 200), (500_000, 150_000), (699_999, 1)] {
            let mut into = vec![0; len];
            writer.read_back(offset as u64, &mut into).unwrap();
            assert_eq!(into, bytes[offset..offset + len], "at {offset}");
        }
        assert!(writer.read_back(699_999, &mut [0; 2]).is_err());
        let blob = writer.finish().unwrap();
        assert_eq!((blob.id, blob.pages as usize), (id, bytes.len().div_ceil(PAGE_PAYLOAD_BYTES)));
        let glsn = submit_with(log, 0, b"named", &[blob]).unwrap().last;
        assert_eq!(log.blobs_of(glsn).unwrap(), [blob]);
        assert_eq!(log.meta(glsn).unwrap().blobs, 1);
        let opened = log.open_blob(id).unwrap();
        assert_eq!((opened.pages, opened.seed), (blob.pages, seed));
        let mut back = Vec::new();
        for number in 0..opened.pages {
            let page = opened.file.get(number, Touch::Scan).unwrap();
            assert_eq!(page_kind(&page), BLOB_BYTES_PAGE);
            back.extend_from_slice(page_payload(&page));
        }
        assert_eq!(back, bytes);
    });
}

#[test]
fn whole_pages_of_a_blob_file_are_read_unchanged() {
    for_each_log(|log| {
        let mut writer = log.create_blob().unwrap();
        for number in 0..40u8 {
            let mut page = vec![0; PAGE_BYTES];
            page[PAGE_HEADER_BYTES..PAGE_HEADER_BYTES + 100].fill(number);
            seal_page(&mut page, writer.seed(), u32::from(number), 77, 100);
            writer.write_page(&page).unwrap();
        }
        let blob = writer.finish().unwrap();
        let opened = log.open_blob(blob.id).unwrap();
        assert_eq!(opened.pages, 40);
        let page = opened.file.get(39, Touch::Point).unwrap();
        assert_eq!((page_kind(&page), page_payload(&page)), (77, &[39; 100][..]));
        assert!(opened.file.get(40, Touch::Point).is_err());
    });
}

#[test]
fn a_blob_file_that_was_not_finished_leaves_nothing_and_its_id_is_not_used_again() {
    for_each_log(|log| {
        let mut dropped = log.create_blob().unwrap();
        dropped.write(b"bytes").unwrap();
        let id = dropped.id();
        drop(dropped);
        assert!(matches!(log.open_blob(id), Err(LogError::Corrupt { .. })));
        let next = log.create_blob().unwrap();
        assert!(next.id() > id);
    });
}

#[test]
fn blob_files_that_no_record_names_are_swept_but_those_in_use_are_not() {
    for_each_log(|log| {
        let finish = |bytes: &[u8]| {
            let mut writer = log.create_blob().unwrap();
            writer.write(bytes).unwrap();
            writer.finish().unwrap()
        };
        let (named, waiting, discarded) =
            (finish(b"named"), finish(b"waiting"), finish(b"discarded"));
        submit_with(log, 0, b"x", &[named]).unwrap();
        let _being_written = log.create_blob().unwrap();
        log.discard_blob(discarded.id).unwrap();
        assert_eq!(log.sweep_blobs(&|_| false).unwrap(), 0);
        assert!(log.open_blob(named.id).is_ok() && log.open_blob(waiting.id).is_ok());
        assert!(log.open_blob(discarded.id).is_err());
    });
}

#[test]
fn reads_of_trimmed_entries_report_the_first_remaining_one() {
    for_each_log(|log| {
        let mut blob = log.create_blob().unwrap();
        blob.write(b"old").unwrap();
        let blob = blob.finish().unwrap();
        submit_with(log, 0, b"old", &[blob]).unwrap();
        for number in 0..300 {
            submit(log, 0, &payload(number, 4000)).unwrap();
        }
        log.wait_durable(Glsn(301)).unwrap();
        let first = log.trim(Glsn(200), &|_| false).unwrap();
        assert!(first > Glsn(1) && first <= Glsn(200), "{first}");
        assert_eq!(log.bounds().first, first);
        let below = Glsn(first.0 - 1);
        assert_eq!(log.read(below).unwrap_err(), LogError::Trimmed { asked: below, first });
        assert_eq!(
            log.scan(below..Glsn(300), None).err(),
            Some(LogError::Trimmed { asked: below, first })
        );
        assert!(log.read(first).is_ok());
        assert!(log.open_blob(blob.id).is_err());
        assert!(matches!(log.glsn_at(0), Err(LogError::TimeTrimmed { .. })));
        assert!(
            log.chain_at(below).unwrap().is_some(),
            "the position before the first entry has a chain hash"
        );
        assert_eq!(scan_all(log, first.0, 400, None).len() as u64, 302 - first.0);
    });
}

#[test]
fn a_blob_file_that_is_still_needed_survives_the_trim_of_its_record() {
    for_each_log(|log| {
        let mut blob = log.create_blob().unwrap();
        blob.write(b"wanted").unwrap();
        let blob = blob.finish().unwrap();
        submit_with(log, 0, b"old", &[blob]).unwrap();
        for number in 0..300 {
            append(log, 0, &payload(number, 4000));
        }
        let keep = |id: BlobId| id == blob.id;
        log.trim(Glsn(200), &keep).unwrap();
        assert!(log.open_blob(blob.id).is_ok());
        assert_eq!(log.sweep_blobs(&keep).unwrap(), 0);
        assert_eq!(log.sweep_blobs(&|_| false).unwrap(), 1);
        assert!(log.open_blob(blob.id).is_err());
    });
}

#[test]
fn an_open_scan_ends_with_trimmed_when_its_position_is_freed() {
    for_each_log(|log| {
        for number in 0..300 {
            append(log, 0, &payload(number, 4000));
        }
        let mut scan = log.scan(Glsn(1)..Glsn::MAX, None).unwrap();
        assert!(scan.next_entry().unwrap().is_ok());
        let first = log.trim(Glsn(250), &|_| false).unwrap();
        let mut seen = 1;
        let end = loop {
            match scan.next_entry().unwrap() {
                Ok(_) => seen += 1,
                Err(error) => break error,
            }
        };
        assert!(
            matches!(end, LogError::Trimmed { first: left, .. } if left == first),
            "{end:?} after {seen}"
        );
        assert!(scan.next_entry().is_none());
    });
}
