//! Reads the sources of every crate and checks which module uses which: no modules of a folder use
//! each other in a cycle, and in the store and the log no layer uses a higher one.
#![allow(clippy::disallowed_methods, reason = "this test reads the project's own sources")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const CRATES: [&str; 10] =
    ["disk", "memory", "log", "plimsoll", "typed", "git", "archive", "replay", "sim", "cli"];

/// Crates and folders that are built in layers, from the lowest to the highest; each may use those
/// before it.
const STOREYS: [(&str, &str, &[&str]); 3] = [
    (
        "plimsoll",
        "",
        &[
            "order",
            "types",
            "compression",
            "rowcache",
            "index",
            "read",
            "txn",
            "warm",
            "engine",
            "api",
            "merge",
            "sync",
        ],
    ),
    (
        "plimsoll",
        "index",
        &[
            "env",
            "gaps",
            "ranges",
            "blob_bytes",
            "run",
            "manifest",
            "sources",
            "iter",
            "plan",
            "runs",
            "write",
            "shared",
            "memtables",
            "compaction",
            "pace",
            "background",
        ],
    ),
    (
        "log",
        "file_log",
        &[
            "options",
            "files",
            "env",
            "segments",
            "tail",
            "durability",
            "blobs",
            "open_log",
            "append",
            "shared",
            "read",
            "keep",
            "recovery",
            "repair",
        ],
    ),
];

/// A crate's modules by name, `a::b` for `src/a/b.rs`, with their code except tests and comments.
fn modules(name: &str) -> BTreeMap<Vec<String>, String> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
    let mut found = BTreeMap::new();
    collect(&src, &mut Vec::new(), &mut found);
    assert!(found.len() > 5, "the sources of {name} were found");
    found
}

fn collect(dir: &Path, at: &mut Vec<String>, found: &mut BTreeMap<Vec<String>, String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if stem == "tests" || stem == "test_store" {
            continue;
        }
        at.push(stem);
        if path.is_dir() {
            collect(&path, at, found);
        } else {
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
            let code: Vec<&str> =
                code.lines().map(|line| line.split("//").next().unwrap()).collect();
            let is_root = at.len() == 1 && ["lib", "main"].contains(&at[0].as_str());
            found.insert(if is_root { Vec::new() } else { at.clone() }, code.join("\n"));
        }
        at.pop();
    }
}

/// The modules that a module's code names by a path from `crate`, `self` or `super`.
fn named<'a>(
    module: &'a [String],
    code: &'a str,
    all: &'a BTreeMap<Vec<String>, String>,
) -> impl Iterator<Item = Vec<String>> {
    let is_path = |byte: char| byte.is_alphanumeric() || byte == '_' || byte == ':';
    code.split(move |byte| !is_path(byte)).filter_map(move |word| {
        let mut parts =
            word.split("::").map(str::to_owned).collect::<Vec<_>>().into_iter().peekable();
        let mut path: Vec<String> = match parts.next()?.as_str() {
            "crate" => Vec::new(),
            "self" => module.to_vec(),
            "super" => module[..module.len().checked_sub(1)?].to_vec(),
            _ => return None,
        };
        while parts.next_if_eq("super").is_some() {
            path.pop();
        }
        path.extend(parts);
        // The last name may be an item of the module.
        while !path.is_empty() && !all.contains_key(&path) {
            path.pop();
        }
        Some(path)
    })
}

type Uses = BTreeMap<String, BTreeSet<String>>;

/// Which modules of a folder use which, by folder. A module includes its submodules.
fn uses(name: &str) -> BTreeMap<Vec<String>, Uses> {
    let all = modules(name);
    let mut folders: BTreeMap<Vec<String>, Uses> = BTreeMap::new();
    for (module, code) in &all {
        for other in named(module, code, &all) {
            let common = module.iter().zip(&other).take_while(|(a, b)| a == b).count();
            if let (Some(from), Some(to)) = (module.get(common), other.get(common)) {
                let folder = folders.entry(module[..common].to_vec()).or_default();
                folder.entry(from.clone()).or_default().insert(to.clone());
            }
        }
    }
    folders
}

/// The groups of modules that use each other in a cycle.
fn circles(uses: &Uses) -> BTreeSet<String> {
    let reached = |from: &String| {
        let mut seen = BTreeSet::new();
        let mut next: Vec<&String> = uses.get(from).into_iter().flatten().collect();
        while let Some(module) = next.pop() {
            if seen.insert(module.clone()) {
                next.extend(uses.get(module).into_iter().flatten());
            }
        }
        seen
    };
    let all: BTreeMap<&String, BTreeSet<String>> =
        uses.keys().map(|module| (module, reached(module))).collect();
    let circle = |module: &String| {
        let group = all
            .iter()
            .filter(|(other, back)| all[module].contains(**other) && back.contains(module));
        group.map(|(other, _)| other.as_str()).collect::<Vec<_>>().join(" ")
    };
    all.iter()
        .filter(|(module, seen)| seen.contains(**module))
        .map(|(module, _)| circle(module))
        .collect()
}

#[test]
fn modules_use_each_other_in_no_cycle() {
    let mut found = BTreeSet::new();
    for name in CRATES {
        for (folder, uses) in uses(name) {
            let place = [vec![name.to_owned()], folder].concat().join("::");
            found.extend(circles(&uses).into_iter().map(|circle| (place.clone(), circle)));
        }
    }
    assert!(found.is_empty(), "modules that use each other in a cycle: {found:#?}");
}

#[test]
fn no_layer_uses_a_higher_one() {
    for (name, folder, storeys) in STOREYS {
        let folder: Vec<String> =
            folder.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let uses = uses(name).remove(&folder).unwrap();
        for (at, storey) in storeys.iter().enumerate() {
            let higher = |other: &&String| storeys[at + 1..].contains(&other.as_str());
            let known: Vec<_> = uses.get(*storey).into_iter().flatten().filter(higher).collect();
            assert!(known.is_empty(), "{storey} uses {known:?}, which are above it");
        }
    }
}

#[test]
fn a_cycle_is_detected() {
    let uses = |pairs: &[(&str, &str)]| {
        let mut uses = Uses::new();
        for (from, to) in pairs {
            uses.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        uses
    };
    assert_eq!(circles(&uses(&[("a", "b"), ("b", "c"), ("a", "c")])), BTreeSet::new());
    let found = circles(&uses(&[("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")]));
    assert_eq!(found, BTreeSet::from(["b c".to_owned()]));
}
