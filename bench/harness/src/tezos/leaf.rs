//! Leaves of the tree: the path of each, and its contents after a number of writes.
//!
//! Paths are those of a Tezos context: `data/contracts/index/HEX/...`, a folder with an entry for
//! each contract, and `data/big_maps/index/MAP/contents/HEX/data`. Bytes follow from the leaf and
//! its version.

use std::fmt::Write as _;

use crate::payload::{fill, mix};

/// Big maps that keys are spread over.
const BIG_MAPS: u64 = 512;

/// One storage in this many is longer than the others.
const LONG_STORAGE: u64 = 200;

/// A leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Leaf {
    /// An attribute of a contract.
    Balance(u64),
    /// Operations of a contract.
    Counter(u64),
    /// Data of a contract's program.
    Storage(u64),
    /// A key of a big map.
    BigMap(u64),
}

impl Leaf {
    /// Appends the path of its folder, with a trailing slash.
    pub(super) fn write_folder(self, path: &mut String) {
        let hex = |path: &mut String, seed: u64, words: u64| {
            (0..words).for_each(|word| {
                write!(path, "{:016x}", mix(mix(seed) + word)).expect("writing to a string")
            });
        };
        match self {
            Self::Balance(contract) | Self::Counter(contract) | Self::Storage(contract) => {
                path.push_str("data/contracts/index/0000");
                // The hash of a public key has 20 bytes.
                hex(path, contract, 2);
                write!(path, "{:08x}/", mix(contract) as u32).expect("writing to a string");
            }
            Self::BigMap(key) => {
                write!(path, "data/big_maps/index/{}/contents/", mix(key) % BIG_MAPS)
                    .expect("writing to a string");
                hex(path, !key, 4);
                path.push('/');
            }
        }
    }

    /// Appends its path.
    pub(super) fn write_path(self, path: &mut String) {
        self.write_folder(path);
        path.push_str(match self {
            Self::Balance(_) => "balance",
            Self::Counter(_) => "counter",
            Self::Storage(_) => "data/storage",
            Self::BigMap(_) => "data",
        });
    }

    /// Appends the data of its `version`th write; 0 is the initial data.
    pub(super) fn write_value(self, version: u64, value: &mut Vec<u8>) {
        let seed = mix(self.number() ^ mix(version));
        let between = |low: u64, high: u64| low + mix(!seed) % (high - low + 1);
        let bytes = match self {
            Self::Balance(_) => between(3, 8),
            Self::Counter(_) => between(1, 4),
            Self::Storage(_) if seed.is_multiple_of(LONG_STORAGE) => between(513, 4096),
            Self::Storage(_) => between(40, 512),
            Self::BigMap(_) => between(16, 150),
        };
        let start = value.len();
        value.resize(start + bytes as usize, 0);
        fill(seed, &mut value[start..]);
    }

    /// A number that no other leaf has.
    fn number(self) -> u64 {
        match self {
            Self::Balance(contract) => contract << 2,
            Self::Counter(contract) => contract << 2 | 1,
            Self::Storage(contract) => contract << 2 | 2,
            Self::BigMap(key) => key << 2 | 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(leaf: Leaf) -> String {
        let mut path = String::new();
        leaf.write_path(&mut path);
        path
    }

    #[test]
    fn paths_have_the_shape_of_a_tezos_context() {
        let balance = path(Leaf::Balance(5));
        let hex = balance
            .strip_prefix("data/contracts/index/")
            .unwrap()
            .strip_suffix("/balance")
            .unwrap();
        assert!(hex.len() == 44 && hex.bytes().all(|digit| digit.is_ascii_hexdigit()), "{balance}");
        assert!(path(Leaf::Storage(5)).ends_with(&format!("{hex}/data/storage")));
        let key = path(Leaf::BigMap(5));
        let parts: Vec<&str> = key.split('/').collect();
        assert_eq!(
            (parts.len(), parts[..3].join("/"), parts[4], parts[6]),
            (7, "data/big_maps/index".into(), "contents", "data")
        );
        assert!(parts[3].parse::<u64>().unwrap() < BIG_MAPS && parts[5].len() == 64, "{key}");
    }

    #[test]
    fn leaves_have_paths_of_their_own_below_their_folders() {
        let leaves = |i| [Leaf::Balance(i), Leaf::Counter(i), Leaf::Storage(i), Leaf::BigMap(i)];
        let paths: std::collections::HashSet<String> =
            (0..1000).flat_map(leaves).map(path).collect();
        assert_eq!(paths.len(), 4000);
        for leaf in leaves(7) {
            let mut folder = String::new();
            leaf.write_folder(&mut folder);
            assert!(folder.ends_with('/') && path(leaf).starts_with(&folder));
        }
    }

    #[test]
    fn each_write_puts_a_different_value_derived_from_its_number() {
        let value = |leaf: Leaf, version| {
            let mut value = Vec::new();
            leaf.write_value(version, &mut value);
            value
        };
        for leaf in [Leaf::Balance(3), Leaf::Storage(3), Leaf::BigMap(3)] {
            assert_eq!(value(leaf, 9), value(leaf, 9));
            assert_ne!(value(leaf, 9), value(leaf, 10));
        }
        assert!((0..100).all(|version| (1..=4).contains(&value(Leaf::Counter(1), version).len())));
    }
}
