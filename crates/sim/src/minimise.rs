//! Shortens a failing workload.
//!
//! Removes smaller and smaller pieces while the rest still fails. Any subset of a workload's
//! operations is a valid workload (`op`), so nothing has to be repaired.

use crate::op::Op;

/// The shortest workload found in at most `runs_max` runs for which `fails` returns true.
pub fn minimise(ops: &[Op], runs_max: usize, fails: &mut dyn FnMut(&[Op]) -> bool) -> Vec<Op> {
    let mut ops = ops.to_vec();
    let mut runs = 0;
    let mut piece = ops.len().div_ceil(2);
    while piece > 0 {
        let mut removed = false;
        let mut at = 0;
        while at < ops.len() && runs < runs_max {
            let mut shorter = ops.clone();
            shorter.drain(at..ops.len().min(at + piece));
            runs += 1;
            if fails(&shorter) {
                ops = shorter;
                removed = true;
            } else {
                at += piece;
            }
        }
        if runs >= runs_max {
            break;
        }
        // Try single operations until none can be removed.
        piece =
            if piece == 1 { usize::from(removed) } else { piece.div_ceil(2).min(ops.len().max(1)) };
    }
    ops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimise_removes_irrelevant_operations() {
        let ops: Vec<Op> = (0..100).map(|back| Op::Read { back }).collect();
        let needed = [Op::Read { back: 17 }, Op::Read { back: 61 }];
        let mut runs = 0;
        let short = minimise(&ops, 10_000, &mut |ops| {
            runs += 1;
            needed.iter().all(|op| ops.contains(op))
        });
        assert_eq!(short, needed);
        assert!(runs < 200, "{runs} runs");
    }

    #[test]
    fn minimise_stops_after_the_maximum_of_runs() {
        let ops = vec![Op::Flush; 64];
        let mut runs = 0;
        let short = minimise(&ops, 5, &mut |_| {
            runs += 1;
            false
        });
        assert_eq!((short.len(), runs), (64, 5));
    }
}
