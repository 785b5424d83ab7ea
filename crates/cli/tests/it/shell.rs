//! `plimsoll shell`: lines from a pipe and from a person.

use std::fs::File;
use std::io::{Read, Write};
use std::process::Stdio;

use plimsoll::{Db, Options};

use crate::run::{Folder, plimsoll, run, run_with_input, run_without_reader};
use crate::terminal::terminal;

#[test]
fn piped_lines_are_answered_in_order() {
    let folder = Folder::new();
    let store = folder.at("store");
    run_with_input(&["shell", &store], b"put a 1\n").fails(3, &["there is no store"]);
    let lines =
        b"put a 1\nget a\nbegin\nput b 2\ncount\nrollback\ncount\nget a --at 1\n.quit\nput c 3\n";
    assert_eq!(
        run_with_input(&["shell", &store, "--create"], lines).ok().text(),
        "1\n1\n2\n1\n1\n"
    );
    let ran = run_with_input(&["shell", &store], b"delete a a b b\nget a\n")
        .fails(1, &["no key `b`", "no key `a`"]);
    assert_eq!(ran.err.lines().count(), 2, "{}", ran.err);
    run_with_input(&["shell", &store], b"put d 4\nfetch\nput e 5\n")
        .fails(2, &["line 2: there is no command"]);
    assert_eq!(run(&["scan", &store]).ok().text(), "d\t4\n");
    run_with_input(&["shell", &store], b"begin\nput e 5\n").fails(2, &["not committed"]);
    run_with_input(&["shell", &store], b"begin\nput e 5\ncommit\n").ok();
    assert_eq!(run(&["scan", &store]).ok().text(), "d\t4\ne\t5\n");
}

#[test]
fn closed_output_ends_the_shell_and_names_the_line() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "a", "1"]).ok();
    run_without_reader(&["shell", &store], b"put b 2\nput c 3\n")
        .fails(6, &["the output was closed", "line 1 was the last"]);
    let lines = b"begin\nput c 3\nget a\ncommit\n";
    run_without_reader(&["shell", &store], lines)
        .fails(6, &["line 3 was the last", "not committed"]);
    assert_eq!(run(&["scan", &store, "--keys"]).ok().text(), "a\nb\n");
}

#[test]
fn read_only_shell_works_beside_a_writer() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "a", "1"]).ok();
    let writer = Db::open(&store, Options::new().memory_bytes(16 << 20)).unwrap();
    run_with_input(&["shell", &store], b"get a\n").fails(8, &["open for writing"]);
    assert_eq!(run_with_input(&["shell", &store, "--read-only"], b"get a\n").ok().text(), "1\n");
    run_with_input(&["shell", &store, "--read-only"], b"put a 2\n")
        .fails(3, &["line 1", "open read-only"]);
    writer.close().unwrap();
}

#[test]
fn shell_reports_match_the_commands() {
    let folder = Folder::new();
    let store = folder.at("store");
    let lines = b"put a 1\nput 'a b' 2\nput a 22\ndelete 'a b'\nput --file /dev/null '--x'\n";
    run_with_input(&["shell", &store, "--create"], lines).ok();
    let cases: [(&str, &[&str]); 6] = [
        ("history a", &["history", &store, "a"]),
        ("history 'a b' --limit 1", &["history", &store, "a b", "--limit", "1"]),
        ("history '--x'", &["history", &store, "--", "--x"]),
        ("log --limit 2 --reverse --ops", &["log", &store, "--limit", "2", "--reverse", "--ops"]),
        ("log --key \"a b\"", &["log", &store, "--key", "a b"]),
        ("diff 1 newest", &["diff", &store, "1", "newest"]),
    ];
    for (line, command) in cases {
        let expected = run(command);
        for way in ["shell", "batch"] {
            let ran = run_with_input(&[way, &store], format!("{line}\n").as_bytes()).ok();
            // A batch prints the newest GLSN at its end.
            let end = if way == "batch" { "5\n" } else { "" };
            assert_eq!(ran.text(), expected.text() + end, "{line}");
        }
    }
    let stat = run_with_input(&["shell", &store, "--json"], b"stat --exact\n").ok().json();
    assert_eq!((&stat["store"]["keys"], &stat["store"]["newest_glsn"]), (&2.into(), &5.into()));
    run_with_input(&["shell", &store], b"use other\nput b 1\nhistory b\n").ok();
    run_with_input(&["shell", &store], b"history nope\n").fails(1, &["key `nope` never existed"]);
    run_with_input(&["shell", &store], b"log --limit x\n")
        .fails(2, &["line 1", "`x` is not a count"]);
    run_with_input(&["shell", &store], b"log --follow\n").fails(2, &["plimsoll log"]);
    assert!(
        run_with_input(&["shell", &store], b"log --help\n").ok().text().contains("--limit <COUNT>")
    );
}

/// The terminal output when a person types `lines`, each one after the prompt.
fn typed(store: &str, history: &str, lines: &[&str]) -> String {
    let (mut seen, end) = terminal();
    let mut command = plimsoll();
    command.args(["shell", store]).env("TERM", "xterm").env("PLIMSOLL_HISTORY", history);
    command
        .stdin(Stdio::from(end.try_clone().unwrap()))
        .stderr(Stdio::from(end.try_clone().unwrap()));
    command.stdout(Stdio::from(end));
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut text = String::new();
    for line in lines {
        wait_for_prompt(&mut seen, &mut text);
        seen.write_all(format!("{line}\r").as_bytes()).unwrap();
    }
    let mut rest = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(bytes @ 1..) = seen.read(&mut piece) {
        rest.extend_from_slice(&piece[..bytes]);
    }
    assert!(child.wait().unwrap().success());
    text.push_str(&String::from_utf8_lossy(&rest));
    text
}

fn wait_for_prompt(seen: &mut File, text: &mut String) {
    let begun = text.len();
    let mut piece = [0; 4096];
    loop {
        let bytes = seen.read(&mut piece).unwrap();
        text.push_str(&String::from_utf8_lossy(&piece[..bytes]));
        let new = &text[begun..];
        // The prompt is the last output before a line is typed.
        if new.trim_end().ends_with("> ")
            || new.contains("plimsoll> ")
            || new.contains("plimsoll*> ")
        {
            return;
        }
    }
}

#[test]
fn interactive_shell_continues_after_an_error() {
    let folder = Folder::new();
    let (store, history) = (folder.at("store"), folder.at("history"));
    run(&["put", &store, "a", "first value"]).ok();
    let lines = [
        "get a",
        "fetch a",
        "put b 'two words'",
        "begin",
        "put c 3",
        "commit",
        "scan",
        ".help",
        ".quit",
    ];
    let text = typed(&store, &history, &lines);
    for part in [
        "first value",
        "there is no command `fetch`",
        "committed as GLSN 2",
        "plimsoll*>",
        "committed as GLSN 3",
        "two words",
        "rollback",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    let kept = std::fs::read_to_string(&history).unwrap();
    assert!(kept.contains("put b 'two words'"), "{kept}");
    assert_eq!(run(&["scan", &store, "--keys"]).ok().text(), "a\nb\nc\n");
}

#[test]
fn a_new_store_is_created_with_branch_main_only() {
    let folder = Folder::new();
    let store = folder.at("store");
    let create =
        |branch| run_with_input(&["shell", &store, "--create", "--branch", branch], b"put a 1");
    create("draft").fails(3, &[]);
    assert!(!std::path::Path::new(&store).exists());
    create("main").ok();
    assert_eq!(run(&["get", &store, "a"]).ok().text(), "1");
}
