//! The text format of deeds within an operation, and of feeds.

use std::fmt;

use crate::op::text::parse::{Words, tagged};
use crate::op::text::print::{Escaped, StreamName};
use crate::op::{Call, Deed, Feed, Op, Within};

impl fmt::Display for Within {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Within::ALL.iter().find(|(at, _)| at == self).map_or("", |(_, name)| name))
    }
}

impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Deed::Commit { space, key, value } => {
                write!(f, "commit s{space} ={} {value}", Escaped(key))
            }
            Deed::Put { space, key, value } => write!(f, "put s{space} ={} {value}", Escaped(key)),
            Deed::Compact => f.write_str("compact"),
            Deed::Flush => f.write_str("flush"),
            Deed::Trim => f.write_str("trim"),
            Deed::DropCaches => f.write_str("drop-caches"),
            Deed::Cut => f.write_str("cut"),
            Deed::Kill => f.write_str("kill"),
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Reservation(n) => write!(f, "reservation:{n}"),
            Call::Reservations(n) => write!(f, "reservations:{n}"),
            Call::Read(n) => write!(f, "read:{n}"),
        }
    }
}

impl fmt::Display for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Feed::Entries(stream) => write!(f, "entries {}", StreamName(*stream)),
            Feed::Commits => f.write_str("commits"),
            Feed::Watch { space, prefix } => write!(f, "watch s{space} ^{}", Escaped(prefix)),
        }
    }
}

impl Words<'_> {
    pub(super) fn amid(&mut self) -> Result<Op, String> {
        let word = self.next()?;
        let at = Within::ALL.iter().find(|(_, name)| *name == word).map(|(at, _)| *at);
        let at = at.ok_or_else(|| format!("unknown point within an operation: {word:?}"))?;
        let deed = self.deed()?;
        Ok(Op::Amid { at, deed, op: self.then()? })
    }

    fn deed(&mut self) -> Result<Deed, String> {
        Ok(match self.next()? {
            "commit" => {
                Deed::Commit { space: self.sign("s")?, key: self.key("=")?, value: self.content()? }
            }
            "put" => {
                Deed::Put { space: self.sign("s")?, key: self.key("=")?, value: self.content()? }
            }
            "compact" => Deed::Compact,
            "flush" => Deed::Flush,
            "trim" => Deed::Trim,
            "drop-caches" => Deed::DropCaches,
            "cut" => Deed::Cut,
            "kill" => Deed::Kill,
            word => return Err(format!("{word:?} cannot run within an operation")),
        })
    }

    pub(super) fn failing(&mut self) -> Result<Op, String> {
        let word = self.next()?;
        let call = match tagged(word) {
            Some(("reservation", n)) => Call::Reservation(n),
            Some(("reservations", n)) => Call::Reservations(n),
            Some(("read", n)) => Call::Read(n),
            _ => return Err(format!("unknown failing call {word:?}")),
        };
        Ok(Op::Failing { call, op: self.then()? })
    }

    /// The operation after `then`.
    fn then(&mut self) -> Result<Box<Op>, String> {
        match self.next()? {
            "then" => {}
            word => return Err(format!("{word:?} should be \"then\"")),
        }
        let verb = self.next()?;
        self.op(verb).map(Box::new)
    }

    pub(super) fn feed(&mut self) -> Result<Feed, String> {
        Ok(match self.next()? {
            "entries" => Feed::Entries(self.stream()?),
            "commits" => Feed::Commits,
            "watch" => Feed::Watch { space: self.sign("s")?, prefix: self.key("^")? },
            word => return Err(format!("unknown feed {word:?}")),
        })
    }
}
