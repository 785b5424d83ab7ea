//! The names of manifests in the index's folder: `MANIFEST.` and 20 digits.

/// Number of manifests that are kept: the newest, and older ones for readers that have chosen one
/// but not yet opened it.
pub(crate) const KEPT: u64 = 3;

const PREFIX: &str = "MANIFEST.";
const UNFINISHED: &str = ".new";

/// Suffix of the name that is given to a manifest of another log found in the folder.
pub(crate) const FOREIGN: &str = ".of-another-log";

/// The name of a manifest.
pub(crate) fn manifest_name(number: u64) -> String {
    format!("{PREFIX}{number:020}")
}

/// The name under which a manifest is written before it gets its own name. `writer` is 0 for a
/// process that has the store exclusively, or identifies a member.
pub(crate) fn new_manifest_name(number: u64, writer: u64) -> String {
    match writer {
        0 => manifest_name(number) + UNFINISHED,
        member => format!("{}{UNFINISHED}.{member:02}", manifest_name(number)),
    }
}

/// The number of the manifest with this name; `None` if the name is not one of a manifest.
pub(crate) fn manifest_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?;
    digits.parse().ok().filter(|number| manifest_name(*number) == name)
}

/// Whether a file is an unfinished manifest, or is older than the last [`KEPT`] manifests, of which
/// `newest` is the last.
pub(crate) fn is_leftover(name: &str, newest: u64) -> bool {
    match manifest_number(name) {
        Some(number) => number.saturating_add(KEPT) <= newest,
        None => name
            .split_once(UNFINISHED)
            .is_some_and(|(manifest, _)| manifest_number(manifest).is_some()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_names_and_numbers_round_trip() {
        assert_eq!(manifest_name(7), "MANIFEST.00000000000000000007");
        for number in [0, 7, u64::MAX] {
            assert_eq!(manifest_number(&manifest_name(number)), Some(number));
            assert_eq!(manifest_number(&new_manifest_name(number, 0)), None);
            assert_eq!(manifest_number(&new_manifest_name(number, 3)), None);
        }
        for name in
            ["MANIFEST", "MANIFEST.", "MANIFEST.7", "MANIFEST.+0000000000000000007", "MANIFEST.new"]
        {
            assert_eq!(manifest_number(name), None, "{name}");
        }
    }

    #[test]
    fn the_last_three_manifests_and_foreign_files_are_not_leftovers() {
        let leftover = |name: &str| is_leftover(name, 9);
        assert!(
            leftover(&manifest_name(6))
                && leftover(&new_manifest_name(10, 0))
                && leftover(&new_manifest_name(3, 17))
        );
        assert!(
            !leftover(&manifest_name(7)) && !leftover(&manifest_name(9)) && !leftover("notes.new")
        );
    }
}
