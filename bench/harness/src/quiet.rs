//! Checks whether other work is running on this machine, because absolute numbers then mean little,
//! and records that in the results.

use std::fs;
use std::time::Duration;

use crate::results::Results;

const SAMPLE_TIME: Duration = Duration::from_millis(300);

/// Maximum fraction of the processors' time used by other work.
const LIMIT: f64 = 0.1;

/// Samples for a moment, records how busy the processors are with other work, and warns.
pub(crate) fn check(results: &mut Results) {
    let before = ticks();
    std::thread::sleep(SAMPLE_TIME);
    let Some(busy) = before.zip(ticks()).and_then(|(before, after)| share(before, after)) else {
        return;
    };
    results.note("machine", "", "busy_before", busy);
    if busy > LIMIT {
        eprintln!(
            "the processors are {:.0} % busy with other work: ratios may hold, absolute numbers do not; a sync that a single thread \
             waits for suffers most",
            busy * 100.0
        );
    }
}

fn ticks() -> Option<[u64; 2]> {
    parse(&fs::read_to_string("/proc/stat").ok()?)
}

/// Idle ticks and all ticks of all processors, from the first line of `/proc/stat`.
fn parse(stat: &str) -> Option<[u64; 2]> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> =
        fields.split_whitespace().take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
    // Waiting for a disk is idle too.
    Some([ticks.get(3)? + ticks.get(4)?, ticks.iter().sum()])
}

fn share(before: [u64; 2], after: [u64; 2]) -> Option<f64> {
    let [idle, all] = [after[0].checked_sub(before[0])?, after[1].checked_sub(before[1])?];
    (all > 0).then(|| 1.0 - idle as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busy_share_is_the_time_that_is_not_idle() {
        let before = parse("cpu  100 0 50 800 50 0 0 0 7 7\ncpu0 1 2 3\n").unwrap();
        assert_eq!(before, [850, 1000]);
        assert_eq!(share(before, [925, 1100]), Some(0.25));
        assert_eq!(share(before, before), None);
        assert_eq!(parse("intr 5\n"), None);
    }
}
