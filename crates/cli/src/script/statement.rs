//! Parses lines into statements.

use std::path::PathBuf;
use std::time::Duration;

use crate::duration::parse_duration;
use crate::key_range::KeyRange;
use crate::moment::{At, parse_at};
use crate::number::parse_count;
use crate::script::words::{Word, words};

/// One command.
#[derive(Debug, PartialEq)]
pub(crate) enum Statement {
    Put {
        key: Vec<u8>,
        value: NewValue,
        ttl: Option<Duration>,
    },
    Get {
        key: Vec<u8>,
        at: Option<At>,
    },
    Delete {
        keys: Vec<Vec<u8>>,
    },
    DeleteRange(KeyRange),
    Update {
        key: Vec<u8>,
        update: Update,
    },
    /// Changes when the value of a key expires; `None`: it does not.
    Expire {
        key: Vec<u8>,
        ttl: Option<Duration>,
    },
    Ttl {
        key: Vec<u8>,
        at: Option<At>,
    },
    Scan {
        range: KeyRange,
        limit: Option<u64>,
        reverse: bool,
        keys_only: bool,
        at: Option<At>,
    },
    Count {
        range: KeyRange,
        at: Option<At>,
    },
    Use(String),
    Keyspaces,
    Branch(String),
    Branches,
    Report(Report, Vec<Word>),
    Begin,
    Commit,
    Rollback,
    Help,
    Quit,
}

/// A line that is a command of the command line, with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    History,
    Log,
    Diff,
    Stat,
}

/// An update of the value of a key.
#[derive(Debug, PartialEq)]
pub(crate) enum Update {
    Add(i64),
    Append(Vec<u8>),
    Swap { expected: Option<Vec<u8>>, new: Option<Vec<u8>> },
}

/// The source of a value.
#[derive(Debug, PartialEq)]
pub(crate) enum NewValue {
    Bytes(Vec<u8>),
    File(PathBuf),
}

/// Command names, for completion.
pub(crate) const NAMES: [&str; 24] = [
    "add",
    "append",
    "begin",
    "branch",
    "branches",
    "cas",
    "commit",
    "count",
    "delete",
    "diff",
    "expire",
    "get",
    "history",
    "keyspaces",
    "log",
    "persist",
    "put",
    "rollback",
    "scan",
    "stat",
    "ttl",
    "use",
    ".help",
    ".quit",
];

/// Parses a line; `None` if it is blank or a comment.
pub(crate) fn parse(line: &[u8]) -> Result<Option<Statement>, String> {
    let mut words = words(line)?;
    if words.is_empty() {
        return Ok(None);
    }
    let name = words.remove(0);
    let name = name.text()?.trim_start_matches('.').to_ascii_lowercase();
    let mut line = Line { words };
    let statement = match name.as_str() {
        "put" => put(&mut line)?,
        "get" => Statement::Get { at: line.moment()?, key: line.one("a key")? },
        "delete" => delete(&mut line)?,
        "add" => add(&mut line)?,
        "append" => {
            let key = line.one("a key")?;
            Statement::Update { key, update: Update::Append(line.one("a value")?) }
        }
        "cas" => swap(&mut line)?,
        "expire" => {
            let key = line.one("a key")?;
            Statement::Expire { key, ttl: Some(duration(line.one("a time such as 30m")?)?) }
        }
        "persist" => Statement::Expire { key: line.one("a key")?, ttl: None },
        "ttl" => Statement::Ttl { at: line.moment()?, key: line.one("a key")? },
        "scan" => Statement::Scan {
            limit: line.limit()?,
            reverse: line.flag("--reverse"),
            keys_only: line.flag("--keys"),
            at: line.moment()?,
            range: line.range()?,
        },
        "count" => Statement::Count { at: line.moment()?, range: line.range()? },
        "use" => Statement::Use(text(line.one("the name of a keyspace")?)?),
        "keyspaces" => Statement::Keyspaces,
        "branch" => Statement::Branch(text(line.one("the name of a branch")?)?),
        "branches" => Statement::Branches,
        "history" => return Ok(Some(Statement::Report(Report::History, line.words))),
        "log" => return Ok(Some(Statement::Report(Report::Log, line.words))),
        "diff" => return Ok(Some(Statement::Report(Report::Diff, line.words))),
        "stat" => return Ok(Some(Statement::Report(Report::Stat, line.words))),
        "begin" => Statement::Begin,
        "commit" => Statement::Commit,
        "rollback" => Statement::Rollback,
        "help" => Statement::Help,
        "quit" | "exit" => Statement::Quit,
        other => {
            return Err(format!("there is no command `{other}`; `.help` lists all commands"));
        }
    };
    line.end()?;
    Ok(Some(statement))
}

fn put(line: &mut Line) -> Result<Statement, String> {
    let file = line.option("--file")?;
    let ttl = line.option("--ttl")?.map(duration).transpose()?;
    let key = line.one("a key")?;
    let value = match file {
        Some(path) => NewValue::File(text(path)?.into()),
        None => NewValue::Bytes(line.one("a value, or --file PATH,")?),
    };
    Ok(Statement::Put { key, value, ttl })
}

fn delete(line: &mut Line) -> Result<Statement, String> {
    let prefix = line.option("--prefix")?;
    let (from, to) = (line.option("--from")?, line.option("--to")?);
    if prefix.is_none() && from.is_none() && to.is_none() {
        return Ok(Statement::Delete { keys: line.some("a key")? });
    }
    Ok(Statement::DeleteRange(KeyRange::new(&prefix.unwrap_or_default(), from, to)))
}

fn add(line: &mut Line) -> Result<Statement, String> {
    let key = line.one("a key")?;
    let number = match line.words.is_empty() {
        true => 1,
        false => {
            let word = text(line.one("a number")?)?;
            word.parse().map_err(|_| format!("`{word}` is not a number of 64 bits"))?
        }
    };
    Ok(Statement::Update { key, update: Update::Add(number) })
}

fn swap(line: &mut Line) -> Result<Statement, String> {
    let (absent, delete) = (line.flag("--absent"), line.flag("--delete"));
    let key = line.one("a key")?;
    let expected = if absent { None } else { Some(line.one("the expected value, or --absent,")?) };
    let new = if delete { None } else { Some(line.one("the new value, or --delete,")?) };
    Ok(Statement::Update { key, update: Update::Swap { expected, new } })
}

fn duration(word: Vec<u8>) -> Result<Duration, String> {
    parse_duration(&text(word)?)
}

fn text(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes)
        .map_err(|_| "only keys and values may hold bytes that are not text".to_owned())
}

/// The unconsumed words after a command's name.
struct Line {
    words: Vec<Word>,
}

impl Line {
    /// Consumes an option without a value.
    fn flag(&mut self, name: &str) -> bool {
        let place =
            self.words.iter().position(|word| !word.quoted && word.bytes == name.as_bytes());
        place.map(|place| self.words.remove(place)).is_some()
    }

    /// Consumes an option and its value: `--limit 5` or `--limit=5`.
    fn option(&mut self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let joined = format!("{name}=").into_bytes();
        let names = |word: &Word| {
            !word.quoted && (word.bytes == name.as_bytes() || word.bytes.starts_with(&joined))
        };
        let Some(place) = self.words.iter().position(names) else { return Ok(None) };
        let word = self.words.remove(place);
        if let Some(value) = word.bytes.strip_prefix(&joined[..]) {
            return Ok(Some(value.to_vec()));
        }
        if place == self.words.len() {
            return Err(format!("{name} needs a value"));
        }
        Ok(Some(self.words.remove(place).bytes))
    }

    fn limit(&mut self) -> Result<Option<u64>, String> {
        let Some(bytes) = self.option("--limit")? else { return Ok(None) };
        parse_count(&text(bytes)?).map(Some)
    }

    fn moment(&mut self) -> Result<Option<At>, String> {
        self.option("--at")?.map(|at| parse_at(&text(at)?)).transpose()
    }

    fn range(&mut self) -> Result<KeyRange, String> {
        let (from, to) = (self.option("--from")?, self.option("--to")?);
        self.refuse_options()?;
        let prefix = if self.words.is_empty() { Vec::new() } else { self.words.remove(0).bytes };
        Ok(KeyRange::new(&prefix, from, to))
    }

    /// Consumes the next word that is not an option.
    fn one(&mut self, what: &str) -> Result<Vec<u8>, String> {
        self.refuse_options()?;
        if self.words.is_empty() {
            return Err(format!("{what} is missing"));
        }
        Ok(self.words.remove(0).bytes)
    }

    fn some(&mut self, what: &str) -> Result<Vec<Vec<u8>>, String> {
        let first = self.one(what)?;
        Ok(std::iter::once(first).chain(self.words.drain(..).map(|word| word.bytes)).collect())
    }

    fn refuse_options(&self) -> Result<(), String> {
        match self.words.iter().find(|word| !word.quoted && word.bytes.starts_with(b"--")) {
            Some(word) => {
                let word = String::from_utf8_lossy(&word.bytes);
                Err(format!(
                    "`{word}` is not an option of this command; quote it if it is a key or a value"
                ))
            }
            None => Ok(()),
        }
    }

    fn end(&self) -> Result<(), String> {
        self.refuse_options()?;
        match self.words.first() {
            Some(word) => {
                let word = String::from_utf8_lossy(&word.bytes);
                Err(format!("unexpected word `{word}`; quote a value that contains spaces"))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Statement {
        parse(line.as_bytes()).unwrap().unwrap()
    }

    #[test]
    fn commands_accept_options_in_any_order() {
        assert_eq!(
            parsed("put 'a b' \"c\\n\""),
            Statement::Put {
                key: b"a b".to_vec(),
                value: NewValue::Bytes(b"c\n".to_vec()),
                ttl: None
            }
        );
        assert_eq!(
            parsed("put --file /tmp/x a"),
            Statement::Put {
                key: b"a".to_vec(),
                value: NewValue::File("/tmp/x".into()),
                ttl: None
            }
        );
        assert_eq!(
            parsed("GET a --at 3"),
            Statement::Get { key: b"a".to_vec(), at: Some(At::Glsn(3)) }
        );
        assert_eq!(
            parsed("delete a b"),
            Statement::Delete { keys: vec![b"a".to_vec(), b"b".to_vec()] }
        );
        assert_eq!(
            parsed("scan --limit=5 p/ --reverse --from p/b --keys"),
            Statement::Scan {
                range: KeyRange::new(b"p/", Some(b"p/b".to_vec()), None),
                limit: Some(5),
                reverse: true,
                keys_only: true,
                at: None
            }
        );
        for (line, update) in [
            ("add n", Update::Add(1)),
            ("add n -3", Update::Add(-3)),
            ("append n x", Update::Append(b"x".to_vec())),
            ("cas n a b", Update::Swap { expected: Some(b"a".to_vec()), new: Some(b"b".to_vec()) }),
            ("cas --absent n b", Update::Swap { expected: None, new: Some(b"b".to_vec()) }),
            ("cas n a --delete", Update::Swap { expected: Some(b"a".to_vec()), new: None }),
        ] {
            assert_eq!(parsed(line), Statement::Update { key: b"n".to_vec(), update }, "{line}");
        }
        assert_eq!(
            parsed("count"),
            Statement::Count { range: KeyRange::new(b"", None, None), at: None }
        );
        assert_eq!(parsed("use users"), Statement::Use("users".to_owned()));
        assert_eq!(parsed("branch draft"), Statement::Branch("draft".to_owned()));
        assert_eq!(
            (parsed(".quit"), parsed("exit"), parsed("begin")),
            (Statement::Quit, Statement::Quit, Statement::Begin)
        );
        assert_eq!(parse(b"  # nothing"), Ok(None));
    }

    #[test]
    fn quoted_word_is_not_an_option() {
        assert_eq!(parsed("get '--at'"), Statement::Get { key: b"--at".to_vec(), at: None });
    }

    #[test]
    fn malformed_lines_name_the_error() {
        for (line, part) in [
            ("fetch a", "no command `fetch`"),
            ("put a", "a value"),
            ("put", "a key is missing"),
            ("put a b c", "unexpected word `c`"),
            ("get a --limit 3", "`--limit` is not an option"),
            ("get --a", "`--a` is not an option"),
            ("add n many", "`many` is not a number"),
            ("cas n a", "the new value"),
            ("scan --limit", "--limit needs a value"),
            ("scan --limit many", "`many` is not a count"),
            ("get a --at -1", "`-1` is not a moment"),
            ("begin now", "unexpected word"),
            ("use \\xff", "not text"),
        ] {
            let refusal = parse(line.as_bytes()).unwrap_err();
            assert!(refusal.contains(part), "{line}: {refusal}");
        }
    }
}
