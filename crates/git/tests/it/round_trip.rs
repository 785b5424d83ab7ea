//! A whole history that is imported and exported has the same objects and refs.

use std::path::Path;

use plimsoll::{Db, Options};
use plimsoll_git::{Counts, Export, ExportCounts, Repository as Opened, WholeImport};

use crate::export_again::files_of;
use crate::repository::{Repository, Script};
use crate::run::Folder;

pub(crate) fn open(store: &str) -> Db {
    Db::open(store, Options::new().memory_bytes(32 << 20)).unwrap()
}

pub(crate) fn import_all(repository: &str, store: &str) -> Option<Counts> {
    let (repository, db) = (Opened::open(Path::new(repository), "HEAD").unwrap(), open(store));
    let mut import = WholeImport::open(&db, &repository).unwrap()?;
    while import.next_commit().unwrap() {}
    let counts = import.finish().unwrap();
    db.close().unwrap();
    Some(counts)
}

pub(crate) fn export(store: &str, to: &str) -> ExportCounts {
    let db = open(store);
    let mut export = Export::open(&db, Path::new(to)).unwrap();
    while export.next_commit().unwrap() {}
    let counts = export.finish(false).unwrap();
    db.close().unwrap();
    counts
}

/// All objects and refs of a repository.
pub(crate) fn all_of(repository: &Repository) -> (Vec<String>, String) {
    let list = repository.ask(&["rev-list", "--all", "--objects", "--no-object-names"]);
    let mut objects: Vec<String> = list.lines().map(str::to_owned).collect();
    objects.sort();
    let refs = "--format=%(objectname) %(objecttype) %(symref) %(refname)";
    (objects, repository.ask(&["for-each-ref", refs]))
}

#[track_caller]
fn assert_same(source: &Repository, copy: &str) {
    let copy = Repository::at(copy);
    let ((objects, refs), (copied, copied_refs)) = (all_of(source), all_of(&copy));
    assert_eq!(copied_refs, refs);
    assert_eq!(copied, objects);
    assert_eq!(copy.ask(&["rev-parse", "HEAD"]), source.ask(&["rev-parse", "HEAD"]));
    copy.git(&["fsck", "--full", "--no-dangling", "--connectivity-only"]);
    // Unlike `--connectivity-only`, this reads each object.
    let packs = format!("{}/objects/pack", copy.path());
    for pack in std::fs::read_dir(packs).unwrap() {
        let pack = pack.unwrap().path();
        if pack.extension().is_some_and(|ending| ending == "idx") {
            copy.git(&["verify-pack", pack.to_str().unwrap()]);
        }
    }
}

/// Imports a repository and exports it again.
#[track_caller]
pub(crate) fn round_trip(folder: &Folder, source: &Repository) -> (String, String) {
    let (store, copy) = (folder.at("store"), folder.at("copy.git"));
    import_all(source.path(), &store).expect("there are commits to import");
    export(&store, &copy);
    assert_same(source, &copy);
    assert!(import_all(source.path(), &store).is_none());
    let again = export(&store, &copy);
    assert_eq!((again.commits, again.objects, again.refs), (0, 0, 0));
    (store, copy)
}

#[test]
fn awkward_history_returns() {
    let folder = Folder::new();
    let repository = folder.repository("repository");
    let mut script = Script::new(11);
    script.awkward_history(80);
    repository.fast_import(&script.into_stream());
    round_trip(&folder, &repository);
}

#[test]
fn merges_of_all_shapes_return() {
    let folder = Folder::new();
    let repository = folder.repository("repository");
    let mut stream = String::new();
    let mut mark = 0;
    let mut commit = |branch: &str, parents: &[u32], file: &str| {
        mark += 1;
        let name = format!("commit refs/heads/{branch}\nmark :{mark}\n");
        stream += &format!("{name}committer A <a@x> {} +0000\ndata 1\nm\n", 1_000_000 + mark);
        for (place, parent) in parents.iter().enumerate() {
            stream += &format!("{} :{parent}\n", if place == 0 { "from" } else { "merge" });
        }
        stream += &format!("M 100644 inline {file}\ndata {}\n{mark}\n\n", mark.to_string().len());
        mark
    };
    // A criss-cross ladder.
    let root = commit("main", &[], "root");
    let (mut left, mut right) = (commit("main", &[root], "l"), commit("other", &[root], "r/x"));
    for _ in 0..10 {
        let merged = commit("main", &[left, right], "l");
        right = commit("other", &[right, left], "r/x");
        left = merged;
    }
    // An octopus of five parents, one of which is another root.
    let sides: Vec<u32> =
        ["a", "b", "c/d/e"].iter().map(|side| commit(side, &[left], side)).collect();
    let other_root = commit("second-root", &[], "second/root");
    let octopus = commit("main", &[left, sides[0], sides[1], sides[2], other_root], "octopus");
    // A merge whose first parent is the side line, and a root that nothing merges.
    let foxtrot = commit("main", &[right, octopus], "foxtrot");
    commit("unrelated", &[], "unrelated");
    commit("main", &[foxtrot], "end");
    repository.fast_import(stream.as_bytes());
    // Two branches with the same commit, and one behind main.
    repository.git(&["branch", "same", "a"]);
    repository.git(&["branch", "behind", "main~2"]);
    let (store, copy) = round_trip(&folder, &repository);
    let db = open(&store);
    let names: Vec<String> = db.branches().unwrap().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["a", "b", "behind", "c/d/e", "other", "same", "second-root", "unrelated"]);
    // The second root's state is that of its commit alone.
    let files = db.keyspace("default").unwrap();
    let branch = db.branch("second-root").unwrap();
    let keys: Vec<_> = branch.iter(&files).unwrap().map(|row| row.unwrap().0).collect();
    assert_eq!(keys, [b"second/root"]);
    drop((branch, db));
    assert_eq!(Repository::at(&copy).ask(&["rev-list", "--count", "--all"]), "31");
}

/// Writes a commit object and lets a branch end with it.
fn raw_commit(repository: &Repository, branch: &str, bytes: &[u8]) -> String {
    let id = repository.write("commit", bytes);
    repository.git(&["update-ref", &format!("refs/heads/{branch}"), &id]);
    id
}

#[test]
fn commits_of_all_spellings_return() {
    let folder = Folder::new();
    let repository = folder.repository("repository");
    let mut parent = repository.commit("first", &[("a", b"1")]);
    let tree = repository.ask(&["rev-parse", "HEAD^{tree}"]);
    let signature = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n iQEz\n =abcd\n -----END PGP \
                     SIGNATURE-----\n";
    let tag =
        format!("mergetag object {parent}\n type commit\n tag v1\n tagger A <a> 1 +0000\n \n m\n");
    let plain = "A <a@x> 1300000000 +0000";
    let long = "long line\n".repeat(10_000);
    let people = [
        (plain, plain),
        ("J\u{f6}rg <j@x> 1300000000 -0000", plain),
        ("A <a@x> 1300000000 +051800", "A <a@x> 1300000000 --700"),
        (" <> 0 +0000", "Two  spaces  <a@x> 1300000000 +1400"),
        ("A <a@x> 99999999999999999 +0000", "A a@x 1 +0000"),
        ("A <a@x>", "A <<a@x>> 1300000000 +0545"),
    ];
    let mut texts: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for (author, committer) in people {
        texts.push((format!("author {author}\ncommitter {committer}\n").into(), b"m\n".to_vec()));
    }
    let who = format!("author {plain}\ncommitter {plain}\n");
    for (headers, message) in [
        (signature, "signed\n"),
        (&tag, "merge of a tag"),
        ("HG:rename-source hg\nextra  two\n", ""),
        ("encoding ISO-8859-1\n", "plain"),
        ("encoding \n", "\n\nleading line breaks\n\n"),
        ("", &long),
        (signature, &long),
    ] {
        texts.push((format!("{who}{headers}").into(), message.into()));
    }
    texts.push((format!("{who}encoding ISO-8859-1\n").into(), b"caf\xe9".to_vec()));
    texts.push((who.clone().into(), b"caf\xe9 not declared".to_vec()));
    texts.push((
        [&b"author J\xe9r <a@x> 1 +0000\ncommitter J\xe9r <a@x> 1 +0000\n"[..]].concat(),
        vec![],
    ));
    texts.push((format!("{who}x \u{e9}\n").into(), b"a\0b".to_vec()));
    for (headers, message) in &texts {
        let head = format!("tree {tree}\nparent {parent}\n").into_bytes();
        parent = raw_commit(&repository, "main", &[&head, headers, &b"\n"[..], message].concat());
    }
    // Without a message and the line before it.
    let bytes = format!("tree {tree}\nparent {parent}\n{who}");
    raw_commit(&repository, "no-blank-line", bytes.as_bytes());
    round_trip(&folder, &repository);
}

fn tree_of(entries: &[(&str, &[u8], &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (mode, name, id) in entries {
        bytes.extend_from_slice(mode.as_bytes());
        bytes.push(b' ');
        bytes.extend_from_slice(name);
        bytes.push(0);
        let digit = |at: usize| u8::from_str_radix(&id[at..at + 2], 16).unwrap();
        bytes.extend((0..id.len()).step_by(2).map(digit));
    }
    bytes
}

/// Writes a commit with a tree, after the last one of main.
fn commit_tree(repository: &Repository, tree: &str) {
    let parent = repository.ask(&["rev-parse", "main"]);
    let who = "A <a@x> 1300000000 +0000";
    let text = format!("tree {tree}\nparent {parent}\nauthor {who}\ncommitter {who}\n\nm\n");
    raw_commit(repository, "main", text.as_bytes());
}

#[test]
fn trees_of_all_forms_return() {
    let folder = Folder::new();
    let repository = folder.repository("repository");
    repository.commit("first", &[("a", b"1"), ("d/e/f", b"2"), ("d.c", b"3"), ("d0", b"4")]);
    let blob = |content: &[u8]| repository.write("blob", content);
    let (one, two, only) = (blob(b"1"), blob(b"two"), blob(b"only in an irregular tree"));
    let empty = repository.write("tree", b"");
    let regular = repository.write("tree", &tree_of(&[("100644", b"f", &one)]));
    let hidden = repository.write("tree", &tree_of(&[("100644", b"only", &only)]));
    let nested = repository.write("tree", &tree_of(&[("40000", b"empty", &empty)]));
    let other = "1".repeat(40);
    let trees: [&[(&str, &[u8], &str)]; 22] = [
        &[("100644", b"a", &one), ("40000", b"d", &regular)],
        // Modes.
        &[("100664", b"a", &one), ("040000", b"d", &regular)],
        &[("100664", b"a", &one), ("40000", b"d", &regular)],
        &[("100755", b"a", &one), ("120000", b"l", &two), ("160000", b"m", &other)],
        &[("0100755", b"a", &one), ("120000", b"l", &one), ("160000", b"m", &other)],
        &[("100755", b"a", &two), ("100644", b"l", &one), ("100644", b"m", &one)],
        &[("120000", b"a", &two), ("160000", b"l", &other), ("40000", b"m", &regular)],
        &[("40755", b"m", &regular)],
        &[("40000", b"m", &regular)],
        // Order, and names twice.
        &[("100644", b"z", &one), ("100644", b"a", &two)],
        &[("40000", b"a", &hidden), ("100644", b"a.c", &one), ("100644", b"a", &two)],
        &[("100644", b"a", &two), ("100644", b"a.c", &one), ("40000", b"a", &hidden)],
        &[("100644", b"a", &two), ("100644", b"a", &one)],
        &[("100644", b"a.c", &one), ("40000", b"a", &hidden)],
        // Empty trees.
        &[("40000", b"a", &empty), ("100644", b"b", &one)],
        &[("40000", b"a", &nested), ("100644", b"b", &one)],
        &[("100644", b"b", &one)],
        &[("40000", b"a", &nested)],
        &[],
        // Names.
        &[("100644", b".git", &one), ("100644", b"..", &one), ("100644", b"\xff", &two)],
        &[("100644", b"a", &one), ("100644", b"a b\nc\t\"", &two)],
        &[("40000", b"a", &regular)],
    ];
    for entries in trees {
        let root = repository.write("tree", &tree_of(entries));
        commit_tree(&repository, &root);
        let below =
            repository.write("tree", &tree_of(&[("100644", b"a", &one), ("40000", b"x", &root)]));
        if !entries.is_empty() {
            commit_tree(&repository, &below);
        }
    }
    // A path that is too long for a key, and the same directory without it.
    let mut deep =
        repository.write("tree", &tree_of(&[("100644", b"f", &only), ("100644", b"g", &one)]));
    for _ in 0..25 {
        deep = repository.write("tree", &tree_of(&[("40000", &[b'n'; 200], &deep)]));
    }
    // More directories than a stack has room for.
    let mut steep = only.clone();
    for level in 0..1500 {
        let mode = if level == 0 { "100644" } else { "40000" };
        steep = repository.write("tree", &tree_of(&[(mode, b"s", &steep)]));
        if [399, 400, 401, 402, 1499].contains(&level) {
            let root = [("100644", &b"a"[..], &*one), ("40000", b"s", &steep)];
            let root = repository.write("tree", &tree_of(&root));
            commit_tree(&repository, &root);
        }
    }
    let long = [b'n'; 5000];
    let entries = [("100644", &b"a"[..], &*one), ("100644", &long, &two), ("40000", b"z", &deep)];
    for entries in [&entries[..], &entries[..1], &entries[..2], &entries[2..]] {
        let root = repository.write("tree", &tree_of(entries));
        commit_tree(&repository, &root);
    }
    round_trip_of_broken(&folder, &repository);
}

/// As `round_trip`, without checks of Git's that the source fails as well.
#[track_caller]
fn round_trip_of_broken(folder: &Folder, source: &Repository) {
    let (store, copy) = (folder.at("store"), folder.at("copy.git"));
    import_all(source.path(), &store).expect("there are commits to import");
    export(&store, &copy);
    assert_same(source, &copy);
}

#[test]
fn random_trees_return() {
    for seed in 0..6 {
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let folder = Folder::new();
        let repository = folder.repository("repository");
        repository.commit("first", &[("a", b"1")]);
        let blobs: Vec<String> = (0..4_u8).map(|n| repository.write("blob", &[n])).collect();
        let mut trees = vec![repository.write("tree", b"")];
        for number in 0..30 {
            let names: [&[u8]; 6] = [b"a", b"a.c", b"a0", b"b", b"c", b"d"];
            let mut entries: Vec<(&str, &[u8], String)> = Vec::new();
            for name in names {
                let other = "2".repeat(40);
                match random.u8(..12) {
                    0..=2 => entries.push(("100644", name, random.choice(&blobs).unwrap().clone())),
                    3 => entries.push(("100755", name, random.choice(&blobs).unwrap().clone())),
                    4 => entries.push(("120000", name, random.choice(&blobs).unwrap().clone())),
                    5 => entries.push(("160000", name, other)),
                    6..=7 => entries.push(("40000", name, random.choice(&trees).unwrap().clone())),
                    8 => entries.push(("040000", name, random.choice(&trees).unwrap().clone())),
                    _ => {}
                }
            }
            if random.u8(..4) == 0 {
                random.shuffle(&mut entries);
            }
            let entries: Vec<_> =
                entries.iter().map(|(mode, name, id)| (*mode, *name, &**id)).collect();
            let tree = repository.write("tree", &tree_of(&entries));
            trees.push(tree.clone());
            trees.drain(..trees.len().saturating_sub(8));
            if number % 2 == 1 {
                commit_tree(&repository, &tree);
            }
        }
        round_trip_of_broken(&folder, &repository);
    }
}

#[test]
fn tags_and_other_refs_return() {
    let folder = Folder::new();
    let repository = folder.repository("repository");
    let first = repository.commit("first", &[("a", b"1"), ("d/b", b"2")]);
    repository.commit("second", &[("a", b"3")]);
    let tagged = |kind: &str, id: &str, rest: &str| {
        format!("object {id}\ntype {kind}\ntag t\ntagger A <a@x> 1 +0000\n\nm\n{rest}")
    };
    let signed = "-----BEGIN PGP SIGNATURE-----\n\niQ\n-----END PGP SIGNATURE-----\n";
    let annotated = repository.write("tag", tagged("commit", &first, "").as_bytes());
    let blob = repository.write("blob", b"a public key, which no path has");
    let inner = repository.write("tree", &tree_of(&[("100644", b"k", &blob)]));
    let tree = repository.write("tree", &tree_of(&[("40000", b"keys", &inner)]));
    let side =
        format!("tree {tree}\nauthor A <a> 1 +0000\ncommitter A <a> 1 +0000\n\nonly tagged\n");
    let side = repository.write("commit", side.as_bytes());
    for (name, id) in [
        ("tags/light", &*first),
        ("tags/annotated", &annotated),
        ("tags/signed", &repository.write("tag", tagged("commit", &first, signed).as_bytes())),
        ("tags/of-tag", &repository.write("tag", tagged("tag", &annotated, "").as_bytes())),
        ("tags/blob", &blob),
        ("tags/tree", &repository.write("tag", tagged("tree", &tree, "").as_bytes())),
        ("tags/only-here", &side),
        (
            "tags/no-tagger",
            &repository.write("tag", format!("object {first}\ntype commit\ntag o\n\nm").as_bytes()),
        ),
        ("heads/2024-01-01", &first),
        ("heads/o/x", &first),
        ("remotes/o/x", &first),
        ("remotes/origin/topic", &side),
        ("notes/commits", &first),
        ("pull/1/head", &first),
        (&format!("replace/{first}"), &side),
    ] {
        repository.git(&["update-ref", &format!("refs/{name}"), id]);
    }
    repository.git(&["symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/topic"]);
    round_trip_with_replacements(&folder, &repository);
}

/// As `round_trip`; the repository has replaced objects, which `git rev-list` would follow.
fn round_trip_with_replacements(folder: &Folder, source: &Repository) {
    let copy = folder.at("copy.git");
    import_all(source.path(), &folder.at("store")).unwrap();
    export(&folder.at("store"), &copy);
    assert_same(source, &copy);
    for name in source.ask(&["for-each-ref", "--format=%(refname)", "refs/replace"]).lines() {
        source.git(&["update-ref", "-d", name]);
        Repository::at(&copy).git(&["update-ref", "-d", name]);
    }
    assert_same(source, &copy);
}

#[test]
fn sha256_repository_returns() {
    let folder = Folder::new();
    let path = folder.at("repository");
    let made = std::process::Command::new("git")
        .args(["init", "-q", "--object-format=sha256", "--initial-branch=trunk"])
        .arg(&path)
        .status()
        .unwrap();
    assert!(made.success());
    let repository = Repository::at(&path);
    for number in 0..5_u8 {
        repository.commit("c", &[("a", &[number]), (&format!("d/{number}"), b"x")]);
    }
    repository.git(&["tag", "-m", "m", "v1"]);
    repository.git(&["branch", "main", "HEAD~1"]);
    let (store, _) = round_trip(&folder, &repository);
    let names = open(&store).branches().unwrap().into_iter().map(|info| info.name);
    assert_eq!(names.collect::<Vec<_>>(), ["heads/main"]);
}

#[test]
fn detached_head_returns() {
    let folder = Folder::new();
    let repository = folder.repository("repository");
    repository.commit("one", &[("a", b"1")]);
    repository.commit("two", &[("a", b"2")]);
    repository.git(&["checkout", "--quiet", "--detach", "HEAD~1"]);
    round_trip(&folder, &repository);
}

#[test]
fn renames_and_large_files_return() {
    let folder = Folder::new();
    let repository = folder.repository("repository");
    let mut random = fastrand::Rng::with_seed(5);
    let large: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(3 << 20).collect();
    repository.commit("one", &[("a/large", &large), ("a/b", b"1"), ("empty", b"")]);
    repository.git(&["mv", "a", "z"]);
    repository.commit("renamed", &[]);
    repository.git(&["mv", "z/large", "large"]);
    repository.commit("renamed again", &[("z/b", &large[1..])]);
    repository.commit("empty", &[]);
    round_trip(&folder, &repository);
}

#[test]
fn second_import_and_export_add_what_is_new() {
    let folder = Folder::new();
    let repository = folder.repository("repository");
    for number in 0..5_u8 {
        repository.commit("c", &[("a", &[number]), (&format!("d/{number}"), b"x")]);
    }
    repository.git(&["branch", "topic", "HEAD~2"]);
    let (store, copy) = round_trip(&folder, &repository);
    repository.git(&["checkout", "--quiet", "topic"]);
    repository.commit("on topic", &[("t", b"1")]);
    repository.git(&["checkout", "--quiet", "main"]);
    repository.git(&["merge", "--quiet", "--no-ff", "-m", "merge", "topic"]);
    repository.git(&["tag", "-m", "m", "v1"]);
    repository.git(&["branch", "new"]);
    assert_eq!(import_all(repository.path(), &store).unwrap().transactions, 2);
    let counts = export(&store, &copy);
    assert_eq!((counts.commits, counts.refs), (2, 4));
    assert_same(&repository, &copy);
    // A branch that was rewritten is reported, and main moves nevertheless.
    repository.git(&["branch", "--force", "topic", "main~2"]);
    repository.commit("later", &[("a", b"later")]);
    let counts = import_all(repository.path(), &store).unwrap();
    assert_eq!((counts.transactions, counts.diverged.count), (1, 1));
    assert_eq!(counts.diverged.first, ["refs/heads/topic"]);
    export(&store, &copy);
    let copy = Repository::at(&copy);
    assert_eq!(copy.ask(&["rev-parse", "main"]), repository.ask(&["rev-parse", "main"]));
}

#[test]
fn rewritten_branch_is_imported_again_once_it_is_deleted() {
    let folder = Folder::new();
    let repository = folder.repository("repository");
    repository.commit("one", &[("a", b"1")]);
    repository.git(&["checkout", "--quiet", "-b", "topic"]);
    repository.commit("two", &[("t", b"2")]);
    repository.git(&["checkout", "--quiet", "main"]);
    let (store, copy) = round_trip(&folder, &repository);
    repository.git(&["checkout", "--quiet", "topic"]);
    repository.git(&["commit", "--quiet", "--amend", "-m", "amended"]);
    repository.git(&["checkout", "--quiet", "main"]);
    for _ in 0..2 {
        let counts = import_all(repository.path(), &store).unwrap();
        assert_eq!(counts.diverged.first, ["refs/heads/topic"]);
    }
    let db = open(&store);
    db.delete_branch("topic").unwrap();
    db.close().unwrap();
    assert_eq!(import_all(repository.path(), &store).unwrap().diverged.count, 0);
    let copy = Path::new(&copy).with_extension("again");
    export(&store, copy.to_str().unwrap());
    assert_same(&repository, copy.to_str().unwrap());
}

#[test]
fn branch_below_another_branch_is_left_out() {
    let folder = Folder::new();
    let repository = folder.repository("repository");
    repository.commit("one", &[("a", b"1")]);
    repository.git(&["branch", "b/c"]);
    let (store, copy) = round_trip(&folder, &repository);
    let db = open(&store);
    db.create_branch("b", &db.main()).unwrap();
    db.put(&files_of(&db), "a", "2").unwrap();
    db.close().unwrap();
    let counts = export(&store, &copy);
    assert_eq!((counts.branches.first, counts.refs), (vec!["b".to_owned()], 1));
    assert_eq!(Repository::at(&copy).ask(&["show", "main:a"]), "2");
}

#[test]
fn interrupted_import_continues() {
    let folder = Folder::new();
    let repository = folder.repository("repository");
    let mut script = Script::new(12);
    script.awkward_history(40);
    repository.fast_import(&script.into_stream());
    repository.git(&["tag", "-m", "m", "v1", "main~7"]);
    let (store, copy) = (folder.at("store"), folder.at("copy.git"));
    for steps in [1, 0, 7, 3, 20] {
        let opened = Opened::open(Path::new(repository.path()), "HEAD").unwrap();
        let db = open(&store);
        let mut import = WholeImport::open(&db, &opened).unwrap().unwrap();
        let before = import.counts().transactions;
        while import.counts().transactions - before < steps && import.next_commit().unwrap() {}
        drop(import);
        db.close().unwrap();
    }
    import_all(repository.path(), &store).unwrap();
    let db = open(&store);
    // The same for an export.
    for steps in [2, 9] {
        let mut export = Export::open(&db, Path::new(&copy)).unwrap();
        for _ in 0..steps {
            assert!(export.next_commit().unwrap());
        }
        if steps == 9 {
            export.flush().unwrap();
        }
    }
    let left = Export::open(&db, Path::new(&copy)).unwrap().count_commits();
    assert_eq!(left, repository.ask(&["rev-list", "--count", "--all"]).parse::<u64>().unwrap() - 9);
    db.close().unwrap();
    export(&store, &copy);
    // HEAD of a repository that an earlier export made stays.
    assert_same(&repository, &copy);
}
