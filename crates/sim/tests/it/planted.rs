//! The patches of the planted bugs still apply.

use plimsoll_sim::planted::{all, applies, workspace};

#[test]
fn every_planted_patch_applies() {
    let workspace = workspace();
    let bugs = all(&workspace).unwrap_or_else(|error| panic!("{error}"));
    assert!(bugs.len() >= 20, "only {} bugs are planted", bugs.len());
    let stale: Vec<String> = bugs.iter().filter_map(|bug| applies(&workspace, bug).err()).collect();
    assert!(stale.is_empty(), "{}", stale.join("\n\n"));
}
