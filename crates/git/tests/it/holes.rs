//! Repositories with missing objects: existing objects are imported, missing ones are reported.

use plimsoll::{Db, Glsn, Moment, Options};
use plimsoll_git::{Counts, Cut, FileReason, Import, Repository as Opened};

use crate::comparison::{assert_equal, glsns};
use crate::repository::Repository;
use crate::run::{Folder, import, import_into};

struct Holes {
    folder: Folder,
    repository: Repository,
}

impl Holes {
    /// Five commits, with one file each in a folder and at the top, and one file that never
    /// changes.
    fn new() -> (Self, Vec<String>) {
        let folder = Folder::new();
        let repository = folder.repository("repository");
        let commits = (1..=5_u8).map(|number| {
            let name = format!("folder/{number}");
            repository.commit("c", &[("top", &[number]), (&name, &[number; 3]), ("same", b"same")])
        });
        let commits = commits.collect();
        (Self { folder, repository }, commits)
    }

    fn import(&self) -> Counts {
        import(self.repository.path(), "HEAD", &self.store())
    }

    fn store(&self) -> String {
        self.folder.at("store")
    }

    fn get(&self, key: &str, at: u64) -> Option<Vec<u8>> {
        let db =
            Db::open(self.store(), Options::new().memory_bytes(32 << 20).read_only(true)).unwrap();
        let keyspace = db.keyspace("default").unwrap();
        let value =
            db.snapshot_at(Moment::Glsn(Glsn(at))).unwrap().get(&keyspace, key.as_bytes()).unwrap();
        value.map(plimsoll::Value::into_vec)
    }
}

#[test]
fn missing_content_is_listed_and_absent() {
    let (holes, commits) = Holes::new();
    let lost = holes.repository.lose(&format!("{}:top", commits[2]));
    let missing = holes.import().missing;
    assert_eq!(missing.count, 1);
    assert_eq!(
        (missing.first[0].path.as_slice(), missing.first[0].commit.as_str()),
        (&b"top"[..], &*commits[2])
    );
    assert!(
        matches!(&missing.first[0].why, FileReason::Missing { object } if object.as_str() == lost)
    );
    let glsns = glsns(&holes.store());
    let top = |place: usize| holes.get("top", glsns[&commits[place]]);
    assert_eq!([top(1), top(2), top(3)], [Some(vec![2]), None, Some(vec![4])]);
    assert_equal(&holes.repository, "main", &holes.store(), "default", 1);
}

#[test]
fn missing_contents_are_counted_and_the_first_listed() {
    let (holes, commits) = Holes::new();
    for commit in &commits {
        holes.repository.lose(&format!("{commit}:top"));
    }
    for number in 1..=4 {
        holes.repository.lose(&format!("{}:folder/{number}", commits[4]));
    }
    let missing = holes.import().missing;
    assert_eq!((missing.count, missing.first.len()), (9, 5));
    assert_eq!(holes.get("folder/5", glsns(&holes.store())[&commits[4]]), Some(vec![5; 3]));
}

#[test]
fn damaged_content_is_skipped() {
    let (holes, commits) = Holes::new();
    let damaged = holes.repository.lose(&format!("{}:folder/2", commits[1]));
    let object =
        format!("{}/.git/objects/{}/{}", holes.repository.path(), &damaged[..2], &damaged[2..]);
    std::fs::write(object, "damaged").unwrap();
    let missing = holes.import().missing;
    assert_eq!(missing.count, 1);
    let (FileReason::Missing { object } | FileReason::Damaged { object, .. }) =
        &missing.first[0].why
    else {
        panic!("{:?}", missing.first[0])
    };
    assert_eq!(object.as_str(), damaged);
    let newest = glsns(&holes.store())[&commits[4]];
    assert_eq!(holes.get("folder/2", newest), None);
    assert_eq!(holes.get("folder/3", newest), Some(vec![3; 3]));
}

#[test]
fn commit_without_folders_is_skipped() {
    let (holes, commits) = Holes::new();
    for folder in ["^{tree}", ":folder"] {
        let (holes, commits) = Holes::new();
        holes.repository.lose(&format!("{}{folder}", commits[2]));
        let counts = holes.import();
        assert_eq!((counts.transactions, counts.commits.count), (4, 1));
        assert_eq!(counts.commits.first[0].id.as_str(), commits[2]);
        let glsns = glsns(&holes.store());
        assert!(!glsns.contains_key(&commits[2]));
        assert_eq!(holes.get("folder/3", glsns[&commits[3]]), Some(vec![3; 3]));
        assert_equal(&holes.repository, "main", &holes.store(), "default", 1);
    }
    // Without missing objects nothing is skipped.
    assert_eq!(holes.import().transactions, commits.len() as u64);
}

#[test]
fn first_and_last_commit_may_lack_folders() {
    let (holes, commits) = Holes::new();
    holes.repository.lose(&format!("{}^{{tree}}", commits[0]));
    holes.repository.lose(&format!("{}^{{tree}}", commits[1]));
    let tree = holes.repository.lose(&format!("{}^{{tree}}", commits[4]));
    assert_eq!(holes.import().commits.count, 3);
    let glsns = glsns(&holes.store());
    assert_eq!(glsns.len(), 2);
    assert_eq!(holes.get("folder/1", glsns[&commits[2]]), Some(vec![1; 3]));
    // Once the folders exist, the next import brings them.
    let again =
        import_into(holes.repository.path(), "HEAD", &holes.store(), "default").unwrap().unwrap();
    assert_eq!((again.transactions, again.commits.count), (0, 1));
    holes.repository.git(&["add", "--all"]);
    assert_eq!(holes.repository.ask(&["write-tree"]), tree);
    assert_eq!(holes.import().transactions, 1);
    assert_equal(&holes.repository, "main~1..main", &holes.store(), "default", 1);
}

#[test]
fn truncated_history_starts_at_the_oldest_commit() {
    let (holes, commits) = Holes::new();
    holes.repository.lose(&commits[1]);
    let (repository, other) =
        (Opened::open(holes.repository.path().as_ref(), "HEAD").unwrap(), holes.folder.at("other"));
    let db = Db::open(other, Options::new().memory_bytes(32 << 20)).unwrap();
    let import = Import::open(&db, &repository, "default").unwrap().unwrap();
    assert!(matches!(import.cut(), Some(Cut::Missing { first }) if first.as_str() == commits[2]));
    assert_eq!(holes.import().transactions, 3);
    assert_equal(&holes.repository, &format!("{}..main", commits[2]), &holes.store(), "default", 2);
    let first = glsns(&holes.store())[&commits[2]];
    assert_eq!(holes.get("folder/1", first), Some(vec![1; 3]));
    holes.repository.commit("c", &[("top", b"6")]);
    assert_eq!(holes.import().transactions, 1);
}

#[test]
fn tip_without_parents_is_imported_alone() {
    let (holes, commits) = Holes::new();
    holes.repository.lose(&commits[3]);
    assert_eq!(holes.import().transactions, 1);
    assert_eq!(holes.get("top", glsns(&holes.store())[&commits[4]]), Some(vec![5]));
}

#[test]
fn partial_clone_skips_contents_in_one_process() {
    let (holes, commits) = Holes::new();
    let source = holes.repository.path().to_owned();
    holes.repository.git(&["config", "uploadpack.allowFilter", "true"]);
    let clone = holes.folder.at("clone");
    let url = format!("file://{source}");
    holes.repository.git(&["clone", "--quiet", "--bare", "--filter=blob:none", &url, &clone]);
    let counts = import(&clone, "HEAD", &holes.store());
    assert_eq!((counts.transactions, counts.missing.count), (5, 11));
    // If the process exits at the content, the reason is more than "missing".
    let is_missing = |why: &FileReason| matches!(why, FileReason::Missing { .. });
    assert!(
        counts.missing.first.iter().all(|file| is_missing(&file.why)),
        "{:?}",
        counts.missing.first
    );
    assert_eq!(holes.get("top", glsns(&holes.store())[&commits[4]]), None);
}
