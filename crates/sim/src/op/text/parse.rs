//! Parses operations.

use std::str::FromStr;

use crate::content::Content;
use crate::op::{Change, Edge, Fault, Get, Keep, Key, Moment, Op, Part, Reader, Removal, Span};

/// Words of a line, taken from the front.
pub(super) struct Words<'a> {
    words: std::str::SplitWhitespace<'a>,
}

impl FromStr for Op {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = Words { words: line.split_whitespace() };
        let verb = words.next()?;
        if verb == "among" {
            return line.parse().map(Op::OfProcess);
        }
        let op = words.op(verb)?;
        match words.words.next() {
            None => Ok(op),
            Some(word) => Err(format!("unexpected word {word:?}")),
        }
    }
}

impl<'a> Words<'a> {
    pub(super) fn next(&mut self) -> Result<&'a str, String> {
        self.words.next().ok_or_else(|| "a word is missing".to_owned())
    }

    pub(super) fn op(&mut self, verb: &str) -> Result<Op, String> {
        Ok(match verb {
            "timed" => Op::Timed(self.number()?),
            "branching" => Op::Branching(self.number()?),
            "syncing" => Op::Syncing(self.number()?),
            "ordering" => Op::Ordering(self.number()?),
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
                    word => return Err(format!("{word:?} is not an update")),
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
            "amid" => self.with_nested()?,
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
            "tag" => Op::Tag { name: self.sign("t")?, back: self.number()? },
            "read-tag" => Op::ReadTag { name: self.sign("t")? },
            "delete-tag" => Op::DeleteTag { name: self.sign("t")? },
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
            replace_after: match self.words.clone().next() {
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

    pub(super) fn number<T: FromStr>(&mut self) -> Result<T, String> {
        let word = self.next()?;
        word.parse().map_err(|_| format!("{word:?} is not a number here"))
    }

    pub(super) fn sign(&mut self, sign: &str) -> Result<u8, String> {
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

    pub(super) fn key(&mut self, sign: &str) -> Result<Key, String> {
        let word = self.next()?;
        unescape(
            word.strip_prefix(sign)
                .ok_or_else(|| format!("{word:?} should begin with {sign:?}"))?,
        )
    }

    pub(super) fn content(&mut self) -> Result<Content, String> {
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

    pub(super) fn stream(&mut self) -> Result<Option<u32>, String> {
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
            "remove-later" => Fault::RemoveLater(self.number()?),
            "full" => Fault::Full(self.number()?),
            "slow" => Fault::Slow(self.number()?),
            "heal" => Fault::Heal,
            word => return Err(format!("unknown fault {word:?}")),
        })
    }
}

/// `tag:number`.
pub(super) fn tagged(word: &str) -> Option<(&str, u64)> {
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
