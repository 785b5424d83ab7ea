//! Output that people at a terminal see and pipes do not: tables, colours, line ends, a progress
//! bar.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::repository::{Repository, Script};
use crate::run::{Folder, plimsoll, run, run_with_input};

/// Both ends of a terminal: the one that a person watches, and the one that a command writes to.
pub(crate) fn terminal() -> (File, OwnedFd) {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let name = ptsname(&controller, Vec::new()).unwrap();
    let user = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    (File::from(controller), user.into())
}

/// The output of the command at a terminal on stdout (and on stderr, if `both`).
fn shown(mut command: Command, both: bool) -> String {
    let (mut seen, end) = terminal();
    command.env("TERM", "xterm");
    command.stderr(if both { Stdio::from(end.try_clone().unwrap()) } else { Stdio::null() });
    command.stdout(Stdio::from(end));
    let mut child = command.spawn().unwrap();
    // Close our copies of the terminal's end; otherwise reading never ends.
    drop(command);
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    // At the end Linux returns EIO instead of zero bytes.
    while let Ok(bytes @ 1..) = seen.read(&mut piece) {
        text.extend_from_slice(&piece[..bytes]);
    }
    child.wait().unwrap();
    String::from_utf8(text).unwrap().replace("\r\n", "\n")
}

fn shown_of(arguments: &[&str]) -> String {
    let mut command = plimsoll();
    command.args(arguments);
    shown(command, false)
}

fn store(folder: &Folder) -> String {
    let store = folder.at("store");
    run(&["put", &store, "text", "no line end"]).ok();
    run_with_input(&["put", &store, "binary"], b"\x1b[31m\xff").ok();
    store
}

#[test]
fn value_is_escaped_and_ends_with_a_line_break() {
    let folder = Folder::new();
    let store = store(&folder);
    assert_eq!(shown_of(&["get", &store, "text"]), "no line end\n");
    assert_eq!(shown_of(&["get", &store, "binary"]), "\\x1b[31m\\xff\n");
}

#[test]
fn tables_are_coloured_unless_disabled() {
    let folder = Folder::new();
    let store = store(&folder);
    let coloured = shown_of(&["scan", &store]);
    assert!(coloured.contains("\x1b[1mtext\x1b[0m  no line end\n"), "{coloured:?}");
    let plain = "binary  \\x1b[31m\\xff\ntext  no line end\n";
    assert_eq!(shown_of(&["scan", &store, "--color", "never"]), plain);
    let mut command = plimsoll();
    command.args(["scan", &store]).env("NO_COLOR", "1");
    assert_eq!(shown(command, false), plain);
}

#[test]
fn color_always_colours_a_pipe_but_not_values() {
    let folder = Folder::new();
    let store = store(&folder);
    for command in
        [&["scan", &store][..], &["diff", &store, "0", "1"], &["history", &store, "text"]]
    {
        let command = [command, &["--color", "always"]].concat();
        let text = run(&command).text();
        assert!(text.contains("\x1b["), "{text:?}");
        assert_eq!(text, shown_of(&command), "{command:?}");
    }
    assert_eq!(run(&["get", &store, "binary", "--color", "always"]).ok().out, b"\x1b[31m\xff");
    assert_eq!(run(&["put", &store, "k", "v", "--color", "always"]).ok().text(), "3\n");
}

#[test]
fn verify_reports_success_to_a_pipe() {
    let folder = Folder::new();
    let store = store(&folder);
    let text = run(&["verify", &store]).ok().text();
    assert!(text.starts_with("no problems; read "), "{text}");
}

#[test]
fn tables_have_text_for_people() {
    let folder = Folder::new();
    let store = store(&folder);
    let cases: [(&[&str], &[&str]); 7] = [
        (&["put", &store, "k", "v"], &["1 B committed as GLSN 3"]),
        (&["delete", &store, "k"], &["1 key deleted as of GLSN 4"]),
        (&["history", &store, "k"], &["GLSN", "time (UTC)", "deleted", "1 B"]),
        (&["diff", &store, "1", "2"], &["+ binary", "1 difference between GLSN 1 and 2"]),
        (&["log", &store], &["commit", "1 op  + k", "1 op  - k"]),
        (&["stat", &store], &["keyspaces\n", "newest GLSN", "32.0 MiB"]),
        (&["verify", &store], &["no problems; read"]),
    ];
    for (arguments, parts) in cases {
        let text = shown_of(&[arguments, &["--color", "never"]].concat());
        for part in parts {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }
}

#[test]
fn import_shows_progress_and_a_table() {
    let folder = Folder::new();
    let repository = Repository::init(&folder.path().join("repository"));
    let mut script = Script::new(3);
    script.awkward_history(40);
    repository.fast_import(&script.into_stream());
    let mut command = plimsoll();
    command.args(["import", "git", repository.path(), &folder.at("store"), "--color", "never"]);
    let text = shown(command, true);
    assert!(text.contains("/40 commits"), "{text:?}");
    let table = &text[text.rfind("  transactions").unwrap()..];
    for part in [
        "transactions   ",
        "  40\n",
        "versions",
        "bytes in",
        "bytes on disk",
        "time",
        "MiB (git's own processes are not counted)",
        "32.0 MiB",
    ] {
        assert!(table.contains(part), "{part:?} is not in {table}");
    }
    let again = shown_of(&["import", "git", repository.path(), &folder.at("store")]);
    assert!(again.starts_with("up to date: commit ") && again.lines().count() == 1, "{again}");
}

#[test]
fn unwritable_message_changes_nothing() {
    let folder = Folder::new();
    let store = store(&folder);
    let mute = |arguments: &[&str]| {
        let full = File::options().write(true).open("/dev/full").unwrap();
        plimsoll().args(arguments).stdout(Stdio::null()).stderr(full).status().unwrap().code()
    };
    assert_eq!(mute(&["get", &store, "none"]), Some(1));
    assert_eq!(mute(&["delete", &store, "text", "none"]), Some(1));
    assert_eq!(mute(&["trim", &store, "--until", "1"]), Some(0));
    assert_eq!(mute(&["get", &folder.at("nowhere"), "none"]), Some(3));
    assert_eq!(mute(&["frobnicate"]), Some(2));
    assert_eq!(run(&["scan", &store, "--keys"]).ok().text(), "binary\n");
}

#[test]
fn pipe_gets_no_progress_and_no_colour() {
    let folder = Folder::new();
    let file = folder.file("a.csv", "k,v\n1,2\n");
    let ran = run(&["load", &folder.at("store"), &file]).ok();
    assert_eq!(ran.err, "");
    assert!(!ran.text().contains('\x1b'));
}

#[test]
fn stat_separates_its_own_process() {
    let folder = Folder::new();
    let store = store(&folder);
    let text = shown_of(&["stat", &store, "--color", "never"]);
    let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part:?} is not in {text}"));
    let own = place("\nThis command's own process");
    assert!(
        place("\nlog\n") < own && place("  tables ") < own && place("\nwarm\n") < own,
        "{text}"
    );
    for part in
        ["\nopening\n", "  flushes ", "\npressure\n", "\nevictor\n", "\npool\n", "\nrow cache\n"]
    {
        assert!(place(part) > own, "{part:?}: {text}");
    }
    assert!(!text.contains("processes\n") && !text.contains("cursors\n"), "{text}");
}
