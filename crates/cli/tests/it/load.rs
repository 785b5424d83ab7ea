//! Loading CSV, TSV and JSON lines, and the errors of malformed rows.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use crate::run::{Folder, Ran, plimsoll, run, run_with_input};

fn scanned(store: &str) -> String {
    run(&["scan", store]).ok().text()
}

#[test]
fn csv_row_becomes_json_under_its_first_column() {
    let folder = Folder::new();
    let store = folder.at("store");
    let file =
        folder.file("people.csv", "email,name,age\nada@x,\"Lovelace, Ada\",36\nbob@x,Bob,\n");
    let facts = run(&["load", &store, &file, "--json"]).ok().json();
    assert_eq!((&facts["rows"], &facts["transactions"]), (&2.into(), &1.into()));
    let value: Value = serde_json::from_slice(&run(&["get", &store, "ada@x"]).ok().out).unwrap();
    assert_eq!(value, json!({ "name": "Lovelace, Ada", "age": "36" }));
    assert_eq!(run(&["scan", &store, "--keys"]).ok().text(), "ada@x\nbob@x\n");
}

#[test]
fn key_and_value_can_be_chosen_in_every_format() {
    let folder = Folder::new();
    let files = [
        folder.file("a.csv", "x,y,z\n1,2,3\n"),
        folder.file("a.tsv", "x\ty\tz\n1\t2\t3\n"),
        folder.file("a.jsonl", "{\"x\":1,\"y\":2,\"z\":\"3\"}\n"),
    ];
    for (number, file) in files.iter().enumerate() {
        let store = folder.at(&number.to_string());
        run(&["load", &store, file, "--key", "y", "--value", "z"]).ok();
        assert_eq!(scanned(&store), "2\t3\n", "{file}");
    }
}

#[test]
fn csv_with_another_delimiter_needs_the_option() {
    let folder = Folder::new();
    let cases = [("a;b\n1;2\n", ";"), ("a\tb\n1\t2\n", "\\t"), ("a|b\n1|2\n", "|")];
    for (number, (text, delimiter)) in cases.into_iter().enumerate() {
        let (store, file) = (folder.at(&number.to_string()), folder.file("a.csv", text));
        for header in [&["--no-header"][..], &[]] {
            let ran = run(&[&["load", &store, &file], header].concat());
            ran.fails(
                2,
                &[
                    "line 1",
                    &format!("`{delimiter}` seems to separate"),
                    &format!("--delimiter '{delimiter}'"),
                ],
            );
        }
        assert!(!std::fs::exists(&store).unwrap());
        run(&["load", &store, &file, "--delimiter", delimiter]).ok();
        assert_eq!(scanned(&store), "1\t{\"b\":\"2\"}\n");
        run(&["load", &store, &file, "--delimiter", ","]).ok();
        assert_eq!(run(&["count", &store]).ok().text(), "2\n");
    }
    let store = folder.at("store");
    // Quoted, or one of several columns: the delimiter is text.
    for text in ["\"a;b\"\n1\n", "a;b,c\n1,2\n"] {
        run_with_input(&["load", &store, "-", "--format", "csv"], text.as_bytes()).ok();
    }
    for (delimiter, format, part) in
        [("ab", "csv", "one ASCII character"), ("\"", "csv", "a quote"), (";", "tsv", "is for CSV")]
    {
        run(&["load", &store, "-", "--format", format, "--delimiter", delimiter]).fails(2, &[part]);
    }
}

#[test]
fn stdin_needs_a_format() {
    let folder = Folder::new();
    let store = folder.at("store");
    run_with_input(&["load", &store, "-"], b"a,b\n")
        .fails(2, &["cannot infer the format", "--format csv"]);
    run_with_input(
        &["load", &store, "-", "--format", "csv", "--no-header", "--value", "2"],
        b"k,v\n",
    )
    .ok();
    assert_eq!(scanned(&store), "k\tv\n");
}

#[test]
fn long_rows_need_max_row() {
    let folder = Folder::new();
    let (old, new) = (folder.at("old"), folder.at("new"));
    let value = "x".repeat(5 << 20);
    run_with_input(&["put", &old, "long", "-"], value.as_bytes()).ok();
    let rows = run(&["scan", &old, "--json"]).ok().out;
    let load = ["load", &new, "-", "--format", "jsonl", "--key", "key", "--value", "value"];
    run_with_input(&load, &rows)
        .fails(2, &["line 1: the row is longer than 4.0 MiB; raise the limit with --max-row"]);
    for longest in ["6MiB", &u64::MAX.to_string()] {
        run_with_input(&[&load[..], &["--max-row", longest]].concat(), &rows).ok();
        assert_eq!(run(&["get", &new, "long"]).ok().text(), value);
        run(&["delete", &new, "long"]).ok();
    }
    // With quotes, an unclosed quote is the likelier cause of an overlong row.
    let csv = format!("k,v\n1,\"{value}\"\n");
    let load = ["load", &new, "-", "--format", "csv", "--value", "v"];
    run_with_input(&load, csv.as_bytes()).fails(
        2,
        &[
            "line 2",
            "the row is longer than 4.0 MiB (is a closing quote missing?); raise the limit with \
             --max-row",
        ],
    );
    run_with_input(&[&load[..], &["--max-row", "6MiB"]].concat(), csv.as_bytes()).ok();
    assert_eq!(run(&["get", &new, "1"]).ok().text(), value);
}

#[test]
fn rows_commit_in_batches_or_at_once() {
    let folder = Folder::new();
    let text: String = (0..2500).map(|number| format!("{number},{number}\n")).collect();
    let file = folder.file("many.csv", text);
    for (store, options, transactions) in [
        ("batches", vec!["--batch", "1000"], 3),
        ("one", vec!["--atomic"], 1),
        ("default", vec![], 1),
    ] {
        let store = folder.at(store);
        let arguments = [vec!["load", &store, &file, "--no-header", "--json"], options].concat();
        let facts = run(&arguments).ok().json();
        assert_eq!((&facts["rows"], &facts["transactions"]), (&2500.into(), &transactions.into()));
        assert_eq!(scanned(&store).lines().count(), 2500);
    }
}

#[test]
fn malformed_row_names_its_line() {
    let folder = Folder::new();
    let store = folder.at("store");
    let bad = "k,v\n1,a\n2,\"b\nb\"\n3\n4,d\n";
    let file = folder.file("bad.csv", bad);
    let ran = run(&["load", &store, &file, "--value", "v", "--batch", "1"]);
    ran.fails(
        2,
        &["bad.csv, line 5", "has 1 field, the first line has 2", "2 rows were loaded", "--skip 2"],
    );
    assert_eq!(scanned(&store), "1\ta\n2\tb\\nb\n");
    let mended = folder.file("bad.csv", bad.replace("3\n", "3,c\n"));
    let facts =
        run(&["load", &store, &mended, "--value", "v", "--skip", "2", "--json"]).ok().json();
    assert_eq!(facts["rows"], 2);
    assert_eq!(scanned(&store), "1\ta\n2\tb\\nb\n3\tc\n4\td\n");
}

#[test]
fn partial_batch_stays_and_single_commit_is_atomic() {
    let folder = Folder::new();
    let file = folder.file("bad.jsonl", "{\"k\":1}\n{\"k\":2}\nnonsense\n");
    let store = folder.at("store");
    let ran = run(&["load", &store, &file, "--key", "k", "--batch", "1000"]);
    ran.fails(2, &["line 3", "not a JSON object", "2 rows were loaded", "--skip 2"]);
    assert_eq!(scanned(&store).lines().count(), 2);
    for options in [&["--atomic"][..], &[]] {
        let all = folder.at(&format!("all{}", options.len()));
        let ran = run(&[&["load", &all, &file, "--key", "k"], options].concat());
        ran.fails(2, &["line 3", "Nothing was loaded", "--batch"]);
        assert_eq!(scanned(&all), "");
    }
}

#[test]
fn other_malformed_rows_name_their_line() {
    let folder = Folder::new();
    let long = format!("k,v\n1,2\n{},x\n", "k".repeat(5000));
    let cases: [(&str, &[u8], &[&str]); 6] = [
        ("open.csv", b"k,v\n1,2\n3,\"open\n4,5\n", &["line 3", "never closed"]),
        ("behind.csv", b"k,v\n\"1\"x,2\n", &["line 2", "closing quote"]),
        ("long.csv", long.as_bytes(), &["line 3", "the key has 5,000 bytes; the maximum is 4,096"]),
        ("bytes.csv", b"k,v\n1,\xff\n", &["line 2", "not UTF-8", "--value"]),
        ("twice.tsv", b"k\tk\n1\t2\n", &["line 1", "two columns are called `k`", "--no-header"]),
        ("key.jsonl", b"{\"id\":1}\n{\"id\":[]}\n", &["line 2", "is not a key"]),
    ];
    for (name, text, parts) in cases {
        let (store, file) = (folder.at(&format!("{name}.store")), folder.file(name, text));
        let key = if name.ends_with("jsonl") { "id" } else { "k" };
        run(&["load", &store, &file, "--key", key]).fails(2, parts);
    }
}

#[test]
fn empty_load_creates_no_keyspace() {
    let folder = Folder::new();
    let store = folder.at("store");
    let load = ["load", &store, "-", "--format", "jsonl", "--key", "id", "--keyspace", "rows"];
    run_with_input(&load, b"{\"id\":1").fails(2, &["line 1", "Nothing was loaded"]);
    assert_eq!(run(&["log", &store]).ok().text(), "");
    run_with_input(&load, b"{\"id\":1}").ok();
    assert_eq!(run(&["count", &store, "--keyspace", "rows"]).ok().text(), "1\n");
}

#[test]
fn wrong_column_or_file_leaves_no_store() {
    let folder = Folder::new();
    let store = folder.at("store");
    let csv = folder.file("a.csv", "k,v\n1,2\n");
    let jsonl = folder.file("a.jsonl", "{}\n");
    let gzip = folder.file("a.csv.gz", b"\x1f\x8b\x08\x00 and so on");
    let zstd = folder.file("a.csv.zst", zstd::encode_all(&b"k,v\n"[..], 1).unwrap());
    let cases: [(&[&str], &[&str]); 9] = [
        (&[&csv, "--key", "x"], &["no column `x`; there are: k, v"]),
        (&[&jsonl], &["name the key field with --key"]),
        (&[&folder.at("none.csv")], &["there is no such file"]),
        (&[folder.path().to_str().unwrap(), "--format", "csv"], &["a folder; give a file"]),
        (&[folder.path().to_str().unwrap()], &["a folder; give a file"]),
        (
            &[&gzip, "--format", "jsonl", "--key", "k"],
            &["this looks like gzip", "`zcat FILE | plimsoll load STORE - --format"],
        ),
        (&[&gzip, "--format", "csv"], &["this looks like gzip"]),
        (&[&gzip], &["this looks like gzip"]),
        (&[&zstd], &["this looks like zstd", "`zstdcat FILE | plimsoll load"]),
    ];
    for (arguments, parts) in cases {
        run(&[&["load", store.as_str()], arguments].concat()).fails(2, parts);
        assert!(!std::fs::exists(&store).unwrap());
    }
}

#[test]
fn large_load_keeps_to_the_budget() {
    let folder = Folder::new();
    let value = "v".repeat(900);
    let text: String = (0..60_000).map(|number| format!("{number},{value}\n")).collect();
    assert!(text.len() > 50 << 20);
    let file = folder.file("large.csv", text);
    let facts =
        run(&["load", &folder.at("store"), &file, "--no-header", "--atomic", "--json"]).ok().json();
    assert_eq!((&facts["rows"], &facts["transactions"]), (&60_000.into(), &1.into()));
    let peak = facts["peak_memory"].as_u64().unwrap();
    assert!(peak <= (32 + 16) << 20, "{peak}");
}

#[test]
fn byte_order_mark_is_not_part_of_a_key() {
    let folder = Folder::new();
    let cases: [(&[&str], &str); 4] = [
        (&["load", "--format", "csv", "--key", "a", "--value", "b"], "a,b\nx,1\n"),
        (&["load", "--format", "tsv", "--no-header", "--value", "2"], "x\t1\n"),
        (
            &["load", "--format", "jsonl", "--key", "a", "--value", "b"],
            "{\"a\":\"x\",\"b\":\"1\"}\n",
        ),
        (&["batch"], "put x 1\n"),
    ];
    for (number, (arguments, text)) in cases.iter().enumerate() {
        let store = folder.at(&number.to_string());
        let mut command = plimsoll();
        command.arg(arguments[0]).args([&store, "-"]).args(&arguments[1..]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        for byte in ["\u{feff}", text].concat().bytes() {
            stdin.write_all(&[byte]).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
        drop(stdin);
        Ran::of(child.wait_with_output().unwrap()).ok();
        assert_eq!(scanned(&store), "x\t1\n", "{arguments:?}");
    }
    let store = folder.at("shell");
    run_with_input(&["shell", &store, "--create"], "\u{feff}put x 1\n".as_bytes()).ok();
    assert_eq!(scanned(&store), "x\t1\n");
}

#[test]
fn empty_key_is_a_malformed_row() {
    let folder = Folder::new();
    let cases = [
        ("csv", "k,v\na,1\n,2\n\"\",3\n"),
        ("jsonl", "{\"k\":\"a\",\"v\":1}\n{\"k\":\"\",\"v\":2}\n"),
    ];
    for (format, text) in cases {
        let store = folder.at(format);
        let load = ["load", &store, "-", "--format", format, "--key", "k", "--value", "v"];
        run_with_input(&load, text.as_bytes())
            .fails(2, &["the key is empty", "Nothing was loaded"]);
        run_with_input(&[&load[..], &["--ignore-errors"]].concat(), text.as_bytes()).ok();
        assert_eq!(scanned(&store), "a\t1\n");
    }
}
