//! Power cuts on a disk that loses unsynced data: at every sync of a run, over many seeds, also
//! during recovery.
//!
//! After each: every acknowledged entry is present, no record is partial or out of order, and the
//! surviving records are a prefix of those submitted.

use std::sync::Arc;

use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::Disk;
use plimsoll_log::blob::BlobRef;
use plimsoll_log::durability::Durability;
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::options::FileLogOptions;
use plimsoll_log::glsn::{Glsn, Position};
use plimsoll_memory::page::page_payload;
use plimsoll_memory::pool::Touch;

use crate::common::{DIR, Memory, options, payload, scan_all, submit_all, submit_with};

/// The records that the test has submitted, and how many of them were acknowledged.
#[derive(Clone, Default)]
struct Model {
    /// Record by record.
    records: Vec<Vec<Vec<u8>>>,
    blobs: Vec<(u64, BlobRef, u64)>,
    acknowledged: u64,
    known: Option<Position>,
    trimmed: u64,
}

impl Model {
    fn entries(&self) -> Vec<&Vec<u8>> {
        self.records.iter().flatten().collect()
    }
}

/// Runs a part of a workload until it ends or the power is cut.
fn run(log: &FileLog, model: &mut Model, random: &mut Random, steps: u64) -> Result<(), LogError> {
    for _ in 0..steps {
        if random.chance(0.1) {
            log.seal_behind();
        }
        match random.below(20) {
            0 => {
                let number = random.next_u64();
                let for_record = random.chance(0.7);
                let mut writer =
                    if for_record { log.create_blob_for_record()? } else { log.create_blob()? };
                writer.write(&payload(number, 40_000))?;
                let blob = writer.finish()?;
                let bytes = payload(number, 9);
                model.records.push(vec![bytes.clone()]);
                let ticket = submit_with(log, 0, &bytes, &[blob])
                    .inspect_err(|_| drop(model.records.pop()))?;
                model.blobs.push((ticket.first.0, blob, number));
            }
            1 => {
                let until = model.acknowledged / 2;
                // A trim that was interrupted may be partly done.
                model.trimmed = model.trimmed.max(until);
                log.trim(Glsn(until), &|_| false)?;
            }
            2..8 => {
                let last = Glsn(log.bounds().next.0 - 1);
                log.wait_durable(last)?;
                model.acknowledged = last.0;
                model.known = random.chance(0.5).then(|| log.position()).or(model.known);
            }
            _ => {
                let count = 1 + random.below(4);
                let large = random.chance(0.1);
                let payloads: Vec<_> = (0..count)
                    .map(|_| {
                        let len = if large { random.below(30_000) } else { random.below(1500) };
                        payload(random.next_u64(), len as usize)
                    })
                    .collect();
                model.records.push(payloads);
                let submitted = submit_all(log, 0, model.records.last().unwrap());
                submitted.inspect_err(|_| drop(model.records.pop()))?;
            }
        }
    }
    Ok(())
}

/// Compares the opened log with the model, then removes the records from the model that did not
/// survive.
fn check(log: &FileLog, model: &mut Model, context: &str) {
    let bounds = log.bounds();
    assert!(
        bounds.next.0 > model.acknowledged,
        "{context}: lost acknowledged entries: {bounds:?}, {}",
        model.acknowledged
    );
    assert!(bounds.first.0 <= model.trimmed.max(1), "{context}: {bounds:?}");
    let entries = model.entries();
    let found = scan_all(log, bounds.first.0, u64::MAX, None);
    assert_eq!(found.len() as u64, bounds.next.0 - bounds.first.0, "{context}");
    for (glsn, got) in &found {
        assert_eq!(got, entries[*glsn as usize - 1], "{context}: entry {glsn}");
    }
    let mut end = 0;
    let survived = model.records.iter().take_while(|record| {
        end += record.len() as u64;
        end < bounds.next.0
    });
    let count = survived.count();
    let total: usize = model.records[..count].iter().map(Vec::len).sum();
    assert_eq!(total as u64, bounds.next.0 - 1, "{context}: a record in part");
    model.records.truncate(count);
    model.blobs.retain(|(glsn, _, _)| *glsn < bounds.next.0);
    for (glsn, blob, number) in model.blobs.iter().filter(|(glsn, _, _)| *glsn >= bounds.first.0) {
        assert_eq!(log.blobs_of(Glsn(*glsn)).unwrap(), [*blob]);
        let opened = log.open_blob(blob.id).unwrap();
        let mut bytes = Vec::new();
        for page in 0..opened.pages {
            bytes.extend_from_slice(page_payload(&opened.file.get(page, Touch::Scan).unwrap()));
        }
        assert_eq!(bytes, payload(*number, 40_000), "{context}: blob file of {glsn}");
    }
}

fn open(disk: &LyingDisk, memory: &Memory, known: Option<Position>) -> Result<FileLog, LogError> {
    open_for(Durability::Sync, disk, memory, known)
}

fn open_for(
    durability: Durability,
    disk: &LyingDisk,
    memory: &Memory,
    known: Option<Position>,
) -> Result<FileLog, LogError> {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    FileLog::open(FileLogOptions { known, durability, ..options(&shared, memory) })
        .map(|(log, _)| log)
}

/// In half of the seeds appends are buffered.
fn durability_of(seed: u64) -> Durability {
    if seed.is_multiple_of(2) { Durability::Sync } else { Durability::Buffered }
}

/// Opens the log after a crash; for some seeds the power is cut again during recovery.
fn recover(
    durability: Durability,
    disk: &LyingDisk,
    memory: &Memory,
    known: Option<Position>,
    random: &mut Random,
    context: &str,
) -> FileLog {
    for _ in 0..3 {
        if random.chance(0.5) {
            disk.cut_power_at_sync(disk.sync_count() + random.below(4));
        }
        match open_for(durability, disk, memory, known) {
            Ok(log) => return log,
            Err(error) => assert!(disk.power_is_cut(), "{context}: {error}"),
        }
        disk.restore_power();
    }
    open_for(durability, disk, memory, known).unwrap_or_else(|error| panic!("{context}: {error}"))
}

#[test]
fn after_a_power_cut_at_any_sync_every_acknowledged_entry_is_there() {
    for seed in 0..60 {
        let memory = Memory::new(16 << 20);
        let disk = LyingDisk::new(seed);
        let mut random = Random::new(seed);
        let mut model = Model::default();
        for round in 0..12 {
            let context = format!("seed {seed}, round {round}");
            let log =
                recover(durability_of(seed), &disk, &memory, model.known, &mut random, &context);
            if !disk.power_is_cut() {
                check(&log, &mut model, &context);
                disk.cut_power_at_sync(disk.sync_count() + random.below(25));
                let steps = random.below(60);
                let ended = run(&log, &mut model, &mut random, steps);
                assert!(ended.is_ok() || disk.power_is_cut(), "{context}: {ended:?}");
            }
            drop(log);
            disk.restore_power();
        }
        let log = open(&disk, &memory, model.known).unwrap();
        check(&log, &mut model, &format!("seed {seed}, end"));
        let swept = log.sweep_blobs(&|_| false);
        assert!(swept.is_ok(), "{swept:?}");
        check(&log, &mut model, &format!("seed {seed}, swept"));
    }
}

#[test]
fn one_run_is_cut_at_each_of_its_syncs_in_turn() {
    for seed in 100..104 {
        for at in 0.. {
            let memory = Memory::new(16 << 20);
            let disk = LyingDisk::new(seed);
            let mut random = Random::new(seed);
            let mut model = Model::default();
            let log = open_for(durability_of(seed), &disk, &memory, None).unwrap();
            disk.cut_power_at_sync(disk.sync_count() + at);
            let ended = run(&log, &mut model, &mut random, 150);
            let was_cut = disk.power_is_cut();
            assert_eq!(ended.is_err(), was_cut, "{ended:?}");
            drop(log);
            disk.restore_power();
            let context = format!("seed {seed}, sync {at}");
            let log = open(&disk, &memory, model.known)
                .unwrap_or_else(|error| panic!("{context}: {error}"));
            check(&log, &mut model, &context);
            if !was_cut {
                assert!(at > 20, "{at}");
                break;
            }
        }
    }
}

#[test]
fn a_budget_that_refuses_at_any_moment_leaves_the_log_usable() {
    for refused_at in 0..12 {
        let memory = Memory::new(16 << 20);
        let disk = LyingDisk::new(1);
        let log = open(&disk, &memory, None).unwrap();
        let mut kept = Vec::new();
        for number in 0..200u64 {
            memory.budget.fail_after(refused_at);
            let bytes = payload(number, 100 + (number as usize * 977) % 9000);
            match crate::common::submit(&log, 0, &bytes) {
                Ok(_) => kept.push(bytes),
                Err(error) => assert!(matches!(error, LogError::OutOfBudget(_)), "{error}"),
            }
            memory.budget.fail_after(refused_at);
            let next = log.bounds().next;
            log.wait_durable(Glsn(next.0 - 1)).unwrap();
            memory.budget.fail_after(refused_at);
            match log.read(Glsn(next.0 - 1)) {
                Ok(entry) => assert_eq!(&*entry, &kept[kept.len() - 1][..]),
                Err(error) => assert!(matches!(error, LogError::OutOfBudget(_)), "{error}"),
            }
        }
        memory.budget.fail_after(u64::MAX);
        assert!(kept.len() > 100, "{} of 200, refused at {refused_at}", kept.len());
        kept.push(b"once there is room".to_vec());
        crate::common::append(&log, 0, b"once there is room");
        assert!(scan_all(&log, 1, 999, None).iter().map(|(_, payload)| payload).eq(&kept));
    }
}

#[test]
fn a_log_whose_creation_was_cut_is_recreated_or_present() {
    for seed in 0..20 {
        let memory = Memory::new(16 << 20);
        let mut at = 0;
        loop {
            let disk = LyingDisk::new(seed);
            disk.cut_power_at_sync(at);
            let opened = open(&disk, &memory, None);
            if opened.is_ok() && !disk.power_is_cut() {
                assert!(at > 2);
                break;
            }
            drop(opened);
            disk.restore_power();
            let log = open(&disk, &memory, None).unwrap();
            assert_eq!(crate::common::append(&log, 0, b"first"), Glsn(1));
            at += 1;
        }
    }
}

#[test]
fn a_failed_sync_poisons_the_log_until_it_is_opened_again() {
    let memory = Memory::new(16 << 20);
    let disk = LyingDisk::new(1);
    let log = open(&disk, &memory, None).unwrap();
    crate::common::append(&log, 0, b"durable");
    let lost = crate::common::submit(&log, 0, b"lost").unwrap();
    disk.fail_next_sync();
    assert!(matches!(log.wait_durable(lost.last), Err(LogError::Poisoned { .. })));
    assert!(matches!(crate::common::submit(&log, 0, b"more"), Err(LogError::Poisoned { .. })));
    assert!(
        matches!(log.wait_durable(lost.last), Err(LogError::Poisoned { .. })),
        "it is not tried again"
    );
    assert!(matches!(log.create_blob().err(), Some(LogError::Poisoned { .. })));
    assert_eq!(log.wait_durable(Glsn(1)), Ok(()));
    assert_eq!(&*log.read(Glsn(1)).unwrap(), b"durable");
    assert_eq!(scan_all(&log, 1, 9, None).len(), 1);
    assert!(log.close().is_err());
    drop(log);
    disk.restore_power();
    let log = open(&disk, &memory, None).unwrap();
    assert_eq!(&*log.read(Glsn(1)).unwrap(), b"durable");
    let next = log.bounds().next;
    assert_eq!(crate::common::append(&log, 0, b"again"), next);
}

#[test]
fn a_full_disk_refuses_appends_and_the_log_is_usable_once_there_is_space() {
    let memory = Memory::new(16 << 20);
    let disk = LyingDisk::new(1);
    let log = open(&disk, &memory, None).unwrap();
    let mut kept = Vec::new();
    disk.fill_up(Some(700_000));
    let refused = loop {
        let bytes = payload(kept.len() as u64, 5000);
        match crate::common::submit(&log, 0, &bytes) {
            Ok(ticket) => {
                log.wait_durable(ticket.last).unwrap();
                kept.push(bytes);
            }
            Err(error) => break error,
        }
    };
    assert!(
        matches!(refused, LogError::Io { kind: std::io::ErrorKind::StorageFull, .. }),
        "{refused:?}"
    );
    assert!(kept.len() > 50, "{}", kept.len());
    assert!(matches!(crate::common::submit(&log, 0, &payload(1, 5000)), Err(LogError::Io { .. })));
    assert!(log.create_blob().and_then(|mut blob| blob.write(&vec![0; 600_000])).is_err());
    assert_eq!(scan_all(&log, 1, 9999, None).len(), kept.len());
    disk.fill_up(None);
    for number in 0..200 {
        kept.push(payload(number, 3000));
        crate::common::append(&log, 0, kept.last().unwrap());
    }
    log.close().unwrap();
    drop(log);
    let log = open(&disk, &memory, None).unwrap();
    let found = scan_all(&log, 1, u64::MAX, None);
    assert!(found.iter().map(|(_, payload)| payload).eq(&kept));
    assert_eq!(
        disk.list(std::path::Path::new(DIR))
            .unwrap()
            .iter()
            .filter(|e| e.name.ends_with(".tmp"))
            .count(),
        0
    );
}

#[test]
fn trimming_gives_space_back_on_a_full_disk() {
    let memory = Memory::new(16 << 20);
    let disk = LyingDisk::new(1);
    let log = open(&disk, &memory, None).unwrap();
    for number in 0..150 {
        crate::common::append(&log, 0, &payload(number, 5000));
    }
    disk.fill_up(Some(0));
    while crate::common::submit(&log, 0, &payload(1, 5000)).is_ok() {}
    let first = log.trim(log.bounds().durable, &|_| false).unwrap();
    assert!(first > Glsn(50));
    (0..50)
        .for_each(|number| assert!(crate::common::append(&log, 0, &payload(number, 5000)) > first));
}

#[test]
fn a_segment_that_cannot_be_removed_leaves_no_hole_in_the_log() {
    let mut failed = 0;
    for (seed, failing) in (1..8).flat_map(|n| [(1, n), (2, n), (3, n)]) {
        let memory = Memory::new(16 << 20);
        let disk = LyingDisk::new(seed);
        let log = open(&disk, &memory, None).unwrap();
        for number in 0..150 {
            crate::common::append(&log, 0, &payload(number, 5000));
        }
        disk.fail_remove(failing);
        let until = log.bounds().durable;
        failed += u32::from(log.trim(until, &|_| false).is_err());
        disk.cancel_failures();
        let first = log.trim(until, &|_| false).unwrap();
        assert!(first > Glsn(50), "{seed} {failing}: {first}");
        disk.cut_power();
        disk.restore_power();
        drop(log);
        let log = open(&disk, &memory, None).unwrap();
        let bounds = log.bounds();
        assert_eq!((bounds.first, bounds.durable), (first, until), "{seed} {failing}");
    }
    assert!(failed >= 10, "{failed}");
}

#[test]
fn reads_that_fail_are_errors_and_do_not_poison() {
    let memory = Memory::new(16 << 20);
    let disk = LyingDisk::new(7);
    let log = open(&disk, &memory, None).unwrap();
    let payloads: Vec<_> = (0..200).map(|number| payload(number, 3000)).collect();
    payloads
        .iter()
        .for_each(|payload| assert!(crate::common::append(&log, 0, payload) > Glsn::NONE));
    disk.fail_reads(0.3);
    let mut failed = 0;
    for (glsn, payload) in (1..).zip(&payloads) {
        memory.pool.clear();
        match log.read(Glsn(glsn)) {
            Ok(entry) => assert_eq!(&&*entry, payload),
            Err(LogError::Io { .. }) => failed += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(failed > 10);
    disk.fail_reads(0.0);
    disk.flip_bits(0.3);
    let mut bad = 0;
    for (glsn, payload) in (1..).zip(&payloads) {
        memory.pool.clear();
        match log.read(Glsn(glsn)) {
            Ok(entry) => assert_eq!(&&*entry, payload),
            Err(LogError::Corrupt { .. }) => bad += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(bad > 5, "{bad}");
    disk.flip_bits(0.0);
    assert_eq!(scan_all(&log, 1, 9999, None).len(), payloads.len());
    assert_eq!(crate::common::append(&log, 0, b"on"), Glsn(201));
}

#[test]
fn a_bit_that_flips_while_the_tail_is_read_again_is_found() {
    let memory = Memory::new(16 << 20);
    let payloads: Vec<_> = (0..8).map(|number| payload(number, 3000)).collect();
    let mut refused = 0;
    for seed in 0..300 {
        memory.pool.clear();
        let disk = LyingDisk::new(seed);
        let log = open(&disk, &memory, None).unwrap();
        payloads
            .iter()
            .for_each(|payload| assert!(crate::common::append(&log, 0, payload) > Glsn::NONE));
        log.close().unwrap();
        drop(log);
        disk.flip_bits(0.1);
        let opened = open(&disk, &memory, None);
        disk.flip_bits(0.0);
        match opened {
            Ok(log) => {
                let found = scan_all(&log, 1, u64::MAX, None);
                assert!(found.iter().map(|(_, payload)| payload).eq(&payloads), "seed {seed}");
            }
            Err(LogError::Corrupt { .. } | LogError::Io { .. } | LogError::Format { .. }) => {
                refused += 1
            }
            Err(other) => panic!("seed {seed}: {other}"),
        }
    }
    assert!((1..300).contains(&refused), "{refused}");
}
