//! `plimsoll sync-server`: serves a store over standard input and output, to a `clone`, `fetch`,
//! `pull` or `push` of another store.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::thread::{self, ThreadId};

use plimsoll::{Db, Durability};

use crate::args::{Globals, SyncServer};
use crate::exit::{Exit, Failure, Outcome};
use crate::store;

/// The memory budget, unless one is given.
const MEMORY_BYTES: u64 = 32 << 20;

pub(crate) fn run(globals: &Globals, args: &SyncServer) -> Outcome {
    if io::stdin().is_terminal() || io::stdout().is_terminal() {
        return Err(Failure::usage(
            "sync-server speaks to a program, not to a terminal; clone, fetch, pull and push start \
             it for an address such as ssh://host/path",
        ));
    }
    let options = store::options(globals).durability(Durability::Sync).warm(false);
    let options = match globals.memory {
        Some(_) => options,
        None => options.memory_bytes(MEMORY_BYTES),
    };
    let answers = Answers::to_stdout()
        .map_err(|error| Failure::system(format!("cannot write to standard output: {error}")))?;
    Db::serve_sync_at(&args.store, options, args.read_only, io::stdin(), answers)?;
    Ok(Exit::Done)
}

/// Standard output. Ends the process if the client is gone while the main thread works on a
/// request, which may take long. A store survives the end of a process at any time.
struct Answers {
    out: BufWriter<File>,
    main: ThreadId,
}

impl Answers {
    fn to_stdout() -> io::Result<Self> {
        let out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        Ok(Self { out: BufWriter::new(out), main: thread::current().id() })
    }

    fn end_without_client<T>(&self, written: io::Result<T>) -> io::Result<T> {
        let is_gone = written.as_ref().is_err_and(|error| error.kind() == ErrorKind::BrokenPipe);
        if is_gone && thread::current().id() != self.main {
            std::process::exit(Exit::System as i32);
        }
        written
    }
}

impl Write for Answers {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes);
        self.end_without_client(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        self.end_without_client(flushed)
    }
}
