//! Upkeep of a log: verify and backup.

use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_log::blob::BlobId;
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::options::{FileLogOptions, Mode};
use plimsoll_log::file_log::repair::cut::{Until, cut_after};
use plimsoll_log::file_log::repair::verify::{Finding, VerifyScope, verify};
use plimsoll_log::format::BLOCK_BYTES;
use plimsoll_log::glsn::{Glsn, Position};

use crate::common::{
    DIR, Memory, append, copy_of, mem_disk, names, open, options, payload, read_file, scan_all,
    submit, submit_with, write_file,
};

/// Several segments with three streams, long entries and blob files.
fn fill(log: &FileLog) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    for number in 0..160u64 {
        let bytes = payload(number, if number % 20 == 0 { 20_000 } else { 5000 });
        if number % 30 == 0 {
            let mut blob = log.create_blob().unwrap();
            blob.write(&payload(number, 50_000)).unwrap();
            submit_with(log, 0, &bytes, &[blob.finish().unwrap()]).unwrap();
        } else {
            submit(log, (number % 3) as u32, &bytes).unwrap();
        }
        payloads.push(bytes);
    }
    log.sync().unwrap();
    payloads
}

fn findings(disk: &dyn Disk, memory: &Memory) -> Vec<Finding> {
    let scope = VerifyScope {
        disk,
        dir: Path::new(DIR),
        budget: &memory.budget,
        durable: None,
        unfinished: &|_| false,
        kept: &|_| false,
        needed: &[],
    };
    verify(&scope, &mut |_| {}).unwrap()
}

#[test]
fn a_good_log_has_no_findings_closed_or_open() {
    let memory = Memory::new(16 << 20);
    let disk = mem_disk();
    let log = open(&disk, &memory);
    fill(&log);
    let _being_written = log.create_blob().unwrap();
    submit(&log, 0, b"not durable").unwrap();
    let mut seen = Vec::new();
    assert_eq!(log.verify(&|_| false, &[], &mut |progress| seen.push(progress)).unwrap(), []);
    assert!(seen.windows(2).all(|pair| pair[0].done_bytes <= pair[1].done_bytes));
    let last = seen.last().unwrap();
    assert!(last.done_bytes > last.total_bytes / 2 && last.done_bytes <= last.total_bytes);
    drop(_being_written);
    drop(log);
    assert_eq!(findings(&*disk, &memory), []);
}

#[test]
fn every_changed_byte_that_matters_is_found_and_named() {
    let memory = Memory::new(16 << 20);
    let disk = mem_disk();
    let log = open(&disk, &memory);
    fill(&log);
    log.close().unwrap();
    drop(log);
    let files: Vec<String> = names(&*disk, "").into_iter().filter(|name| name != "LOCK").collect();
    let mut random = Random::new(11);
    let mut missed = 0;
    for round in 0..300 {
        let disk = copy_of(&*disk);
        let name = &files[round % files.len()];
        let mut bytes = read_file(&*disk, name);
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
        write_file(&*disk, name, &bytes);
        let found = findings(&*disk, &memory);
        if found.is_empty() {
            missed += 1;
            assert!(name.ends_with(".seg") && bytes[at].count_ones() == 1, "{name}, byte {at}");
            continue;
        }
        assert!(found.iter().any(|finding| finding.file == *name), "{name}, byte {at}: {found:?}");
        let table = name.ends_with(".idx");
        assert!(
            found.iter().all(|finding| finding.harmless == table || finding.harmless),
            "{found:?}"
        );
    }
    assert_eq!(missed, 0);
}

#[test]
fn missing_files_are_found() {
    let memory = Memory::new(16 << 20);
    let disk = mem_disk();
    let log = open(&disk, &memory);
    fill(&log);
    log.close().unwrap();
    drop(log);
    for ending in [".seg", ".idx", ".blob"] {
        let disk = copy_of(&*disk);
        let name = names(&*disk, ending)[1].clone();
        disk.remove(&Path::new(DIR).join(&name)).unwrap();
        let found = findings(&*disk, &memory);
        assert!(!found.is_empty(), "{name}");
        assert_eq!(found.iter().all(|finding| finding.harmless), ending == ".idx", "{found:?}");
    }
}

#[test]
fn a_table_that_fits_another_history_is_found() {
    let memory = Memory::new(16 << 20);
    let disk = mem_disk();
    let log = open(&disk, &memory);
    fill(&log);
    drop(log);
    let other = mem_disk();
    let log = open(&other, &memory);
    (0..200).for_each(|number| assert!(append(&log, 0, &payload(number, 4000)) > Glsn::NONE));
    drop(log);
    let name = &names(&*disk, ".idx")[0];
    write_file(&*disk, name, &read_file(&*other, name));
    let found = findings(&*disk, &memory);
    assert!(found.len() == 1 && found[0].harmless && found[0].file == *name, "{found:?}");
}

#[test]
fn a_backup_taken_while_others_append_opens_at_its_position() {
    let memory = Memory::new(32 << 20);
    let disk = mem_disk();
    let log = open(&disk, &memory);
    let payloads = fill(&log);
    let copy = mem_disk();
    copy.create_dir(Path::new(DIR)).unwrap();
    let position = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0..300 {
                append(&log, 0, &payload(1000 + number, 3000));
            }
        });
        let position = log
            .files_for_backup(Glsn::NONE, &mut |file| {
                let bytes = read_file(&*disk, &file.name);
                assert!(!file.immutable || bytes.len() as u64 == file.bytes);
                write_file(&*copy, &file.name, &bytes[..file.bytes as usize]);
                Ok(())
            })
            .unwrap();
        writer.join().unwrap();
        position
    });
    assert!(position.glsn.0 >= payloads.len() as u64);
    let (restored, report) =
        FileLog::open(FileLogOptions { known: Some(position), ..options(&copy, &memory) }).unwrap();
    assert_eq!(report.cut, None);
    assert_eq!(restored.position(), position);
    let found = scan_all(&restored, 1, payloads.len() as u64 + 1, None);
    assert!(found.iter().map(|(_, payload)| payload).eq(&payloads));
    assert_eq!(restored.verify(&|_| false, &[], &mut |_| {}).unwrap(), []);
    assert_eq!(log.chain_at(position.glsn).unwrap(), Some(position.chain));
}

#[test]
fn a_copy_of_the_active_segment_is_complete_although_it_grew_and_was_sealed_meanwhile() {
    let memory = Memory::new(16 << 20);
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    let log = open(&disk, &memory);
    append(&log, 1, b"in the copy");
    let mut active = None;
    log.files_for_backup(Glsn::NONE, &mut |file| {
        active = Some(file.clone());
        Ok(())
    })
    .unwrap();
    let active = active.unwrap();
    assert!(!active.immutable);
    let read = |bytes: u64| {
        let file =
            disk.open(&Path::new(DIR).join(&active.name), Open::Read, Caching::Buffered).unwrap();
        let mut piece = vec![0; (bytes as usize).next_multiple_of(BLOCK_BYTES)];
        file.read_exact_at(&mut piece[..bytes as usize], 0).unwrap();
        piece
    };
    let before = read(active.bytes);
    append(&log, 1, b"not in the copy");
    log.seal_from(0).unwrap();
    // The copy is the same, whether it was read before or after.
    for piece in [before, read(active.bytes)] {
        log.check_piece(&active.name, false, 0, active.bytes, &piece).unwrap();
        let sealed = log.check_piece(&active.name, true, 0, active.bytes, &piece);
        assert!(
            matches!(sealed, Err(LogError::Corrupt { .. })),
            "a sealed segment has all of its records"
        );
    }
    let cut = read(active.bytes - 16);
    assert!(log.check_piece(&active.name, false, 0, active.bytes, &cut).is_err());
}

/// A backup into another folder that hard-links every file where that is allowed.
fn linked_backup(disk: &dyn Disk, log: &FileLog) {
    disk.create_dir(Path::new(BACKUP)).unwrap();
    log.files_for_backup(Glsn::NONE, &mut |file| {
        let (from, to) = (Path::new(DIR).join(&file.name), Path::new(BACKUP).join(&file.name));
        if file.immutable {
            disk.hard_link(&from, &to)?;
        } else {
            let copy = disk.open(&to, Open::CreateNew, Caching::Buffered)?;
            copy.write_at(&read_file(disk, &file.name)[..file.bytes as usize], 0)?;
        }
        Ok(())
    })
    .unwrap();
}

const BACKUP: &str = "/backup";

fn bytes_of(disk: &dyn Disk, dir: &str) -> Vec<(String, Vec<u8>)> {
    let entries = disk.list(Path::new(dir)).unwrap();
    let read = |name: &str| {
        let file = disk.open(&Path::new(dir).join(name), Open::Read, Caching::Buffered).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    entries.into_iter().map(|entry| (entry.name.clone(), read(&entry.name))).collect()
}

#[test]
fn a_log_that_lost_its_last_segment_continues_in_a_new_file() {
    let memory = Memory::new(16 << 20);
    let disk = mem_disk();
    let log = open(&disk, &memory);
    fill(&log);
    linked_backup(&*disk, &log);
    drop(log);
    let before = bytes_of(&*disk, BACKUP);
    let last = names(&*disk, ".seg").pop().unwrap();
    disk.remove(&Path::new(DIR).join(&last)).unwrap();
    let log = open(&disk, &memory);
    let glsn = append(&log, 0, b"goes on");
    assert_eq!(glsn.0, last[..20].parse::<u64>().unwrap());
    drop(log);
    assert!(bytes_of(&*disk, BACKUP) == before, "the backup changed");
    assert_eq!(&*open(&disk, &memory).read(glsn).unwrap(), b"goes on");
}

/// Leftovers of a killed writer are reported as harmless; the same bytes in a file that something
/// needs are damage.
#[test]
fn a_blob_file_that_was_never_finished_is_damage_only_where_it_is_needed() {
    let memory = Memory::new(16 << 20);
    let disk = mem_disk();
    let log = open(&disk, &memory);
    fill(&log);
    assert!(log.seal_behind() && !log.seal_behind());
    let mut writer = log.create_blob().unwrap();
    writer.write(&payload(1, 100)).unwrap();
    let (id, name) = (writer.id(), writer.id().file_name());
    let killed = copy_of(&*disk);
    drop(writer);
    log.close().unwrap();
    drop(log);
    assert!(read_file(&*killed, &name).is_empty());
    let (log, _) = FileLog::open(options(&killed, &memory)).unwrap();
    let found = log.verify(&|_| false, &[], &mut |_| {}).unwrap();
    assert!(found.len() == 1 && found[0].harmless && found[0].file == name, "{found:?}");
    let needed = log.verify(&|blob| blob == id, &[], &mut |_| {}).unwrap();
    assert!(needed.len() == 1 && !needed[0].harmless, "{needed:?}");
    assert_eq!(log.sweep_blobs(&|_| false).unwrap(), 1);
    assert_eq!(log.verify(&|_| false, &[], &mut |_| {}).unwrap(), []);
    drop(log);

    // If a record names the file, the record is reported.
    let damaged = copy_of(&*disk);
    let named = names(&*damaged, ".blob")[0].clone();
    write_file(&*damaged, &named, &[]);
    let (log, _) = FileLog::open(options(&damaged, &memory)).unwrap();
    let found = log.verify(&|_| false, &[], &mut |_| {}).unwrap();
    assert!(
        found.iter().any(|finding| finding.file == named && finding.glsn.is_some()),
        "{found:?}"
    );
    assert!(found.iter().all(|finding| !finding.harmless), "{found:?}");
}

#[test]
fn verify_reads_a_blob_file_to_its_trailer_or_to_where_only_zeros_follow() {
    const LONG_BYTES: u64 = 64 << 20;
    let memory = Memory::new(16 << 20);
    let disk = mem_disk();
    let log = open(&disk, &memory);
    fill(&log);
    drop(log);
    for (is_cut, what) in
        [(false, "continues after its last page"), (true, "checksum does not match")]
    {
        let damaged = copy_of(&*disk);
        let name = names(&*damaged, ".blob")[1].clone();
        let file =
            damaged.open(&Path::new(DIR).join(&name), Open::ReadWrite, Caching::Buffered).unwrap();
        if is_cut {
            // Remove its trailer and a part of the page before it.
            file.set_len(file.len().unwrap() - 20_000).unwrap();
        }
        file.set_len(LONG_BYTES).unwrap();
        drop(file);
        let (log, _) = FileLog::open(options(&damaged, &memory)).unwrap();
        let mut seen = Vec::new();
        let found =
            log.verify(&|_| false, &[], &mut |progress| seen.push(progress.done_bytes)).unwrap();
        let mut of_file = found.iter().filter(|finding| finding.file == name);
        let finding = of_file.next().unwrap();
        assert!(
            finding.what.contains(what) && finding.glsn.is_some() && of_file.next().is_none(),
            "{found:?}"
        );
        // Each page that is read counts as one step.
        assert!(seen.len() < 1000, "{} steps", seen.len());
        assert!(*seen.last().unwrap() > LONG_BYTES, "bytes that are not read count, too");
        let pages = &finding.blob.as_ref().unwrap().pages;
        assert_eq!(pages.last().map(|last| last.end), is_cut.then_some(u32::MAX), "{pages:?}");
    }
}

#[test]
fn bytes_after_the_last_record_are_reported_and_are_no_damage() {
    let memory = Memory::new(16 << 20);
    let disk = mem_disk();
    let log = open(&disk, &memory);
    fill(&log);
    log.close().unwrap();
    drop(log);
    let name = names(&*disk, ".seg").pop().unwrap();
    let mut bytes = read_file(&*disk, &name);
    let at = bytes.len() - 50;
    assert!(bytes[at..].iter().all(|byte| *byte == 0), "the tail is not used");
    bytes[at] = 1;
    write_file(&*disk, &name, &bytes);
    let reader = FileLogOptions { mode: Mode::ReadOnly, ..options(&disk, &memory) };
    let (log, _) = FileLog::open(reader).unwrap();
    let found = log.verify(&|_| false, &[], &mut |_| {}).unwrap();
    assert!(found.len() == 1 && found[0].harmless && found[0].file == name, "{found:?}");
    drop(log);
    drop(open(&disk, &memory));
    assert_eq!(findings(&*disk, &memory), []);
}

#[test]
fn a_reader_that_lists_a_backup_while_the_writer_trims_gets_an_error() {
    let (disk, memory) = (mem_disk(), Memory::new(16 << 20));
    let log = open(&disk, &memory);
    fill(&log);
    let position = log.position();
    let read_only =
        FileLogOptions { known: Some(position), mode: Mode::ReadOnly, ..options(&disk, &memory) };
    let (reader, _) = FileLog::open(read_only).unwrap();
    // As a trim does: tables first, then segments.
    for ending in [".idx", ".seg"] {
        disk.remove(&Path::new(DIR).join(&names(&*disk, ending)[0])).unwrap();
    }
    let listed = reader.files_for_backup(Glsn::NONE, &mut |_| Ok(()));
    assert!(
        matches!(listed, Err(LogError::Trimmed { asked: Glsn(1), first }) if first > Glsn(1)),
        "{listed:?}"
    );
}

#[test]
fn no_blob_file_gets_an_id_that_the_next_opening_would_refuse() {
    let memory = Memory::new(16 << 20);
    let disk = mem_disk();
    drop(open(&disk, &memory));
    // The name of a file has an id that is nine below the last: after any gap that the opening
    // leaves, no id remains.
    let last = BlobId(BlobId::LAST.0 - 9).file_name();
    disk.open(&Path::new(DIR).join(last), Open::CreateNew, Caching::Buffered).unwrap();
    for _ in 0..2 {
        let log = open(&disk, &memory);
        let mut given = 0;
        let refused = loop {
            match log.create_blob() {
                Ok(mut blob) => {
                    given += 1;
                    assert!(given < 10, "an id beyond 48 bits was assigned");
                    blob.write(&payload(1, 5000)).unwrap();
                    submit_with(&log, 0, b"names a blob file", &[blob.finish().unwrap()]).unwrap();
                }
                Err(error) => break error,
            }
        };
        assert!(refused.to_string().contains("all 2^48 ids of blob files"), "{refused}");
        submit(&log, 0, b"small values are written as before").unwrap();
        log.sync().unwrap();
        log.close().unwrap();
    }
    // All nodes share one sequence of numbers: that of another node's file is not assigned again.
    let (memory, disk) = (Memory::new(16 << 20), mem_disk());
    drop(open(&disk, &memory));
    let theirs = BlobId::of(3, 1 << 40);
    disk.open(&Path::new(DIR).join(theirs.file_name()), Open::CreateNew, Caching::Buffered)
        .unwrap();
    let log = open(&disk, &memory);
    let mut blob = log.create_blob().unwrap();
    blob.write(&payload(1, 5000)).unwrap();
    let ours = blob.finish().unwrap().id;
    assert!(ours.node() == 0 && ours.number() > theirs.number(), "{ours:?}");
}

#[test]
fn a_copy_that_is_cut_after_a_record_ends_there_and_goes_on() {
    let memory = Memory::new(16 << 20);
    let disk = mem_disk();
    let log = open(&disk, &memory);
    let payloads = fill(&log);
    let position = |glsn: u64| {
        let chain = log.chain_at(Glsn(glsn)).unwrap().unwrap();
        Position { glsn: Glsn(glsn), chain }
    };
    let firsts: Vec<u64> =
        names(&*disk, ".seg").iter().map(|name| name[..20].parse().unwrap()).collect();
    assert!(firsts.len() > 2);
    let edges = firsts.iter().flat_map(|first| [first - 1, *first]);
    for glsn in edges.chain((0..=160).step_by(13)).chain([159, 160]) {
        let next = Glsn(glsn + 1);
        let mut ends = vec![Until::Glsn(Glsn(glsn))];
        if glsn > 0 {
            ends.push(Until::Micros(log.meta(Glsn(glsn)).unwrap().timestamp_micros));
        }
        for until in ends {
            let copy = copy_of(&*disk);
            for name in names(&*copy, ".seg") {
                let first: u64 = name[..20].parse().unwrap();
                if first > glsn.max(1) {
                    copy.remove(&Path::new(DIR).join(name)).unwrap();
                }
            }
            for name in names(&*copy, ".idx") {
                copy.remove(&Path::new(DIR).join(name)).unwrap();
            }
            let end = cut_after(&options(&copy, &memory), until).unwrap();
            assert_eq!(end, position(glsn), "{until:?}");
            let cut = open(&copy, &memory);
            assert_eq!((cut.position(), cut.bounds().next), (end, next));
            append(&cut, 1, b"goes on");
            let found = scan_all(&cut, 1, glsn + 2, None);
            let found: Vec<_> = found.iter().map(|(_, payload)| &payload[..]).collect();
            let kept = payloads[..glsn as usize].iter().map(|payload| &payload[..]);
            assert!(found.into_iter().eq(kept.chain([&b"goes on"[..]])));
            drop(cut);
            // Blob files of records that were cut are left for a sweep.
            let harmful = |finding: &Finding| !finding.harmless && finding.blob.is_none();
            assert_eq!(findings(&*copy, &memory).into_iter().find(harmful), None);
        }
    }
}
