//! An import matches git at the tip and at every commit.

use plimsoll::{Db, Options};
use plimsoll_git::{Cut, Import, Repository as Opened};

use crate::comparison::{assert_equal, glsns};
use crate::repository::{Repository, Script};
use crate::run::{Folder, import};

/// The awkward history, imported.
fn imported(folder: &Folder, commits: usize) -> (Repository, String) {
    let repository = folder.repository("repository");
    let mut script = Script::new(7);
    script.awkward_history(commits);
    repository.fast_import(&script.into_stream());
    let store = folder.at("store");
    assert_eq!(import(repository.path(), "HEAD", &store).transactions, commits as u64);
    (repository, store)
}

#[test]
fn every_moment_matches_git() {
    let folder = Folder::new();
    let (repository, store) = imported(&folder, 150);
    assert_equal(&repository, "main", &store, "default", 50);
}

#[test]
fn commits_follow_first_parents() {
    let folder = Folder::new();
    let (repository, store) = imported(&folder, 60);
    let mut by_glsn: Vec<(u64, String)> =
        glsns(&store).into_iter().map(|(commit, glsn)| (glsn, commit)).collect();
    by_glsn.sort_unstable();
    let imported: Vec<String> = by_glsn.into_iter().map(|(_, commit)| commit).collect();
    assert_eq!(imported, repository.commits("main"));
}

#[test]
fn bare_and_packed_repositories_are_read() {
    let folder = Folder::new();
    let repository = folder.repository("repository");
    repository.commit("one", &[("inside/a", b"1")]);
    repository.commit("two", &[("inside/a", b"2")]);
    let bare = folder.at("bare.git");
    repository.git(&["clone", "--quiet", "--bare", "--no-local", ".", &bare]);
    let inside = format!("{}/inside", repository.path());
    for (number, path) in [bare, inside, format!("{}/.git", repository.path())].iter().enumerate() {
        let store = folder.at(&format!("store{number}"));
        import(path, "HEAD", &store);
        assert_equal(&repository, "main", &store, "default", 2);
    }
}

#[test]
fn sha256_repository_is_read() {
    let folder = Folder::new();
    let path = folder.at("repository");
    let made = std::process::Command::new("git")
        .args(["init", "-q", "--object-format=sha256"])
        .arg(&path)
        .status()
        .unwrap();
    assert!(made.success());
    let repository = folder.repository("repository");
    repository.git(&["symbolic-ref", "HEAD", "refs/heads/main"]);
    repository.commit("one", &[("a", b"1"), ("b", b"1")]);
    repository.commit("two", &[("a", b"2")]);
    let store = folder.at("store");
    import(repository.path(), "HEAD", &store);
    assert_equal(&repository, "main", &store, "default", 2);
}

#[test]
fn shallow_clone_is_imported_from_its_start() {
    let folder = Folder::new();
    let repository = folder.repository("repository");
    for number in 0..5_u8 {
        repository.commit("c", &[("a", &[number]), ("b", b"same")]);
    }
    let shallow = folder.at("shallow");
    let url = format!("file://{}", repository.path());
    repository.git(&["clone", "--quiet", "--depth=3", &url, &shallow]);
    let store = folder.at("store");
    assert_eq!(cut(&shallow, &folder.at("first")), Some(repository.ask(&["rev-parse", "main~2"])));
    assert_eq!(import(&shallow, "HEAD", &store).transactions, 3);
    assert_equal(&repository, "main~3..main", &store, "default", 3);
    // A continued import is not truncated.
    let shallow = folder.repository("shallow");
    shallow.commit("c", &[("a", b"new")]);
    assert_eq!(cut(shallow.path(), &store), None);
    // A history of which the clone holds every commit is not truncated either.
    shallow.git(&["checkout", "--quiet", "--orphan", "whole"]);
    shallow.commit("c", &[("c", b"1")]);
    assert_eq!(shallow.ask(&["rev-parse", "--is-shallow-repository"]), "true");
    assert_eq!(cut(shallow.path(), &folder.at("second")), None);
}

/// The first commit that an import of a shallow clone reports.
fn cut(repository: &str, store: &str) -> Option<String> {
    let repository = Opened::open(repository.as_ref(), "HEAD").unwrap();
    let db = Db::open(store, Options::new().memory_bytes(32 << 20)).unwrap();
    let cut = Import::open(&db, &repository, "default").unwrap().unwrap().cut();
    cut.map(|cut| match cut {
        Cut::Shallow { first } => first.to_string(),
        Cut::Missing { .. } => panic!("{cut:?}"),
    })
}

#[test]
fn repository_in_any_folder_name_is_found() {
    let folder = Folder::new();
    let made = folder.repository("repository");
    made.commit("one", &[("a", b"1")]);
    let root = std::path::PathBuf::from(folder.at("any"));
    std::fs::create_dir(&root).unwrap();
    for name in [&b"d\xe9p\xf4t"[..], b"space ", b"line\nbreak", b"break\n"] {
        let path = root.join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name));
        let mut clone = std::process::Command::new("git");
        assert!(
            clone.args(["clone", "--quiet", made.path()]).arg(&path).status().unwrap().success()
        );
        let tip = Opened::open(&path, "HEAD").unwrap().tip().to_string();
        assert_eq!(tip, made.ask(&["rev-parse", "HEAD"]), "{path:?}");
    }
}
