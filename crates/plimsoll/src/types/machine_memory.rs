//! Memory of the machine and the container, and the limits it sets on a budget.

use plimsoll_disk::machine::{cgroup_limit_bytes, total_memory_bytes};

use crate::types::error::Result;
use crate::types::invalid_input::InvalidInput;

/// The smallest memory budget: 16 MiB.
pub const MIN_MEMORY_BYTES: u64 = 16 << 20;

/// A quarter of the container's limit (cgroup v1 or v2) or of the machine's memory, whichever is
/// less; at least the minimum.
pub(crate) fn default_memory_bytes() -> u64 {
    let machine = total_memory_bytes().unwrap_or(4 << 30);
    quarter_of(machine, cgroup_limit_bytes())
}

/// The limit of the container or the memory of the machine, whichever is less.
pub(crate) fn available_bytes() -> u64 {
    [total_memory_bytes(), cgroup_limit_bytes()].into_iter().flatten().min().unwrap_or(u64::MAX)
}

/// Rejects a budget above the limit of the container or the memory of the machine. A process that
/// used such a budget would be killed or would swap; the budget promises that neither happens.
pub(crate) fn check_there_is(bytes: u64) -> Result<()> {
    fits(bytes, total_memory_bytes(), cgroup_limit_bytes())
}

fn fits(bytes: u64, machine: Option<u64>, container: Option<u64>) -> Result<()> {
    let limits =
        [(machine, "this machine has"), (container, "the limit of this container (its cgroup) is")];
    let over = limits
        .into_iter()
        .filter_map(|(limit, whose)| Some((limit.filter(|&limit| limit < bytes)?, whose)))
        .min();
    match over {
        None => Ok(()),
        Some((limit_bytes, whose)) => {
            Err(InvalidInput::BudgetTooLarge { bytes, limit_bytes, whose }.into())
        }
    }
}

fn quarter_of(machine: u64, container: Option<u64>) -> u64 {
    (container.map_or(machine, |limit| limit.min(machine)) / 4).max(MIN_MEMORY_BYTES)
}

/// Upper limit for changing the budget while the store is open: the machine's memory, or the
/// current budget if larger.
pub(crate) fn ceiling_bytes(memory_bytes: u64) -> u64 {
    total_memory_bytes().unwrap_or(0).max(memory_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_above_the_memory_of_the_machine_or_container_is_refused_with_the_limit() {
        assert_eq!(fits(8 << 30, Some(8 << 30), Some(16 << 30)), Ok(()));
        assert_eq!(fits(1 << 50, None, None), Ok(()));
        let refusal =
            |bytes, machine, container| fits(bytes, machine, container).unwrap_err().to_string();
        assert!(
            refusal(1 << 40, Some(8 << 30), None)
                .contains("this machine has 8589934592 bytes (8192 MiB)")
        );
        assert!(
            refusal(1 << 40, Some(8 << 30), Some(1 << 30))
                .contains("container (its cgroup) is 1073741824 bytes")
        );
        assert!(refusal(2 << 30, Some(8 << 30), Some(1 << 30)).contains("container"));
    }

    #[test]
    fn the_default_is_a_quarter_of_the_container_or_the_machine_and_never_below_the_minimum() {
        assert_eq!(quarter_of(8 << 30, None), 2 << 30);
        assert_eq!(quarter_of(8 << 30, Some(1 << 30)), 256 << 20);
        assert_eq!(quarter_of(8 << 30, Some(1 << 60)), 2 << 30);
        assert_eq!(quarter_of(8 << 30, Some(10 << 20)), MIN_MEMORY_BYTES);
    }
}
