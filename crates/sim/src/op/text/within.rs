//! The text format of nested operations, and of feeds.

use std::fmt;

use crate::op::text::parse::{Words, tagged};
use crate::op::text::print::{Escaped, StreamName};
use crate::op::{Call, Feed, NestedOp, Op, Within};

impl fmt::Display for Within {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Within::ALL.iter().find(|(at, _)| at == self).map_or("", |(_, name)| name))
    }
}

impl fmt::Display for NestedOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NestedOp::Commit { space, key, value } => {
                write!(f, "commit s{space} ={} {value}", Escaped(key))
            }
            NestedOp::Put { space, key, value } => {
                write!(f, "put s{space} ={} {value}", Escaped(key))
            }
            NestedOp::Compact => f.write_str("compact"),
            NestedOp::Flush => f.write_str("flush"),
            NestedOp::Trim => f.write_str("trim"),
            NestedOp::DropCaches => f.write_str("drop-caches"),
            NestedOp::Cut => f.write_str("cut"),
            NestedOp::Kill => f.write_str("kill"),
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
    pub(super) fn with_nested(&mut self) -> Result<Op, String> {
        let word = self.next()?;
        let at = Within::ALL.iter().find(|(_, name)| *name == word).map(|(at, _)| *at);
        let at = at.ok_or_else(|| format!("unknown point within an operation: {word:?}"))?;
        let nested = self.nested()?;
        Ok(Op::WithNested { at, nested, op: self.then()? })
    }

    fn nested(&mut self) -> Result<NestedOp, String> {
        Ok(match self.next()? {
            "commit" => NestedOp::Commit {
                space: self.sign("s")?,
                key: self.key("=")?,
                value: self.content()?,
            },
            "put" => NestedOp::Put {
                space: self.sign("s")?,
                key: self.key("=")?,
                value: self.content()?,
            },
            "compact" => NestedOp::Compact,
            "flush" => NestedOp::Flush,
            "trim" => NestedOp::Trim,
            "drop-caches" => NestedOp::DropCaches,
            "cut" => NestedOp::Cut,
            "kill" => NestedOp::Kill,
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
