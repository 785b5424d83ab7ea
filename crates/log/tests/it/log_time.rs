//! The times of records when the clock is set back, and when the log's time is restarted.

use std::sync::Arc;

use plimsoll_disk::clock::ManualClock;
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::Glsn;

use crate::common::{Memory, NOW, mem_disk, options, payload, submit};

#[test]
fn timestamps_rise_although_the_clock_was_set_back_by_days_and_a_warning_says_so() {
    let memory = Memory::new(16 << 20);
    let disk = mem_disk();
    let ahead = NOW + 3 * 86_400_000_000;
    let mut future = options(&disk, &memory);
    future.clock = Arc::new(ManualClock::new(ahead));
    let log = FileLog::open(future).unwrap().0;
    let first = submit(&log, 0, b"from the future").unwrap();
    drop(log);
    let mut last = first.timestamp_micros;
    assert_eq!(last, ahead);
    let at = |clock: u64| {
        let mut options = options(&disk, &memory);
        options.clock = Arc::new(ManualClock::new(clock));
        FileLog::open(options).unwrap()
    };
    let (log, report) = FileLog::open(options(&disk, &memory)).unwrap();
    assert!(
        report.warnings.len() == 1 && report.warnings[0].contains("72 hours ahead"),
        "{report:?}"
    );
    let refused = submit(&log, 0, b"refused");
    assert_eq!(refused, Err(LogError::ClockBehind { ahead_micros: 3 * 86_400_000_000 }));
    drop(log);
    // Less than a day.
    let day_before = ahead - 86_000_000_000;
    for round in 0..3 {
        let (log, report) = at(day_before);
        assert_eq!(report.warnings, Vec::<String>::new());
        for number in 0..100 {
            // Segments end in between.
            let ticket = submit(&log, 0, &payload(number, 5000)).unwrap();
            assert!(ticket.timestamp_micros > last, "round {round}, {ticket:?} after {last}");
            last = ticket.timestamp_micros;
        }
        log.sync().unwrap();
        assert_eq!(log.glsn_at(first.timestamp_micros).unwrap(), first.last);
        assert_eq!(log.glsn_at(NOW).unwrap(), Glsn::NONE);
        assert_eq!(log.glsn_at(last).unwrap().next(), log.bounds().next);
    }
}

#[test]
fn restarted_time_follows_the_clock_and_earlier_records_count_as_older() {
    let memory = Memory::new(16 << 20);
    let disk = mem_disk();
    let clock = Arc::new(ManualClock::new(NOW));
    let with_clock = || {
        let mut options = options(&disk, &memory);
        options.clock = Arc::clone(&clock) as _;
        FileLog::open(options).unwrap().0
    };
    let day = 86_400_000_000;
    let log = with_clock();
    submit(&log, 0, b"before").unwrap();
    clock.set_wall_micros(NOW + 3650 * day);
    let ahead = submit(&log, 0, b"ahead").unwrap();
    clock.set_wall_micros(NOW + day);
    assert!(matches!(submit(&log, 0, b"refused"), Err(LogError::ClockBehind { .. })));
    // A closed log may end with an empty segment.
    log.seal_from(0).unwrap();
    drop(log);
    let log = with_clock();
    assert_eq!(log.time_lead_micros(), Ok(3649 * day));
    assert!(
        matches!(log.restart_time(), Err(LogError::InvalidDraft { .. })),
        "the active segment has no entry"
    );
    let lead = log.allow_time_lead();
    submit(&log, 0, b"marker").unwrap();
    drop(lead);
    log.restart_time().unwrap();
    assert_eq!(log.time_lead_micros(), Ok(0));
    drop(log);
    let log = with_clock();
    clock.set_wall_micros(NOW + 2 * day);
    let after = submit(&log, 0, b"after").unwrap();
    assert_eq!(after.timestamp_micros, NOW + 2 * day);
    log.sync().unwrap();
    let marker = Glsn(after.last.0 - 1);
    for (time, glsn) in [
        (NOW - 1, Glsn::NONE),
        (NOW + day - 2, Glsn(1)),
        (NOW + day, marker),
        (NOW + 2 * day - 1, marker),
        (NOW + 2 * day, after.last),
        (ahead.timestamp_micros, after.last),
    ] {
        assert_eq!(log.glsn_at(time).unwrap(), glsn, "{time}");
    }
    assert_eq!(log.verify(&|_| false, &[], &mut |_| {}).unwrap(), []);
    drop(log);
    let log = with_clock();
    assert_eq!(log.glsn_at(NOW + day).unwrap(), marker);
    assert_eq!(&*log.read(after.last).unwrap(), b"after");
}
