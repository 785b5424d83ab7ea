//! The moment that a command reads at: a GLSN, a time, a tag, an imported commit, or the newest; or
//! one of these on a branch.
//!
//! A commit's time is its log time; an imported commit's is its committer's time, if that is
//! earlier. The moment of a time T is the last commit in log order whose time is not after T, as
//! `git rev-list -1 --first-parent --before=T` finds it.

use jiff::Timestamp;
use plimsoll::{BranchInfo, Db, Error, Glsn, InvalidInput, Moment, TagInfo};
use plimsoll_git::moments;

use crate::exit::Failure;
use crate::time::{now, of_system, parse_time, show_time};

/// The branch that always exists.
pub(crate) const MAIN: &str = "main";

/// A moment as given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Newest,
    Glsn(u64),
    Time(Timestamp),
    /// A prefix of a Git commit id.
    Commit(String),
    /// The name of a tag.
    Tag(String),
    /// A moment of another kind, on a branch.
    Branch {
        name: String,
        at: Box<At>,
    },
}

impl At {
    /// Whether it is the newest moment, on any branch.
    pub(crate) fn is_newest(&self) -> bool {
        match self {
            Self::Newest => true,
            Self::Branch { at, .. } => at.is_newest(),
            _ => false,
        }
    }
}

/// Parses `newest`, digits as a GLSN, `commit:` with hexadecimal digits, a time, one of these on a
/// branch, and anything else that may be a tag's name as a tag.
pub(crate) fn parse_at(text: &str) -> Result<At, String> {
    if text == "newest" {
        return Ok(At::Newest);
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let glsn = text.parse().map_err(|_| format!("`{text}` is larger than any GLSN"))?;
        return Ok(At::Glsn(glsn));
    }
    if let Some(id) = text.strip_prefix("commit:") {
        let valid = (4..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let refusal = || format!("`{id}` is not a commit id; write 4 to 64 hexadecimal digits");
        return if valid { Ok(At::Commit(id.to_ascii_lowercase())) } else { Err(refusal()) };
    }
    if let Some((name, at)) = text.strip_suffix('}').and_then(|text| text.split_once("@{")) {
        return match parse_at(at)? {
            at if BranchInfo::is_name(name) && !matches!(at, At::Branch { .. }) => {
                Ok(At::Branch { name: name.to_owned(), at: Box::new(at) })
            }
            _ => Err(format!(
                "`{text}` is not a moment on a branch; write e.g. draft@{{newest}} or \
                 \"draft@{{2 hours ago}}\""
            )),
        };
    }
    if let Some(time) = parse_time(text, now()) {
        return Ok(At::Time(time));
    }
    match TagInfo::is_name(text) {
        true => Ok(At::Tag(text.to_owned())),
        false => Err(format!("`{text}` is not a moment; {EXAMPLES}")),
    }
}

const EXAMPLES: &str = "write a GLSN or a time, e.g. 120, newest, 2024-01-31, \
                        \"2024-01-31 12:00\", \"2 hours ago\" or commit:1a2b3c4, or the name of \
                        a tag";

/// The most names of tags in an error.
const NAMES_SHOWN: usize = 10;

/// The number of characters that are inserted, removed or replaced to make one name of another.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (number, a) in from.chars().enumerate() {
        // `diagonal` is the entry of the last row and column.
        let mut diagonal = std::mem::replace(&mut row[0], number + 1);
        for (at, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[at + 1];
            row[at + 1] = replaced.min(diagonal + 1).min(row[at] + 1);
        }
    }
    row[to.len()]
}

/// The tags of the store; if there are many, those that are most like `name`.
pub(crate) fn known_tags(db: &Db, name: &str) -> Result<String, Failure> {
    let mut names: Vec<String> = db.tags()?.into_iter().map(|tag| tag.name).collect();
    Ok(match names.len() {
        0 => "there are none".to_owned(),
        1..=NAMES_SHOWN => format!("there are: {}", names.join(", ")),
        count => {
            names.sort_by_cached_key(|known| edits(name, known));
            format!("the closest of {count} are: {}", names[..NAMES_SHOWN].join(", "))
        }
    })
}

/// The message for a name that is not a tag of the store.
pub(crate) fn no_tag(db: &Db, name: &str) -> Result<String, Failure> {
    let known = known_tags(db, name)?;
    Ok(format!(
        "there is no tag `{name}` in this store; {known}. `plimsoll tag create` creates one"
    ))
}

/// Reads a time.
pub(crate) fn parse_only_time(text: &str) -> Result<Timestamp, String> {
    let refusal =
        "is not a time; write e.g. 2024-01-31, \"2024-01-31 12:00\", yesterday or \"2 hours ago\"";
    parse_time(text, now()).ok_or_else(|| format!("`{text}` {refusal}"))
}

/// The GLSN of a moment of a keyspace.
pub(crate) fn glsn(db: &Db, at: &At, keyspace: &str) -> Result<u64, Failure> {
    match at {
        At::Newest => Ok(db.newest().0),
        At::Glsn(glsn) => Ok(*glsn),
        At::Commit(id) => Ok(moments::commit(db, keyspace, id)?),
        At::Branch { name, .. } => Err(Failure::usage(format!(
            "`{name}@{{...}}` is a moment on a branch, and this command takes a moment of the \
             whole store; {EXAMPLES}"
        ))),
        At::Tag(name) => match db.tag_at(name) {
            Err(Error::InvalidInput(InvalidInput::NoTag { .. })) => {
                let is_branch = name == MAIN || db.branch(name).is_ok();
                let hint = match is_branch {
                    true => format!("`{name}` is a branch: write {name}@{{newest}}"),
                    false => format!("For another moment, {EXAMPLES}"),
                };
                Err(Failure::usage(format!("{}. {hint}", no_tag(db, name)?)))
            }
            tag => Ok(tag?.glsn.0),
        },
        At::Time(time) => match last_at(db, &[keyspace.to_owned()], *time)? {
            0 => Err(before_the_first(db, *time, keyspace)?),
            glsn => Ok(glsn),
        },
    }
}

/// The last commit in log order whose time is not after `time`, using committers' times for commits
/// imported into these keyspaces; 0 if there is none.
pub(crate) fn last_at(db: &Db, keyspaces: &[String], time: Timestamp) -> Result<u64, Failure> {
    let mut last = None;
    for keyspace in keyspaces {
        last = last.max(moments::last_at(db, keyspace, time.into())?);
    }
    let stored = match db.snapshot_at(Moment::Time(time.into())) {
        Ok(snapshot) => snapshot.at(),
        // The trimmed part of the log no longer has the commit times, but imported commits carry
        // their own.
        Err(Error::TimeTrimmed { .. }) if last.is_some() => Glsn(0),
        Err(Error::InvalidInput(InvalidInput::TimeBeforeFirst { .. })) => Glsn(0),
        Err(error) => return Err(error.into()),
    };
    Ok(last.unwrap_or_default().max(stored.0))
}

fn before_the_first(db: &Db, time: Timestamp, keyspace: &str) -> Result<Failure, Failure> {
    let shown = show_time(time);
    let first = match moments::earliest(db, keyspace)? {
        Some(earliest) => format!("the history in keyspace `{keyspace}` begins at {earliest}"),
        None if db.newest() == 0 => "the store is empty".to_owned(),
        None => {
            let first = db.log().read(db.log().bounds().first)?;
            format!("the store begins at {}", show_time(of_system(first.time)))
        }
    };
    Ok(Failure::usage(format!(
        "{shown} is before the first commit: {first}. Moment 0 is the empty store."
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_a_glsn_and_dates_are_times() {
        assert_eq!(parse_at("2024"), Ok(At::Glsn(2024)));
        assert_eq!(parse_at("newest"), Ok(At::Newest));
        assert_eq!(parse_at("commit:00FFab"), Ok(At::Commit("00ffab".to_owned())));
        for text in ["2024-01-31 12:00", "now", "yesterday", "2 hours ago"] {
            assert!(matches!(parse_at(text), Ok(At::Time(_))), "{text}");
        }
    }

    #[test]
    fn a_tag_name_is_no_other_moment() {
        let text = |text: &str| parse_at(text).unwrap_or(At::Newest);
        for name in ["soon", "v1.2", "1.0", "-", "2024-q1", "chicago", "2 hours"] {
            assert_eq!(text(name), At::Tag(name.to_owned()));
        }
        // A text that is read as another kind of moment must not be a valid name of a tag.
        let (numbers, units) = (["1", "-2", "+3", "0.5", "P1", "PT1", "-P1"], ["d", "h", "D", "H"]);
        let spans = numbers.iter().flat_map(|number| units.map(|unit| format!("{number}{unit}")));
        let others = ["2024-01-31", "20240131", "20240131T1200", "+002024-01-31", "now ", "7"];
        let texts = spans.flat_map(|span| [format!("{span} ago"), format!("{span}ago")]);
        for text in texts.chain(others.map(str::to_owned)) {
            if !matches!(parse_at(&text), Ok(At::Tag(_)) | Err(_)) {
                assert!(!TagInfo::is_name(&text), "{text}");
            }
        }
    }

    #[test]
    fn moment_on_a_branch_has_its_name_and_a_moment() {
        let on = |name: &str, at| Ok(At::Branch { name: name.to_owned(), at: Box::new(at) });
        assert_eq!(parse_at("draft@{newest}"), on("draft", At::Newest));
        assert_eq!(parse_at("main@{7}"), on("main", At::Glsn(7)));
        assert_eq!(parse_at("a/b@{v1}"), on("a/b", At::Tag("v1".to_owned())));
        assert!(parse_at("draft@{2 hours ago}").is_ok_and(|at| !at.is_newest()));
        assert!(parse_at("draft@{newest}").is_ok_and(|at| at.is_newest()));
        for text in ["@{1}", "draft@{}", "12@{1}", "a@{b@{1}}", "draft@{1", "-a@{1}"] {
            assert!(parse_at(text).is_err(), "{text}");
        }
    }

    #[test]
    fn malformed_moment_is_refused_with_examples() {
        for text in
            ["", "2024-1-31", "99999999999999999999", "commit:", "commit:xyz1", "commit:12", "a:b"]
        {
            let message = parse_at(text).unwrap_err();
            assert!(
                ["e.g. 120", "larger", "hexadecimal"].iter().any(|part| message.contains(part)),
                "{message}"
            );
        }
    }

    #[test]
    fn names_differ_by_the_characters_that_are_edited() {
        let cases = [("", "", 0), ("v1", "v1", 0), ("v1", "v2", 1), ("v1", "", 2), ("ab", "ba", 2)];
        for (from, to, count) in cases {
            assert_eq!((edits(from, to), edits(to, from)), (count, count), "{from}, {to}");
        }
        assert_eq!(edits("release-3", "release-30"), 1);
    }
}
