//! Lines of `batch` and `shell` that run a command of the command line (`history`, `log`, `diff`,
//! `stat`) with its options and output. They show committed data only.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use clap::builder::ArgAction;
use clap::error::ErrorKind;
use clap::{Args, Command, FromArgMatches};
use plimsoll::Db;

use crate::args::{self, Globals};
use crate::commands::{diff, history, log, stat};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Output;
use crate::script::session::Place;
use crate::script::statement::Report;
use crate::script::words::Word;

/// The open objects of a session.
#[derive(Clone, Copy)]
pub(super) struct Opened<'a> {
    pub(super) db: &'a Db,
    pub(super) globals: &'a Globals,
    pub(super) store: &'a Path,
}

/// Runs a command on an open store. `words` are its options and arguments.
pub(super) fn answer(
    report: Report,
    words: &[Word],
    opened: Opened<'_>,
    place: Place<'_>,
    output: &mut Output,
) -> Outcome {
    let Opened { db, globals, store } = opened;
    match report {
        Report::History => match read("history", words, store, place, output)? {
            Some(args) => history::print(db, args, output),
            None => Ok(Exit::Done),
        },
        Report::Log => match read::<args::Log>("log", words, store, place, output)? {
            Some(args) if args.follow || args.cursor.is_some() => Err(Failure::usage(
                "--follow and --cursor are options of the command `plimsoll log` only",
            )),
            Some(args) => log::print(db, args, output),
            None => Ok(Exit::Done),
        },
        Report::Diff => match read("diff", words, store, place, output)? {
            Some(args) => diff::print(db, args, output),
            None => Ok(Exit::Done),
        },
        Report::Stat => match read("stat", words, store, place, output)? {
            Some(args) => stat::print(globals, &args, db, output),
            None => Ok(Exit::Done),
        },
    }
}

/// Parses the options of a command; returns `None` if they request its help, which is printed.
fn read<T: Args + FromArgMatches>(
    name: &'static str,
    words: &[Word],
    store: &Path,
    place: Place<'_>,
    output: &mut Output,
) -> Result<Option<T>, Failure> {
    let command = args::with_negative_numbers(T::augment_args(Command::new(name)));
    let command = command.no_binary_name(true).args_override_self(true).after_help("");
    // The store is known already. `mut_arg` would move it after the other arguments.
    let mut command =
        command.mut_args(|arg| if arg.get_id() == "store" { arg.hide(true) } else { arg });
    let mut line = vec![store.as_os_str().to_owned()];
    let has = |option: &str| command.get_arguments().any(|arg| arg.get_id() == option);
    if has("keyspace") {
        line.push(format!("--keyspace={}", place.keyspace).into());
    }
    // `log` shows the commits of all branches, unless one is named.
    if has("branch") && name != "log" {
        line.push(format!("--branch={}", place.branch).into());
    }
    line.extend(arguments(&command, words));
    let read =
        command.try_get_matches_from_mut(line).and_then(|matches| T::from_arg_matches(&matches));
    match read {
        Ok(args) => Ok(Some(args)),
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            output.raw(error.render().to_string().as_bytes())?;
            Ok(None)
        }
        Err(error) => {
            let text = error.render().to_string();
            let message = text.split("\n\nUsage:").next().unwrap_or_default();
            Err(Failure::usage(message.trim_start_matches("error: ").trim_end()))
        }
    }
}

/// Converts words to `clap` arguments: a quoted word is never an option, even if it begins like
/// one.
fn arguments(command: &Command, words: &[Word]) -> Vec<OsString> {
    let (mut line, mut keys): (Vec<Vec<u8>>, Vec<Vec<u8>>) = (Vec::new(), Vec::new());
    for word in words {
        let is_value = line.last().is_some_and(|last| takes_value(command, last));
        match word.quoted && word.bytes.starts_with(b"-") {
            true if is_value => {
                let option =
                    line.last_mut().expect("the option was just pushed, and takes a value");
                option.push(b'=');
                option.extend_from_slice(&word.bytes);
            }
            true => keys.push(word.bytes.clone()),
            false => line.push(word.bytes.clone()),
        }
    }
    if !keys.is_empty() {
        line.push(b"--".to_vec());
        line.append(&mut keys);
    }
    line.into_iter().map(OsString::from_vec).collect()
}

/// Whether the word after this one is an option's value.
fn takes_value(command: &Command, word: &[u8]) -> bool {
    let Some(name) = word.strip_prefix(b"--") else { return false };
    let mut options = command.get_arguments();
    let option = options.find(|arg| arg.get_long().is_some_and(|long| long.as_bytes() == name));
    option.is_some_and(|arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Colour;
    use crate::script::words::words;

    fn log(line: &str) -> Result<Option<args::Log>, Failure> {
        let mut output = Output::new(false, Colour::Never);
        let place = Place { keyspace: "users", branch: "main" };
        read("log", &words(line.as_bytes()).unwrap(), Path::new("/store"), place, &mut output)
    }

    #[test]
    fn line_accepts_command_options() {
        let args = log("--limit 5 --reverse --key a").unwrap().unwrap();
        assert_eq!((args.limit, args.reverse, args.key), (Some(5), true, Some("a".into())));
        assert_eq!((args.store.as_path(), args.keys.keyspace()), (Path::new("/store"), "users"));
        assert_eq!(log("--keyspace other").unwrap().unwrap().keys.keyspace(), "other");
        for key in ["--key '--x'", "--key=--x", "--reverse --key \\--x"] {
            assert_eq!(log(key).unwrap().unwrap().key, Some("--x".into()), "{key}");
        }
        let message = log("--limit many").unwrap_err().to_string();
        assert!(message.contains("`many` is not a count"), "{message}");
    }

    #[test]
    fn quoted_word_is_not_an_option() {
        let mut output = Output::new(false, Colour::Never);
        let words = words(b"'--x' --limit 1").unwrap();
        let place = Place { keyspace: "default", branch: "draft" };
        let args: Option<args::History> =
            read("history", &words, Path::new("/store"), place, &mut output).unwrap();
        let args = args.unwrap();
        assert_eq!(args.on.name(), Some("draft"));
        assert_eq!((args.key, args.limit), ("--x".into(), Some(1)));
    }
}
