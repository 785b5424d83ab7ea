//! `plimsoll replay`: generated traces of every format, and their errors.

use std::process::Stdio;

use rustix::process::Signal;

use crate::run::{Folder, run, run_with_input};
use crate::signals::{stopped, wait_until_signals_are_heard};

/// An oracleGeneral trace: rounds over a few objects, mixed with objects requested once.
fn trace() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut once = 1_000_000_u64;
    for round in 0..20_u32 {
        for object in 0..400_u64 {
            once += 1;
            for id in [object, once] {
                let record = [
                    &round.to_le_bytes()[..],
                    &id.to_le_bytes(),
                    &500_u32.to_le_bytes(),
                    &(-1_i64).to_le_bytes(),
                ];
                bytes.extend(record.concat());
            }
        }
    }
    bytes
}

#[test]
fn replay_is_deterministic_raw_and_compressed() {
    let folder = Folder::new();
    let raw = folder.file("a.oracleGeneral", trace());
    let compressed = folder.file("b.oracleGeneral.zst", zstd::encode_all(&trace()[..], 3).unwrap());
    let counts = |path: &str| {
        let json = run(&["replay", path, "--memory", "512KiB", "--json"]).ok().json();
        let cache = json["s3-fifo"].clone();
        [&cache["requests"], &cache["hit_ratio"], &cache["evictions"], &cache["entries"]]
            .map(Clone::clone)
    };
    let first = counts(&raw);
    assert_eq!(first[0], 16_000);
    // Recurring objects stay and one-time objects leave, so all but the first round hit.
    assert!((0.40..=0.475).contains(&first[1].as_f64().unwrap()), "{first:?}");
    assert_eq!(counts(&raw), first);
    assert_eq!(counts(&compressed), first);
}

#[test]
fn policies_are_compared_within_the_memory() {
    let folder = Folder::new();
    let path = folder.file("a.oracleGeneral", trace());
    let all = "s3-fifo,clock,fifo,lru,sieve,w-tinylfu";
    let json = run(&["replay", &path, "--memory", "256KiB", "--policy", all, "--json"]).ok().json();
    for policy in all.split(',') {
        let cache = &json[policy];
        assert_eq!(cache["requests"], 16_000, "{policy}");
        let entries = cache["entries"].as_u64().unwrap();
        assert!((300..=525).contains(&entries), "{policy}: {entries}");
    }
}

#[test]
fn csv_accepts_cachelib_and_twitter_formats() {
    let folder = Folder::new();
    let cachelib = folder.file(
        "a.csv",
        "key,op,size,key_size,op_count\n1,GET,100,8,3\n1,DELETE,0,8,1\n1,GET,100,8,1\n\
         2,SET,9,8,1\n",
    );
    let cache =
        run(&["replay", &cachelib, "--memory", "1MiB", "--json"]).ok().json()["s3-fifo"].clone();
    let of = |name: &str| cache[name].as_u64().unwrap();
    assert_eq!(
        (of("requests"), of("finds"), of("sets"), of("deletes"), of("entries")),
        (6, 4, 3, 1, 2)
    );
    assert_eq!(cache["hit_ratio"], 0.5);
    let twitter = folder.file("b.csv", "0,k,1,10,1,get,0\n1,k,1,10,1,get,0\n");
    let cache =
        run(&["replay", &twitter, "--memory", "1MiB", "--json"]).ok().json()["s3-fifo"].clone();
    assert_eq!(cache["hit_ratio"], 0.5);
}

const CONFIG: &str = r#"
// as CacheLib ships them
[ { "cache_config": { "cacheSizeMB": "1", "htBucketPower": 22, "navyBlockSize": 512,
                     "inventedKey": 1, },
    "test_config": { "enableLookaside": true, "getRatio": 0.8, "loneGetRatio": 0.2,
                     "keySizeRange": [2, 8, 64],
      "keySizeRangeProbability": [0.3, 0.7], "valSizeDistFile": "sizes.json", "numKeys": 2000,
      "numOps": 5000, "numThreads": 2 } } ]"#;

#[test]
fn cachebench_generates_and_names_unknown_keys() {
    let folder = Folder::new();
    folder.file(
        "sizes.json",
        r#"{"valSizeRange": [1, 100, 2000], "valSizeRangeProbability": [0.5, 0.5]}"#,
    );
    let path = folder.file("config.json", CONFIG);
    let arguments = ["replay", &path, "--json"];
    // The configuration sets the size, unless --memory is given.
    let ran = crate::run::Ran::of(
        crate::run::plimsoll().args(arguments).env_remove("PLIMSOLL_MEMORY").output().unwrap(),
    )
    .ok();
    assert!(
        ran.err.contains("not used in a replay: `htBucketPower`, `navyBlockSize`"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("unknown: `inventedKey`"), "{}", ran.err);
    let cache = ran.json()["s3-fifo"].clone();
    assert_eq!(
        (cache["memory"].as_u64(), cache["requests"].as_u64()),
        (Some(1 << 20), Some(10_000))
    );
    let hits = cache["hit_ratio"].as_f64().unwrap();
    assert!((0.3..0.8).contains(&hits), "{hits}");
    folder.file("broken.json", "{\"test_config\": {\"numKeys\": \n}");
    run(&["replay", &folder.at("broken.json"), "--memory", "1MiB"])
        .fails(2, &["broken.json: line 2"]);
}

#[test]
fn configuration_may_name_a_trace() {
    let folder = Folder::new();
    folder.file("t.csv", "key,op,size\na,GET,1\na,GET,1\n");
    let config = r#"{"cache_config": {"cacheSizeMB": 1},
                     "test_config": {"generator": "replay", "traceFileName": "t.csv"}}"#;
    let path = folder.file("config.json", config);
    let cache = run(&["replay", &path, "--json"]).ok().json()["s3-fifo"].clone();
    assert_eq!((cache["requests"].as_u64(), cache["hit_ratio"].as_f64()), (Some(2), Some(0.5)));
}

#[test]
fn damaged_trace_error_names_the_place() {
    let folder = Folder::new();
    let cut = folder.file("cut.oracleGeneral", &trace()[..24 * 100 + 7]);
    run(&["replay", &cut, "--memory", "1MiB"])
        .fails(2, &["cut.oracleGeneral", "after 100 whole records", "7 of 24"]);
    let mut compressed = zstd::encode_all(&trace()[..], 3).unwrap();
    compressed.truncate(compressed.len() / 2);
    let path = folder.file("cut.oracleGeneral.zst", &compressed);
    run(&["replay", &path, "--memory", "1MiB"])
        .fails(2, &["cut.oracleGeneral.zst", "cannot be decompressed"]);
    let text = folder.file(
        "text.oracleGeneral",
        "this is no trace at all, but it is long enough for a record or two",
    );
    run(&["replay", &text, "--memory", "1MiB"]).fails(2, &["another format"]);
    run(&["replay", &folder.at("nowhere.csv"), "--memory", "1MiB"])
        .fails(2, &["nowhere.csv: there is no such file"]);
    let unnamed = folder.file("unnamed", "x");
    run(&["replay", &unnamed, "--memory", "1MiB"]).fails(2, &["--format"]);
    run(&["replay", &cut, "--memory", "1KiB"]).fails(2, &["at least 64.0 KiB"]);
}

#[test]
fn piped_trace_is_replayed_only_once() {
    let replay = |more: &[&str]| {
        let arguments = ["replay", "-", "--format", "oracle", "--memory", "512KiB", "--json"];
        run_with_input(&[&arguments[..], more].concat(), &trace())
    };
    assert_eq!(replay(&[]).ok().json()["s3-fifo"]["requests"], 16_000);
    assert_eq!(replay(&["--policy", "lru,lru"]).ok().json()["lru"]["requests"], 16_000);
    let folder = Folder::new();
    let svg = folder.at("misses.svg");
    for more in [&["--policy", "s3-fifo,lru"][..], &["--curve", &svg]] {
        replay(more).fails(2, &["-: ", "save it in a file"]);
    }
    let arguments =
        ["replay", "/dev/stdin", "--format", "csv", "--memory", "1MiB", "--policy", "s3-fifo,lru"];
    run_with_input(&arguments, b"key,size\na,1\n").fails(2, &["/dev/stdin", "save it in a file"]);
    assert!(!std::path::Path::new(&svg).exists());
    // A file on stdin can be read again.
    let path = folder.file("a.oracleGeneral", trace());
    let mut command = crate::run::plimsoll();
    command.args([
        "replay",
        "/dev/stdin",
        "--format",
        "oracle",
        "--memory",
        "1MiB",
        "--policy",
        "s3-fifo,lru",
        "--json",
    ]);
    let ran =
        crate::run::Ran::of(command.stdin(std::fs::File::open(path).unwrap()).output().unwrap())
            .ok();
    assert_eq!(
        (&ran.json()["s3-fifo"]["requests"], &ran.json()["lru"]["requests"]),
        (&16_000.into(), &16_000.into())
    );
}

#[test]
fn empty_trace_is_an_error() {
    let folder = Folder::new();
    let svg = folder.at("misses.svg");
    for (name, content) in
        [("a.oracleGeneral", ""), ("b.csv", "key,size\n"), ("c.csv", "key,size,op_count\n\n\n")]
    {
        let path = folder.file(name, content);
        run(&["replay", &path, "--memory", "1MiB", "--curve", &svg])
            .fails(2, &[name, "the trace has no requests"]);
    }
    assert!(!std::path::Path::new(&svg).exists());
}

#[test]
fn impossible_memory_is_refused() {
    let folder = Folder::new();
    let path = folder.file("a.oracleGeneral", trace());
    let over = (128_u64 << 30 | 1).to_string();
    for memory in [over.as_str(), "1TiB", "16000000TiB"] {
        run(&["replay", &path, "--memory", memory]).fails(2, &["at most", "GiB"]);
    }
    // A curve also ends at the largest possible cache.
    let svg = folder.at("misses.svg");
    run(&["replay", &path, "--memory", "60GiB", "--policy", "s3-fifo", "--curve", &svg]).ok();
    let drawn = std::fs::read_to_string(&svg).unwrap();
    assert!(drawn.contains("120.0 GiB") && !drawn.contains("240.0 GiB"), "{drawn}");
    run(&["replay", &path, "--memory", "1MiB", "--curve", &folder.at("nowhere/misses.svg")])
        .fails(2, &["nowhere"]);
}

#[test]
fn interrupted_replay_reports_and_writes_no_curve() {
    let folder = Folder::new();
    let svg = folder.at("misses.svg");
    let path = folder.file("a.csv", "key,size,op_count\na,1,18446744073709551615\n");
    let mut command = crate::run::plimsoll();
    command.args([
        "replay",
        &path,
        "--memory",
        "1MiB",
        "--policy",
        "s3-fifo,lru",
        "--curve",
        &svg,
        "--json",
    ]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Wait until the handler is installed; an earlier signal would end the process silently.
    wait_until_signals_are_heard(&child);
    let ran = stopped(child, Signal::INT);
    assert_eq!(ran.code, 130, "{}", ran.err);
    assert!(ran.err.contains("misses.svg was not written"), "{}", ran.err);
    assert!(ran.json().get("lru").is_none(), "it was not asked");
    assert!(!std::path::Path::new(&svg).exists());
}

#[test]
fn unknown_configuration_keys_are_named() {
    let folder = Folder::new();
    folder.file("t.csv", "key,op,size\na,GET,1\na,GET,1\n");
    folder.file(
        "sizes.json",
        r#"{"valSizeRange": [9], "valSizeRangeProbability": [1], "inventedToo": 1}"#,
    );
    let generated = r#""keySizeRange": [8], "keySizeRangeProbability": [1],
                       "valSizeDistFile": "sizes.json", "numOps": 9, "getRatio": 1"#;
    let of = |test: &str| {
        folder.file(
            "c.json",
            format!(
                r#"{{"cache_config": {{"cacheSizeMB": 1}}, "beside": 1,
                     "test_config": {{{test}}}}}"#
            ),
        )
    };
    let path = of(&format!(r#"{generated}, "numKeys": 5"#));
    let ran = run(&["replay", &path]).ok();
    assert_eq!(
        (ran.err.matches("`beside`").count(), ran.err.matches("`inventedToo`").count()),
        (1, 1),
        "{}",
        ran.err
    );
    for (test, part) in [
        (format!(r#"{generated}, "numKeys": 1e18"#), "`numKeys`"),
        (
            format!(r#"{generated}, "numKeys": 5, "generator": "block-replay""#),
            "`block-replay` is not supported",
        ),
        (r#""generator": "replay""#.to_owned(), "`traceFileName`"),
    ] {
        run(&["replay", &of(&test)]).fails(2, &["c.json", part]);
    }
}

#[test]
fn configuration_traces_run_in_order() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path().join("traces")).unwrap();
    folder.file("traces/one.csv", "key,op,size\na,GET,1\na,GET,1\n");
    folder.file("traces/two.csv", "key,op,size\na,GET,1\na,GET,1\n");
    let at = folder.at("traces");
    let names = r#""generator": "replay", "traceFileNames": ["one.csv", "two.csv"]"#;
    for (lookaside, hits) in
        [("", 0.75), (r#", "enableLookaside": true"#, 0.75), (r#", "enableLookaside": false"#, 0.0)]
    {
        let config = format!(r#"{{"test_config": {{{names}, "configPath": "{at}"{lookaside}}}}}"#);
        let path = folder.file("config.json", config);
        let cache =
            run(&["replay", &path, "--memory", "1MiB", "--json"]).ok().json()["s3-fifo"].clone();
        assert_eq!(
            (cache["requests"].as_u64(), cache["hit_ratio"].as_f64()),
            (Some(4), Some(hits)),
            "{lookaside}"
        );
    }
}

#[test]
fn curve_does_not_overwrite_the_trace() {
    let folder = Folder::new();
    let content = "key,size\na,1\na,1\n";
    let path = folder.file("a.csv", content);
    let link = folder.at("link.svg");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for curve in [&path, &link] {
        run(&["replay", &path, "--memory", "1MiB", "--curve", curve])
            .fails(2, &[curve, "this is the trace"]);
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
}

#[test]
fn curve_falls_with_memory() {
    let folder = Folder::new();
    let path = folder.file("a.oracleGeneral", trace());
    let svg = folder.at("misses.svg");
    run(&["replay", &path, "--memory", "1MiB", "--policy", "s3-fifo,lru", "--curve", &svg]).ok();
    let drawn = std::fs::read_to_string(&svg).unwrap();
    assert_eq!(drawn.matches("<polyline").count(), 2);
    for line in drawn.lines().filter(|line| line.starts_with("<polyline")) {
        let points = line.split("points=\"").nth(1).unwrap().trim_end_matches("\"/>");
        let heights: Vec<f64> = points
            .split(' ')
            .map(|point| point.split(',').nth(1).unwrap().parse().unwrap())
            .collect();
        // Lower on the chart means fewer misses.
        assert!(heights.len() >= 5 && heights.first() < heights.last(), "{heights:?}");
    }
}
