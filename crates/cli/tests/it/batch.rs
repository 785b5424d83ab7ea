//! `plimsoll batch`: one transaction or one per line, and errors that name their line.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::run::{Folder, Ran, plimsoll, run, run_with_input, run_without_reader};
use crate::signals::{stopped, wait_until_signals_are_heard};

fn batch(store: &str, options: &[&str], lines: &str) -> Ran {
    run_with_input(&[&["batch", store], options].concat(), lines.as_bytes())
}

fn commits(store: &str) -> usize {
    run(&["log", store]).ok().text().lines().count()
}

#[test]
fn lines_form_one_transaction() {
    let folder = Folder::new();
    let store = folder.at("store");
    let lines = "# people\nput ada 'Ada Lovelace'\n\nput \"two words\" \"line\\nbreak\"\nput gone \
                 x\ndelete gone\n";
    assert_eq!(batch(&store, &[], lines).ok().text(), "1\n");
    assert_eq!(commits(&store), 1);
    assert_eq!(run(&["get", &store, "ada"]).ok().out, b"Ada Lovelace");
    assert_eq!(run(&["get", &store, "two words"]).ok().out, b"line\nbreak");
    run(&["get", &store, "gone"]).fails(1, &[]);
}

#[test]
fn lines_accept_any_byte_and_values_from_files() {
    let folder = Folder::new();
    let store = folder.at("store");
    let file = folder.file("value", b"\x00from a file");
    batch(&store, &[], &format!("put \\x00\\xff \"\\x01\"\nput '--key' --file '{file}'\n")).ok();
    assert_eq!(run(&["get", &store, "--hex", "00ff"]).ok().out, b"\x01");
    assert_eq!(run(&["get", &store, "--", "--key"]).ok().out, b"\x00from a file");
}

#[test]
fn lines_read_earlier_writes() {
    let folder = Folder::new();
    let store = folder.at("store");
    let lines = "put a 1\nput b 2\nget a\nscan\nscan b --keys\ncount\nput a 3\nget a\n";
    assert_eq!(batch(&store, &[], lines).ok().text(), "1\na\t1\nb\t2\nb\n2\n3\n1\n");
    let other = folder.at("other");
    assert_eq!(batch(&other, &["--each-line"], lines).ok().text(), "1\na\t1\nb\t2\nb\n2\n3\n3\n");
    let json = batch(&store, &["--json"], "put a 1\nget a\nget c\n")
        .fails(1, &["there is no key `c`"])
        .json_lines();
    assert_eq!(json[0]["value"], "1");
    assert_eq!(
        (&json[1]["lines"], &json[1]["transactions"], &json[1]["glsn"]),
        (&3.into(), &1.into(), &2.into())
    );
}

#[test]
fn error_names_its_line_and_commits_nothing() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "a", "0"]).ok();
    let cases = [
        ("put a 1\n\nfetch a\n", 2, "line 3: there is no command `fetch`"),
        ("put a 1\nput b\n", 2, "line 2: a value, or --file PATH, is missing"),
        ("put a 1\nput b 'x\n", 2, "line 2: a ' is not closed"),
        ("put a 1\nput b --file /there/is/none\n", 2, "line 2: /there/is/none"),
        ("put a 1\nget a --at 7\n", 2, "line 2: GLSN 7 is in the future"),
        ("put a 1\ncommit\n", 2, "line 2: all lines are one transaction"),
        ("put a 1\nuse nowhere\nscan\n", 2, "line 3: there is no keyspace `nowhere`"),
    ];
    for (lines, code, part) in cases {
        let ran = batch(&store, &[], lines).fails(code, &[part, "Nothing was committed."]);
        assert!(ran.out.is_empty(), "{lines}");
        assert_eq!(
            (run(&["get", &store, "a"]).ok().out, commits(&store)),
            (b"0".to_vec(), 1),
            "{lines}"
        );
    }
    let long = format!("put a 1\nput b {}\n", "x".repeat(17 << 20));
    batch(&store, &[], &long).fails(2, &["16 MiB", "--file"]);
}

#[test]
fn each_line_keeps_lines_before_the_error() {
    let folder = Folder::new();
    let store = folder.at("store");
    let message = "The transactions before it are committed, the last as GLSN 2.";
    batch(&store, &["--each-line"], "put a 1\nput b 2\nfetch\nput c 3\n")
        .fails(2, &["line 3: ", message]);
    assert_eq!(run(&["scan", &store]).ok().text(), "a\t1\nb\t2\n");
    let lines: String = (0..3000).map(|number| format!("put key{number} value\n")).collect();
    assert_eq!(batch(&store, &["--each-line"], &lines).ok().text(), "3002\n");
    assert_eq!(commits(&store), 3002);
}

#[test]
fn begin_and_commit_group_lines() {
    let folder = Folder::new();
    let store = folder.at("store");
    let lines = "begin\nput a 1\nget a\nrollback\nbegin\nput b 2\nput c 3\ncommit\nput d 4\n";
    assert_eq!(batch(&store, &["--each-line"], lines).ok().text(), "1\n2\n");
    assert_eq!(run(&["scan", &store, "--keys"]).ok().text(), "b\nc\nd\n");
    batch(&store, &["--each-line"], "begin\nput e 5\n").fails(2, &["no `commit`"]);
    batch(&store, &["--each-line"], "begin\nbegin\n").fails(2, &["line 2", "open already"]);
    batch(&store, &["--each-line"], "commit\n").fails(2, &["line 1", "no transaction is open"]);
    run(&["get", &store, "e"]).fails(1, &[]);
}

#[test]
fn use_selects_the_keyspace() {
    let folder = Folder::new();
    let store = folder.at("store");
    batch(&store, &["--keyspace", "first"], "put a 1\nuse second\nput a 2\nkeyspaces\n").ok();
    assert_eq!(run(&["get", &store, "a", "--keyspace", "first"]).ok().out, b"1");
    assert_eq!(run(&["get", &store, "a", "--keyspace", "second"]).ok().out, b"2");
}

#[test]
fn commits_do_not_depend_on_the_output_reader() {
    let folder = Folder::new();
    for mode in [&[][..], &["--each-line"]] {
        let store = folder.at(&format!("store{}", mode.len()));
        // More than one write's worth of output.
        run_with_input(&["put", &store, "large"], &[b'x'; 200_000]).ok();
        let lines = b"put a 1\nget large\nput b 2\nget none\n";
        run_without_reader(&[&["batch", store.as_str()], mode].concat(), lines)
            .fails(1, &["no key `none`"]);
        assert_eq!(run(&["scan", &store, "--keys"]).ok().text(), "a\nb\nlarge\n");
    }
    // The exit code of other commands does not depend on the reader either.
    run_without_reader(&["delete", &folder.at("store0"), "none"], b"").fails(1, &["no key `none`"]);
}

#[test]
fn unreadable_script_leaves_no_store() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["batch", &store, "/there/is/none"]).fails(2, &["/there/is/none"]);
    assert!(!folder.path().join("store").exists());
    let script = folder.file("script", "put a 1\n");
    run(&["batch", &store, &script]).ok();
    assert_eq!(run(&["get", &store, "a"]).ok().out, b"1");
}

#[test]
fn signal_stops_batch_waiting_for_input() {
    for (mode, committed, said) in [
        (
            &["--each-line"][..],
            ["1", "2"],
            "interrupted before line 3\nThe transactions before it are committed",
        ),
        (&[], ["", ""], "interrupted; nothing was committed"),
    ] {
        let folder = Folder::new();
        let store = folder.at("store");
        let mut command = plimsoll();
        command.args(["batch", &store]).args(mode);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = child.stdin.take().unwrap();
        lines.write_all(b"put a 1\nput b 2\nput c").unwrap();
        let begun = Instant::now();
        while rustix::io::ioctl_fionread(&lines).unwrap() > 0
            || run(&["get", &store, "b"]).out != committed[1].as_bytes()
        {
            assert!(begun.elapsed() < Duration::from_secs(60), "the lines are not committed");
            std::thread::sleep(Duration::from_millis(2));
        }
        let ran = stopped(child, Signal::INT).fails(130, &[said]);
        assert!(!ran.err.contains("panicked"), "{}", ran.err);
        for (key, value) in ["a", "b"].into_iter().zip(committed) {
            assert_eq!(run(&["get", &store, key]).out, value.as_bytes());
        }
        run(&["get", &store, "c"]).fails(1, &[]);
        drop(lines);
    }
}

#[test]
fn signal_stops_batch_waiting_for_a_writer() {
    let folder = Folder::new();
    let (store, pipe) = (folder.at("store"), folder.at("pipe"));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut command = plimsoll();
    command.args(["batch", &store, &pipe, "--each-line"]);
    let child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until_signals_are_heard(&child);
    stopped(child, Signal::INT).fails(130, &["interrupted before line 1"]);
    // With a writer, the pipe is read to its end.
    let writer = std::thread::spawn(move || std::fs::write(pipe, "put a 1\nput b 2\n").unwrap());
    let pipe = folder.at("pipe");
    run(&["batch", &store, &pipe]).ok();
    writer.join().unwrap();
    assert_eq!(run(&["get", &store, "b"]).out, b"2");
}

#[test]
fn printed_keys_parse_back() {
    let folder = Folder::new();
    let mut random = fastrand::Rng::new();
    let seed = random.get_seed();
    println!("seed {seed}");
    let own = [
        &b"#a"[..],
        b"--a",
        b"-",
        b"a b",
        b" ",
        b"it's \"x\"",
        b"\\",
        b"\0\x1b\x7f",
        "\u{85}é\u{a0}".as_bytes(),
    ];
    let mut keys: BTreeSet<Vec<u8>> = own.iter().map(|key| key.to_vec()).collect();
    keys.extend((0..300).map(|_| {
        let bytes = random.usize(1..12);
        std::iter::repeat_with(|| random.u8(..)).take(bytes).collect()
    }));
    let store = folder.at("store");
    let mut lines = Vec::new();
    for key in &keys {
        lines.extend_from_slice(b"put \"");
        key.iter().for_each(|byte| lines.extend_from_slice(format!("\\x{byte:02x}").as_bytes()));
        lines.extend_from_slice(b"\" value\n");
    }
    run_with_input(&["batch", &store], &lines).ok();
    let stored = run(&["scan", &store, "--keys", "--null"]).ok().out;
    let of_scan = run(&["scan", &store, "--keys"]).ok().text();
    let of_shell = run_with_input(&["shell", &store], b"scan --keys\n").ok().text();
    let of_people = run(&["scan", &store, "--keys", "--color", "always"]).ok().text();
    let of_log = run(&["log", &store, "--ops"]).ok().text();
    let of_log: Vec<&str> =
        of_log.lines().skip(1).map(|line| line.rsplit('\t').next().unwrap()).collect();
    let of_diff = run(&["diff", &store, "0", "1"]).fails(1, &[]).text();
    let of_diff: Vec<&str> = of_diff.lines().map(|line| line.split('\t').nth(3).unwrap()).collect();
    assert_eq!((&of_shell, &of_people), (&of_scan, &of_scan));
    assert_eq!(of_log.join("\n"), of_scan.trim_end_matches('\n'));
    assert_eq!(of_diff.join("\n"), of_scan.trim_end_matches('\n'));
    let lines: String = of_scan.lines().map(|key| format!("put {key} again\n")).collect();
    batch(&store, &[], &lines).ok();
    let lines: String = of_scan.lines().map(|key| format!("get {key}\n")).collect();
    assert_eq!(
        run_with_input(&["shell", &store], lines.as_bytes()).ok().text(),
        "again\n".repeat(keys.len())
    );
    assert_eq!(
        run(&["scan", &store, "--keys", "--null"]).ok().out,
        stored,
        "no other key was made"
    );
}
