//! Programs that this process starts and exchanges bytes with, and variables of its environment.

use std::io;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::clock::{Clock, SystemClock};

/// The time within which a program must end after its input has ended.
const PATIENCE: Duration = Duration::from_secs(2);

/// Interval between two checks whether a program has ended.
const CHECK_EVERY: Duration = Duration::from_millis(2);

/// A variable of the environment; `None` if it is unset, empty or not text.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A running program. When it is dropped, the program gets 2 seconds to end, and is then killed.
/// Drop its input first, so that it ends by itself.
#[derive(Debug)]
pub struct Program {
    child: Child,
}

impl Program {
    /// Starts a program, without a shell. Returns it with its standard input and output; its
    /// standard error is that of this process.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(
        program: &str,
        arguments: &[String],
    ) -> io::Result<(Self, ChildStdin, ChildStdout)> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or_else(|| io::Error::other("the program has no pipes"))?;
        Ok((Self { child }, input, output))
    }

    /// Waits up to 2 seconds until the program ends; `None` if it is still running.
    pub fn wait(&mut self) -> Option<ExitStatus> {
        let clock = SystemClock::new();
        let mut waited = Duration::ZERO;
        loop {
            match self.child.try_wait() {
                Ok(None) if waited < PATIENCE => {}
                Ok(status) => return status,
                Err(_) => return None,
            }
            clock.sleep(CHECK_EVERY);
            waited += CHECK_EVERY;
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.wait().is_none() {
            // Ignore an error: the program may have ended since.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_program_gets_its_arguments_unchanged() {
        let (mut program, input, mut output) =
            Program::start("printf", &["%s|".into(), "a b".into(), "$(date);'".into()]).unwrap();
        drop(input);
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        assert_eq!(text, "a b|$(date);'|");
        assert!(program.wait().unwrap().success());
    }

    #[test]
    fn a_program_ends_with_its_input_or_is_killed() {
        let (program, mut input, mut output) = Program::start("cat", &[]).unwrap();
        input.write_all(b"x").unwrap();
        drop(input);
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");
        drop(program);

        let (program, _input, mut output) = Program::start("sleep", &["1000".into()]).unwrap();
        drop(program);
        assert_eq!(output.read(&mut [0]).unwrap(), 0, "it was killed");
        assert!(Program::start("/no/such/program", &[]).is_err());
    }
}
