//! Damage as reported by `verify` and `recover`: its place, the data lost with it, and the command
//! that helps.

use plimsoll_log::glsn::Glsn;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;

use crate::types::error::show_key;

/// Keys listed for each damaged place.
pub(crate) const KEYS_SHOWN: usize = 5;

/// A place where the stored bytes are not the bytes that were written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The file, relative to the store's folder.
    pub file: String,
    /// Byte offset in the file.
    pub offset: u64,
    /// The commits affected, from the first to the last, if known.
    pub glsns: Option<RangeInclusive<Glsn>>,
    /// A few of the values that cannot be read.
    pub keys: Vec<DamagedKey>,
    /// Number of further unreadable values, not listed in `keys`.
    pub more_keys: u64,
    /// If the affected keys are unknown: the range that contains them.
    pub key_range: Option<DamagedKeys>,
    /// The kind of damage.
    pub what: String,
    /// The command that makes a sound store from all readable data, if there is one.
    pub command: Option<String>,
    /// Suggested remedy, as a sentence; it names the command.
    pub hint: String,
}

/// A version of a key whose value cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DamagedKey {
    /// Name of its keyspace.
    pub keyspace: String,
    /// The key.
    pub key: Vec<u8>,
    /// The commit that wrote the value.
    pub glsn: Glsn,
    /// Length of the value.
    pub bytes: u64,
}

/// A range of keys, some of which may have lost versions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DamagedKeys {
    /// Name of the keyspace of the first key.
    pub keyspace: String,
    /// Lower bound, included.
    pub first: Vec<u8>,
    /// Upper bound, included.
    pub last: Vec<u8>,
    /// Name of the keyspace of the last key.
    pub last_keyspace: String,
    /// Names of the keyspaces between these two: all of their keys are in the range.
    pub between: Vec<String>,
}

impl fmt::Display for DamagedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (show_key(&self.first), show_key(&self.last));
        if self.keyspace == self.last_keyspace {
            return write!(f, "in keyspace {:?} keys from {first} to {last}", self.keyspace);
        }
        write!(
            f,
            "keys from {first} in keyspace {:?} to {last} in keyspace {:?}",
            self.keyspace, self.last_keyspace
        )?;
        for (number, name) in self.between.iter().enumerate() {
            write!(f, "{}{name:?}", if number == 0 { ", all of " } else { ", " })?;
        }
        Ok(())
    }
}

impl Damage {
    pub(crate) fn new(file: impl Into<String>, offset: u64, what: impl Into<String>) -> Self {
        let (file, what) = (file.into(), what.into());
        let hint = "restore a backup".to_owned();
        Self {
            file,
            offset,
            glsns: None,
            keys: Vec::new(),
            more_keys: 0,
            key_range: None,
            what,
            command: None,
            hint,
        }
    }

    /// Records a value that cannot be read.
    pub(crate) fn add_key(&mut self, key: DamagedKey) {
        if self.keys.len() < KEYS_SHOWN { self.keys.push(key) } else { self.more_keys += 1 }
    }

    /// Sets the command that makes a sound store from the readable data of the store at `path`.
    pub(crate) fn advise(&mut self, path: &Path) {
        let command = recover_command(path);
        self.hint = format!("run `{command}`");
        self.command = Some(command);
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, offset {}", self.file, self.offset)?;
        if let Some(glsns) = &self.glsns {
            match (glsns.start(), glsns.end()) {
                (first, last) if first == last => write!(f, " (GLSN {first})")?,
                (first, last) => write!(f, " (GLSN {first} to {last})")?,
            }
        }
        write!(f, ": {}", self.what)?;
        if let Some(first) = self.keys.first() {
            write!(f, "; in keyspace {:?} the values of", first.keyspace)?;
            for (number, key) in self.keys.iter().enumerate() {
                write!(
                    f,
                    "{} {} at GLSN {}",
                    if number == 0 { "" } else { "," },
                    show_key(&key.key),
                    key.glsn
                )?;
            }
            if self.more_keys > 0 {
                write!(f, " and {} more", self.more_keys)?;
            }
        }
        if let Some(range) = &self.key_range {
            write!(f, "; {range}")?;
        }
        write!(f, "; {}", self.hint)
    }
}

/// The command that recovers the store at `path` into a new folder next to it. It changes nothing
/// in the store.
pub(crate) fn recover_command(path: &Path) -> String {
    let path = path.display().to_string();
    format!("plimsoll recover {} {}", quoted(&path), quoted(&format!("{path}.recovered")))
}

/// The command that lists the damage of the store at `path`.
pub(crate) fn verify_command(path: &Path) -> String {
    format!("plimsoll verify {}", quoted(&path.display().to_string()))
}

/// Quotes a word for the shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:-+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_pasted_into_a_shell() {
        assert_eq!(
            recover_command(Path::new("/a/b.c")),
            "plimsoll recover /a/b.c /a/b.c.recovered"
        );
        let command = r"plimsoll recover '/a b/it'\''s' '/a b/it'\''s.recovered'";
        assert_eq!(recover_command(Path::new("/a b/it's")), command);
        assert_eq!(verify_command(Path::new("s")), "plimsoll verify s");
    }

    #[test]
    fn damage_is_described_on_one_line() {
        let mut damage = Damage::new("log/1.blob", 16384, "the page is cut short");
        damage.glsns = Some(Glsn(4)..=Glsn(4));
        for number in 0..7 {
            let keyspace = "default".to_owned();
            damage.add_key(DamagedKey {
                keyspace,
                key: vec![b'a', b'0' + number],
                glsn: Glsn(4),
                bytes: 9,
            });
        }
        damage.keys.truncate(2);
        damage.advise(Path::new("s"));
        let told = "log/1.blob, offset 16384 (GLSN 4): the page is cut short; in keyspace \
                    \"default\" the values of \"a0\" at GLSN 4, \"a1\" at GLSN 4 and 2 more; run \
                    `plimsoll recover s s.recovered`";
        assert_eq!(damage.to_string(), told);
    }
}
