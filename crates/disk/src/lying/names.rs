//! The names of a simulated disk: the durable names, and the operations since, in order.
//!
//! As on journaling file systems, operations in one folder become durable in order. A rename
//! between two folders is one operation, present in both or in neither. A folder's own name is a
//! name in its parent, so syncing the folder does not save it.

use std::collections::{BTreeMap, BTreeSet};

use crate::lying::Injected;
use crate::random::Random;
use crate::tree::{Change, Names, NodeId, apply};

/// One operation: a set of changes applied atomically.
type Operation = Vec<Change>;

#[derive(Clone, Debug, Default)]
pub(crate) struct DurableNames {
    folders: BTreeMap<NodeId, Names>,
    unsynced: Vec<Operation>,
}

impl DurableNames {
    /// The durable names of each folder.
    pub(crate) fn folders(&self) -> &BTreeMap<NodeId, Names> {
        &self.folders
    }

    pub(crate) fn add(&mut self, operation: Operation) {
        if !operation.is_empty() {
            self.unsynced.push(operation);
        }
    }

    /// Makes the names in a folder durable. For an operation that also touches another folder,
    /// earlier operations there become durable too.
    pub(crate) fn sync(&mut self, folder: NodeId) {
        let mut folders = BTreeSet::from([folder]);
        let mut kept = vec![false; self.unsynced.len()];
        for (i, operation) in self.unsynced.iter().enumerate().rev() {
            kept[i] = touches(operation).any(|id| folders.contains(&id));
            if kept[i] {
                folders.extend(touches(operation));
            }
        }
        let (synced, unsynced) =
            self.unsynced.drain(..).zip(kept).partition::<Vec<_>, _>(|(_, kept)| *kept);
        self.unsynced = unsynced.into_iter().map(|(operation, _)| operation).collect();
        synced.iter().for_each(|(operation, _)| keep(&mut self.folders, operation));
    }

    /// Applies a power cut: a prefix of each folder's operations survives.
    pub(crate) fn crash(&mut self, random: &mut Random, injected: &mut Injected) {
        let mut left = self.choose_surviving(random);
        for operation in self.unsynced.drain(..) {
            if touches(&operation).all(|folder| left[&folder] > 0) {
                touches(&operation).for_each(|folder| *left.entry(folder).or_default() -= 1);
                keep(&mut self.folders, &operation);
            } else {
                // Later operations in these folders are lost too.
                left.extend(touches(&operation).map(|folder| (folder, 0)));
                injected.lost_names += 1;
            }
        }
    }

    /// Draws the number of surviving operations for each folder.
    fn choose_surviving(&self, random: &mut Random) -> BTreeMap<NodeId, u64> {
        let mut counts = BTreeMap::new();
        for folder in self.unsynced.iter().flat_map(touches) {
            *counts.entry(folder).or_insert(0) += 1;
        }
        counts.into_iter().map(|(folder, count)| (folder, random.below(count + 1))).collect()
    }

    /// All nodes that an unsynced operation refers to.
    pub(crate) fn unsynced_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.unsynced
            .iter()
            .flatten()
            .flat_map(|change| [Some(change.folder), change.was, change.now])
            .flatten()
    }

    /// Drops folders that are not in `kept`.
    pub(crate) fn retain(&mut self, kept: &BTreeSet<NodeId>) {
        self.folders.retain(|id, _| kept.contains(id));
    }
}

/// The folders an operation changes, each once.
fn touches(operation: &Operation) -> impl Iterator<Item = NodeId> {
    let mut folders: Vec<NodeId> = operation.iter().map(|change| change.folder).collect();
    folders.dedup();
    folders.into_iter()
}

fn keep(folders: &mut BTreeMap<NodeId, Names>, operation: &Operation) {
    for change in operation {
        apply(folders.entry(change.folder).or_default(), change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{ROOT, Tree};
    use std::path::Path;

    /// A tree with the folders `a` and `b` and the file `a/file`, all durable.
    fn tree() -> (Tree<()>, DurableNames) {
        let mut tree = Tree::new();
        let mut names = DurableNames::default();
        for folder in ["a", "b"] {
            names.add(tree.create_dir(Path::new(folder)).unwrap().1);
        }
        names.add(tree.create_file(Path::new("a/file"), ()).unwrap().1);
        names.sync(ROOT);
        names.sync(tree.folder(Path::new("a")).unwrap());
        (tree, names)
    }

    fn count(names: &DurableNames, folder: NodeId) -> usize {
        names.folders().get(&folder).map_or(0, Names::len)
    }

    #[test]
    fn syncing_one_folder_saves_a_rename_in_both() {
        let (mut tree, mut names) = tree();
        let (a, b) = (tree.folder(Path::new("a")).unwrap(), tree.folder(Path::new("b")).unwrap());
        names.add(tree.create_file(Path::new("a/before"), ()).unwrap().1);
        names.add(tree.rename(Path::new("a/file"), Path::new("b/file")).unwrap());
        names.add(tree.create_file(Path::new("a/after"), ()).unwrap().1);
        names.sync(b);
        assert_eq!(names.folders()[&a].keys().collect::<Vec<_>>(), ["before"]);
        assert_eq!(names.folders()[&b].keys().collect::<Vec<_>>(), ["file"]);
        assert_eq!(names.unsynced.len(), 1);
    }

    #[test]
    fn rename_survives_in_both_folders_or_neither() {
        let mut kept = 0;
        for seed in 0..100 {
            let (mut tree, mut names) = tree();
            let (a, b) =
                (tree.folder(Path::new("a")).unwrap(), tree.folder(Path::new("b")).unwrap());
            names.add(tree.rename(Path::new("a/file"), Path::new("b/file")).unwrap());
            let mut injected = Injected::default();
            names.crash(&mut Random::new(seed), &mut injected);
            assert_eq!(count(&names, a) + count(&names, b), 1);
            assert_eq!(injected.lost_names as usize, count(&names, a));
            kept += count(&names, b);
        }
        assert!((1..100).contains(&kept), "{kept}");
    }

    #[test]
    fn operations_after_a_lost_rename_are_lost() {
        let mut lost = 0;
        for seed in 0..200 {
            let (mut tree, mut names) = tree();
            let a = tree.folder(Path::new("a")).unwrap();
            names.add(tree.rename(Path::new("a/file"), Path::new("b/file")).unwrap());
            names.add(tree.create_file(Path::new("a/after"), ()).unwrap().1);
            names.crash(&mut Random::new(seed), &mut Injected::default());
            let left: Vec<&str> = names.folders()[&a].keys().map(String::as_str).collect();
            assert!([&["file"][..], &[], &["after"]].contains(&&left[..]), "{left:?}");
            lost += usize::from(left == ["file"]);
        }
        assert!((1..200).contains(&lost), "{lost}");
    }
}
