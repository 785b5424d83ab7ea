//! Members of a log: each has its own handles, memory and locks, as in separate processes.

mod posts;
mod unpublished;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::pool::Pool;

use super::turn::Turn;
use crate::draft::{Draft, DraftEntry};
use crate::error::LogError;
use crate::file_log::FileLog;
use crate::file_log::files::names::{FileName, unfinished};
use crate::file_log::options::{FileLogOptions, Shared};
use crate::glsn::{Glsn, StreamId};
use crate::members::words::{End, SLOTS};
use crate::members::{LOCK_TIMEOUT, Members};

/// A member, with its own handles and memory as in a process.
struct Process {
    log: FileLog,
    members: Arc<Members>,
}

impl Process {
    fn join(disk: &Arc<dyn Disk>, store: &Path, is_first: bool) -> Self {
        Self::join_with(disk, store, is_first, 16 << 10, 16 << 20)
    }

    fn join_with(
        disk: &Arc<dyn Disk>,
        store: &Path,
        is_first: bool,
        segment_bytes: u32,
        memory: u64,
    ) -> Self {
        // Short, because some tests wait until it has elapsed.
        Self::join_for(disk, store, is_first, (segment_bytes, memory), Duration::from_millis(200))
    }

    fn join_for(
        disk: &Arc<dyn Disk>,
        store: &Path,
        is_first: bool,
        (segment_bytes, memory): (u32, u64),
        timeout: Duration,
    ) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let members = Arc::new(Members::join(disk, &clock, store, timeout).unwrap());
        members.begin(is_first, 7, 0).unwrap();
        let budget = Budget::new(memory, Backing::Heap).unwrap();
        let pool = Pool::new(&budget, 1 << 20).unwrap();
        let options = FileLogOptions {
            segment_bytes,
            background: false,
            shared: Some(Shared { members: Arc::clone(&members), is_first }),
            ..FileLogOptions::new(Arc::clone(disk), clock, store.join("log"), pool, budget)
        };
        let (log, _) = FileLog::open(options).unwrap();
        members.joined();
        Self { log, members }
    }

    fn append(&self, text: &str) -> Glsn {
        let entries = [DraftEntry { stream: StreamId(9), parts: &[text.as_bytes()] }];
        let ticket = self.log.submit(&Draft::of(&entries), None).unwrap();
        self.log.wait_durable(ticket.last).unwrap();
        ticket.last
    }

    fn texts(&self) -> Vec<String> {
        self.log.catch_up().unwrap();
        let mut scan = self.log.scan(Glsn::FIRST..Glsn::MAX, None).unwrap();
        let mut texts = Vec::new();
        while let Some(entry) = scan.next_entry() {
            texts.push(String::from_utf8(entry.unwrap().payload.to_vec()).unwrap());
        }
        texts
    }

    fn leave(self) {
        let is_last = self.members.leave(&|| {}).unwrap();
        self.log.close_as(is_last).unwrap();
        self.members.left();
    }
}

fn mem_disk() -> (Arc<dyn Disk>, PathBuf) {
    let (disk, store) = (MemDisk::new(), PathBuf::from("/store"));
    disk.create_dir(&store).unwrap();
    (Arc::new(disk), store)
}

fn verify(disk: &Arc<dyn Disk>, store: &Path) -> Vec<String> {
    let alone = Process::join(disk, store, true);
    assert_eq!(alone.log.verify(&|_| false, &[], &mut |_| {}).unwrap(), []);
    let texts = alone.texts();
    alone.leave();
    texts
}

#[test]
fn each_member_reads_what_the_others_have_appended() {
    let (disk, store) = mem_disk();
    let one = Process::join(&disk, &store, true);
    let mut appended = Vec::new();
    let append = |process: &Process, appended: &mut Vec<String>| {
        let n = appended.len();
        // Some are longer than a block.
        appended.push(format!("{n}:{}", "x".repeat(n * 37 % 9000)));
        assert_eq!(process.append(appended.last().unwrap()), Glsn(appended.len() as u64));
    };
    append(&one, &mut appended);
    let two = Process::join(&disk, &store, false);
    assert_eq!(two.texts(), appended);
    for _ in 0..40 {
        append(&one, &mut appended);
        append(&two, &mut appended);
        append(&two, &mut appended);
    }
    let three = Process::join(&disk, &store, false);
    for process in [&one, &two, &three] {
        assert_eq!(process.texts(), appended);
    }
    append(&three, &mut appended);
    one.leave();
    append(&two, &mut appended);
    assert_eq!(three.texts(), appended);
    three.leave();
    append(&two, &mut appended);
    two.leave();
    assert_eq!(verify(&disk, &store), appended);
}

#[test]
fn a_wait_for_durability_ends_when_another_member_syncs() {
    let disk = LyingDisk::new(1);
    let store = PathBuf::from("/store");
    disk.create_dir(&store).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let (one, two) = (Process::join(&shared, &store, true), Process::join(&shared, &store, false));
    let submit = |process: &Process, text: &str| {
        let entries = [DraftEntry { stream: StreamId(9), parts: &[text.as_bytes()] }];
        process.log.submit(&Draft::of(&entries), None).unwrap().last
    };
    let (a, b) = (submit(&one, "a"), submit(&two, "b"));
    let before = disk.sync_count();
    two.log.wait_durable(b).unwrap();
    one.log.wait_durable(a).unwrap();
    assert_eq!(disk.sync_count() - before, 1);
    assert_eq!(two.members.marks.durable_glsn(), b);
    disk.cut_power();
    drop((one, two));
    disk.restore_power();
    assert_eq!(verify(&shared, &store), ["a", "b"]);
}

#[test]
fn the_next_member_removes_the_leftovers_of_one_that_ended_in_its_turn() {
    let (disk, store) = mem_disk();
    let (one, two) = (Process::join(&disk, &store, true), Process::join(&disk, &store, false));
    one.append("a");
    let end = one.members.marks.end();
    // One member has written half a record and begun a segment, and has published neither.
    let path = FileName::Segment(end.segment).path(&store.join("log"));
    let file = disk.open(&path, Open::ReadWrite, Caching::Buffered).unwrap();
    file.write_at(&[0xff; 300], u64::from(end.offset)).unwrap();
    let unpublished = FileName::Segment(end.next).path(&store.join("log"));
    disk.open(&unpublished, Open::CreateNew, Caching::Buffered).unwrap();
    let mut turn = one.log.turn().unwrap().unwrap();
    turn.begin().unwrap();
    std::mem::forget(turn);
    let Process { log, members } = one;
    drop((log, members));
    let killed = Arc::clone(&two.members);
    assert_eq!(two.append("b"), Glsn(2));
    assert_eq!(disk.entry(&unpublished).unwrap(), None);
    let mut behind = vec![0xff; 4096];
    let n = file.read_at(&mut behind, u64::from(two.members.marks.end().offset)).unwrap();
    assert!(behind[..n].iter().all(|byte| *byte == 0));
    assert_eq!(killed.slots.list().unwrap().len(), 1, "the slot of the one that ended is free");
    two.leave();
    assert_eq!(verify(&disk, &store), ["a", "b"]);
}

#[test]
fn an_unfinished_sync_is_not_trusted() {
    let disk = LyingDisk::new(1);
    let store = PathBuf::from("/store");
    disk.create_dir(&store).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let (one, two) = (Process::join(&shared, &store, true), Process::join(&shared, &store, false));
    let entries = [DraftEntry { stream: StreamId(9), parts: &[b"a"] }];
    let draft = Draft::of(&entries);
    let glsn = one.log.submit(&draft, None).unwrap().last;
    two.log.catch_up().unwrap();
    // One member syncs, gets a failure, and ends before it can publish it. The system now regards
    // all pages as written.
    one.members.syncs.take_sync(&|| false).unwrap();
    disk.fail_next_sync();
    let path = FileName::Segment(Glsn::FIRST).path(&store.join("log"));
    disk.open(&path, Open::ReadWrite, Caching::Buffered).unwrap().sync().unwrap_err();
    one.members.syncs.sync.release_abandoned();
    two.log.wait_durable(glsn).unwrap();
    disk.cut_power();
    drop((one, two));
    disk.restore_power();
    assert_eq!(verify(&shared, &store), ["a"]);
}

#[test]
fn a_failed_sync_stops_all_members() {
    let disk = LyingDisk::new(1);
    let store = PathBuf::from("/store");
    disk.create_dir(&store).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let (one, two) = (Process::join(&shared, &store, true), Process::join(&shared, &store, false));
    one.append("a");
    let entries = [DraftEntry { stream: StreamId(9), parts: &[b"b"] }];
    let draft = Draft::of(&entries);
    let glsn = one.log.submit(&draft, None).unwrap().last;
    disk.fail_next_sync();
    assert!(matches!(one.log.wait_durable(glsn), Err(LogError::Poisoned { .. })));
    assert!(matches!(two.log.submit(&draft, None), Err(LogError::Poisoned { .. })));
    assert_eq!(two.texts(), ["a"], "what is durable can be read");
}

#[test]
fn the_next_member_removes_a_segment_whose_creation_failed() {
    let disk = LyingDisk::new(1);
    let store = PathBuf::from("/store");
    disk.create_dir(&store).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let (one, two) = (Process::join(&shared, &store, true), Process::join(&shared, &store, false));
    let large = "x".repeat(30_000);
    one.append(&large);
    let unpublished = FileName::Segment(one.members.marks.end().next).path(&store.join("log"));
    let entries = [DraftEntry { stream: StreamId(9), parts: &[large.as_bytes()] }];
    // The segment has its name, but syncing the folder fails.
    disk.fail_sync(2);
    let refused = one.log.submit(&Draft::of(&entries), None);
    assert!(matches!(refused, Err(LogError::Poisoned { .. })), "{refused:?}");
    assert!(disk.entry(&unpublished).unwrap().is_some());
    // The record fits in the previous segment.
    assert_eq!(two.append("b"), Glsn(2));
    assert_eq!(disk.entry(&unpublished).unwrap(), None);
    assert_eq!(two.append(&large), Glsn(3));
    let texts = [&large, "b", &large];
    let three = Process::join(&shared, &store, false);
    for process in [one, two, three] {
        assert_eq!(process.texts(), texts);
        let _ = process.log.close_as(false);
        process.members.left();
    }
    assert_eq!(verify(&shared, &store), texts);
}

#[test]
fn the_next_record_begins_a_segment_after_a_temporary_failure() {
    let (disk, store) = mem_disk();
    let (one, two) = (Process::join(&disk, &store, true), Process::join(&disk, &store, false));
    let large = "x".repeat(30_000);
    one.append(&large);
    let draft =
        unfinished(&FileName::Segment(one.members.marks.end().next).path(&store.join("log")));
    disk.create_dir(&draft).unwrap();
    let entries = [DraftEntry { stream: StreamId(9), parts: &[large.as_bytes()] }];
    let refused = one.log.submit(&Draft::of(&entries), None);
    assert!(matches!(refused, Err(LogError::Io { .. })), "{refused:?}");
    disk.remove_dir(&draft).unwrap();
    assert_eq!((one.append(&large), two.append("b")), (Glsn(2), Glsn(3)));
    assert_eq!(one.texts(), [&large, &large, "b"]);
}

#[test]
fn the_last_member_leaves_a_mark_so_that_a_bad_byte_in_the_last_record_is_damage() {
    let disk = LyingDisk::new(1);
    let store = PathBuf::from("/store");
    disk.create_dir(&store).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let (one, two) = (Process::join(&shared, &store, true), Process::join(&shared, &store, false));
    one.append("a");
    two.append("b");
    one.leave();
    let end = two.members.marks.end();
    two.leave();
    disk.cut_power();
    disk.restore_power();
    let path = FileName::Segment(end.segment).path(&store.join("log"));
    disk.corrupt(&path, u64::from(end.offset) - 1, 1).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let budget = Budget::new(16 << 20, Backing::Heap).unwrap();
    let pool = Pool::new(&budget, 1 << 20).unwrap();
    let opened = FileLog::open(FileLogOptions::new(shared, clock, store.join("log"), pool, budget));
    assert!(matches!(opened, Err(LogError::Corrupt { glsn: Glsn(2), .. })), "{opened:?}");
}

#[test]
fn a_member_beyond_the_maximum_finds_the_log_locked() {
    let (disk, store) = mem_disk();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let join = || {
        let members = Members::join(&disk, &clock, &store, Duration::from_millis(200))?;
        members.joined();
        Ok(members)
    };
    let mut members = (0..SLOTS).map(|_| join().unwrap()).collect::<Vec<_>>();
    let refused: Result<Members, LogError> = join();
    assert!(
        matches!(&refused, Err(LogError::Locked { who, .. }) if who.contains("close one of them")),
        "{:?}",
        refused.err()
    );
    members.pop();
    join().unwrap();
}

#[test]
fn a_member_that_keeps_the_turn_is_named() {
    let (disk, store) = mem_disk();
    let (one, two) = (Process::join(&disk, &store, true), Process::join(&disk, &store, false));
    let turn: Turn<'_> = one.log.turn().unwrap().unwrap();
    let clock = SystemClock::new();
    let begun = clock.monotonic_nanos();
    let entries = [DraftEntry { stream: StreamId(9), parts: &[b"a"] }];
    let draft = Draft::of(&entries);
    let refused = two.log.submit(&draft, None).unwrap_err();
    assert!(matches!(refused, LogError::Stalled { pid: Some(7), .. }), "{refused}");
    assert!(clock.monotonic_nanos() - begun >= 200_000_000);
    drop(turn);
    two.append("a");
}

#[test]
fn members_with_little_memory_begin_another_segment() {
    let (disk, store) = mem_disk();
    let large = Process::join_with(&disk, &store, true, 64 << 20, 512 << 20);
    let mut texts = Vec::new();
    let entries: Vec<_> =
        (0..4000).map(|_| DraftEntry { stream: StreamId(9), parts: &[b"e"] }).collect();
    for _ in 0..30 {
        large.log.submit(&Draft::of(&entries), None).unwrap();
        texts.extend((0..4000).map(|_| "e".to_owned()));
    }
    large.append("f");
    texts.push("f".to_owned());
    let small = Process::join_with(&disk, &store, false, 64 << 20, 16 << 20);
    assert!(small.members.marks.end().segment > Glsn::FIRST);
    small.append("g");
    texts.push("g".to_owned());
    assert!(small.texts() == texts && large.texts() == texts);
}

/// `threads` threads of each of four members append concurrently on a real disk, by `append`, which
/// is given the member, its thread, the round and the text. Each record is present exactly once,
/// and those of one thread are in their order. The members have called `begin` before.
fn append_at_once(
    (threads, rounds, text_bytes): (usize, usize, usize),
    begin: impl Fn(&Process),
    append: impl Fn(&Process, usize, usize, &str) -> Glsn + Sync,
) {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new());
    // A busy machine may delay a thread for long.
    let join = |is_first| {
        Process::join_for(&disk, dir.path(), is_first, (16 << 10, 16 << 20), LOCK_TIMEOUT)
    };
    let members: Vec<_> = (0..4).map(|at| join(at == 0)).collect();
    members.iter().for_each(begin);
    std::thread::scope(|scope| {
        for (at, member) in members.iter().enumerate() {
            for thread in 0..threads {
                let append = &append;
                scope.spawn(move || {
                    let mut last = Glsn::NONE;
                    for round in 0..rounds {
                        let text = format!(
                            "{at}.{thread}.{round} {}",
                            "y".repeat(round * 31 % text_bytes)
                        );
                        let glsn = append(member, thread, round, &text);
                        assert!(glsn > last);
                        last = glsn;
                        // Any commit that was acknowledged is durable.
                        assert!(member.members.marks.durable_glsn() >= glsn);
                    }
                });
            }
        }
    });
    let texts = members[0].texts();
    assert_eq!(texts.len(), 4 * threads * rounds);
    for member in &members[1..] {
        assert!(member.texts() == texts);
    }
    for (at, thread) in (0..4).flat_map(|at| (0..threads).map(move |thread| (at, thread))) {
        let start = format!("{at}.{thread}.");
        let rounds_of = texts
            .iter()
            .filter_map(|text| text.strip_prefix(&start)?.split(' ').next()?.parse::<usize>().ok());
        assert!(rounds_of.eq(0..rounds));
    }
    members.into_iter().for_each(Process::leave);
    assert!(verify(&disk, dir.path()) == texts);
}

#[test]
fn many_threads_of_many_members_append_on_a_real_disk() {
    append_at_once((2, 150, 900), |_| (), |member, _, _, text| member.append(text));
}

#[test]
fn an_unpublished_record_does_not_reappear() {
    for seed in 0..20 {
        let disk = LyingDisk::new(seed);
        let store = PathBuf::from("/store");
        disk.create_dir(&store).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let (one, two) =
            (Process::join(&shared, &store, true), Process::join(&shared, &store, false));
        one.append("a");
        let end = one.members.marks.end();
        let mut turn = one.log.turn().unwrap().unwrap();
        turn.begin().unwrap();
        let text = vec![b'x'; 5000];
        let entries = [DraftEntry { stream: StreamId(9), parts: &[&text] }];
        turn.submit(&Draft::of(&entries)).unwrap();
        // As if the member had ended before it published the record.
        one.members.marks.set_end(&end);
        std::mem::forget(turn);
        let Process { log, members } = one;
        drop((log, members));
        // Blob files are swept first, because the record may have named some.
        two.log.sweep_blobs(&|_| false).unwrap();
        if seed % 2 == 0 {
            assert_eq!(two.append("b"), Glsn(2));
        }
        disk.cut_power();
        drop(two);
        disk.restore_power();
        let texts = verify(&shared, &store);
        assert_eq!(texts, if seed % 2 == 0 { vec!["a", "b"] } else { vec!["a"] });
    }
}

#[test]
fn records_that_contradict_the_published_end_are_not_loaded_and_block_appends() {
    for is_lost in [true, false] {
        let (disk, store) = mem_disk();
        let (one, two) = (Process::join(&disk, &store, true), Process::join(&disk, &store, false));
        one.append("a");
        assert_eq!(two.texts(), ["a"]);
        let before = one.members.marks.end();
        one.append("b");
        let end = one.members.marks.end();
        if is_lost {
            let path = FileName::Segment(end.segment).path(&store.join("log"));
            let file = disk.open(&path, Open::ReadWrite, Caching::Buffered).unwrap();
            file.write_at(&[0; 100], u64::from(before.offset)).unwrap();
        } else {
            // As a stray write into the words does.
            one.members.marks.set_end(&End { chain: end.chain ^ 1, ..end });
        }
        let taken = two.log.catch_up();
        assert!(matches!(taken, Err(LogError::Corrupt { .. })), "{taken:?}");
        let entries = [DraftEntry { stream: StreamId(9), parts: &[b"c"] }];
        let ordered = two.log.submit(&Draft::of(&entries), None);
        assert!(matches!(ordered, Err(LogError::Corrupt { .. })), "{ordered:?}");
        assert_eq!(one.members.marks.end().next, end.next);
    }
}

#[test]
fn a_failed_catch_up_does_not_load_records_twice() {
    let (disk, store) = mem_disk();
    let one = Process::join_with(&disk, &store, true, 64 << 20, 64 << 20);
    let two = Process::join_with(&disk, &store, false, 64 << 20, 64 << 20);
    let submit = |entries: usize| {
        let entries: Vec<_> =
            (0..entries).map(|_| DraftEntry { stream: StreamId(9), parts: &[b"x"] }).collect();
        one.log.submit(&Draft::of(&entries), None).unwrap().last
    };
    // The entry offsets of the next records need another chunk, whose allocation fails midway.
    for _ in 0..4 {
        submit(4075);
    }
    two.log.catch_up().unwrap();
    let mut last = Glsn::NONE;
    for _ in 0..20 {
        last = submit(10);
    }
    one.log.wait_durable(last).unwrap();
    two.log.log.env.options.budget.fail_after(1);
    two.log.catch_up().unwrap_err();
    assert_eq!(two.texts().len() as u64, last.0);
}

#[test]
fn a_member_that_prepares_to_be_the_keeper_answers_nudges() {
    let (disk, store) = mem_disk();
    let (one, two) = (Process::join(&disk, &store, true), Process::join(&disk, &store, false));
    assert!(one.members.keeper.try_acquire().unwrap());
    let before = two.members.keeper.heartbeat();
    two.members.keeper.ping();
    one.members.keeper.answer_pings(0);
    assert_ne!(two.members.keeper.heartbeat(), before);
    assert_eq!((one.members.keeper.term(), two.members.keeper.pid()), (None, None));
    one.members.keeper.release();
    assert_eq!(two.members.keeper.heartbeat(), (0, 0));
    assert!(two.members.keeper.try_acquire().unwrap() && two.members.keeper.keep());
    assert_eq!(one.members.keeper.pid(), Some(7));
}

#[test]
fn a_process_that_may_not_write_to_the_words_has_no_share_of_memory() {
    let (disk, store) = mem_disk();
    let one = Process::join(&disk, &store, true);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let watching = Members::watching(&disk, &clock, &store, Duration::from_secs(1)).unwrap();
    one.members.budgets.first_budget(Some(64 << 20), (32 << 20, 16 << 20), false).unwrap();
    assert_eq!(one.members.budgets.memory_share(), Some(32 << 20));
    assert_eq!((watching.budgets.memory_share(), watching.budgets.grow().unwrap()), (None, None));
}

#[test]
fn a_member_that_begins_a_segment_while_joining_removes_leftovers_after_the_last_record() {
    let (disk, store) = mem_disk();
    let large = Process::join_with(&disk, &store, true, 64 << 20, 512 << 20);
    let entries: Vec<_> =
        (0..4000).map(|_| DraftEntry { stream: StreamId(9), parts: &[b"e"] }).collect();
    for _ in 0..30 {
        large.log.submit(&Draft::of(&entries), None).unwrap();
    }
    large.append("f");
    let end = large.members.marks.end();
    let path = FileName::Segment(end.segment).path(&store.join("log"));
    let file = disk.open(&path, Open::ReadWrite, Caching::Buffered).unwrap();
    file.write_at(&[0xff; 300], u64::from(end.offset)).unwrap();
    let mut turn = large.log.turn().unwrap().unwrap();
    turn.begin().unwrap();
    std::mem::forget(turn);
    let Process { log, members } = large;
    drop((log, members));
    let small = Process::join_with(&disk, &store, false, 64 << 20, 16 << 20);
    assert_eq!(small.members.marks.end().segment, end.next);
    let mut behind = vec![0xff; 300];
    let n = file.read_at(&mut behind, u64::from(end.offset)).unwrap();
    assert!(behind[..n].iter().all(|byte| *byte == 0));
    small.append("g");
    assert_eq!(small.texts().len(), 30 * 4000 + 2);
}

/// One member has ordered a record and another one has loaded it; a sync of the record was begun
/// and not finished.
fn half_synced() -> (Arc<dyn Disk>, PathBuf, Process, Process, Glsn) {
    let (disk, store) = mem_disk();
    let (one, two, glsn) = half_synced_on(&disk, &store);
    (disk, store, one, two, glsn)
}

fn half_synced_on(disk: &Arc<dyn Disk>, store: &Path) -> (Process, Process, Glsn) {
    let (one, two) = (Process::join(disk, store, true), Process::join(disk, store, false));
    one.append("a");
    let entries = [DraftEntry { stream: StreamId(9), parts: &[b"b"] }];
    let glsn = one.log.submit(&Draft::of(&entries), None).unwrap().last;
    two.log.catch_up().unwrap();
    one.members.syncs.take_sync(&|| false).unwrap();
    one.members.syncs.sync.release_abandoned();
    (one, two, glsn)
}

#[test]
fn bytes_lost_by_an_abandoned_sync_are_not_made_durable() {
    let (disk, store, one, two, glsn) = half_synced();
    let durable = one.members.marks.durable();
    let path = FileName::Segment(durable.segment).path(&store.join("log"));
    let file = disk.open(&path, Open::ReadWrite, Caching::Buffered).unwrap();
    // The system has dropped the pages that it could not write.
    file.write_at(&[0; 100], u64::from(durable.offset)).unwrap();
    let failed = two.log.wait_durable(glsn);
    assert!(matches!(failed, Err(LogError::Poisoned { .. })), "{failed:?}");
    assert!(one.members.health.is_poisoned());
    assert_eq!(one.members.marks.durable_glsn(), Glsn(1));
}

#[test]
fn an_abandoned_sync_is_completed_without_memory() {
    let (_disk, _store, _one, two, glsn) = half_synced();
    two.log.log.env.options.budget.fail_after(0);
    two.log.wait_durable(glsn).unwrap();
}

#[test]
fn an_abandoned_sync_is_completed_although_one_of_its_reads_fails() {
    let half_synced_on_lying = || {
        let (disk, store) = (LyingDisk::new(1), PathBuf::from("/store"));
        disk.create_dir(&store).unwrap();
        let (one, two, glsn) = half_synced_on(&(Arc::new(disk.clone()) as _), &store);
        (disk, one, two, glsn)
    };
    // The reads are of the header, of the records, and two of the bytes that are written again.
    for read in 1..=4 {
        let (disk, _one, two, glsn) = half_synced_on_lying();
        disk.fail_read(read);
        two.log.wait_durable(glsn).unwrap();
        assert!(!disk.fail_no_read(), "read {read} has failed");
    }
    let (disk, one, two, glsn) = half_synced_on_lying();
    disk.fail_reads(1.0);
    let failed = two.log.wait_durable(glsn);
    assert!(matches!(failed, Err(LogError::Poisoned { .. })), "{failed:?}");
    disk.fail_reads(0.0);
    one.log.wait_durable(glsn).unwrap();
}

#[test]
fn threads_that_wait_for_the_turn_together_give_up_together() {
    let (disk, store) = mem_disk();
    let (one, two) = (Process::join(&disk, &store, true), Process::join(&disk, &store, false));
    let _turn = one.log.turn().unwrap().unwrap();
    let (clock, threads) = (SystemClock::new(), 8);
    let wait_together = || {
        let begun = clock.monotonic_nanos();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| assert!(matches!(two.log.turn(), Err(LogError::Stalled { .. }))));
            }
        });
        Duration::from_nanos(clock.monotonic_nanos() - begun)
    };
    // One thread waits from the start, and the others, which arrived meanwhile, wait again. If they
    // waited one after the other, each would take longer than the last. Up to ten attempts, because
    // a busy machine is slow now and then.
    assert!((0..10).any(|_| wait_together() < threads * Duration::from_millis(200)));
}

#[test]
fn a_leaving_member_waits_for_the_commit_that_one_of_its_threads_orders() {
    let (disk, store) = mem_disk();
    let join =
        |is_first| Process::join_for(&disk, &store, is_first, (16 << 10, 16 << 20), LOCK_TIMEOUT);
    let (one, two) = (join(true), join(false));
    let mut turn = one.log.turn().unwrap().unwrap();
    let glsn = std::thread::scope(|scope| {
        let closing = scope.spawn(|| one.log.close_as(false));
        SystemClock::new().sleep(Duration::from_millis(50));
        let entries = [DraftEntry { stream: StreamId(9), parts: &[b"a"] }];
        let ticket = turn.submit(&Draft::of(&entries)).unwrap();
        drop(turn);
        closing.join().unwrap().unwrap();
        ticket.last
    });
    assert_eq!(two.members.marks.durable_glsn(), glsn);
}

#[test]
fn a_member_that_cannot_join_leaves_the_memory_total_unchanged() {
    let (disk, store) = mem_disk();
    let one = Process::join(&disk, &store, true);
    one.members.budgets.first_budget(Some(64 << 20), (64 << 20, 16 << 20), false).unwrap();
    // The first member releases no memory, because it runs no threads here.
    let two = Process::join(&disk, &store, false);
    let refused = two.members.budgets.first_budget(Some(48 << 20), (32 << 20, 16 << 20), false);
    assert!(matches!(refused, Err(LogError::Stalled { .. })), "{refused:?}");
    assert_eq!(one.members.budgets.memory_total(), Some(64 << 20));
}
