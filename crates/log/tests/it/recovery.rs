//! Opening a log whose end was torn, changed or cut returns every acknowledged entry or an error,
//! never other bytes.

use std::sync::Arc;

use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::Disk;
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::options::{FileLogOptions, Mode};
use plimsoll_log::glsn::{Glsn, Position};

use crate::common::{
    Memory, append, copy_of, mem_disk, names, open, options, payload, read_file, scan_all, submit,
    submit_all, write_file,
};

const SEGMENT: &str = "00000000000000000001.seg";

/// A log of a few records, copied while it was open, as after a kill, with the position after each
/// record and the offset at which each record's bytes end.
struct Killed {
    disk: Arc<dyn Disk>,
    payloads: Vec<Vec<u8>>,
    positions: Vec<Position>,
    ends: Vec<usize>,
}

fn killed(memory: &Memory, sizes: &[usize]) -> Killed {
    let disk = mem_disk();
    let log = open(&disk, memory);
    let mut out = Killed {
        disk: mem_disk(),
        payloads: Vec::new(),
        positions: vec![log.position()],
        ends: vec![128],
    };
    for (number, size) in sizes.iter().enumerate() {
        out.payloads.push(payload(number as u64, *size));
        append(&log, 0, out.payloads.last().unwrap());
        out.positions.push(log.position());
        let bytes = read_file(&*disk, SEGMENT);
        out.ends.push(bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1);
    }
    out.disk = copy_of(&*disk);
    out
}

/// Opens the log and checks that it holds a prefix of the records unchanged; returns their number.
fn first_records(
    disk: &Arc<dyn Disk>,
    memory: &Memory,
    known: Option<Position>,
    payloads: &[Vec<u8>],
) -> Result<usize, LogError> {
    let (log, _) = FileLog::open(FileLogOptions { known, ..options(disk, memory) })?;
    let found = scan_all(&log, 1, u64::MAX, None);
    assert!(found.len() <= payloads.len());
    for ((glsn, got), (expected_glsn, expected)) in found.iter().zip((1..).zip(payloads)) {
        assert_eq!((*glsn, got), (expected_glsn, expected));
    }
    assert_eq!(log.bounds().next.0 as usize, found.len() + 1);
    // After any cut, the log accepts records from there on, also after another opening.
    let next = append(&log, 0, b"goes on");
    drop(log);
    let (log, report) = FileLog::open(options(disk, memory))?;
    assert_eq!(report.cut, None, "nothing more is cut");
    assert_eq!(&*log.read(next)?, b"goes on");
    Ok(found.len())
}

/// Later recoveries, and readers of a damaged block, treat equal epochs as a sign that the segment
/// was never cut.
#[test]
fn after_a_cut_a_clean_close_leaves_a_mark_of_the_new_epoch() {
    let (disk, memory) = (mem_disk(), Memory::new(16 << 20));
    let used =
        |disk: &dyn Disk| read_file(disk, SEGMENT).iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let log = open(&disk, &memory);
    append(&log, 0, b"kept");
    log.close().unwrap();
    drop(log);
    let closed = used(&*disk);
    let mut bytes = read_file(&*disk, SEGMENT);
    bytes.resize(bytes.len().max(closed + 100), 0);
    bytes[closed + 20] = 7;
    write_file(&*disk, SEGMENT, &bytes);
    let log = open(&disk, &memory);
    log.close().unwrap();
    drop(log);
    assert!(used(&*disk) > closed, "a second mark after the first");
}

#[test]
fn a_tail_torn_at_any_byte_is_cut_at_a_record_and_the_log_continues() {
    let memory = Memory::new(16 << 20);
    let killed = killed(&memory, &[300, 17_000, 40, 200, 17_000]);
    let original = read_file(&*killed.disk, SEGMENT);
    let known = killed.positions[3];
    let mut offsets: Vec<usize> = (killed.ends[3]..killed.ends[3] + 600).collect();
    offsets.extend((killed.ends[3] + 600..killed.ends[5] + 2).step_by(97));
    for offset in offsets {
        let disk = copy_of(&*killed.disk);
        let mut torn = original.clone();
        torn[offset..].fill(0);
        write_file(&*disk, SEGMENT, &torn);
        let found = first_records(&disk, &memory, Some(known), &killed.payloads).unwrap();
        let whole = (1..=5).filter(|n| killed.ends[*n] <= offset).count();
        // Zeros at the end of a record may be cut without loss.
        assert!(found == whole || found == whole + 1, "{found} of {whole} at {offset}");

        let disk = copy_of(&*killed.disk);
        write_file(&*disk, SEGMENT, &original[..offset]);
        let found = first_records(&disk, &memory, Some(known), &killed.payloads).unwrap();
        assert!(found == whole || found == whole + 1, "cut: {found} of {whole} at {offset}");
    }
}

/// Found by `plimsoll-sim --mode rot --seed 3001393`.
#[test]
fn a_log_whose_file_was_cut_in_the_padding_of_its_last_record_has_lost_nothing() {
    let memory = Memory::new(16 << 20);
    for size in [300, 301, 303, 17_005] {
        let killed = killed(&memory, &[40, size]);
        let original = read_file(&*killed.disk, SEGMENT);
        let end = killed.ends[2].next_multiple_of(8);
        assert!(end > killed.ends[2], "{size} bytes leave no padding");
        for (offset, mode) in (killed.ends[2]..=end)
            .flat_map(|offset| [(offset, Mode::ReadOnly), (offset, Mode::Create)])
        {
            let disk = copy_of(&*killed.disk);
            write_file(&*disk, SEGMENT, &original[..offset]);
            if mode == Mode::ReadOnly {
                let (log, _) =
                    FileLog::open(FileLogOptions { mode, ..options(&disk, &memory) }).unwrap();
                assert_eq!(
                    scan_all(&log, 1, u64::MAX, None).len(),
                    2,
                    "{size} bytes, cut at {offset}"
                );
            }
            let found =
                first_records(&disk, &memory, Some(killed.positions[2]), &killed.payloads).unwrap();
            assert_eq!(found, 2, "{size} bytes, cut at {offset}");
        }
    }
}

#[test]
fn garbage_from_any_byte_on_is_cut_at_a_record() {
    let memory = Memory::new(16 << 20);
    let killed = killed(&memory, &[300, 40, 200, 3000]);
    let original = read_file(&*killed.disk, SEGMENT);
    let mut random = Random::new(9);
    for offset in (killed.ends[2]..killed.ends[4] + 40).step_by(5) {
        let disk = copy_of(&*killed.disk);
        let mut torn = original.clone();
        torn[offset..killed.ends[4] + 2000]
            .iter_mut()
            .for_each(|byte| *byte = random.next_u64() as u8);
        write_file(&*disk, SEGMENT, &torn);
        let found =
            first_records(&disk, &memory, Some(killed.positions[2]), &killed.payloads).unwrap();
        assert_eq!(found, (1..=4).filter(|n| killed.ends[*n] <= offset).count(), "at {offset}");
    }
}

#[test]
fn a_bad_record_at_or_below_what_is_known_to_be_durable_is_reported_and_never_cut() {
    let memory = Memory::new(16 << 20);
    let killed = killed(&memory, &[300, 40, 200]);
    for at in (128..killed.ends[3]).step_by(3) {
        let disk = copy_of(&*killed.disk);
        let mut bytes = read_file(&*disk, SEGMENT);
        bytes[at] ^= 0x10;
        write_file(&*disk, SEGMENT, &bytes);
        let opened = FileLog::open(FileLogOptions {
            known: Some(killed.positions[3]),
            ..options(&disk, &memory)
        });
        assert!(matches!(opened, Err(LogError::Corrupt { .. })), "byte {at}: {opened:?}");
        assert_eq!(read_file(&*disk, SEGMENT), bytes, "nothing was changed");
    }
}

#[test]
fn a_bad_record_that_later_records_report_as_durable_is_reported() {
    let memory = Memory::new(16 << 20);
    let killed = killed(&memory, &[300, 40, 200]);
    // When record 3 was written, record 2 was durable.
    for at in (128..killed.ends[2]).step_by(7) {
        let disk = copy_of(&*killed.disk);
        let mut bytes = read_file(&*disk, SEGMENT);
        bytes[at] ^= 0x10;
        write_file(&*disk, SEGMENT, &bytes);
        let opened = FileLog::open(options(&disk, &memory));
        assert!(matches!(opened, Err(LogError::Corrupt { .. })), "byte {at}: {opened:?}");
    }
}

#[test]
fn each_byte_of_a_cleanly_closed_log_is_changed_and_it_is_reported_or_harmless() {
    let memory = Memory::new(16 << 20);
    let disk = mem_disk();
    let log = open(&disk, &memory);
    let payloads: Vec<Vec<u8>> =
        [100, 3000, 17_000, 0, 8].iter().map(|len| payload(*len as u64, *len)).collect();
    for payload in &payloads {
        append(&log, 0, payload);
    }
    log.close().unwrap();
    drop(log);
    let original = read_file(&*disk, SEGMENT);
    let used = original.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let mut offsets: Vec<usize> = (0..3600).chain(used - 400..used + 40).collect();
    offsets.extend((3600..original.len()).step_by(211));
    let (mut reported, mut harmless) = (0, 0);
    for at in offsets {
        let disk = copy_of(&*disk);
        let mut bytes = original.clone();
        bytes[at] ^= 1 << (at % 8);
        write_file(&*disk, SEGMENT, &bytes);
        match first_records(&disk, &memory, None, &payloads) {
            Ok(found) => {
                assert_eq!(
                    found,
                    payloads.len(),
                    "an acknowledged entry was lost by a change of byte {at}"
                );
                harmless += 1;
            }
            Err(LogError::Corrupt { .. } | LogError::Format { .. }) => reported += 1,
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
    assert!(reported > 3000 && harmless > 100, "{reported} reported, {harmless} harmless");
}

/// A log of several segments, closed.
fn several_segments(memory: &Memory) -> (Arc<dyn Disk>, Vec<Vec<u8>>, Position) {
    let disk = mem_disk();
    let log = open(&disk, memory);
    let payloads: Vec<Vec<u8>> = (0..150).map(|number| payload(number, 7000)).collect();
    for payload in &payloads {
        submit(&log, 0, payload).unwrap();
    }
    log.sync().unwrap();
    let position = log.position();
    log.close().unwrap();
    assert!(names(&*disk, ".seg").len() > 3);
    (disk, payloads, position)
}

#[test]
fn changed_bytes_of_sealed_segments_and_tables_are_reported_or_repaired() {
    let memory = Memory::new(16 << 20);
    let (disk, payloads, position) = several_segments(&memory);
    let mut random = Random::new(3);
    let files: Vec<String> = names(&*disk, "").into_iter().filter(|name| name != "LOCK").collect();
    let (mut reported, mut harmless) = (0, 0);
    for _ in 0..400 {
        let disk = copy_of(&*disk);
        let name = &files[random.below(files.len() as u64) as usize];
        let mut bytes = read_file(&*disk, name);
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
        write_file(&*disk, name, &bytes);
        let opened =
            FileLog::open(FileLogOptions { known: Some(position), ..options(&disk, &memory) });
        let Ok((log, _)) = opened else {
            reported += 1;
            continue;
        };
        let mut bad = false;
        for (glsn, payload) in (1..).zip(&payloads) {
            match log.read(Glsn(glsn)) {
                Ok(entry) => assert_eq!(&&*entry, payload, "{name}, byte {at}"),
                Err(LogError::Corrupt { .. }) => bad = true,
                Err(other) => panic!("{name}, byte {at}: {other}"),
            }
        }
        if bad {
            reported += 1
        } else {
            harmless += 1
        }
        if name.ends_with(".idx") {
            assert!(!bad, "a table is rebuilt");
        }
    }
    assert!(reported > 50 && harmless > 20, "{reported} reported, {harmless} harmless");
}

#[test]
fn tables_that_are_missing_cut_or_of_another_segment_are_rebuilt() {
    let memory = Memory::new(16 << 20);
    let (disk, payloads, position) = several_segments(&memory);
    let tables = names(&*disk, ".idx");
    let other = read_file(&*disk, &tables[1]);
    for damage in 0..4 {
        let disk = copy_of(&*disk);
        let path = std::path::Path::new(crate::common::DIR).join(&tables[0]);
        let whole = read_file(&*disk, &tables[0]);
        match damage {
            0 => disk.remove(&path).unwrap(),
            1 => write_file(&*disk, &tables[0], &whole[..whole.len() / 2]),
            2 => write_file(&*disk, &tables[0], &other),
            _ => write_file(&*disk, &tables[0], &[]),
        }
        let (log, _) =
            FileLog::open(FileLogOptions { known: Some(position), ..options(&disk, &memory) })
                .unwrap();
        let all = scan_all(&log, 1, 1000, None);
        assert!(all.iter().map(|(_, payload)| payload).eq(&payloads), "damage {damage}");
        assert_eq!(scan_all(&log, 1, 1000, Some(0)).len(), payloads.len());
        drop(log);
        assert_eq!(read_file(&*disk, &tables[0]), whole, "it is the same table again");
    }
}

#[test]
fn a_reader_without_tables_holds_them_in_memory_and_changes_nothing() {
    let memory = Memory::new(16 << 20);
    let (disk, payloads, position) = several_segments(&memory);
    for name in names(&*disk, ".idx") {
        disk.remove(&std::path::Path::new(crate::common::DIR).join(name)).unwrap();
    }
    let before: Vec<_> =
        names(&*disk, "").iter().map(|name| (name.clone(), read_file(&*disk, name))).collect();
    let read_only =
        FileLogOptions { known: Some(position), mode: Mode::ReadOnly, ..options(&disk, &memory) };
    let (log, _) = FileLog::open(read_only).unwrap();
    assert!(scan_all(&log, 1, 1000, None).iter().map(|(_, payload)| payload).eq(&payloads));
    assert_eq!(scan_all(&log, 20, 1000, Some(0)).len(), payloads.len() - 19);
    assert_eq!(scan_all(&log, 1, 1000, Some(1)), []);
    assert_eq!(submit(&log, 0, b"x"), Err(LogError::ReadOnly));
    assert_eq!(log.trim(Glsn(50), &|_| false), Err(LogError::ReadOnly));
    drop(log);
    let after: Vec<_> =
        names(&*disk, "").iter().map(|name| (name.clone(), read_file(&*disk, name))).collect();
    assert_eq!(before, after);
}

#[test]
fn a_segment_missing_in_the_middle_is_reported() {
    let memory = Memory::new(16 << 20);
    let (disk, _, position) = several_segments(&memory);
    let segments = names(&*disk, ".seg");
    let gone = std::path::Path::new(crate::common::DIR).join(&segments[1]);
    let missing_from: u64 = segments[1][..20].parse().unwrap();
    disk.remove(&gone).unwrap();
    let opened = FileLog::open(FileLogOptions { known: Some(position), ..options(&disk, &memory) });
    assert!(
        matches!(opened, Err(LogError::Corrupt { glsn, .. }) if glsn.0 == missing_from),
        "{opened:?}"
    );
    // The same without the table that shows the gap.
    disk.remove(&std::path::Path::new(crate::common::DIR).join(&names(&*disk, ".idx")[0])).unwrap();
    let (log, _) = FileLog::open(options(&disk, &memory)).unwrap();
    assert!(matches!(log.read(Glsn(missing_from)), Err(LogError::Corrupt { .. })));
    assert!(
        matches!(log.read(Glsn(1)), Err(LogError::Corrupt { .. })),
        "the segment before it leads nowhere"
    );
}

#[test]
fn a_log_that_was_truncated_replaced_or_forked_is_recognised() {
    let memory = Memory::new(16 << 20);
    let (disk, _, position) = several_segments(&memory);
    let with = |disk: &Arc<dyn Disk>, known| {
        FileLog::open(FileLogOptions { known: Some(known), ..options(disk, &memory) }).map(|_| ())
    };
    let beyond = Position { glsn: Glsn(position.glsn.0 + 5), chain: position.chain };
    assert!(matches!(with(&copy_of(&*disk), beyond), Err(LogError::Forked { .. })), "cut back");
    let other = Position { glsn: Glsn(20), chain: 1 };
    assert!(
        matches!(with(&copy_of(&*disk), other), Err(LogError::Forked { glsn: Glsn(20), .. })),
        "forked"
    );
    let empty = mem_disk();
    assert!(matches!(with(&empty, position), Err(LogError::Forked { .. })), "gone");
    let log = FileLog::open(FileLogOptions { id: Some(9), ..options(&empty, &memory) }).unwrap().0;
    drop(log);
    let start = Position { glsn: Glsn::NONE, chain: open(&mem_disk(), &memory).position().chain };
    assert!(matches!(with(&empty, start), Err(LogError::Forked { .. })), "exchanged");
    assert_eq!(with(&disk, position), Ok(()));
}

#[test]
fn a_log_without_its_last_segment_counts_as_truncated() {
    let memory = Memory::new(16 << 20);
    let (disk, _, position) = several_segments(&memory);
    let last = names(&*disk, ".seg").pop().unwrap();
    disk.remove(&std::path::Path::new(crate::common::DIR).join(last)).unwrap();
    let opened = FileLog::open(FileLogOptions { known: Some(position), ..options(&disk, &memory) });
    assert!(matches!(opened, Err(LogError::Forked { .. })), "{opened:?}");
}

#[test]
fn missing_segments_beside_other_files_are_not_mistaken_for_an_empty_log() {
    let memory = Memory::new(16 << 20);
    let (disk, _, _) = several_segments(&memory);
    for name in names(&*disk, ".seg") {
        disk.remove(&std::path::Path::new(crate::common::DIR).join(name)).unwrap();
    }
    assert!(matches!(FileLog::open(options(&disk, &memory)), Err(LogError::Corrupt { .. })));
}

#[test]
fn a_segment_of_another_log_is_recognised() {
    let memory = Memory::new(16 << 20);
    let (disk, _, _) = several_segments(&memory);
    let other = mem_disk();
    let log = FileLog::open(FileLogOptions { id: Some(9), ..options(&other, &memory) }).unwrap().0;
    for number in 0..150 {
        submit(&log, 0, &payload(number, 7000)).unwrap();
    }
    drop(log);
    let name = &names(&*disk, ".seg")[1];
    write_file(&*disk, name, &read_file(&*other, name));
    assert!(matches!(FileLog::open(options(&disk, &memory)), Err(LogError::Corrupt { .. })));
}

#[test]
fn a_newer_record_at_the_end_is_not_taken_for_a_torn_tail() {
    use plimsoll_log::format::fragment::{FragmentType, seal_fragment};
    use plimsoll_log::format::segment_seed;
    let memory = Memory::new(16 << 20);
    let killed = killed(&memory, &[100, 100]);
    let mut bytes = read_file(&*killed.disk, SEGMENT);
    // The version byte of record 2, with a matching checksum.
    let start = killed.ends[1].next_multiple_of(8);
    bytes[start + 16 + 20] = 3;
    let id = options(&killed.disk, &memory).id.unwrap();
    let end = killed.ends[2].next_multiple_of(8);
    seal_fragment(
        &mut bytes[start..end],
        segment_seed(id, Glsn(1)),
        1,
        start as u32,
        FragmentType::Whole,
    );
    write_file(&*killed.disk, SEGMENT, &bytes);
    let opened = FileLog::open(options(&killed.disk, &memory));
    assert!(
        matches!(&opened, Err(LogError::Format { message }) if message.contains("newer")),
        "{opened:?}"
    );
    assert_eq!(read_file(&*killed.disk, SEGMENT), bytes);
}

#[test]
fn a_record_that_names_the_blob_file_of_another_node_is_replayed() {
    let memory = Memory::new(16 << 20);
    let disk: Arc<dyn Disk> = Arc::new(plimsoll_disk::mem::MemDisk::new());
    let log = open(&disk, &memory);
    let id = plimsoll_log::blob::BlobId::of(3, 7);
    let blob = plimsoll_log::blob::BlobRef { id, pages: 1, hash: 1 };
    crate::common::submit_with(&log, 0, b"", &[blob]).unwrap();
    log.sync().unwrap();
    std::mem::forget(log);
    let (log, report) = FileLog::open(options(&copy_of(&*disk), &memory)).unwrap();
    assert_eq!((report.replayed, report.cut), (1, None));
    assert!(log.is_blob_named(id).unwrap());
    // Its number is not assigned again.
    assert!(log.create_blob().unwrap().finish().unwrap().id.number() > id.number());
}

#[test]
fn stale_bytes_after_a_cut_never_reappear() {
    let memory = Memory::new(16 << 20);
    let killed = killed(&memory, &[100, 200, 200, 200]);
    let mut bytes = read_file(&*killed.disk, SEGMENT);
    // Record 2 is torn; 3 and 4 are intact but follow it, and nothing was acknowledged.
    let torn = killed.ends[1] + 30;
    bytes[torn] ^= 1;
    // A copy without the durable positions that they contain.
    let disk = copy_of(&*killed.disk);
    let mut front = bytes.clone();
    front[killed.ends[2]..].fill(0);
    write_file(&*disk, SEGMENT, &front);
    let (log, report) = FileLog::open(options(&disk, &memory)).unwrap();
    assert_eq!(report.cut.unwrap().from, Glsn(2));
    // A disk that did not keep the zeros: the old records 3 and 4 reappear after the new record 2,
    // at their old places.
    append(&log, 0, &killed.payloads[1]);
    std::mem::forget(log);
    let stale = read_file(&*killed.disk, SEGMENT);
    let disk = copy_of(&*disk);
    let mut mixed = read_file(&*disk, SEGMENT);
    let behind = killed.ends[2].next_multiple_of(8);
    mixed[behind..killed.ends[4]].copy_from_slice(&stale[behind..killed.ends[4]]);
    write_file(&*disk, SEGMENT, &mixed);
    match FileLog::open(options(&disk, &memory)) {
        Ok((log, _)) => assert_eq!(scan_all(&log, 1, 9, None).len(), 2, "records of another epoch"),
        Err(error) => assert!(matches!(error, LogError::Corrupt { .. })),
    }
}

#[test]
fn a_record_longer_than_a_chunk_that_is_torn_leaves_no_entry() {
    let memory = Memory::new(16 << 20);
    let disk = mem_disk();
    let log = open(&disk, &memory);
    append(&log, 0, b"first");
    submit_all(&log, 0, &vec![payload(1, 30_000); 5]).unwrap();
    log.sync().unwrap();
    let bytes = read_file(&*disk, SEGMENT);
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    for at in [400, 17_000, 70_000, 140_000, used - 1] {
        let disk = copy_of(&*disk);
        let mut torn = bytes.clone();
        torn[at..at + 1].iter_mut().for_each(|byte| *byte = !*byte);
        write_file(&*disk, SEGMENT, &torn);
        let (log, report) = FileLog::open(options(&disk, &memory)).unwrap();
        assert_eq!(
            (log.bounds().next, report.cut.map(|cut| cut.from)),
            (Glsn(2), Some(Glsn(2))),
            "at {at}"
        );
    }
}
