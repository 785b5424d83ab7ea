//! `docs/reference/commands.md` is the help of every command.

use std::fmt::Write;
use std::path::Path;

use crate::run::run;

const PAGE: &str = "../../docs/reference/commands.md";
const HEAD: &str = "\
# Commands

The help of every command, as `plimsoll COMMAND --help` prints it. The global options are listed
once, under `plimsoll`. `plimsoll replay` exists only if the command was built with the feature
`replay`.
";

/// The names in the section `Commands:` of a help text.
fn commands_in(help: &str) -> Vec<&str> {
    let section = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = section.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    names
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "replay")
        .collect()
}

/// A help text without the section of global options.
fn without_globals(help: &str) -> String {
    let mut in_globals = false;
    let mut kept = String::new();
    for line in help.lines() {
        if !line.is_empty() && !line.starts_with(' ') {
            in_globals = line == "Global options:";
        }
        if !in_globals {
            let _ = writeln!(kept, "{}", line.trim_end());
        }
    }
    kept.trim_end().to_owned()
}

fn describe(path: &[&str], page: &mut String) {
    let help = run(&[path, &["--help"]].concat()).ok().text();
    let text = if path.is_empty() { help.trim_end().to_owned() } else { without_globals(&help) };
    let (marks, name) = ("#".repeat(path.len().min(2) + 1), path.join(" "));
    let marks = if path.is_empty() { "##" } else { &marks };
    let _ = write!(
        page,
        "\n{}\n\n```text\n{text}\n```\n",
        format!("{marks} plimsoll {name}").trim_end()
    );
    for command in commands_in(&help) {
        describe(&[path, &[command]].concat(), page);
    }
}

#[test]
fn the_reference_is_the_help_of_every_command() {
    let mut page = HEAD.to_owned();
    describe(&[], &mut page);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    assert_eq!(
        std::fs::read_to_string(&path).unwrap_or_default(),
        page,
        "run `UPDATE_DOCS=1 cargo test -p plimsoll-cli --test it reference` and read the changes"
    );
}
