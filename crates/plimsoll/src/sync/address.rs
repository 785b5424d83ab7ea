//! Addresses of stores: the path of a folder, a store on another machine that is reached by ssh, or
//! a program that serves a store.
//!
//! Invariant: no shell on this machine reads any part of an address, and ssh does not read any part
//! as an option. The path of an ssh address is quoted for the shell of the other machine.

use std::path::PathBuf;

use plimsoll_disk::command::variable;

use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;

/// The environment variable with the program to run for an ssh address instead of `ssh`.
const SSH: &str = "PLIMSOLL_SSH";

/// The environment variable with the command to run on the other machine instead of [`SERVER`]. The
/// path is appended.
const SERVER_COMMAND: &str = "PLIMSOLL_SYNC_SERVER";

const SERVER: &str = "plimsoll sync-server";

/// The environment variable that permits `exec:` addresses if it is `1`.
const ALLOW_EXEC: &str = "PLIMSOLL_ALLOW_EXEC";

/// The prefix of an address that is a command.
const EXEC: &str = "exec:";

/// The address of another store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Folder(PathBuf),
    /// A program that serves the store on its standard input and output.
    Program {
        program: String,
        arguments: Vec<String>,
        /// The name of the program in errors.
        name: String,
    },
}

/// The commands for ssh addresses, from the environment.
#[derive(Debug)]
struct Settings {
    ssh: String,
    server: String,
}

impl Address {
    /// Parses an address: a path; `file://` and an absolute path; `ssh://[USER@]HOST[:PORT]/PATH`;
    /// `[USER@]HOST:PATH`; or `exec:` and a command.
    ///
    /// # Errors
    /// [`InvalidInput::RemoteAddress`].
    pub(super) fn parse(address: &str) -> Result<Self> {
        let settings = Settings {
            ssh: variable(SSH).unwrap_or_else(|| "ssh".to_owned()),
            server: variable(SERVER_COMMAND).unwrap_or_else(|| SERVER.to_owned()),
        };
        let refused = || InvalidInput::RemoteAddress { address: address.to_owned() };
        Ok(parse(address, &settings).ok_or_else(refused)?)
    }

    /// Refuses an address that runs a command, unless the environment permits it.
    ///
    /// # Errors
    /// [`InvalidInput::ExecAddress`].
    pub(super) fn permit(address: &str) -> Result<()> {
        if address.starts_with(EXEC) && variable(ALLOW_EXEC).as_deref() != Some("1") {
            return Err(InvalidInput::ExecAddress { address: address.to_owned() }.into());
        }
        Ok(())
    }
}

/// Whether an address is the path of a folder, without a scheme or a host. A path with a `:` before
/// its first `/` must begin with `./`.
fn is_path(address: &str) -> bool {
    let colon = address.find(':');
    colon.is_none_or(|colon| address[..colon].contains('/'))
}

fn parse(address: &str, settings: &Settings) -> Option<Address> {
    if address.is_empty() || address.chars().any(char::is_control) {
        return None;
    }
    if is_path(address) {
        return Some(Address::Folder(address.into()));
    }
    if let Some(command) = address.strip_prefix(EXEC) {
        let mut words = command.split(' ').filter(|word| !word.is_empty()).map(str::to_owned);
        let (program, name) = (words.next()?, format!("the program `{}`", command.trim()));
        return Some(Address::Program { program, arguments: words.collect(), name });
    }
    match address.split_once("://") {
        Some(("file", path)) => path.starts_with('/').then(|| Address::Folder(path.into())),
        Some(("ssh", rest)) => {
            let (destination, path) = rest.split_at(rest.find('/')?);
            // `ssh://host/~/x` is relative to the home folder, as in Git.
            let path = if path.starts_with("/~") { &path[1..] } else { path };
            let (destination, port) = split_port(destination)?;
            ssh(&destination, port, path, settings)
        }
        Some(_) => None,
        None => {
            let (destination, path) = address.split_once(':')?;
            ssh(destination, None, path, settings)
        }
    }
}

/// Splits `[USER@]HOST[:PORT]`. A host with colons is in brackets, which are removed.
fn split_port(destination: &str) -> Option<(String, Option<u16>)> {
    let (user, host) = match destination.rsplit_once('@') {
        Some((user, host)) => (format!("{user}@"), host),
        None => (String::new(), destination),
    };
    let (host, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let port = match port.strip_prefix(':') {
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => Some(port.parse().ok()?),
        Some(_) => return None,
        None => port.is_empty().then_some(None)?,
    };
    Some((format!("{user}{host}"), port))
}

fn ssh(destination: &str, port: Option<u16>, path: &str, settings: &Settings) -> Option<Address> {
    // The command already runs in the home folder of the user.
    let path = path.strip_prefix("~/").unwrap_or(path);
    let host = destination.rsplit_once('@').map_or(destination, |(_, host)| host);
    let is_word = |text: &str| {
        !text.is_empty() && !text.starts_with('-') && !text.contains(char::is_whitespace)
    };
    let is_sound = is_word(destination) && is_word(host) && !destination.contains('/');
    if !is_sound || path.is_empty() || path.starts_with(['-', '~']) {
        return None;
    }
    let mut arguments = Vec::new();
    if let Some(port) = port {
        arguments.extend(["-p".to_owned(), port.to_string()]);
    }
    arguments.push(destination.to_owned());
    arguments.push(format!("{} {}", settings.server, quoted(path)));
    let program = settings.ssh.clone();
    Some(Address::Program { name: format!("`{program} {destination}`"), program, arguments })
}

/// Quotes a word for a POSIX shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The address with an absolute path, so that it means the same in every working directory.
/// Addresses other than paths are returned as they are.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// assert_eq!(plimsoll::absolute_address("/srv/hub")?, "/srv/hub");
/// assert_eq!(plimsoll::absolute_address("ssh://ada@host/hub")?, "ssh://ada@host/hub");
/// assert!(plimsoll::absolute_address("hub")?.ends_with("/hub"));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Io`] if there is no working directory; [`InvalidInput::RemoteAddress`] if its path is
/// not text.
pub fn absolute_address(address: &str) -> Result<String> {
    // The store refuses an empty address.
    if address.is_empty() || !is_path(address) {
        return Ok(address.to_owned());
    }
    let path = std::path::absolute(address)?.into_os_string().into_string();
    path.map_err(|_| Error::from(InvalidInput::RemoteAddress { address: address.to_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(address: &str) -> Option<Address> {
        parse(address, &Settings { ssh: "ssh".into(), server: SERVER.into() })
    }

    #[test]
    fn paths_are_folders() {
        for (address, path) in [
            ("/srv/hub", "/srv/hub"),
            ("hub", "hub"),
            ("./a:b", "./a:b"),
            ("/a:b/c", "/a:b/c"),
            ("file:///srv/a:b", "/srv/a:b"),
        ] {
            assert_eq!(parsed(address), Some(Address::Folder(path.into())), "{address}");
        }
    }

    #[test]
    fn ssh_addresses_become_arguments() {
        for (address, expected) in [
            ("ssh://host/srv/hub", &["host", "plimsoll sync-server '/srv/hub'"][..]),
            ("ssh://ada@host:22/hub", &["-p", "22", "ada@host", "plimsoll sync-server '/hub'"]),
            ("ssh://ada@[::1]:22/hub", &["-p", "22", "ada@::1", "plimsoll sync-server '/hub'"]),
            ("ssh://host/~/hub", &["host", "plimsoll sync-server 'hub'"]),
            ("host:hub", &["host", "plimsoll sync-server 'hub'"]),
            ("ada@host:~/hub", &["ada@host", "plimsoll sync-server 'hub'"]),
            ("host:/a b:c", &["host", "plimsoll sync-server '/a b:c'"]),
            ("host:/it's;$(x)`y`", &["host", r"plimsoll sync-server '/it'\''s;$(x)`y`'"]),
        ] {
            let Some(Address::Program { program, arguments, .. }) = parsed(address) else {
                panic!("{address}")
            };
            assert_eq!((program.as_str(), &*arguments), ("ssh", &*strings(expected)), "{address}");
        }
    }

    fn strings(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_command_is_split_at_spaces() {
        let Some(Address::Program { program, arguments, name }) = parsed("exec:nc  -U /s $x")
        else {
            panic!()
        };
        assert_eq!((program.as_str(), arguments), ("nc", strings(&["-U", "/s", "$x"])));
        assert_eq!(name, "the program `nc  -U /s $x`");
    }

    #[test]
    fn addresses_that_a_program_would_misread_are_refused() {
        for address in [
            "",
            "exec:",
            "exec:  ",
            "file://srv",
            "http://host/hub",
            "s3://bucket/hub",
            "ssh://host",
            "ssh:///hub",
            "ssh://-oProxyCommand=x/hub",
            "ssh://a@-oProxyCommand=x/hub",
            "-oProxyCommand=x:hub",
            "a@-oProxyCommand=x:hub",
            "host:",
            "host:-x",
            "host:~ada/hub",
            "ho st:hub",
            ":hub",
            "a@:hub",
            "ssh://host:/hub",
            "ssh://host:x/hub",
            "ssh://host:70000/hub",
            "ssh://[::1/hub",
            "ssh://[::1]x/hub",
            "host:/a\nb",
            "/a\0b",
        ] {
            assert_eq!(parsed(address), None, "{address:?}");
        }
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        let word = "it's $(date) `x` \"y\" \\ *";
        let output = std::process::Command::new("sh")
            .args(["-c", &format!("printf %s {}", quoted(word))])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
    }
}
