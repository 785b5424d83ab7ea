//! put, get, delete and scan: through pipes, as JSON, and with exit codes for scripts.

use std::io::Read;
use std::process::Stdio;

use plimsoll::{Db, Options};
use serde_json::{Value, json};

use crate::run::{Folder, Ran, plimsoll, run, run_with_input};

#[test]
fn get_returns_the_bytes_put() {
    let folder = Folder::new();
    let store = folder.at("store");
    let large: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    let values: [&[u8]; 4] = [b"", b"text\n", &[0, 255, 10], &large];
    for (number, value) in values.iter().enumerate() {
        let key = format!("key{number}");
        run_with_input(&["put", &store, &key], value).ok();
        assert!(run(&["get", &store, &key]).ok().out == *value, "{key}");
        run_with_input(&["put", &store, &key, "-"], value).ok();
        assert!(run(&["get", &store, &key]).ok().out == *value, "{key}");
    }
}

#[test]
fn put_prints_its_glsn() {
    let folder = Folder::new();
    let store = folder.at("store");
    assert_eq!(run(&["put", &store, "a", "1"]).ok().text(), "1\n");
    assert_eq!(
        run(&["put", &store, "a", "22", "--json"]).ok().json(),
        json!({ "glsn": 2, "bytes": 2 })
    );
}

#[test]
fn missing_key_exits_with_1() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "a", "1"]).ok();
    run(&["get", &store, "b"]).fails(1, &["plimsoll: there is no key `b` at GLSN 1"]);
    run(&["history", &store, "b"]).fails(1, &["key `b` never existed"]);
    assert_eq!(run(&["delete", &store, "b", "a"]).fails(1, &["there is no key `b`"]).text(), "2\n");
    run(&["get", &store, "a"]).fails(1, &["no key `a` at GLSN 2"]);
    assert_eq!(run(&["get", &store, "a", "--at", "1"]).ok().out, b"1");
}

#[test]
fn updates_print_what_became_of_the_key() {
    let folder = Folder::new();
    let store = folder.at("store");
    assert_eq!(run(&["add", &store, "n"]).ok().text(), "1\n");
    assert_eq!(run(&["add", &store, "n", "-3"]).ok().text(), "-2\n");
    assert_eq!(run(&["add", &store, "n", "5", "--json"]).ok().json(), json!({ "value": 3 }));
    assert_eq!(run(&["append", &store, "a", "ab"]).ok().text(), "2\n");
    assert_eq!(run_with_input(&["append", &store, "a"], b"c").ok().text(), "3\n");
    run(&["add", &store, "a"]).fails(2, &["the value of a has 3 bytes"]);
    run(&["add", &store, "n", &i64::MAX.to_string()]).fails(2, &["does not fit"]);
    run(&["cas", &store, "a", "abc", "d"]).ok();
    run(&["cas", &store, "a", "abc", "e"]).fails(1, &["the value of `a` is not the expected one"]);
    assert_eq!(
        run(&["cas", &store, "b", "--absent", "1", "--json"]).ok().json(),
        json!({ "swapped": true })
    );
    run(&["cas", &store, "b", "1", "--delete"]).ok();
    run(&["get", &store, "b"]).fails(1, &["no key `b`"]);
    run(&["cas", &store, "b", "1"]).fails(2, &["expected 2 values"]);
    run_with_input(&["batch", &store], b"add n 4\nappend a !\ncas a d! f\nadd n\n").ok();
    assert_eq!(run(&["add", &store, "n", "0"]).ok().text(), "8\n");
    assert_eq!(run(&["get", &store, "a"]).ok().out, b"f");
    run_with_input(&["batch", &store], b"add n 4\ncas a d f\n").fails(2, &["not the expected"]);
    run_with_input(&["shell", &store], b"add n 2\n").ok();
    assert_eq!(run(&["add", &store, "n", "0"]).ok().text(), "10\n");
}

#[test]
fn keys_are_given_raw_or_as_hex() {
    use std::os::unix::ffi::OsStrExt;

    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "--hex", "00ff0a", "binary"]).ok();
    assert_eq!(run(&["get", &store, "--hex", "00FF0A"]).ok().out, b"binary");
    assert_eq!(run(&["scan", &store, "--hex", "--keys"]).ok().text(), "00ff0a\n");
    assert_eq!(run(&["scan", &store, "--hex", "00f"]).fails(2, &["not hexadecimal"]).out, b"");
    run(&["delete", &store, "--hex", "00ff0a"]).ok();
    let raw = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    assert!(plimsoll().args(["put", &store]).arg(raw).arg("v").output().unwrap().status.success());
    assert_eq!(
        run(&["scan", &store, "--json"]).ok().json(),
        json!({ "key_hex": "fffe", "value": "v" })
    );
    assert_eq!(run(&["scan", &store, "--keys", "--null"]).ok().out, b"\xff\xfe\0");
}

fn store_of_letters(folder: &Folder) -> String {
    let store = folder.at("store");
    for key in ["a", "aa", "b", "c", "d"] {
        run(&["put", &store, key, &format!("value of {key}")]).ok();
    }
    store
}

#[test]
fn scan_honours_prefix_bounds_limit_and_direction() {
    let folder = Folder::new();
    let store = store_of_letters(&folder);
    let cases: [(&[&str], &str); 9] = [
        (&[], "a aa b c d"),
        (&["a"], "a aa"),
        (&["x"], ""),
        (&["--from", "aa", "--to", "c"], "aa b"),
        (&["--from", "b"], "b c d"),
        (&["--to", "b", "--reverse"], "aa a"),
        (&["--limit", "2"], "a aa"),
        (&["--limit", "2", "--reverse"], "d c"),
        (&["--limit", "0"], ""),
    ];
    for (arguments, expected) in cases {
        let ran = run(&[&["scan", store.as_str(), "--keys"], arguments].concat()).ok();
        assert_eq!(
            ran.text().split_whitespace().collect::<Vec<_>>().join(" "),
            expected,
            "{arguments:?}"
        );
    }
}

#[test]
fn delete_takes_a_prefix_or_a_range() {
    let folder = Folder::new();
    let store = folder.at("store");
    let lines: String = (0..300).map(|number| format!("put k{number:03} {number}\n")).collect();
    run_with_input(&["batch", &store], lines.as_bytes()).ok();
    let count = || run(&["count", &store]).ok().text().trim().to_owned();
    let deleted = run(&["delete", &store, "--from", "k100", "--to", "k250", "--json"]).ok().json();
    assert_eq!((deleted, count()), (json!({ "glsn": 2 }), "150".to_owned()));
    run(&["delete", &store, "--prefix", "k00"]).ok();
    assert_eq!(count(), "140");
    run_with_input(&["batch", &store], b"delete --prefix k01\nput k015 again\n").ok();
    assert_eq!(count(), "131");
    run(&["delete", &store, "--from", "b", "--to", "a"]).fails(2, &["range", "empty"]);
    run(&["delete", &store]).fails(2, &[]);
    let log = run(&["log", &store, "--ops", "--json"]).ok().json_lines();
    let ranges = log.iter().flat_map(|entry| entry["ops"].as_array().unwrap());
    let ranges: Vec<_> = ranges.filter(|op| op["op"] == "delete_range").collect();
    assert_eq!(ranges.len(), 1);
    assert_eq!((&ranges[0]["key"], &ranges[0]["end"]), (&json!("k100"), &json!("k250")));
}

#[test]
fn scan_prints_values_as_lines_or_json() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "a\tb", "line\nline\\"]).ok();
    run_with_input(&["put", &store, "c"], b"\xff").ok();
    assert_eq!(run(&["scan", &store]).ok().out, b"a\\tb\tline\\nline\\\\\nc\t\xff\n");
    let expected = [
        json!({ "key": "a\tb", "value": "line\nline\\" }),
        json!({ "key": "c", "value_hex": "ff" }),
    ];
    assert_eq!(run(&["scan", &store, "--json"]).ok().json_lines(), expected);
    assert_eq!(
        run(&["get", &store, "c", "--json"]).ok().json(),
        json!({ "key": "c", "value_hex": "ff", "at": 2 })
    );
}

#[test]
fn values_beyond_the_budget_are_streamed() {
    let folder = Folder::new();
    let store = folder.at("store");
    let text = "é\t".repeat(9_000_000);
    let binary = vec![0xff; 20_000_000];
    run(&["put", &store, "a", "small"]).ok();
    run_with_input(&["put", &store, "b"], text.as_bytes()).ok();
    run_with_input(&["put", &store, "c"], &binary).ok();
    run(&["put", &store, "d", "small"]).ok();
    let with = |arguments: &[&str]| run(&[arguments, &["--memory", "16MiB"]].concat()).ok().out;
    let lines = [
        b"a\tsmall\n".to_vec(),
        [b"b\t", text.replace('\t', "\\t").as_bytes(), b"\n"].concat(),
        [b"c\t", &binary[..], b"\n"].concat(),
        b"d\tsmall\n".to_vec(),
    ];
    assert!(with(&["scan", &store]) == lines.concat());
    assert!(with(&["scan", &store, "--limit", "2"]) == lines[..2].concat());
    let reversed: Vec<Vec<u8>> = lines.iter().rev().cloned().collect();
    assert!(with(&["scan", &store, "--reverse"]) == reversed.concat());
    assert!(with(&["scan", &store, "--limit", "3", "--reverse"]) == reversed[..3].concat());
    let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
    assert!(json(&with(&["get", &store, "b", "--json"]))["value"] == text);
    assert_eq!(
        json(&with(&["get", &store, "c", "--json"]))["value_hex"].as_str().unwrap().len(),
        40_000_000
    );
    let scanned = with(&["scan", &store, "--json"]);
    let rows: Vec<Value> =
        scanned.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).map(json).collect();
    assert_eq!(rows.iter().map(|row| row["key"].as_str().unwrap()).collect::<String>(), "abcd");
    assert!(rows[1]["value"] == text);
}

#[test]
fn prefix_scan_pages_with_from() {
    let folder = Folder::new();
    let store = folder.at("store");
    for key in ["p/a", "p/b", "p/c", "q", "o"] {
        run(&["put", &store, key, "1"]).ok();
    }
    let scan =
        |options: &[&str]| run(&[&["scan", &store, "p/", "--keys"], options].concat()).ok().text();
    assert_eq!(scan(&["--from", "p/b"]), "p/b\np/c\n");
    assert_eq!(scan(&["--from", "p/b", "--limit", "1"]), "p/b\n");
    assert_eq!(scan(&["--to", "p/c", "--reverse"]), "p/b\np/a\n");
    assert_eq!(scan(&["--from", "a", "--to", "z"]), "p/a\np/b\np/c\n");
    assert_eq!(scan(&["--from", "q"]), "");
}

#[test]
fn keyspaces_are_separate() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "k", "one"]).ok();
    run(&["put", &store, "k", "two", "--keyspace", "other"]).ok();
    assert_eq!(run(&["get", &store, "k"]).ok().out, b"one");
    assert_eq!(run(&["get", &store, "k", "--keyspace", "other"]).ok().out, b"two");
    run(&["delete", &store, "k", "--keyspace", "other"]).ok();
    assert_eq!(run(&["scan", &store, "--keys"]).ok().text(), "k\n");
    run(&["scan", &store, "--keyspace", "none"]).fails(2, &["no keyspace `none`", "other"]);
    run(&["delete", &store, "k", "--keyspace", "none"]).fails(2, &["no keyspace `none`"]);
}

#[test]
fn closed_output_ends_the_command_silently() {
    let folder = Folder::new();
    let store = folder.at("store");
    let text: String = (0..50_000).map(|number| format!("{number:08}\tsome value\n")).collect();
    run_with_input(
        &["load", &store, "-", "--format", "tsv", "--no-header", "--value", "2"],
        text.as_bytes(),
    )
    .ok();
    for arguments in [
        vec!["scan", &store],
        vec!["scan", &store, "--json"],
        vec!["log", &store, "--ops"],
        vec!["completions", "bash"],
    ] {
        let mut child = plimsoll()
            .args(&arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0; 16];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stderr), (Some(0), vec![]), "{arguments:?}");
    }
}

#[test]
fn full_disk_behind_stdout_is_an_error() {
    let folder = Folder::new();
    let store = store_of_letters(&folder);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output =
        plimsoll().args(["scan", &store]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(6));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write the output"));
}

#[test]
fn failed_output_states_the_commit() {
    let folder = Folder::new();
    let store = store_of_letters(&folder);
    let batch = folder.file("batch", "put e 5");
    let rows = folder.file("rows.csv", "key,value\nf,6\n");
    let cases: [(&[&str], &str); 12] = [
        (&["put", &store, "dup", "v"], "It is committed as GLSN 6."),
        (&["delete", &store, "dup"], "It is committed as GLSN 7."),
        (&["batch", &store, &batch], "All lines are committed, the last as GLSN 8."),
        (&["load", &store, &rows], "1 row is committed; the newest GLSN is 9."),
        (&["keyspace", "create", &store, "users"], "Keyspace users is in the store."),
        (
            &["keyspace", "retention", &store, "users", "7d"],
            "The retention of keyspace users is now 7d.",
        ),
        (&["keyspace", "drop", &store, "users"], "Keyspace users is dropped as of GLSN 12."),
        (&["cursor", "create", &store, "mailer", "--at", "1"], "Cursor mailer is at GLSN 1."),
        (&["cursor", "advance", &store, "mailer", "2"], "Cursor mailer is at GLSN 2."),
        (&["compact", &store], "The runs are merged."),
        (&["trim", &store, "--until", "2"], "The log begins at GLSN 1."),
        (&["recover", &store, "--dry-run"], "Nothing was written."),
    ];
    for (arguments, done) in cases {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ran = Ran::of(
            plimsoll().args(arguments).stdout(full).stderr(Stdio::piped()).output().unwrap(),
        );
        ran.fails(6, &["cannot write the output", done]);
    }
    assert_eq!(run(&["scan", &store, "--keys"]).ok().text(), "a\naa\nb\nc\nd\ne\nf\n");
}

#[test]
fn negative_numbers_are_keys_and_values_only() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "neg", "-5"]).ok();
    run(&["put", &store, "-7", "x"]).ok();
    assert_eq!(run(&["get", &store, "neg"]).ok().out, b"-5");
    assert_eq!(run(&["scan", &store, "-7"]).ok().text(), "-7\tx\n");
    assert_eq!(
        run(&["scan", &store, "--from", "-6", "--to", "a", "--limit", "1", "--keys"]).ok().text(),
        "-7\n"
    );
    run(&["delete", &store, "-7"]).ok();
    let cases: [(&[&str], &str); 9] = [
        (&["scan", &store, "--limit", "-1"], "`-1` is not a count; write a whole number, e.g. 10"),
        (&["scan", &store, "--limit", "x"], "`x` is not a count"),
        (&["get", &store, "neg", "--at", "-1"], "`-1` is not a moment"),
        (&["trim", &store, "--until", "-1"], "`-1` is not a moment"),
        (&["log", &store, "--from", "-1"], "`-1` is not a GLSN; write a whole number, e.g. 120"),
        (&["log", &store, "--stream", "-1"], "`-1` is not the number of a stream"),
        (&["cursor", "advance", &store, "c", "-1"], "`-1` is not a GLSN"),
        (&["load", &store, "x.csv", "--batch", "-1"], "`-1` is not a whole number of at least 1"),
        (&["stat", &store, "--memory", "-1"], "`-1` is not a size"),
    ];
    for (arguments, message) in cases {
        let ran = run(arguments).fails(2, &[message]);
        assert!(!ran.err.contains("-- -"), "{}", ran.err);
    }
}

#[test]
fn second_writer_error_names_the_holder() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "a", "1"]).ok();
    let writer = Db::open(&store, Options::new().memory_bytes(32 << 20)).unwrap();
    let pid = format!("pid {}", std::process::id());
    run(&["put", &store, "c", "3"]).fails(8, &["open for writing in another process", &pid]);
    assert_eq!(run(&["get", &store, "a"]).ok().out, b"1");
    for command in
        [vec!["scan", &store], vec!["stat", &store], vec!["verify", &store], vec!["log", &store]]
    {
        run(&command).ok();
    }
    let mut transaction = writer.begin();
    transaction.put(&writer.keyspace("default").unwrap(), b"b", b"2").unwrap();
    transaction.commit().unwrap();
    assert_eq!(run(&["get", &store, "b"]).ok().out, b"2");
    let backup = folder.at("backup");
    run(&["backup", &store, &backup]).ok();
    assert_eq!(run(&["scan", &backup]).ok().text(), "a\t1\nb\t2\n");
    writer.close().unwrap();
    run(&["put", &store, "c", "3"]).ok();
}

#[test]
fn long_value_in_pieces_matches_short_one() {
    let folder = Folder::new();
    let store = folder.at("store");
    let text = "tab\t line\n \\ é€😀".repeat(20_000);
    run_with_input(&["put", &store, "text"], text.as_bytes()).ok();
    let bytes = [text.as_bytes(), b"\xff"].concat();
    run_with_input(&["put", &store, "bytes"], &bytes).ok();
    let field = |value: &[u8]| {
        let escaped = |byte: &u8| match byte {
            b'\t' => b"\\t".to_vec(),
            b'\n' => b"\\n".to_vec(),
            b'\\' => b"\\\\".to_vec(),
            other => vec![*other],
        };
        value.iter().flat_map(escaped).collect::<Vec<u8>>()
    };
    let lines =
        [b"bytes\t", &field(&bytes)[..], b"\ntext\t", &field(text.as_bytes()), b"\n"].concat();
    assert!(run(&["scan", &store]).ok().out == lines);
    let json = run(&["scan", &store, "--json"]).ok().json_lines();
    assert!(json[0]["value_hex"].as_str().is_some_and(|hex| hex::decode(hex).unwrap() == bytes));
    assert!(json[1]["value"].as_str() == Some(&text));
}

#[test]
fn values_expire_as_the_commands_say() {
    let folder = Folder::new();
    let store = folder.at("store");
    let left = |key: &str| {
        let text = run(&["ttl", &store, key]).ok().text();
        text.trim().parse::<f64>().ok().map(|seconds| (seconds / 60.0).ceil() as u64)
    };
    run(&["put", &store, "a", "1", "--ttl", "5m"]).ok();
    run_with_input(&["put", &store, "b", "--ttl", "10m"], b"2").ok();
    run(&["put", &store, "c", "3"]).ok();
    assert_eq!((left("a"), left("b"), left("c")), (Some(5), Some(10), None));
    run(&["expire", &store, "c", "7m"]).ok();
    run(&["persist", &store, "a"]).ok();
    assert_eq!((left("a"), left("c")), (None, Some(7)));
    assert!(run(&["ttl", &store, "c", "--json"]).ok().json()["ttl_seconds"].as_f64().is_some());
    assert!(run(&["ttl", &store, "a", "--json"]).ok().json()["expires"].is_null());
    for command in [&["ttl", &store, "d"][..], &["persist", &store, "d"]] {
        run(command).fails(1, &["`d`"]);
    }
    run(&["expire", &store, "d", "1m"]).fails(1, &["`d` has no value"]);
    run(&["put", &store, "d", "1", "--ttl", "0s"]).fails(2, &["at least 1 µs"]);
    run(&["put", &store, "e", "1", "--ttl", "1us"]).ok();
    run(&["get", &store, "e"]).fails(1, &["no key `e`"]);
    let lines = b"put f 1 --ttl 3m\nput g 1\nexpire g 4m\nput h 1 --ttl 3m\npersist h\n";
    run_with_input(&["batch", &store], lines).ok();
    assert_eq!((left("f"), left("g"), left("h")), (Some(3), Some(4), None));
    let told = run_with_input(&["shell", &store], b"ttl h\nttl g\n").ok().text();
    assert_eq!(told.lines().count(), 2);
    run(&["keyspace", "create", &store, "codes", "--ttl", "2h"]).ok();
    run(&["put", &store, "a", "1", "--keyspace", "codes"]).ok();
    let text = run(&["ttl", &store, "a", "--keyspace", "codes"]).ok().text();
    assert!(text.trim().parse::<f64>().is_ok_and(|left| left > 7000.0), "{text}");
    assert_eq!(run(&["keyspace", "ttl", &store, "codes"]).ok().text(), "codes\t2h\n");
    assert!(run(&["stat", &store]).ok().text().contains("retention forever; expires after 2h"));
    assert_eq!(
        run(&["stat", &store, "--json"]).ok().json()["keyspaces"]["codes"]["ttl_seconds"],
        7200.0
    );
    run(&["keyspace", "ttl", &store, "codes", "none"]).ok();
    assert_eq!(run(&["keyspace", "ttl", &store, "codes"]).ok().text(), "codes\tnone\n");
}
