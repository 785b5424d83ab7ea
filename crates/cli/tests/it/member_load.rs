//! Two members of a cluster that commit while the cluster's server fails.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::run::Ran;

/// Makes `increments` commits in each shell, and meanwhile one fault after another, each with its
/// number. Returns how many faults were made.
pub(crate) fn commit_during_faults(
    shells: Vec<Command>,
    increments: u64,
    mut fault: impl FnMut(u64),
) -> u64 {
    let is_over = AtomicBool::new(false);
    let mut faults = 0;
    std::thread::scope(|scope| {
        let members: Vec<_> = shells
            .into_iter()
            .enumerate()
            .map(|(member, mut shell)| {
                let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
                scope.spawn(move || {
                    let mut input = shell.stdin.take().unwrap();
                    let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines();
                    for number in 0..increments {
                        let text = format!(
                            "begin\nadd n\nput op/{member}/{number} x\ncommit\ncount none/\n"
                        );
                        input.write_all(text.as_bytes()).unwrap();
                        // The count follows the acknowledgement.
                        while lines.next().expect("the shell ended").unwrap() != "0" {}
                    }
                    drop(input);
                    assert!(shell.wait().unwrap().success());
                })
            })
            .collect();
        let watcher = scope.spawn(|| {
            let ended = members.into_iter().map(|member| member.join()).collect::<Vec<_>>();
            // Set also if a member failed, so that the faults end.
            is_over.store(true, Ordering::SeqCst);
            ended.into_iter().for_each(|member| member.unwrap());
        });
        while !is_over.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(150));
            fault(faults);
            faults += 1;
        }
        watcher.join().unwrap();
    });
    println!("{faults} faults");
    faults
}

/// Checks that both members, and one that joins at `joined`, have every commit of
/// [`commit_during_faults`] once.
pub(crate) fn check_members(
    run: &dyn Fn(&[&str]) -> Ran,
    url: &str,
    [one, two]: &[String; 2],
    joined: &str,
    increments: u64,
) {
    let hash = |store: &str| run(&["state-hash", store]).ok().text();
    assert_eq!(hash(one), hash(two));
    let number = run(&["get", two, "n"]).ok().out;
    assert_eq!(i64::from_le_bytes(number.try_into().unwrap()), 2 * increments as i64);
    let listed = run(&["scan", one, "op/", "--keys"]).ok().text();
    assert_eq!(listed.lines().collect::<BTreeSet<_>>().len() as u64, 2 * increments);
    run(&["cluster", "join", url, joined]).ok();
    assert_eq!(hash(joined), hash(one));
}
