//! The client: a store at the other end of a connection.

use std::fmt;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

use plimsoll_disk::command::Program;
use plimsoll_disk::mutex::lock;
use plimsoll_memory::budget::{Kind, Lease};

use crate::api::db::Db;
use crate::sync::commit_id::CommitId;
use crate::sync::peer::{Feed, Haves, LINE_MAX, Line, Move, Peer, Wanted};
use crate::sync::send::CommitSink;
use crate::sync::wire::commits::{Encoder, take_commits};
use crate::sync::wire::frames::{Input, Output, Put, Role, Sender, Windowed, ended, not_protocol};
use crate::sync::wire::hello::{send_hello, take_hello};
use crate::sync::wire::items::{
    put_bytes, put_haves, put_id, put_number, take_flag, take_haves, take_keyspaces, take_line,
    take_name, take_number, take_optional_id,
};
use crate::sync::wire::server::Request;
use crate::types::branches::MAX_CHAINS;
use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::KeyspaceInfo;

/// The reason why there is a lease when commits are received.
const CHARGED: &str = "a fetch calls `charge_to` before it asks for commits";

/// A connection to another store, which is served by [`Db::serve_sync`] or `plimsoll sync-server`.
/// [`Db::fetch_over`] and [`Db::push_over`] use it, one call at a time. To end the connection, drop
/// it.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # use plimsoll::*;
/// # let [here, there] = [(); 2].map(|()| {
/// #     Db::in_memory(Options::new().memory_bytes(16 << 20)).expect("there is memory")
/// # });
/// # there.put(&there.keyspace("notes")?, "a", "one")?;
/// # let id = there.id();
/// let (from_client, to_server) = std::io::pipe()?;
/// let (from_server, to_client) = std::io::pipe()?;
/// let server = std::thread::spawn(move || there.serve_sync(from_client, to_client));
///
/// let mut connection = SyncConnection::new(from_server, to_server)?;
/// assert_eq!(connection.store_id(), id);
/// assert_eq!(here.fetch_over(&mut connection, "main", "theirs")?.commits, 1);
/// drop(connection);
/// server.join().expect("it does not panic")?;
/// # Ok(())
/// # }
/// ```
pub struct SyncConnection {
    input: Input,
    output: Output,
    store: u128,
    /// Whether an earlier call failed in the middle of a message.
    is_broken: bool,
    /// Charges the memory of a commit that is being received.
    lease: Option<Lease>,
    /// Charges the names of the branches.
    names: Option<Lease>,
    /// Charges the ids of a line.
    lines: Option<Lease>,
    // Declared last: dropping `output` closes the program's standard input, and then the program is
    // waited for.
    program: Option<(Program, String)>,
}

impl fmt::Debug for SyncConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SyncConnection({:032x})", self.store)
    }
}

impl SyncConnection {
    /// Connects to a server, which writes to `reader` and reads from `writer`. The transport must
    /// deliver all bytes in order, and buffer at least 4 KiB of unread bytes in each direction. If
    /// one side ends, the other should get the end of the stream, or an error of its write.
    ///
    /// # Errors
    /// [`Error::Remote`] if there is no server at the other end; [`Error::Format`] if it speaks
    /// only other versions of the protocol.
    pub fn new(
        reader: impl Read + Send + 'static,
        writer: impl Write + Send + 'static,
    ) -> Result<Self> {
        Self::connect(Box::new(reader), Box::new(writer), None)
    }

    /// Starts a program, and connects to it. `name` is its name in errors.
    ///
    /// # Errors
    /// As for [`SyncConnection::new`]; [`Error::Remote`] if the program cannot be started.
    pub(in crate::sync) fn to_program(
        program: &str,
        arguments: &[String],
        name: String,
    ) -> Result<Self> {
        let (program, input, output) = Program::start(program, arguments).map_err(|error| {
            Error::Remote { message: format!("{name} cannot be started: {error}") }
        })?;
        Self::connect(Box::new(output), Box::new(input), Some((program, name)))
    }

    fn connect(
        reader: Box<dyn Read + Send>,
        writer: Box<dyn Write + Send>,
        mut program: Option<(Program, String)>,
    ) -> Result<Self> {
        let sender = Arc::new(Mutex::new(Sender::new(writer, Role::Client)));
        let mut input = Input::new(reader, Role::Server);
        let greeted = send_hello(&mut lock(&sender), Role::Client, 0);
        // An error of the other side's greeting explains more than a failed write to it.
        let store = match take_hello(&mut input, Role::Server) {
            Ok(Some(store)) => greeted.map(|()| store),
            Ok(None) => Err(ended()),
            Err(error) => Err(error),
        };
        let store = store.map_err(|error| blame(&mut program, error))?;
        let output = Output::new(sender);
        Ok(Self {
            input,
            output,
            store,
            is_broken: false,
            lease: None,
            names: None,
            lines: None,
            program,
        })
    }

    /// The id of the store at the other end ([`Db::id`]); 0 if the server could not open it.
    pub fn store_id(&self) -> u128 {
        self.store
    }

    /// Sends the kind of a request, calls `perform` for the rest of it and the answer, and checks
    /// that the answer ends there.
    fn request<T>(
        &mut self,
        request: Request,
        perform: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        if self.is_broken {
            let message = "an earlier transfer over this connection failed; connect again";
            return Err(Error::Remote { message: message.to_owned() });
        }
        let performed = self.output.put(&[request as u8]).and_then(|()| perform(self));
        let performed = performed.and_then(|result| self.input.end().map(|()| result));
        performed.map_err(|error| {
            self.is_broken = !self.output.take_back() || !self.input.is_between_messages();
            if self.is_broken { blame(&mut self.program, error) } else { error }
        })
    }

    /// Ends the request, and receives the beginning of the answer.
    fn ask(&mut self) -> Result<()> {
        self.output.end()?;
        self.input.begin_answer()
    }
}

/// If the connection ended because its program failed, adds the exit status to the error.
fn blame(program: &mut Option<(Program, String)>, error: Error) -> Error {
    let Some((program, name)) = program else { return error };
    if error != ended() {
        return error;
    }
    match program.wait() {
        Some(status) if !status.success() => {
            Error::Remote { message: format!("{error}; {name} ended with {status}") }
        }
        _ => error,
    }
}

impl Peer for SyncConnection {
    fn branches(&mut self) -> Result<Vec<String>> {
        self.request(Request::Branches, |this| {
            this.ask()?;
            let mut names = Vec::new();
            while take_flag(&mut this.input)? {
                if names.len() == MAX_CHAINS {
                    return Err(not_protocol("it listed too many branches"));
                }
                let name = take_name(&mut this.input)?;
                if let Some(lease) = &mut this.names {
                    lease.grow((name.len() + 2 * size_of::<String>()) as u64)?;
                }
                names.push(name);
            }
            Ok(names)
        })
    }

    fn keyspaces(&mut self) -> Result<Vec<KeyspaceInfo>> {
        self.request(Request::Keyspaces, |this| {
            this.ask()?;
            take_keyspaces(&mut this.input)
        })
    }

    fn tip(&mut self, branch: &str) -> Result<Option<CommitId>> {
        self.request(Request::Tip, |this| {
            put_bytes(&mut this.output, branch.as_bytes())?;
            this.ask()?;
            take_optional_id(&mut this.input)
        })
    }

    fn haves(&mut self, branch: &str) -> Result<Haves> {
        self.request(Request::Haves, |this| {
            put_bytes(&mut this.output, branch.as_bytes())?;
            this.ask()?;
            take_haves(&mut this.input)
        })
    }

    fn has(&mut self, id: &CommitId) -> Result<bool> {
        self.request(Request::Has, |this| {
            this.output.put(id.as_bytes())?;
            this.ask()?;
            take_flag(&mut this.input)
        })
    }

    fn send(&mut self, wanted: Wanted<'_>, haves: &Haves, sink: &mut dyn CommitSink) -> Result<()> {
        self.request(Request::Send, |this| {
            put_bytes(&mut this.output, wanted.branch.as_bytes())?;
            this.output.put(wanted.id.as_bytes())?;
            put_haves(&mut this.output, haves)?;
            this.ask()?;
            take_commits(&mut this.input, this.lease.as_mut().expect(CHARGED), sink)
        })
    }

    fn line(&mut self, wanted: Wanted<'_>, depth: u64, haves: &Haves) -> Result<Line> {
        self.request(Request::Line, |this| {
            put_bytes(&mut this.output, wanted.branch.as_bytes())?;
            this.output.put(wanted.id.as_bytes())?;
            put_number(&mut this.output, depth)?;
            put_haves(&mut this.output, haves)?;
            this.ask()?;
            // Without haves, the depth limits the line.
            let searched = if haves.commits.is_empty() { 0 } else { LINE_MAX as u64 };
            if let Some(lease) = &mut this.lines {
                lease.shrink(lease.bytes());
            }
            take_line(&mut this.input, searched.max(depth), this.lines.as_mut())
        })
    }

    fn send_line(
        &mut self,
        wanted: Wanted<'_>,
        (base, is_boundary): (Option<CommitId>, bool),
        sink: &mut dyn CommitSink,
    ) -> Result<()> {
        self.request(Request::SendLine, |this| {
            put_bytes(&mut this.output, wanted.branch.as_bytes())?;
            this.output.put(wanted.id.as_bytes())?;
            put_id(&mut this.output, base.as_ref())?;
            this.output.put(&[u8::from(is_boundary)])?;
            this.ask()?;
            take_commits(&mut this.input, this.lease.as_mut().expect(CHARGED), sink)
        })
    }

    fn receive(&mut self, change: Move<'_>, feed: &mut Feed<'_>) -> Result<u64> {
        self.request(Request::Receive, |this| {
            put_bytes(&mut this.output, change.name.as_bytes())?;
            put_id(&mut this.output, change.before.as_ref())?;
            this.output.put(change.last.as_bytes())?;
            let mut windowed = Windowed::new(&mut this.output, &mut this.input);
            let mut encoder = Encoder::new(&mut windowed);
            let fed = feed(&mut encoder).and_then(|()| encoder.end());
            match fed.and_then(|()| this.ask()) {
                // The other side may have sent an error before it ended the connection.
                Err(error) if error == ended() => Err(this.input.last_words().unwrap_or(error)),
                fed => fed,
            }?;
            take_number(&mut this.input, u64::MAX >> 1)
        })
    }

    /// Pushes no commits. At the end of a push, the server deletes the leftovers.
    fn delete_leftovers(&mut self, branch: &str, tip: CommitId) -> Result<()> {
        let change =
            Move { name: branch, before: Some(tip), last: tip, is_forward: false, boundary: None };
        match self.receive(change, &mut |_| Ok(())) {
            // The next push does it.
            Err(Error::ReadOnly | Error::InvalidInput(InvalidInput::BranchMoved { .. })) => Ok(()),
            done => done.map(drop),
        }
    }

    fn charge_to(&mut self, db: &Db) {
        let budget = &db.store.reader.budget;
        self.lease = Some(budget.empty_lease(Kind::Staging));
        self.lines = Some(budget.empty_lease(Kind::Staging));
        self.names.get_or_insert_with(|| budget.empty_lease(Kind::Staging));
    }
}
