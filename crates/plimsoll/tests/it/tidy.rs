//! Reads the sources and checks the rules of the project: dependencies point downwards, every file
//! begins with its purpose, unsafe code is only in the listed files, and files named in
//! ARCHITECTURE.md exist.
#![allow(clippy::disallowed_methods, reason = "this test reads the project's own sources")]

use std::fs;
use std::path::{Path, PathBuf};

/// Crates from the lowest layer to the highest, with the crates that each may use.
const ARROWS: [(&str, &[&str]); 11] = [
    ("disk", &[]),
    ("memory", &["disk"]),
    ("log", &["disk", "memory"]),
    ("plimsoll", &["disk", "memory", "log"]),
    ("sim", &["disk", "memory", "log", "plimsoll"]),
    ("typed", &["plimsoll"]),
    ("git", &["disk", "plimsoll"]),
    ("archive", &["disk", "plimsoll"]),
    ("replica", &["disk", "plimsoll", "archive"]),
    ("replay", &["disk", "memory"]),
    ("cli", &["disk", "plimsoll", "git", "archive", "replica", "replay"]),
];

/// Files that may contain unsafe code.
const UNSAFE: [&str; 11] = [
    "disk/src/fork.rs",
    "disk/src/os/bus_error.rs",
    "disk/src/os/shared_words.rs",
    "memory/src/",
    "memory/tests/alloc.rs",
    "memory/tests/cache.rs",
    "log/tests/alloc.rs",
    "plimsoll/tests/heap.rs",
    "plimsoll/tests/held_heap.rs",
    "plimsoll/tests/it/forks.rs",
    "plimsoll/tests/it/tidy.rs",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    collect(&root().join("crates"), &mut found);
    assert!(found.len() > 40, "the sources were found");
    let crates = root().join("crates");
    let name = |path: &Path| path.strip_prefix(&crates).unwrap().to_str().unwrap().to_owned();
    found.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

fn collect(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_file_begins_with_its_purpose() {
    for (name, text) in sources() {
        let first = text.lines().find(|line| !line.starts_with("#![")).unwrap_or_default();
        assert!(first.starts_with("//! ") && first.len() > 12, "{name} begins with {first:?}");
    }
}

#[test]
fn arrows_between_crates_point_down() {
    for (krate, allowed) in ARROWS {
        let manifest =
            fs::read_to_string(root().join("crates").join(krate).join("Cargo.toml")).unwrap();
        let uses = manifest.split("[dev-dependencies]").next().unwrap().lines();
        for line in uses.filter(|line| line.starts_with("plimsoll")) {
            let used = line.split(['.', ' ', '=']).next().unwrap();
            let used = used.strip_prefix("plimsoll-").unwrap_or(used);
            assert!(allowed.contains(&used), "crate {krate} must not use {used}");
        }
    }
}

#[test]
fn unsafe_code_is_only_in_listed_files() {
    for (name, text) in sources() {
        let uses = text.lines().any(|line| {
            let code = line.split("//").next().unwrap_or_default();
            code.contains("unsafe {") || code.contains("unsafe impl") || code.contains("unsafe fn")
        });
        let listed = UNSAFE.iter().any(|place| name.starts_with(place));
        assert!(!uses || listed, "{name} contains unsafe code");
    }
}

#[test]
fn all_system_calls_go_through_the_disk_crate() {
    let banned = [
        "std::time::Instant",
        "SystemTime::now",
        "std::thread::spawn",
        "fs::File::open",
        "fs::File::create",
    ];
    for (name, text) in sources() {
        // The command and tests may access the system themselves: the user's files, child
        // processes.
        if name.starts_with("disk/")
            || name.starts_with("cli/")
            || name.contains("/tests")
            || name.contains("/examples")
        {
            continue;
        }
        let code = text.split("#[cfg(test)]").next().unwrap();
        for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
            for way in banned {
                assert!(!line.contains(way), "{name} bypasses the disk crate: {line}");
            }
        }
    }
}

/// Files that create a clock themselves: defaults that can be replaced, waits of threads for
/// memory, the command, the timing of a replay, and requests to a bucket, which is outside of the
/// simulated world.
const CLOCKS: [&str; 16] = [
    "plimsoll/src/types/options.rs",
    "memory/src/cache/options.rs",
    "memory/src/budget/wait_queue.rs",
    "memory/src/pool/resize.rs",
    "disk/",
    "cli/",
    "replay/src/replay.rs",
    "archive/src/folder.rs",
    "archive/src/nats",
    "archive/src/postgres",
    "replica/src/bucket_order.rs",
    "replica/src/creating.rs",
    "replica/src/healing.rs",
    "replica/src/moving.rs",
    "replica/src/sources.rs",
    "replica/src/trimming.rs",
];

#[test]
fn clocks_are_passed_in() {
    for (name, text) in sources() {
        let listed = CLOCKS.iter().any(|place| name.starts_with(place));
        let is_test = ["/tests", "tests.rs", "known_bugs.rs", "/examples", "sim/"]
            .iter()
            .any(|part| name.contains(part));
        let code = text.split("#[cfg(test)]").next().unwrap();
        assert!(
            listed || is_test || !code.contains("SystemClock::new()"),
            "{name} creates its own clock"
        );
    }
}

/// Test hooks: files, and the beginnings of the lines that define the hooks.
const HOOKS: [(&str, &[&str]); 11] = [
    ("disk/src/lib.rs", &["pub mod lying;"]),
    ("disk/src/sharing.rs", &["fn between_stores("]),
    ("log/src/members/words.rs", &["shared.between_stores();"]),
    ("memory/src/budget.rs", &["pub fn fail_after(", "pub fn fail_some_after("]),
    ("plimsoll/src/lib.rs", &["pub mod borders;", "pub mod fuzz;", "pub use types::sizes::Sizes;"]),
    (
        "plimsoll/src/api/db.rs",
        &["pub fn drop_caches(", "pub fn drop_pages(", "pub fn step(", "pub fn step_from("],
    ),
    ("plimsoll/src/api/db.rs", &["pub fn refuse_after(", "pub fn is_changing_branches("]),
    ("plimsoll/src/api/watch_events.rs", &["pub fn limit_window("]),
    ("plimsoll/src/txn/transaction.rs", &["pub fn charges("]),
    ("plimsoll/src/txn/range.rs", &["pub fn charges("]),
    (
        "plimsoll/src/types/options.rs",
        &["pub fn background(", "pub fn sizes(", "pub fn world(", "pub fn room_gauge("],
    ),
];

#[test]
fn test_hooks_exist_only_with_the_feature_testing() {
    for (file, hooks) in HOOKS {
        let text = fs::read_to_string(root().join("crates").join(file)).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for hook in hooks {
            let at = lines
                .iter()
                .position(|line| line.starts_with(hook))
                .unwrap_or_else(|| panic!("{file}: {hook}"));
            let attributes = lines[..at].iter().rev().take_while(|line| line.starts_with("#["));
            // A hook that measurements need as well has a feature of its own, which `testing`
            // contains.
            let feature = if *hook == "pub fn world(" {
                "feature = \"world\""
            } else {
                "feature = \"testing\""
            };
            let is_gated = |line: &&str| line.starts_with("#[cfg(") && line.contains(feature);
            assert!(
                attributes.copied().any(|line| is_gated(&line)),
                "{file}: {hook} is in every build"
            );
        }
    }
    for krate in [
        "crates/cli",
        "crates/git",
        "crates/archive",
        "crates/typed",
        "crates/replay",
        "python",
        "bench/harness",
    ] {
        let manifest = fs::read_to_string(root().join(krate).join("Cargo.toml")).unwrap();
        let built = manifest.split("[dev-dependencies]").next().unwrap();
        assert!(!built.contains("\"testing\""), "{krate} is built with test hooks");
    }
}

#[test]
fn files_named_in_the_documents_exist() {
    for document in ["ARCHITECTURE.md", "README.md", "docs/reference/faults.md"] {
        let text = fs::read_to_string(root().join(document)).unwrap();
        for word in text.split('`').skip(1).step_by(2) {
            if word.starts_with("crates/") || word.starts_with("docs/") {
                assert!(
                    root().join(word).exists(),
                    "{document} names {word}, which does not exist"
                );
            }
        }
    }
}

#[test]
fn code_is_at_most_100_columns_wide() {
    let mut wide = Vec::new();
    for (name, text) in sources() {
        let lines = (1..).zip(text.lines()).filter(|(_, line)| line.chars().count() > 100);
        wide.extend(lines.map(|(number, _)| format!("{name}:{number}")));
    }
    assert!(wide.is_empty(), "wider than 100 columns: {wide:#?}");
}

#[test]
fn prose_is_at_most_100_columns_wide() {
    let mut documents = Vec::new();
    collect_markdown(&root(), &mut documents);
    let mut wide = Vec::new();
    for path in documents {
        let mut in_code = false;
        for (number, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            let text = line.trim_start();
            in_code ^= text.starts_with("```");
            // Tables, headings, pictures and link targets cannot be broken.
            let is_one = text.starts_with(['|', '#', '[', '!']) || !text.contains(' ');
            if line.chars().count() > 100 && !in_code && !is_one {
                wide.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "wider than 100 columns: {wide:#?}");
}

/// Markdown files below `dir`, without build output and hidden folders.
fn collect_markdown(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let is_skipped = name.starts_with('.') || name == "target" || name == "node_modules";
        if path.is_dir() && !is_skipped && !path.is_symlink() {
            collect_markdown(&path, found);
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}
