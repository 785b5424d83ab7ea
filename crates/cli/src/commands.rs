//! One file per command.

pub(crate) mod archive;
mod backup;
mod batch;
mod branch;
mod cluster;
mod compact;
mod completions;
mod count;
pub(crate) mod cursor;
mod delete;
mod diff;
mod dump;
mod expiry;
mod export;
mod get;
mod history;
mod import;
pub(crate) mod keyspace;
mod load;
mod log;
mod put;
mod recover;
mod remote;
#[cfg(feature = "replay")]
mod replay;
mod report;
mod restart_time;
mod restore;
mod scan;
mod shell;
mod shown_change;
mod stat;
mod state_hash;
mod sync;
mod sync_server;
pub(crate) mod tag;
mod trim;
mod undo;
mod update;
mod verify;
mod warm;
mod watch;

use crate::args::{Cli, Command, Export, Import};
use crate::exit::Outcome;
use crate::output::Output;

/// Runs the command.
pub(crate) fn run(cli: Cli, output: &mut Output) -> Outcome {
    let globals = &cli.globals;
    match cli.command {
        Command::Import(Import::Git(args)) => import::run(globals, &args, output),
        Command::Export(Export::Git(args)) => export::run(globals, &args, output),
        Command::Load(args) => load::run(globals, &args, output),
        Command::Get(args) => get::run(globals, args, output),
        Command::Put(args) => put::run(globals, args, output),
        Command::Delete(args) => delete::run(globals, args, output),
        Command::Add(args) => update::add(globals, args, output),
        Command::Append(args) => update::append(globals, args, output),
        Command::Cas(args) => update::cas(globals, args, output),
        Command::Ttl(args) => expiry::ttl(globals, args, output),
        Command::Expire(args) => expiry::expire(globals, args, output),
        Command::Persist(args) => expiry::persist(globals, args, output),
        Command::Scan(args) => scan::run(globals, args, output),
        Command::Count(args) => count::run(globals, args, output),
        Command::Batch(args) => batch::run(globals, &args, output),
        Command::Shell(args) => shell::run(globals, &args, output),
        Command::Keyspace(args) => keyspace::run(globals, &args, output),
        Command::Cursor(args) => cursor::run(globals, &args, output),
        Command::Branch(args) => branch::run(globals, &args, output),
        Command::Tag(args) => tag::run(globals, &args, output),
        Command::Clone(args) => sync::clone(globals, &args, output),
        Command::Fetch(args) => sync::fetch(globals, &args, output),
        Command::Pull(args) => sync::pull(globals, &args, output),
        Command::Push(args) => sync::push(globals, &args, output),
        Command::SyncServer(args) => sync_server::run(globals, &args),
        Command::Remote(args) => remote::run(globals, &args, output),
        Command::Cluster(args) => cluster::run(globals, &args, output),
        Command::History(args) => history::run(globals, args, output),
        Command::Diff(args) => diff::run(globals, args, output),
        Command::Merge(args) => undo::merge(globals, &args, output),
        Command::CherryPick(args) => undo::cherry_pick(globals, &args, output),
        Command::Revert(args) => undo::revert(globals, &args, output),
        Command::Reset(args) => undo::reset(globals, &args, output),
        Command::Log(args) => log::run(globals, args, output),
        Command::Watch(args) => watch::run(globals, args, output),
        Command::Stat(args) => stat::run(globals, &args, output),
        Command::StateHash(args) => state_hash::run(globals, &args, output),
        Command::Verify(args) => verify::run(globals, &args, output),
        Command::Backup(args) => backup::run(globals, &args, output),
        Command::Archive(args) => archive::run(globals, &args, output),
        Command::Dump(args) => dump::run(globals, args, output),
        Command::Restore(args) => restore::run(globals, &args, output),
        Command::Recover(args) => recover::run(globals, &args, output),
        Command::Compact(args) => compact::run(globals, &args, output),
        Command::Trim(args) => trim::run(globals, &args, output),
        Command::RestartTime(args) => restart_time::run(globals, &args, output),
        Command::Warm(args) => warm::run(globals, &args, output),
        #[cfg(feature = "replay")]
        Command::Replay(args) => replay::run(globals, &args, output),
        Command::Completions(args) => completions::run(&args, output),
    }
}
