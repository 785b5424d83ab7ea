//! The interactive prompt: line editing, history, completion of command names.
//!
//! The history is kept in `~/.plimsoll_history`, or in the file that PLIMSOLL_HISTORY names. If
//! PLIMSOLL_HISTORY is empty, no history is kept.

use std::path::PathBuf;

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{Config, Context, Helper};

use crate::exit::Failure;
use crate::script::statement::NAMES;
use crate::stderr::say;

/// Number of lines in the history.
const HISTORY_LINES: usize = 1000;

/// The result of a prompt.
pub(super) enum Typed {
    Line(String),
    /// Ctrl-C: the line is discarded.
    Nothing,
    /// Ctrl-D.
    End,
}

/// Prompts for lines.
pub(super) struct Editor {
    editor: rustyline::Editor<Names, DefaultHistory>,
    history: Option<PathBuf>,
}

impl Editor {
    pub(super) fn new() -> Result<Self, Failure> {
        let config = Config::builder()
            .max_history_size(HISTORY_LINES)
            .map_err(unusable)?
            .auto_add_history(true)
            .build();
        let mut editor = rustyline::Editor::with_config(config).map_err(unusable)?;
        editor.set_helper(Some(Names));
        let history = history_file();
        if let Some(path) = &history {
            // The file does not exist the first time.
            let _ = editor.load_history(path);
        }
        Ok(Self { editor, history })
    }

    pub(super) fn ask(&mut self, prompt: &str) -> Result<Typed, Failure> {
        match self.editor.readline(prompt) {
            Ok(line) => Ok(Typed::Line(line)),
            Err(ReadlineError::Interrupted) => Ok(Typed::Nothing),
            Err(ReadlineError::Eof) => Ok(Typed::End),
            Err(error) => Err(unusable(error)),
        }
    }

    /// Saves the history.
    pub(super) fn keep_history(&mut self) {
        if let Some(path) = &self.history
            && let Err(error) = self.editor.save_history(path)
        {
            say(format_args!("cannot save the command history to {}: {error}", path.display()));
        }
    }
}

fn history_file() -> Option<PathBuf> {
    match std::env::var_os("PLIMSOLL_HISTORY") {
        Some(path) => Some(path).filter(|path| !path.is_empty()).map(PathBuf::from),
        None => std::env::home_dir().map(|home| home.join(".plimsoll_history")),
    }
}

fn unusable(error: ReadlineError) -> Failure {
    Failure::system(format!("cannot read from the terminal: {error}"))
}

/// Completes command names.
struct Names;

impl Completer for Names {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        place: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = &line[..place];
        let names = NAMES.iter().filter(|name| name.starts_with(typed));
        Ok((0, names.map(|name| format!("{name} ")).collect()))
    }
}

impl Hinter for Names {
    type Hint = String;
}
impl Highlighter for Names {}
impl Validator for Names {}
impl Helper for Names {}
