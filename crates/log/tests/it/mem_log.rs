//! The log in memory fails when it is told to, and accounts for its bytes.

use plimsoll_log::error::LogError;
use plimsoll_log::glsn::Glsn;
use plimsoll_log::log::{Durability, Log};

use crate::common::{Memory, append, mem_log, scan_all, submit};

#[test]
fn a_power_cut_takes_what_was_not_durable_except_what_is_to_be_kept() {
    let memory = Memory::new(16 << 20);
    let log = mem_log(&memory, Durability::Sync);
    append(&log, 0, b"durable");
    let chain = log.position();
    for _ in 0..3 {
        submit(&log, 0, b"not yet").unwrap();
    }
    log.crash(1);
    assert_eq!((log.bounds().next, log.readable()), (Glsn(3), Glsn(2)));
    log.crash(0);
    assert_eq!(log.bounds().next, Glsn(3), "what survived a crash is durable");
    assert_eq!(log.chain_at(Glsn(1)).unwrap(), Some(chain.chain));
    assert_eq!(append(&log, 0, b"again"), Glsn(3));
}

#[test]
fn a_failed_sync_poisons_and_what_was_durable_can_be_read() {
    let memory = Memory::new(16 << 20);
    let log = mem_log(&memory, Durability::Sync);
    append(&log, 0, b"durable");
    submit(&log, 0, b"lost").unwrap();
    log.fail_next_sync();
    assert!(matches!(log.wait_durable(Glsn(2)), Err(LogError::Poisoned { .. })));
    assert!(matches!(submit(&log, 0, b"more"), Err(LogError::Poisoned { .. })));
    assert!(matches!(log.wait_beyond(Glsn(1), std::time::Duration::from_secs(9)), Err(LogError::Poisoned { .. })));
    assert_eq!(&*log.read(Glsn(1)).unwrap(), b"durable");
    log.crash(0);
    assert_eq!(append(&log, 0, b"after"), Glsn(2));
}

#[test]
fn a_refused_submit_leaves_the_log_usable() {
    let memory = Memory::new(16 << 20);
    let log = mem_log(&memory, Durability::Sync);
    log.fail_submit_after(1);
    append(&log, 0, b"one");
    assert!(matches!(submit(&log, 0, b"two"), Err(LogError::Io { kind: std::io::ErrorKind::StorageFull, .. })));
    assert_eq!(append(&log, 0, b"two"), Glsn(2));
}

#[test]
fn a_changed_byte_is_reported_never_served() {
    let memory = Memory::new(16 << 20);
    let log = mem_log(&memory, Durability::Sync);
    append(&log, 0, b"one");
    append(&log, 0, b"two");
    assert!(log.corrupt(Glsn(2), 1, 4));
    assert!(!log.corrupt(Glsn(2), 3, 4));
    assert!(matches!(log.read(Glsn(2)), Err(LogError::Corrupt { glsn: Glsn(2), .. })));
    let mut scan = log.scan(Glsn(1)..Glsn(9), None).unwrap();
    assert!(scan.next().unwrap().is_ok());
    assert!(matches!(scan.next().unwrap(), Err(LogError::Corrupt { .. })));
    assert_eq!(&*log.read(Glsn(1)).unwrap(), b"one");
}

#[test]
fn poison_on_demand_stops_appends_only() {
    let memory = Memory::new(16 << 20);
    let log = mem_log(&memory, Durability::Buffered);
    submit(&log, 0, b"one").unwrap();
    log.poison("because");
    let poisoned = LogError::Poisoned { cause: "because".to_owned() };
    assert_eq!(submit(&log, 0, b"two").unwrap_err(), poisoned);
    assert_eq!(log.sync(), Err(poisoned));
    assert_eq!(scan_all(&log, 1, 9, None).len(), 1);
}

#[test]
fn its_bytes_are_the_budgets_and_come_back() {
    let memory = Memory::new(16 << 20);
    let used = |memory: &Memory| memory.budget.usage().of(plimsoll_memory::budget::Kind::LogBuffer);
    let before = used(&memory);
    let log = mem_log(&memory, Durability::Sync);
    for _ in 0..100 {
        append(&log, 0, &[7; 10_000]);
    }
    assert!(used(&memory) >= 1_000_000);
    log.trim(Glsn(101), &|_| false).unwrap();
    assert_eq!(used(&memory), before);
    let refused = (0..3000).find_map(|_| submit(&log, 0, &[7; 10_000]).err());
    assert!(matches!(refused, Some(LogError::OutOfBudget(_))), "{refused:?}");
}
