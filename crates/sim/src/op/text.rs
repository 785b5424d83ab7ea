//! The text format of operations.
//!
//! ```text
//! put t0 s1 =a/01 1024#77          transaction 0, keyspace 1, key "a/01", 1024 bytes of seed 77
//! walk v2 s0 [a )b rev 10 values   snapshot 2, from "a" (included) down from "b" (excluded), ten at most
//! ```
//! A sign before a key gives its role (`=` a key, `[` `(` `]` `)` an edge, `^` a prefix). A
//! non-printable byte is `%` and two hex digits, and a repeated byte is `{61*4000}`. A line that
//! begins with `#` is a comment.

mod within;

use std::fmt::{self, Write};
use std::str::FromStr;

use crate::content::Content;
use crate::op::{Change, Edge, Fault, Get, Keep, Key, Moment, Op, Part, Reader, Removal, Span};

/// A byte repeated at least this often is written as a run.
const RUN_BYTES: usize = 9;

/// Formats a workload, one operation per line.
pub fn print(ops: &[Op]) -> String {
    ops.iter().fold(String::new(), |mut text, op| {
        let _ = writeln!(text, "{op}");
        text
    })
}

/// Parses a workload; an error names the line.
pub fn parse(text: &str) -> Result<Vec<Op>, String> {
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
    lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(number, line)| {
            line.parse().map_err(|error| format!("line {number}: {error}: {line}"))
        })
        .collect()
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Begin { tx } => write!(f, "begin t{tx}"),
            Op::BeginOrdered { tx } => write!(f, "begin-ordered t{tx}"),
            Op::Commit { tx, metadata } => write!(f, "commit t{tx} {metadata}"),
            Op::Submit { tx } => write!(f, "submit t{tx}"),
            Op::Abort { tx } => write!(f, "abort t{tx}"),
            Op::Wait => f.write_str("wait"),
            Op::Put { tx, space, key, value, streamed } => {
                let how = if *streamed { "stream" } else { "put" };
                write!(f, "{how} t{tx} s{space} ={} {value}", Escaped(key))
            }
            Op::PutMany { tx, space, first, count, value, scattered } => {
                let order = if *scattered { "scattered" } else { "rising" };
                write!(f, "put-many t{tx} s{space} {first} {count} {value} {order}")
            }
            Op::BulkLoad { space, first, count, value, scattered } => {
                let order = if *scattered { "scattered" } else { "rising" };
                write!(f, "bulk-load s{space} {first} {count} {value} {order}")
            }
            Op::LoadBegin { slot, space } => write!(f, "load-begin l{slot} s{space}"),
            Op::LoadPut { slot, key, value } => {
                write!(f, "load-put l{slot} ={} {value}", Escaped(key))
            }
            Op::LoadMany { slot, first, count, value, scattered } => {
                let order = if *scattered { "scattered" } else { "rising" };
                write!(f, "load-many l{slot} {first} {count} {value} {order}")
            }
            Op::LoadCommit { slot } => write!(f, "load-commit l{slot}"),
            Op::LoadDrop { slot } => write!(f, "load-drop l{slot}"),
            Op::Update { tx, space, key, change } => {
                write!(f, "update t{tx} s{space} ={} {change}", Escaped(key))
            }
            Op::Delete { tx, space, key } => write!(f, "delete t{tx} s{space} ={}", Escaped(key)),
            Op::Remove { tx, space, span, how, limit } => {
                write!(f, "remove t{tx} s{space} {span} {how} {limit}")
            }
            Op::DeleteRange { space, span } => write!(f, "delete-range s{space} {span}"),
            Op::Get { from, space, key, how } => {
                write!(f, "{} {from} s{space} ={}", get_name(*how), Escaped(key))
            }
            Op::Walk { from, space, span, reverse, limit, keys_only, amid } => {
                let (direction, what) = (direction_name(*reverse), what_name(*keys_only));
                write!(f, "walk {from} s{space} {span} {direction} {limit} {what}")?;
                amid.map_or(Ok(()), |amid| write!(f, " amid {amid}"))
            }
            Op::WalkBegin { slot, from, space, span, reverse, keys_only } => {
                let (direction, what) = (direction_name(*reverse), what_name(*keys_only));
                write!(f, "walk-begin w{slot} {from} s{space} {span} {direction} {what}")
            }
            Op::WalkOn { slot, count } => write!(f, "walk-on w{slot} {count}"),
            Op::ReaderBegin { slot, from, space, key } => {
                write!(f, "reader-begin r{slot} {from} s{space} ={}", Escaped(key))
            }
            Op::ReaderOn { slot, bytes } => write!(f, "reader-on r{slot} {bytes}"),
            Op::Amid { at, deed, op } => write!(f, "amid {at} {deed} then {op}"),
            Op::Failing { call, op } => write!(f, "failing {call} then {op}"),
            Op::Edge { tx, pick, value, spilled } => {
                write!(
                    f,
                    "edge t{tx} {pick} {value} {}",
                    if *spilled { "spilled" } else { "plain" }
                )
            }
            Op::FeedBegin { slot, back, feed } => write!(f, "feed-begin f{slot} {back} {feed}"),
            Op::FeedOn { slot, count } => write!(f, "feed-on f{slot} {count}"),
            Op::Snapshot { slot, moment } => write!(f, "snapshot v{slot} {moment}"),
            Op::Release { slot } => write!(f, "release v{slot}"),
            Op::History { space, key } => write!(f, "history s{space} ={}", Escaped(key)),
            Op::Diff { space, from, to, prefix } => {
                write!(f, "diff s{space} {from} {to} ^{}", Escaped(prefix))
            }
            Op::Revert { back, takes_theirs } => {
                write!(f, "{} {back}", if *takes_theirs { "revert-theirs" } else { "revert" })
            }
            Op::Reset { space: None, back } => write!(f, "reset-all {back}"),
            Op::Reset { space: Some(space), back } => write!(f, "reset s{space} {back}"),
            Op::Append { stream, payloads, wait } => {
                write!(f, "{} {stream}", if *wait { "append" } else { "append-submit" })?;
                payloads.iter().try_for_each(|payload| write!(f, " {payload}"))
            }
            Op::Scan { back, count, stream } => {
                write!(f, "scan {back} {count} {}", StreamName(*stream))
            }
            Op::Follow { back, stream } => write!(f, "follow {back} {}", StreamName(*stream)),
            Op::Watch { space, back, prefix } => {
                write!(f, "watch s{space} {back} ^{}", Escaped(prefix))
            }
            Op::Read { back } => write!(f, "read {back}"),
            Op::Trim { back } => write!(f, "trim {back}"),
            Op::Keyspace { space, retention } => write!(f, "keyspace s{space} {retention}"),
            Op::Compress { space, compression } => write!(f, "compress s{space} {compression}"),
            Op::DropSpace { space } => write!(f, "drop-space s{space}"),
            Op::Cursor { name, back } => write!(f, "cursor c{name} {back}"),
            Op::AdvanceCursor { name, back } => write!(f, "advance-cursor c{name} {back}"),
            Op::DropCursor { name } => write!(f, "drop-cursor c{name}"),
            Op::Recover { damage } => write!(f, "recover {damage}"),
            Op::Flush => f.write_str("flush"),
            Op::Compact => f.write_str("compact"),
            Op::Step => f.write_str("step"),
            Op::Work { first } => write!(f, "work w{first}"),
            Op::DropCaches => f.write_str("drop-caches"),
            Op::Memory { mebibytes } => write!(f, "memory {mebibytes}"),
            Op::Keep => f.write_str("keep"),
            Op::Restore { part } => f.write_str(match part {
                Part::Whole => "restore whole",
                Part::Log => "restore log",
                Part::Index => "restore index",
            }),
            Op::Reopen => f.write_str("reopen"),
            Op::RecoverWhole => f.write_str("recover-whole"),
            Op::LoseIndex => f.write_str("lose-index"),
            Op::Backup => f.write_str("backup"),
            Op::BackupCut => f.write_str("backup-cut"),
            Op::Warm => f.write_str("warm"),
            Op::SaveImage => f.write_str("save-image"),
            Op::Kill => f.write_str("kill"),
            Op::Verify => f.write_str("verify"),
            Op::Check => f.write_str("check"),
            Op::ReadBeside => f.write_str("read-beside"),
            Op::Advance { micros } => write!(f, "advance {micros}"),
            Op::Jump { micros } => write!(f, "jump {micros}"),
            Op::Crash { again } => write!(f, "crash {again}"),
            Op::KillAtSync { after } => write!(f, "kill-at-sync {after}"),
            Op::CutAtSync { after } => write!(f, "cut {after}"),
            Op::CutAtChange { after } => write!(f, "cut-at-change {after}"),
            Op::KillAtChange { after } => write!(f, "kill-at-change {after}"),
            Op::Fault(Fault::Reads(permille)) => write!(f, "fault reads {permille}"),
            Op::Fault(Fault::Flips(permille)) => write!(f, "fault flips {permille}"),
            Op::Fault(Fault::Sync) => f.write_str("fault sync"),
            Op::Fault(Fault::SyncLater(after)) => write!(f, "fault sync-later {after}"),
            Op::Fault(Fault::RenameLater(after)) => write!(f, "fault rename-later {after}"),
            Op::Fault(Fault::Full(bytes)) => write!(f, "fault full {bytes}"),
            Op::Fault(Fault::Slow(micros)) => write!(f, "fault slow {micros}"),
            Op::Fault(Fault::Heal) => f.write_str("fault heal"),
            Op::Among(among) => among.fmt(f),
        }
    }
}

fn direction_name(reverse: bool) -> &'static str {
    if reverse { "rev" } else { "fwd" }
}

fn what_name(keys_only: bool) -> &'static str {
    if keys_only { "keys" } else { "values" }
}

fn get_name(how: Get) -> &'static str {
    match how {
        Get::Value => "get",
        Get::Streamed => "get-stream",
        Get::Contains => "contains",
        Get::Lent => "get-lent",
        Get::Now => "get-now",
        Get::Resident => "get-resident",
    }
}

impl fmt::Display for Removal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Removal::First => f.write_str("first"),
            Removal::Last => f.write_str("last"),
            Removal::Retain(each) => write!(f, "retain:{each}"),
            Removal::Extract(each) => write!(f, "extract:{each}"),
            Removal::Range => f.write_str("range"),
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.bytes, self.seed)
    }
}

impl fmt::Display for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reader::Tx(tx) => write!(f, "t{tx}"),
            Reader::Snapshot(slot) => write!(f, "v{slot}"),
            Reader::Back(back) => write!(f, "-{back}"),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Span::Prefix(prefix) => write!(f, "^{} .", Escaped(prefix)),
            Span::Range(lower, upper) => {
                match lower {
                    Edge::Open => f.write_str("*"),
                    Edge::At(key) => write!(f, "[{}", Escaped(key)),
                    Edge::Beside(key) => write!(f, "({}", Escaped(key)),
                }?;
                match upper {
                    Edge::Open => f.write_str(" *"),
                    Edge::At(key) => write!(f, " ]{}", Escaped(key)),
                    Edge::Beside(key) => write!(f, " ){}", Escaped(key)),
                }
            }
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Moment::Newest => f.write_str("newest"),
            Moment::Back(glsns) => write!(f, "back:{glsns}"),
            Moment::Ahead(glsns) => write!(f, "ahead:{glsns}"),
            Moment::Age(micros) => write!(f, "age:{micros}"),
            Moment::TimeOf { back, micros } => write!(f, "time-of:{back}:{micros}"),
        }
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Keep::Forever => f.write_str("forever"),
            Keep::Latest => f.write_str("latest"),
            Keep::Glsns(glsns) => write!(f, "glsns:{glsns}"),
            Keep::Micros(micros) => write!(f, "micros:{micros}"),
        }
    }
}

struct StreamName(Option<u32>);

impl fmt::Display for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("all"),
            Some(stream) => write!(f, "{stream}"),
        }
    }
}

struct Escaped<'a>(&'a [u8]);

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Add(by) => write!(f, "add {by}"),
            Change::IfAbsent(value) => write!(f, "if-absent {value}"),
        }
    }
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some(&byte) = rest.first() {
            let run = rest.iter().take_while(|&&other| other == byte).count();
            if run >= RUN_BYTES {
                write!(f, "{{{byte:02x}*{run}}}")?;
                rest = &rest[run..];
                continue;
            }
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'_' | b'-' | b'.' => {
                    f.write_char(byte.into())?
                }
                _ => write!(f, "%{byte:02x}")?,
            }
            rest = &rest[1..];
        }
        Ok(())
    }
}

/// Words of a line, taken from the front.
struct Words<'a> {
    words: std::str::SplitWhitespace<'a>,
}

impl FromStr for Op {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = Words { words: line.split_whitespace() };
        let verb = words.next()?;
        if verb == "among" {
            return line.parse().map(Op::Among);
        }
        let op = words.op(verb)?;
        match words.words.next() {
            None => Ok(op),
            Some(word) => Err(format!("unexpected word {word:?}")),
        }
    }
}

impl<'a> Words<'a> {
    fn next(&mut self) -> Result<&'a str, String> {
        self.words.next().ok_or_else(|| "a word is missing".to_owned())
    }

    fn op(&mut self, verb: &str) -> Result<Op, String> {
        Ok(match verb {
            "begin" => Op::Begin { tx: self.sign("t")? },
            "begin-ordered" => Op::BeginOrdered { tx: self.sign("t")? },
            "commit" => Op::Commit { tx: self.sign("t")?, metadata: self.content()? },
            "submit" => Op::Submit { tx: self.sign("t")? },
            "abort" => Op::Abort { tx: self.sign("t")? },
            "wait" => Op::Wait,
            "put" | "stream" => Op::Put {
                tx: self.sign("t")?,
                space: self.sign("s")?,
                key: self.key("=")?,
                value: self.content()?,
                streamed: verb == "stream",
            },
            "put-many" => Op::PutMany {
                tx: self.sign("t")?,
                space: self.sign("s")?,
                first: self.number()?,
                count: self.number()?,
                value: self.content()?,
                scattered: self.either("scattered", "rising")?,
            },
            "bulk-load" => Op::BulkLoad {
                space: self.sign("s")?,
                first: self.number()?,
                count: self.number()?,
                value: self.content()?,
                scattered: self.either("scattered", "rising")?,
            },
            "load-begin" => Op::LoadBegin { slot: self.sign("l")?, space: self.sign("s")? },
            "load-put" => {
                Op::LoadPut { slot: self.sign("l")?, key: self.key("=")?, value: self.content()? }
            }
            "load-many" => Op::LoadMany {
                slot: self.sign("l")?,
                first: self.number()?,
                count: self.number()?,
                value: self.content()?,
                scattered: self.either("scattered", "rising")?,
            },
            "load-commit" => Op::LoadCommit { slot: self.sign("l")? },
            "load-drop" => Op::LoadDrop { slot: self.sign("l")? },
            "update" => Op::Update {
                tx: self.sign("t")?,
                space: self.sign("s")?,
                key: self.key("=")?,
                change: match self.next()? {
                    "add" => Change::Add(self.number()?),
                    "if-absent" => Change::IfAbsent(self.content()?),
                    word => return Err(format!("{word:?} is no update")),
                },
            },
            "delete" => {
                Op::Delete { tx: self.sign("t")?, space: self.sign("s")?, key: self.key("=")? }
            }
            "delete-range" => Op::DeleteRange { space: self.sign("s")?, span: self.span()? },
            "get" => self.get(Get::Value)?,
            "get-stream" => self.get(Get::Streamed)?,
            "contains" => self.get(Get::Contains)?,
            "get-lent" => self.get(Get::Lent)?,
            "get-now" => self.get(Get::Now)?,
            "get-resident" => self.get(Get::Resident)?,
            "remove" => Op::Remove {
                tx: self.sign("t")?,
                space: self.sign("s")?,
                span: self.span()?,
                how: self.removal()?,
                limit: self.number()?,
            },
            "walk" => self.walk()?,
            "walk-begin" => Op::WalkBegin {
                slot: self.sign("w")?,
                from: self.reader()?,
                space: self.sign("s")?,
                span: self.span()?,
                reverse: self.either("rev", "fwd")?,
                keys_only: self.either("keys", "values")?,
            },
            "walk-on" => Op::WalkOn { slot: self.sign("w")?, count: self.number()? },
            "reader-begin" => Op::ReaderBegin {
                slot: self.sign("r")?,
                from: self.reader()?,
                space: self.sign("s")?,
                key: self.key("=")?,
            },
            "reader-on" => Op::ReaderOn { slot: self.sign("r")?, bytes: self.number()? },
            "amid" => self.amid()?,
            "failing" => self.failing()?,
            "edge" => Op::Edge {
                tx: self.sign("t")?,
                pick: self.number()?,
                value: self.content()?,
                spilled: self.either("spilled", "plain")?,
            },
            "feed-begin" => {
                Op::FeedBegin { slot: self.sign("f")?, back: self.number()?, feed: self.feed()? }
            }
            "feed-on" => Op::FeedOn { slot: self.sign("f")?, count: self.number()? },
            "snapshot" => Op::Snapshot { slot: self.sign("v")?, moment: self.moment()? },
            "release" => Op::Release { slot: self.sign("v")? },
            "history" => Op::History { space: self.sign("s")?, key: self.key("=")? },
            "diff" => Op::Diff {
                space: self.sign("s")?,
                from: self.number()?,
                to: self.number()?,
                prefix: self.key("^")?,
            },
            "revert" | "revert-theirs" => {
                Op::Revert { back: self.number()?, takes_theirs: verb == "revert-theirs" }
            }
            "reset-all" => Op::Reset { space: None, back: self.number()? },
            "reset" => Op::Reset { space: Some(self.sign("s")?), back: self.number()? },
            "append" | "append-submit" => self.append(verb == "append")?,
            "scan" => {
                Op::Scan { back: self.number()?, count: self.number()?, stream: self.stream()? }
            }
            "follow" => Op::Follow { back: self.number()?, stream: self.stream()? },
            "watch" => {
                Op::Watch { space: self.sign("s")?, back: self.number()?, prefix: self.key("^")? }
            }
            "read" => Op::Read { back: self.number()? },
            "trim" => Op::Trim { back: self.number()? },
            "keyspace" => Op::Keyspace { space: self.sign("s")?, retention: self.retention()? },
            "compress" => Op::Compress { space: self.sign("s")?, compression: self.number()? },
            "drop-space" => Op::DropSpace { space: self.sign("s")? },
            "cursor" => Op::Cursor { name: self.sign("c")?, back: self.number()? },
            "advance-cursor" => Op::AdvanceCursor { name: self.sign("c")?, back: self.number()? },
            "drop-cursor" => Op::DropCursor { name: self.sign("c")? },
            "recover" => Op::Recover { damage: self.number()? },
            "flush" => Op::Flush,
            "compact" => Op::Compact,
            "step" => Op::Step,
            "work" => Op::Work { first: self.sign("w")? },
            "drop-caches" => Op::DropCaches,
            "memory" => Op::Memory { mebibytes: self.number()? },
            "keep" => Op::Keep,
            "restore" => Op::Restore { part: self.part()? },
            "reopen" => Op::Reopen,
            "recover-whole" => Op::RecoverWhole,
            "lose-index" => Op::LoseIndex,
            "backup" => Op::Backup,
            "backup-cut" => Op::BackupCut,
            "warm" => Op::Warm,
            "save-image" => Op::SaveImage,
            "kill" => Op::Kill,
            "verify" => Op::Verify,
            "check" => Op::Check,
            "read-beside" => Op::ReadBeside,
            "advance" => Op::Advance { micros: self.number()? },
            "jump" => Op::Jump { micros: self.number()? },
            "crash" => Op::Crash { again: self.number()? },
            "kill-at-sync" => Op::KillAtSync { after: self.number()? },
            "cut" => Op::CutAtSync { after: self.number()? },
            "cut-at-change" => Op::CutAtChange { after: self.number()? },
            "kill-at-change" => Op::KillAtChange { after: self.number()? },
            "fault" => Op::Fault(self.fault()?),
            _ => return Err(format!("unknown operation {verb:?}")),
        })
    }

    fn get(&mut self, how: Get) -> Result<Op, String> {
        Ok(Op::Get { from: self.reader()?, space: self.sign("s")?, key: self.key("=")?, how })
    }

    fn walk(&mut self) -> Result<Op, String> {
        Ok(Op::Walk {
            from: self.reader()?,
            space: self.sign("s")?,
            span: self.span()?,
            reverse: self.either("rev", "fwd")?,
            limit: self.number()?,
            keys_only: self.either("keys", "values")?,
            amid: match self.words.clone().next() {
                Some("amid") => {
                    self.next()?;
                    Some(self.number()?)
                }
                _ => None,
            },
        })
    }

    fn removal(&mut self) -> Result<Removal, String> {
        let word = self.next()?;
        match (word, tagged(word)) {
            ("first", _) => Ok(Removal::First),
            ("last", _) => Ok(Removal::Last),
            ("range", _) => Ok(Removal::Range),
            (_, Some(("retain", each))) => Ok(Removal::Retain(each as u8)),
            (_, Some(("extract", each))) => Ok(Removal::Extract(each as u8)),
            _ => Err(format!("unknown removal {word:?}")),
        }
    }

    fn append(&mut self, wait: bool) -> Result<Op, String> {
        let stream = self.number()?;
        let mut payloads = Vec::new();
        while self.words.clone().next().is_some() {
            payloads.push(self.content()?);
        }
        Ok(Op::Append { stream, payloads, wait })
    }

    fn number<T: FromStr>(&mut self) -> Result<T, String> {
        let word = self.next()?;
        word.parse().map_err(|_| format!("{word:?} is not a number here"))
    }

    fn sign(&mut self, sign: &str) -> Result<u8, String> {
        let word = self.next()?;
        let number = word.strip_prefix(sign).and_then(|number| number.parse().ok());
        number.ok_or_else(|| format!("{word:?} should be {sign:?} and a number"))
    }

    fn either(&mut self, yes: &str, no: &str) -> Result<bool, String> {
        match self.next()? {
            word if word == yes => Ok(true),
            word if word == no => Ok(false),
            word => Err(format!("{word:?} should be {yes:?} or {no:?}")),
        }
    }

    fn key(&mut self, sign: &str) -> Result<Key, String> {
        let word = self.next()?;
        unescape(
            word.strip_prefix(sign)
                .ok_or_else(|| format!("{word:?} should begin with {sign:?}"))?,
        )
    }

    fn content(&mut self) -> Result<Content, String> {
        let word = self.next()?;
        let (bytes, seed) =
            word.split_once('#').ok_or_else(|| format!("{word:?} should be BYTES#SEED"))?;
        let number = |word: &str| word.parse().map_err(|_| format!("{word:?} is not a number"));
        Ok(Content { bytes: number(bytes)?, seed: number(seed)? })
    }

    fn reader(&mut self) -> Result<Reader, String> {
        let word = self.next()?;
        let wrong = || format!("{word:?} should be t, v or - and a number");
        let (sign, number) = word.split_at_checked(1).ok_or_else(wrong)?;
        match sign {
            "t" => number.parse().map(Reader::Tx).map_err(|_| wrong()),
            "v" => number.parse().map(Reader::Snapshot).map_err(|_| wrong()),
            "-" => number.parse().map(Reader::Back).map_err(|_| wrong()),
            _ => Err(wrong()),
        }
    }

    fn span(&mut self) -> Result<Span, String> {
        let (first, second) = (self.next()?, self.next()?);
        if let Some(prefix) = first.strip_prefix('^') {
            return unescape(prefix).map(Span::Prefix);
        }
        let edge = |word: &str, at, beside| {
            if word == "*" {
                Ok(Edge::Open)
            } else if let Some(key) = word.strip_prefix(at) {
                unescape(key).map(Edge::At)
            } else if let Some(key) = word.strip_prefix(beside) {
                unescape(key).map(Edge::Beside)
            } else {
                Err(format!("{word:?} should be an edge: * {at} {beside}"))
            }
        };
        Ok(Span::Range(edge(first, '[', '(')?, edge(second, ']', ')')?))
    }

    fn moment(&mut self) -> Result<Moment, String> {
        let word = self.next()?;
        if word == "newest" {
            return Ok(Moment::Newest);
        }
        if let Some((back, micros)) =
            word.strip_prefix("time-of:").and_then(|rest| rest.split_once(':'))
            && let (Ok(back), Ok(micros)) = (back.parse(), micros.parse())
        {
            return Ok(Moment::TimeOf { back, micros });
        }
        match tagged(word) {
            Some(("back", glsns)) => Ok(Moment::Back(glsns)),
            Some(("ahead", glsns)) => Ok(Moment::Ahead(glsns)),
            Some(("age", micros)) => Ok(Moment::Age(micros)),
            _ => Err(format!("unknown moment {word:?}")),
        }
    }

    fn retention(&mut self) -> Result<Keep, String> {
        let word = self.next()?;
        match (word, tagged(word)) {
            ("forever", _) => Ok(Keep::Forever),
            ("latest", _) => Ok(Keep::Latest),
            (_, Some(("glsns", glsns))) => Ok(Keep::Glsns(glsns)),
            (_, Some(("micros", micros))) => Ok(Keep::Micros(micros)),
            _ => Err(format!("unknown retention {word:?}")),
        }
    }

    fn stream(&mut self) -> Result<Option<u32>, String> {
        match self.next()? {
            "all" => Ok(None),
            word => word.parse().map(Some).map_err(|_| format!("{word:?} is not a stream")),
        }
    }

    fn part(&mut self) -> Result<Part, String> {
        match self.next()? {
            "whole" => Ok(Part::Whole),
            "log" => Ok(Part::Log),
            "index" => Ok(Part::Index),
            word => Err(format!("{word:?} should be \"whole\", \"log\" or \"index\"")),
        }
    }

    fn fault(&mut self) -> Result<Fault, String> {
        Ok(match self.next()? {
            "reads" => Fault::Reads(self.number()?),
            "flips" => Fault::Flips(self.number()?),
            "sync" => Fault::Sync,
            "sync-later" => Fault::SyncLater(self.number()?),
            "rename-later" => Fault::RenameLater(self.number()?),
            "full" => Fault::Full(self.number()?),
            "slow" => Fault::Slow(self.number()?),
            "heal" => Fault::Heal,
            word => return Err(format!("unknown fault {word:?}")),
        })
    }
}

/// `tag:number`.
fn tagged(word: &str) -> Option<(&str, u64)> {
    let (tag, number) = word.split_once(':')?;
    Some((tag, number.parse().ok()?))
}

fn unescape(text: &str) -> Result<Key, String> {
    let mut key = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let wrong = || format!("invalid escape {rest:?}");
        let hex = |digits: &str| u8::from_str_radix(digits, 16).map_err(|_| wrong());
        match first {
            '%' => {
                key.push(hex(rest.get(1..3).ok_or_else(wrong)?)?);
                rest = &rest[3..];
            }
            '{' => {
                let (run, behind) = rest[1..].split_once('}').ok_or_else(wrong)?;
                let (byte, count) = run.split_once('*').ok_or_else(wrong)?;
                let count = count.parse::<u16>().map_err(|_| wrong())?;
                key.resize(key.len() + usize::from(count), hex(byte)?);
                rest = behind;
            }
            _ => {
                key.extend_from_slice(&rest.as_bytes()[..first.len_utf8()]);
                rest = &rest[first.len_utf8()..];
            }
        }
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::generate::{Profile, generate};

    #[test]
    fn generated_workload_round_trips_through_its_text() {
        for profile in Profile::ALL {
            for seed in 0..12 {
                let ops = generate(seed, &profile.settings().of_seed(seed), 1000);
                assert_eq!(parse(&print(&ops)).unwrap(), ops);
            }
        }
    }

    #[test]
    fn keys_of_any_bytes_round_trip() {
        let keys: [&[u8]; 6] = [
            b"",
            b"plain/01",
            b"with space",
            &[0, 255, b'%', b'{', b'#'],
            &[b'x'; 4096],
            "ä".as_bytes(),
        ];
        for key in keys {
            let op = Op::Delete { tx: 1, space: 2, key: key.to_vec() };
            assert_eq!(op.to_string().parse(), Ok(op));
        }
    }

    #[test]
    fn invalid_line_is_rejected_with_its_number() {
        let refusal = parse("# a comment\nbegin t0\n\nput t0 s0 =a 12").unwrap_err();
        assert!(refusal.starts_with("line 4: ") && refusal.contains("BYTES#SEED"), "{refusal}");
        for line in [
            "dance",
            "begin",
            "begin x1",
            "wait now",
            "get q1 s0 =a",
            "walk t0 s0 a b fwd 1 values",
            "delete t0 s0 =%g0",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
