//! Shortens a workload that fails.
//!
//! Removes smaller and smaller pieces as long as the rest still fails, in whatever way. Every
//! prefix, piece and rest of a workload is a workload (`op`), so nothing has to be repaired in
//! between.

use crate::op::Op;

/// The shortest workload, found in at most `runs_max` runs, for which `fails` still returns true.
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
        // Single operations are tried until none can be removed.
        piece =
            if piece == 1 { usize::from(removed) } else { piece.div_ceil(2).min(ops.len().max(1)) };
    }
    ops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_needed_to_fail_goes() {
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
    fn it_stops_after_so_many_runs() {
        let ops = vec![Op::Flush; 64];
        let mut runs = 0;
        let short = minimise(&ops, 5, &mut |_| {
            runs += 1;
            false
        });
        assert_eq!((short.len(), runs), (64, 5));
    }
}
