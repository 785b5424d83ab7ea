//! Repositories that lack objects: what is there is imported, what is not is reported.

use crate::import::{assert_equal, glsns};
use crate::repository::Repository;
use crate::run::{Folder, Ran, run};

struct Holes {
    folder: Folder,
    repository: Repository,
}

impl Holes {
    /// Five commits, one file each in a folder and at the top, and one file that never changes.
    fn new() -> (Self, Vec<String>) {
        let folder = Folder::new();
        let repository = Repository::init(&folder.path().join("repository"));
        let commits = (1..=5_u8).map(|number| {
            let name = format!("folder/{number}");
            repository.commit("c", &[("top", &[number]), (&name, &[number; 3]), ("same", b"same")])
        });
        let commits = commits.collect();
        (Self { folder, repository }, commits)
    }

    fn import(&self) -> Ran {
        run(&["import", "git", self.repository.path(), &self.store(), "--json"])
    }

    fn store(&self) -> String {
        self.folder.at("store")
    }

    fn get(&self, key: &str, at: u64) -> Option<Vec<u8>> {
        let ran = run(&["get", &self.store(), key, "--at", &at.to_string()]);
        (ran.code == 0).then_some(ran.out)
    }
}

#[test]
fn a_missing_content_is_named_and_its_key_absent_until_the_next_one() {
    let (holes, commits) = Holes::new();
    let lost = holes.repository.lose(&format!("{}:top", commits[2]));
    let ran = holes.import().ok();
    assert!(ran.err.contains("1 file version left out"), "{}", ran.err);
    assert!(ran.err.contains(&lost) && ran.err.contains("top at commit"), "{}", ran.err);
    assert_eq!(ran.json()["files_left_out"], 1);
    let glsns = glsns(&holes.store());
    let top = |place: usize| holes.get("top", glsns[&commits[place]]);
    assert_eq!([top(1), top(2), top(3)], [Some(vec![2]), None, Some(vec![4])]);
    assert_equal(&holes.repository, "main", &holes.store(), "default", 1);
}

#[test]
fn many_missing_contents_are_counted_and_a_few_named() {
    let (holes, commits) = Holes::new();
    for commit in &commits {
        holes.repository.lose(&format!("{commit}:top"));
    }
    for number in 1..=4 {
        holes.repository.lose(&format!("{}:folder/{number}", commits[4]));
    }
    let ran = holes.import().ok();
    assert!(ran.err.contains("9 file versions left out") && ran.err.contains("and 4 more"), "{}", ran.err);
    assert_eq!(holes.get("folder/5", glsns(&holes.store())[&commits[4]]), Some(vec![5; 3]));
}

#[test]
fn a_damaged_content_is_left_out_and_the_import_goes_on() {
    let (holes, commits) = Holes::new();
    let damaged = holes.repository.damage(&format!("{}:folder/2", commits[1]));
    let ran = holes.import().ok();
    assert!(ran.err.contains(&damaged) && ran.err.contains("1 file version left out"), "{}", ran.err);
    let newest = glsns(&holes.store())[&commits[4]];
    assert_eq!(holes.get("folder/2", newest), None);
    assert_eq!(holes.get("folder/3", newest), Some(vec![3; 3]));
}

#[test]
fn a_commit_without_its_folders_is_left_out_and_its_changes_come_with_the_next() {
    let (holes, commits) = Holes::new();
    for folder in ["^{tree}", ":folder"] {
        let (holes, commits) = Holes::new();
        holes.repository.lose(&format!("{}{folder}", commits[2]));
        let ran = holes.import().ok();
        assert!(ran.err.contains("1 commit left out") && ran.err.contains(&commits[2]), "{}", ran.err);
        let facts = ran.json();
        assert_eq!((&facts["transactions"], &facts["commits_left_out"]), (&4.into(), &1.into()));
        let glsns = glsns(&holes.store());
        assert!(!glsns.contains_key(&commits[2]));
        assert_eq!(holes.get("folder/3", glsns[&commits[3]]), Some(vec![3; 3]));
        assert_equal(&holes.repository, "main", &holes.store(), "default", 1);
    }
    // Without holes nothing is left out.
    assert_eq!(holes.import().ok().json()["transactions"], commits.len());
}

#[test]
fn the_first_and_the_last_commit_can_be_the_ones_without_folders() {
    let (holes, commits) = Holes::new();
    holes.repository.lose(&format!("{}^{{tree}}", commits[0]));
    holes.repository.lose(&format!("{}^{{tree}}", commits[1]));
    let tree = holes.repository.lose(&format!("{}^{{tree}}", commits[4]));
    let ran = holes.import().ok();
    assert_eq!(ran.json()["commits_left_out"], 3, "{}", ran.err);
    let glsns = glsns(&holes.store());
    assert_eq!(glsns.len(), 2);
    assert_eq!(holes.get("folder/1", glsns[&commits[2]]), Some(vec![1; 3]));
    // Once the folders are there, running it again brings them.
    assert_eq!(holes.import().ok().json()["transactions"], 0);
    holes.repository.git(&["add", "--all"]);
    assert_eq!(holes.repository.ask(&["write-tree"]), tree);
    assert_eq!(holes.import().ok().json()["transactions"], 1);
    assert_equal(&holes.repository, "main~1..main", &holes.store(), "default", 1);
}

#[test]
fn a_history_that_is_cut_begins_with_the_oldest_commit_that_is_there() {
    let (holes, commits) = Holes::new();
    holes.repository.lose(&commits[1]);
    let ran = holes.import().ok();
    assert!(ran.err.contains("a parent of commit") && ran.err.contains(&commits[2]), "{}", ran.err);
    assert_eq!(ran.json()["transactions"], 3);
    assert_equal(&holes.repository, &format!("{}..main", commits[2]), &holes.store(), "default", 2);
    let first = glsns(&holes.store())[&commits[2]];
    assert_eq!(holes.get("folder/1", first), Some(vec![1; 3]));
    holes.repository.commit("c", &[("top", b"6")]);
    assert_eq!(holes.import().ok().json()["transactions"], 1);
}

#[test]
fn a_tip_without_parents_is_imported_alone() {
    let (holes, commits) = Holes::new();
    holes.repository.lose(&commits[3]);
    assert_eq!(holes.import().ok().json()["transactions"], 1);
    assert_eq!(holes.get("top", glsns(&holes.store())[&commits[4]]), Some(vec![5]));
}
