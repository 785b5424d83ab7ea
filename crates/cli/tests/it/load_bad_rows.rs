//! Ways past a malformed row: correct it, skip it with --skip, or leave out all malformed rows.

use serde_json::json;

use crate::run::{Folder, run, run_with_input};

fn scanned(store: &str) -> String {
    run(&["scan", store]).ok().text()
}

#[test]
fn advice_for_a_malformed_row_works() {
    let folder = Folder::new();
    let text = "{\"id\":1}\n{\"id\":2}\nnonsense\n{\"id\":4}\n";
    let file = folder.file("a.jsonl", text);
    let mended = folder.file("mended.jsonl", text.replace("nonsense", "{\"id\":3}"));
    let advice = "2 rows were loaded; correct line 3 and resume with --skip 2, or leave out \
                  that row with --skip 3, or all bad rows with --ignore-errors.";
    for (then, keys) in [
        ([mended.as_str(), "--skip", "2"].as_slice(), "1\n2\n3\n4\n"),
        (&[&file, "--skip", "3"], "1\n2\n4\n"),
        (&[&file, "--skip", "2", "--ignore-errors"], "1\n2\n4\n"),
    ] {
        let store = folder.at(&format!("store{}", then.join("").len()));
        let load =
            |more: &[&str]| run(&[&["load", &store, "--key", "id", "--batch", "1"], more].concat());
        load(&[&file]).fails(2, &["line 3: not a JSON object", advice]);
        load(then).ok();
        assert_eq!(run(&["scan", &store, "--keys"]).ok().text(), keys, "{then:?}");
    }
    let first = folder.file("first.csv", "k,v\n1\n2,b\n");
    let store = folder.at("first");
    run(&["load", &store, &first, "--batch", "1"]).fails(
        2,
        &["Nothing was loaded; correct line 2 and run the command again, or leave out that row \
           with --skip 1"],
    );
    run(&["load", &store, &first, "--skip", "1"]).ok();
    assert_eq!(run(&["count", &store]).ok().text(), "1\n");
}

#[test]
fn malformed_rows_are_skipped_counted_and_listed() {
    let folder = Folder::new();
    let long = "k".repeat(5000);
    let csv = format!("k,v\n1,a\n2\n\"3\"x,c\n4,d\n5,\"\"\n6\r,f\n{long},g\n8,\"h\nh\"\n9,i\n");
    let jsonl = format!(
        "{{\"k\":1,\"v\":\"a\"}}\n[2]\n{{\"k\":null}}\n{{\"k\":\"{}\"}}\n{{\"k\":5,\"v\":\"e\"}}",
        "k".repeat(20_000)
    );
    let tsv = format!("k\tv\n1\ta\n{}\n2\tb", "x".repeat(200_000));
    let cases: [(&str, &str, &str, &[&str]); 3] = [
        (
            "csv",
            &csv,
            "1\ta\n4\td\n5\t\n8\th\\nh\n9\ti\n",
            &[
                "line 3: the row has 1",
                "line 4: there is text",
                "line 7: a carriage return",
                "line 8: the key has 5,000",
            ],
        ),
        (
            "jsonl",
            &jsonl,
            "1\ta\n5\te\n",
            &[
                "line 2: not a JSON object",
                "line 3: field `k` is not a key",
                "line 4: the row is longer than",
            ],
        ),
        ("tsv", &tsv, "1\ta\n2\tb\n", &["line 3: the row is longer than"]),
    ];
    for (format, text, rows, named) in cases {
        for batch in [&["--batch", "2"][..], &[]] {
            let store = folder.at(&format!("{format}{}", batch.len()));
            let load = [
                "load",
                &store,
                "-",
                "--format",
                format,
                "--key",
                "k",
                "--value",
                "v",
                "--max-row",
                "16KiB",
                "--ignore-errors",
                "--json",
            ];
            let ran = run_with_input(&[&load[..], batch].concat(), text.as_bytes()).ok();
            assert_eq!(scanned(&store), rows);
            assert_eq!(
                (&ran.json()["rows"], &ran.json()["rows_left_out"]),
                (&json!(rows.lines().count()), &json!(named.len()))
            );
            for part in named {
                assert!(ran.err.contains(part), "{part:?} is not in {:?}", ran.err);
            }
            assert_eq!(
                ran.err.matches("; this row is left out\n").count(),
                named.len(),
                "{}",
                ran.err
            );
        }
    }
}

#[test]
fn only_the_first_malformed_rows_are_listed() {
    let folder = Folder::new();
    let store = folder.at("store");
    let text = format!("k,v\n{}1,a\n2,\"b\n3,c\n", "bad\n".repeat(8));
    let load =
        ["load", &store, "-", "--format", "csv", "--value", "v", "--ignore-errors", "--batch", "1"];
    let ran = run_with_input(&load, text.as_bytes());
    let ran = ran.fails(
        2,
        &[
            "line 6: the row has 1",
            "3 more bad rows are left out",
            "line 11: the quote",
            "correct line 11 and resume with --skip 9",
        ],
    );
    assert!(!ran.err.contains("line 7:"), "{}", ran.err);
    assert_eq!(scanned(&store), "1\ta\n");
}

#[test]
fn skip_past_the_end_is_reported() {
    let folder = Folder::new();
    let file = folder.file("a.csv", "k,v\n1,a\n2,b\n");
    let ran = run(&["load", &folder.at("store"), &file, "--skip", "9"]).ok();
    assert!(ran.err.contains("a.csv has 2 rows, and --skip 9 skips all of them"), "{}", ran.err);
    let ran = run(&["load", &folder.at("store"), &file, "--skip", "2"]).ok();
    assert_eq!(ran.err, "");
}
