//! The encoding of errors in frames. An error of the other store that the caller can act on arrives
//! as the same variant. Other errors arrive as [`Error::Remote`] with their text.

use std::io::ErrorKind;

use plimsoll_disk::codec::{Reader, push_bytes, push_varint};
use plimsoll_log::glsn::Glsn;

use crate::types::error::Error;
use crate::types::invalid_input::InvalidInput as Input;

/// The longest text of an error. Longer ones are truncated.
const TEXT_BYTES_MAX: usize = 4096;

/// Appends the encoding of an error: a code, and its fields.
pub(super) fn encode_error(error: &Error, out: &mut Vec<u8>) {
    let mut put = |code: u8, texts: &[&str], numbers: &[u64]| {
        out.push(code);
        texts.iter().for_each(|text| push_bytes(out, cut(text).as_bytes()));
        numbers.iter().for_each(|number| push_varint(out, *number));
    };
    match error {
        Error::InvalidInput(Input::NotFastForward { branch }) => put(2, &[branch], &[]),
        Error::InvalidInput(Input::BranchMoved { name }) => put(3, &[name], &[]),
        Error::InvalidInput(Input::HistoryTrimmed { upto }) => put(4, &[], &[upto.0]),
        Error::InvalidInput(Input::StateNotRetained { id }) => put(5, &[id], &[]),
        Error::InvalidInput(Input::NoBranch { name }) => put(6, &[name], &[]),
        Error::InvalidInput(Input::BranchName { name, limit_bytes }) => {
            put(7, &[name], &[*limit_bytes]);
        }
        Error::InvalidInput(Input::TemporaryBranch { name }) => put(8, &[name], &[]),
        Error::InvalidInput(Input::BranchExists { name }) => put(9, &[name], &[]),
        Error::InvalidInput(Input::TooManyBranches { limit }) => put(10, &[], &[*limit]),
        Error::InvalidInput(Input::TooManyKeyspaces { limit }) => put(11, &[], &[*limit]),
        Error::Trimmed { asked, first, keyspace } => {
            let keyspace = keyspace.as_deref().unwrap_or_default();
            put(12, &[keyspace], &[asked.0, first.0]);
        }
        Error::Corrupt { file, glsn, message } => {
            let file = file.as_deref().unwrap_or_default();
            put(13, &[file, message], &[glsn.unwrap_or_default().0]);
        }
        Error::Dropped { glsn } => put(14, &[], &[glsn.0]),
        Error::ReadOnly => put(15, &[], &[]),
        Error::Locked { path, pid, who } => {
            put(16, &[&path.to_string_lossy(), who], &[pid.unwrap_or_default().into()]);
        }
        Error::NotAStore { path, what } => put(17, &[&path.to_string_lossy(), what], &[]),
        Error::Poisoned { cause } => put(18, &[cause], &[]),
        Error::Stalled { pid } => put(19, &[], &[pid.unwrap_or_default().into()]),
        Error::Behind { cause } => put(20, &[cause], &[]),
        Error::Format { message, .. } => put(21, &[message], &[]),
        Error::Io { kind, message, .. } => {
            let known = IO_KINDS.iter().position(|it| it == kind).unwrap_or(IO_KINDS.len());
            put(22, &[message], &[known as u64]);
        }
        Error::ClockBehind { ahead } => {
            put(23, &[], &[u64::try_from(ahead.as_micros()).unwrap_or(u64::MAX)]);
        }
        Error::InvalidInput(Input::BelowBoundary { id }) => put(24, &[id], &[]),
        other => put(1, &[&other.to_string()], &[]),
    }
}

/// The kinds of I/O errors that are transferred. Others arrive as [`ErrorKind::Other`].
const IO_KINDS: [ErrorKind; 5] = [
    ErrorKind::StorageFull,
    ErrorKind::PermissionDenied,
    ErrorKind::NotFound,
    ErrorKind::QuotaExceeded,
    ErrorKind::ReadOnlyFilesystem,
];

/// Decodes an error of the other store; `None` if it cannot be decoded.
pub(super) fn decode_error(bytes: &[u8]) -> Option<Error> {
    let mut reader = Reader::new(bytes);
    let error = read(&mut reader)?;
    (reader.remaining() == 0).then_some(error)
}

fn read(reader: &mut Reader<'_>) -> Option<Error> {
    let input = |input: Input| Some(Error::from(input));
    match reader.u8()? {
        1 => Some(Error::Remote { message: there(&text(reader)?) }),
        2 => input(Input::NotFastForward { branch: text(reader)? }),
        3 => input(Input::BranchMoved { name: text(reader)? }),
        4 => input(Input::HistoryTrimmed { upto: glsn(reader)? }),
        5 => input(Input::StateNotRetained { id: text(reader)? }),
        6 => input(Input::NoBranch { name: text(reader)? }),
        7 => input(Input::BranchName { name: text(reader)?, limit_bytes: reader.varint()? }),
        8 => input(Input::TemporaryBranch { name: text(reader)? }),
        9 => input(Input::BranchExists { name: text(reader)? }),
        10 => input(Input::TooManyBranches { limit: reader.varint()? }),
        11 => input(Input::TooManyKeyspaces { limit: reader.varint()? }),
        12 => {
            let keyspace = optional(text(reader)?);
            Some(Error::Trimmed { keyspace, asked: glsn(reader)?, first: glsn(reader)? })
        }
        13 => {
            let (file, message) = (optional(text(reader)?), there(&text(reader)?));
            let glsn = Some(glsn(reader)?).filter(|glsn| *glsn > Glsn::NONE);
            Some(Error::Corrupt { file, glsn, message })
        }
        14 => Some(Error::Dropped { glsn: glsn(reader)? }),
        15 => Some(Error::ReadOnly),
        16 => {
            let (path, who) = (text(reader)?.into(), text(reader)?);
            Some(Error::Locked { path, who, pid: pid(reader)? })
        }
        17 => Some(Error::NotAStore { path: text(reader)?.into(), what: text(reader)? }),
        18 => Some(Error::Poisoned { cause: there(&text(reader)?) }),
        19 => Some(Error::Stalled { pid: pid(reader)? }),
        20 => Some(Error::Behind { cause: there(&text(reader)?) }),
        21 => Some(Error::Format { path: None, message: there(&text(reader)?) }),
        22 => {
            let message = there(&text(reader)?);
            let known = IO_KINDS.get(usize::try_from(reader.varint()?).ok()?);
            let kind = known.copied().unwrap_or(ErrorKind::Other);
            Some(Error::Io { kind, message, source: None })
        }
        23 => {
            Some(Error::ClockBehind { ahead: std::time::Duration::from_micros(reader.varint()?) })
        }
        24 => input(Input::BelowBoundary { id: text(reader)? }),
        _ => None,
    }
}

/// Marks a message whose files or advice concern the other store.
fn there(message: &str) -> String {
    format!("the other store reports: {message}")
}

fn text(reader: &mut Reader<'_>) -> Option<String> {
    let bytes = reader.bytes()?;
    (bytes.len() <= TEXT_BYTES_MAX).then(|| String::from_utf8_lossy(bytes).into_owned())
}

fn optional(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

fn glsn(reader: &mut Reader<'_>) -> Option<Glsn> {
    reader.varint().map(Glsn)
}

fn pid(reader: &mut Reader<'_>) -> Option<Option<u32>> {
    let pid = u32::try_from(reader.varint()?).ok()?;
    Some(Some(pid).filter(|pid| *pid > 0))
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(error: &Error) -> Error {
        let mut bytes = Vec::new();
        encode_error(error, &mut bytes);
        for len in 0..bytes.len() {
            assert_eq!(decode_error(&bytes[..len]), None, "{error:?} cut at {len}");
        }
        assert_eq!(decode_error(&[&bytes[..], &[0]].concat()), None);
        decode_error(&bytes).unwrap()
    }

    #[test]
    fn errors_arrive_as_they_were() {
        let name = || "draft".to_owned();
        let unchanged: [Error; 18] = [
            Input::NotFastForward { branch: name() }.into(),
            Input::BranchMoved { name: name() }.into(),
            Input::HistoryTrimmed { upto: Glsn(7) }.into(),
            Input::BelowBoundary { id: "12ab".into() }.into(),
            Input::StateNotRetained { id: name() }.into(),
            Input::NoBranch { name: name() }.into(),
            Input::BranchName { name: name(), limit_bytes: 255 }.into(),
            Input::TemporaryBranch { name: name() }.into(),
            Input::BranchExists { name: name() }.into(),
            Input::TooManyBranches { limit: 9 }.into(),
            Input::TooManyKeyspaces { limit: 9 }.into(),
            Error::Trimmed { asked: Glsn(1), first: Glsn(2), keyspace: Some(name()) },
            Error::Dropped { glsn: Glsn(3) },
            Error::ReadOnly,
            Error::Locked { path: "/s".into(), pid: Some(4), who: name() },
            Error::NotAStore { path: "/s".into(), what: name() },
            Error::Stalled { pid: None },
            Error::ClockBehind { ahead: std::time::Duration::from_micros(5) },
        ];
        for error in unchanged {
            assert_eq!(through(&error), error);
        }
    }

    #[test]
    fn advice_about_files_names_the_other_store() {
        let text = "log/1.seg is damaged".to_owned();
        let errors = [
            Error::Corrupt { file: None, glsn: Some(Glsn(2)), message: text.clone() },
            Error::Poisoned { cause: text.clone() },
            Error::Format { path: None, message: text.clone() },
            Error::Behind { cause: text.clone() },
            Error::Io { kind: ErrorKind::StorageFull, message: text.clone(), source: None },
        ];
        for error in errors {
            let arrived = through(&error);
            assert_eq!(std::mem::discriminant(&arrived), std::mem::discriminant(&error));
            let shown = arrived.to_string();
            assert!(shown.contains("the other store reports: log/1.seg is damaged"), "{shown}");
        }
        let closed = through(&Error::Closed);
        assert!(matches!(&closed, Error::Remote { message } if message.contains("is closed")));
        let long = Error::Remote { message: "é".repeat(5000) };
        assert!(through(&long).to_string().len() < 5000);
    }
}
