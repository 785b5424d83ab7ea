//! Completion scripts and help.

use std::process::{Command, Stdio};

use crate::run::{Folder, run};

#[test]
fn completion_scripts_contain_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]).ok().text();
        for word in ["import", "recover", "--keyspace", "plimsoll"] {
            let word = if shell == "fish" { word.trim_start_matches("--") } else { word };
            assert!(script.contains(word), "{shell} does not know {word}");
        }
    }
}

#[test]
fn bash_script_completes_a_command() {
    let folder = Folder::new();
    let script = folder.file("plimsoll.bash", run(&["completions", "bash"]).ok().out);
    let test = format!(
        "source '{script}'; COMP_WORDS=(plimsoll hist); COMP_CWORD=1; _plimsoll plimsoll hist \
         plimsoll; echo \"${{COMPREPLY[@]}}\""
    );
    let output =
        Command::new("bash").args(["-c", &test]).stderr(Stdio::inherit()).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "history\n");
}

#[test]
fn help_lists_the_exit_codes() {
    let help = run(&["--help"]).ok().text();
    for code in ["0 ", "1 ", "2 ", "3 ", "4 ", "5 ", "6 ", "7 ", "130 "] {
        assert!(help.lines().any(|line| line.starts_with(&format!("  {code}"))), "{code}");
    }
}
