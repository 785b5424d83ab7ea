//! A bucket in a PostgreSQL database: a table of objects in a schema of its own.
//!
//! ```text
//! objects  name → bytes, head: the first MiB; rest: the id of the further bytes, if there are any
//! chunks   id, number → bytes: the bytes after the first MiB, a MiB each
//! ```
//!
//! An object is stored by one transaction, so it appears as a whole. The server makes a commit
//! visible only after it is durable (`synchronous_commit`), so an object is durable as soon as it
//! can be read. Each session checks that its server keeps commits (`session.rs`).
//!
//! Storing a batch of a cluster (`log/…`) notifies the members that listen on a channel with the
//! name of the schema. A notification can be lost with its connection, so a waiter also asks for
//! the object: after it has begun to listen, and from time to time.

mod address;
mod session;
mod tls;

use std::fmt;
use std::io::{self, Cursor, ErrorKind, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::random::entropy;
use tokio_postgres::types::{ToSql, Type};

use crate::bucket::{Bucket, Object, Put};
use crate::error::{Error, Result};
use crate::postgres::address::Address;
use crate::postgres::session::{Session, is_answer, is_missing};

/// Bytes of an object that are in memory at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// The folder whose objects are waited for.
const NOTIFIED: &str = "log/";

/// Idle sessions, and as many idle listeners, that are kept for later requests.
const IDLE_MAX: usize = 4;

/// Names that one request lists.
const LISTED: i64 = 10_000;

/// The longest time of a request, by default.
const LIMIT: Duration = Duration::from_secs(8);

/// A waiter asks for the object after this time, in case its notification was lost.
const REST: Duration = Duration::from_secs(5);

/// Objects in a schema of a PostgreSQL database.
#[derive(Clone)]
pub struct Postgres {
    shared: Arc<Shared>,
}

struct Shared {
    address: Address,
    sql: Statements,
    limit: Duration,
    rest: Duration,
    /// Whether the first write creates the schema and its tables.
    makes: bool,
    clock: SystemClock,
    idle: Mutex<Vec<Session>>,
    listeners: Mutex<Vec<Listener>>,
    /// The number of connections so far. Each may lead to another server.
    connections: AtomicU64,
}

impl Shared {
    fn new(address: Address) -> Self {
        Self {
            sql: Statements::of(&address.schema),
            address,
            limit: LIMIT,
            rest: REST,
            makes: true,
            clock: SystemClock::new(),
            idle: Mutex::default(),
            listeners: Mutex::default(),
            connections: AtomicU64::new(0),
        }
    }
}

/// A session that listens.
struct Listener {
    session: Session,
    /// The object that this session has asked for last, and when: if another member has stored it
    /// since then, a notification says so.
    asked: Option<(String, u64)>,
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = &self.shared.address;
        write!(f, "postgres://{address}/{}/{}", address.schema, address.prefix)
    }
}

/// The statements, with the name of the schema.
struct Statements {
    head: String,
    chunk: String,
    exists: String,
    list: String,
    insert: String,
    insert_and_notify: String,
    insert_chunk: String,
    replace: String,
    delete: String,
    listen: String,
    tables: String,
}

impl Statements {
    /// `schema` needs no escapes.
    fn of(schema: &str) -> Self {
        let (objects, chunks) = (format!("\"{schema}\".objects"), format!("\"{schema}\".chunks"));
        let insert = format!(
            "INSERT INTO {objects} (name, bytes, head, rest) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (name) DO NOTHING RETURNING name"
        );
        Self {
            head: format!("SELECT bytes, head, rest FROM {objects} WHERE name = $1"),
            chunk: format!("SELECT bytes FROM {chunks} WHERE id = $1 AND number = $2"),
            exists: format!("SELECT EXISTS (SELECT FROM {objects} WHERE name = $1)"),
            list: format!(
                "SELECT name FROM {objects} WHERE name > $1 AND name < $2 ORDER BY name LIMIT $3"
            ),
            insert_and_notify: format!(
                "WITH stored AS ({insert}) SELECT pg_notify('{schema}', name) FROM stored"
            ),
            insert,
            insert_chunk: format!("INSERT INTO {chunks} (id, number, bytes) VALUES ($1, $2, $3)"),
            replace: format!(
                "WITH old AS (DELETE FROM {chunks} c USING {objects} o \
                 WHERE o.name = $1 AND c.id = o.rest) \
                 INSERT INTO {objects} (name, bytes, head, rest) VALUES ($1, $2, $3, NULL) \
                 ON CONFLICT (name) DO UPDATE \
                 SET bytes = excluded.bytes, head = excluded.head, rest = NULL"
            ),
            delete: format!(
                "WITH gone AS (DELETE FROM {objects} WHERE name = $1 RETURNING rest) \
                 DELETE FROM {chunks} c USING gone WHERE c.id = gone.rest"
            ),
            listen: format!("LISTEN \"{schema}\""),
            // Bytes are stored as they are, because objects are compressed already.
            tables: format!(
                "CREATE TABLE IF NOT EXISTS {objects} (\
                 name text COLLATE \"C\" PRIMARY KEY, bytes bigint NOT NULL, head bytea NOT NULL, \
                 rest bytea); \
                 CREATE TABLE IF NOT EXISTS {chunks} (\
                 id bytea, number bigint, bytes bytea NOT NULL, PRIMARY KEY (id, number)); \
                 ALTER TABLE {objects} ALTER head SET STORAGE EXTERNAL; \
                 ALTER TABLE {chunks} ALTER bytes SET STORAGE EXTERNAL; COMMIT"
            ),
        }
    }
}

/// A parameter of a statement.
type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

impl Postgres {
    /// The bucket that a URL such as `postgres://user@host/database/schema` names: the URL of libpq
    /// and a schema that only this bucket uses. A path after the schema is a prefix of the names of
    /// objects. The parameters `host`, `port`, `sslmode`, `sslrootcert` and `passfile` and the
    /// environment variables (`PGPASSWORD`, `PGSSLMODE`, …) have the same meaning as for libpq. If
    /// there are several hosts, the first that accepts writes is used. No request is made yet.
    ///
    /// # Errors
    /// [`Error::Url`]: the URL has another form, or a password.
    pub fn open(url: &str) -> Result<Self> {
        let address = Address::parse(url, |name| std::env::var(name).ok())?;
        Ok(Self { shared: Arc::new(Shared::new(address)) })
    }

    /// Creates no schema and no table: a write into a schema that is missing fails with `NotFound`.
    #[must_use]
    pub fn existing(self) -> Self {
        self.with(|shared| shared.makes = false)
    }

    /// Sets the longest time of a request, by default 8 s. A request that takes longer fails with
    /// `TimedOut`; whether it was carried out is then unknown.
    #[must_use]
    pub fn limit(self, limit: Duration) -> Self {
        self.with(|shared| shared.limit = limit)
    }

    /// Sets after which time [`Bucket::wait_for`] asks for the object although it was not notified,
    /// by default 5 s.
    #[must_use]
    pub fn rest(self, rest: Duration) -> Self {
        self.with(|shared| shared.rest = rest)
    }

    fn with(self, change: impl FnOnce(&mut Shared)) -> Self {
        let Shared { address, limit, rest, makes, .. } = &*self.shared;
        let (limit, rest, makes) = (*limit, *rest, *makes);
        let mut shared = Shared { limit, rest, makes, ..Shared::new(address.clone()) };
        change(&mut shared);
        Self { shared: Arc::new(shared) }
    }

    /// The name of an object in the table.
    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.shared.address.prefix)
    }

    fn connect(&self) -> io::Result<Session> {
        let session = Session::open(&self.shared.address, self.shared.limit)?;
        // Count it before its first answer is used.
        self.shared.connections.fetch_add(1, Ordering::AcqRel);
        Ok(session)
    }

    /// An idle session, or a new one; and whether it is new.
    fn session(&self) -> io::Result<(Session, bool)> {
        loop {
            // Not in the loop's head, whose lock would be held in the body.
            let idle = lock(&self.shared.idle).pop();
            let Some(mut session) = idle else { return Ok((self.connect()?, true)) };
            // Otherwise, a new session shows why.
            if session.is_open() && session.check_again().is_ok() {
                return Ok((session, false));
            }
        }
    }

    fn give_back(&self, session: Session) {
        let mut idle = lock(&self.shared.idle);
        if idle.len() < IDLE_MAX {
            idle.push(session);
        }
    }

    /// Makes a request in a session.
    fn ask<T>(&self, request: impl FnOnce(&mut Session) -> io::Result<T>) -> io::Result<T> {
        let (mut session, _) = self.session()?;
        let answer = request(&mut session);
        if answer.as_ref().map_or_else(is_answer, |_| true) {
            self.give_back(session);
        }
        answer
    }

    /// Makes a request that only reads: again, if an idle session turned out to be closed. `None`
    /// if there are no tables.
    fn read<T>(
        &self,
        mut request: impl FnMut(&mut Session) -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        loop {
            let (mut session, is_new) = self.session()?;
            match request(&mut session) {
                Ok(answer) => {
                    self.give_back(session);
                    return Ok(Some(answer));
                }
                // Without tables, a bucket that exists was lost.
                Err(error) if is_missing(&error) && self.shared.makes => {
                    self.give_back(session);
                    return Ok(None);
                }
                Err(error) if is_answer(&error) => {
                    self.give_back(session);
                    return Err(error);
                }
                // A session that is not new was closed while it was idle.
                Err(error) if is_new || error.kind() == ErrorKind::TimedOut => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Makes a request that writes; creates the tables if there are none.
    fn write<T>(&self, mut request: impl FnMut(&mut Session) -> io::Result<T>) -> io::Result<T> {
        match self.ask(&mut request) {
            // Without tables, the request did nothing.
            Err(error) if is_missing(&error) && self.shared.makes => {
                self.create()?;
                self.ask(request)
            }
            answer => answer,
        }
    }

    /// Creates the schema, unless an administrator has, and the tables.
    fn create(&self) -> io::Result<()> {
        let Shared { address, sql, .. } = &*self.shared;
        let schema = &address.schema;
        // One creator at a time: `IF NOT EXISTS` does not wait for others.
        let begin =
            "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('plimsoll: create', 0::bigint))";
        let find = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1), EXISTS (SELECT \
                    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                    WHERE n.nspname = $1 AND c.relname = 'chunks')";
        let (mut session, _) = self.session()?;
        session.run(async |client| client.batch_execute(begin).await)?;
        let (has_schema, has_tables) = session.run(async |client| {
            let found = client.query_typed_one(find, &[(schema, Type::TEXT)]).await?;
            Ok((found.try_get::<_, bool>(0)?, found.try_get::<_, bool>(1)?))
        })?;
        if !has_schema {
            let create = format!("CREATE SCHEMA \"{schema}\"");
            session.run(async |client| client.batch_execute(&create).await)?;
        }
        // Tables that another creator has made may be in use: to alter them could deadlock with an
        // insertion. A failure closes the session, which ends the transaction.
        let end = if has_tables { "COMMIT" } else { &sql.tables };
        session.run(async |client| client.batch_execute(end).await)?;
        self.give_back(session);
        Ok(())
    }

    /// Stores an object of one chunk.
    fn put_small(&self, name: &str, head: &[u8]) -> io::Result<Put> {
        let sql = self.shared.sql.insert_of(name);
        let name = self.name(name);
        self.write(|session| insert(session, sql, &name, head.len(), head, None))
    }

    /// Stores an object that begins with `head` and `chunk`, and continues with `bytes`.
    fn put_large(
        &self,
        name: &str,
        head: &[u8],
        mut chunk: Vec<u8>,
        bytes: &mut dyn Read,
    ) -> io::Result<Put> {
        if self.exists(name)? {
            return Ok(Put::Exists);
        }
        let Shared { sql, .. } = &*self.shared;
        let id = entropy()?.to_be_bytes();
        let id = &id[..];
        let mut total = head.len();
        // Nothing is read from `bytes` before the tables are known to exist.
        let (mut session, mut number) = (self.begin()?, 0_i64);
        while !chunk.is_empty() {
            let parameters: [Parameter<'_>; 3] =
                [(&id, Type::BYTEA), (&number, Type::INT8), (&chunk, Type::BYTEA)];
            session
                .run(async |client| client.execute_typed(&sql.insert_chunk, &parameters).await)?;
            total += chunk.len();
            number += 1;
            chunk = read_chunk(bytes)?;
        }
        let insertion = self.shared.sql.insert_of(name);
        let put = insert(&mut session, insertion, &self.name(name), total, head, Some(id))?;
        let end = match put {
            Put::New => "COMMIT",
            Put::Exists => "ROLLBACK",
        };
        session.run(async |client| client.batch_execute(end).await)?;
        self.give_back(session);
        Ok(put)
    }

    /// A session with a transaction, in which the tables are known to exist.
    fn begin(&self) -> io::Result<Session> {
        let check = |session: &mut Session| {
            let none: [Parameter<'_>; 1] = [(&"", Type::TEXT)];
            session.run(async |client| client.query_typed(&self.shared.sql.exists, &none).await)
        };
        self.write(check)?;
        let (mut session, _) = self.session()?;
        session.run(async |client| client.batch_execute("BEGIN").await)?;
        Ok(session)
    }

    fn listener(&self) -> io::Result<Listener> {
        loop {
            let idle = lock(&self.shared.listeners).pop();
            let Some(mut listener) = idle else { break };
            if listener.session.is_open() {
                return Ok(listener);
            }
        }
        let mut session = self.connect()?;
        session.run(async |client| client.batch_execute(&self.shared.sql.listen).await)?;
        Ok(Listener { session, asked: None })
    }

    /// Waits with a listener until the object exists or the time is over.
    fn listen(&self, listener: &mut Listener, name: &str, until: u64) -> io::Result<()> {
        let Shared { sql, clock, rest, .. } = &*self.shared;
        let rest = nanos(*rest);
        let Listener { session, asked } = listener;
        loop {
            let now = clock.monotonic_nanos();
            let asked_at = match asked {
                Some((name_asked, at)) if name_asked == name && now < at.saturating_add(rest) => {
                    *at
                }
                _ => {
                    let parameters: [Parameter<'_>; 1] = [(&name, Type::TEXT)];
                    let answer = session.run(async |client| {
                        client.query_typed_one(&sql.exists, &parameters).await?.try_get(0)
                    });
                    match answer {
                        Ok(true) => return Ok(()),
                        Ok(false) => {}
                        Err(error) if is_missing(&error) => {}
                        Err(error) => return Err(error),
                    }
                    *asked = Some((name.to_owned(), now));
                    now
                }
            };
            if now >= until {
                return Ok(());
            }
            let time = Duration::from_nanos(until.min(asked_at.saturating_add(rest)) - now);
            if session.notified(time)?.is_some_and(|stored| stored == name) {
                *asked = None;
                return Ok(());
            }
        }
    }
}

impl Statements {
    fn insert_of(&self, name: &str) -> &str {
        if name.starts_with(NOTIFIED) { &self.insert_and_notify } else { &self.insert }
    }
}

/// Stores the row of an object, unless there is one.
fn insert(
    session: &mut Session,
    sql: &str,
    name: &str,
    bytes: usize,
    head: &[u8],
    rest: Option<&[u8]>,
) -> io::Result<Put> {
    let bytes = i64::try_from(bytes).map_err(|_| ErrorKind::FileTooLarge)?;
    let parameters: [Parameter<'_>; 4] =
        [(&name, Type::TEXT), (&bytes, Type::INT8), (&head, Type::BYTEA), (&rest, Type::BYTEA)];
    let rows = session.run(async |client| client.query_typed(sql, &parameters).await)?;
    Ok(if rows.is_empty() { Put::Exists } else { Put::New })
}

impl Bucket for Postgres {
    fn put_new(&self, name: &str, bytes: &mut dyn Read) -> io::Result<Put> {
        let head = read_chunk(bytes)?;
        let chunk = if head.len() < CHUNK_BYTES { Vec::new() } else { read_chunk(bytes)? };
        match chunk.is_empty() {
            true => self.put_small(name, &head),
            false => self.put_large(name, &head, chunk, bytes),
        }
    }

    fn get(&self, name: &str) -> io::Result<Option<Object>> {
        let (sql, name) = (&self.shared.sql.head, self.name(name));
        let rows = self.read(|session| {
            session.run(async |client| {
                let Some(row) = client.query_typed_opt(sql, &[(&name, Type::TEXT)]).await? else {
                    return Ok(None);
                };
                let (bytes, head, rest): (i64, Vec<u8>, Option<Vec<u8>>) =
                    (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
                Ok(Some((bytes, head, rest)))
            })
        })?;
        Ok(rows.flatten().map(|(bytes, head, rest)| {
            let bytes = u64::try_from(bytes).unwrap_or(0);
            let left = bytes.saturating_sub(head.len() as u64);
            let bucket = self.clone();
            let chunk = Cursor::new(head);
            let reader = ChunkReader { bucket, name, id: rest, number: 0, chunk, left };
            Object { bytes, reader: Box::new(reader) }
        }))
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let (sql, prefix) = (&self.shared.sql.list, &self.shared.address.prefix);
        // The sign after `/` ends the range of the folder.
        let (mut from, to) = (self.name(&format!("{folder}/")), self.name(&format!("{folder}0")));
        let start = from.len();
        let mut names = Vec::new();
        loop {
            let parameters: [Parameter<'_>; 3] =
                [(&from, Type::TEXT), (&to, Type::TEXT), (&LISTED, Type::INT8)];
            let page = self.read(|session| {
                session.run(async |client| {
                    let rows = client.query_typed(sql, &parameters).await?;
                    rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<String>, _>>()
                })
            })?;
            let page = page.unwrap_or_default();
            let Some(last) = page.last().cloned() else { return Ok(names) };
            let is_in_folder = |name: &&String| !name[start..].contains('/');
            let found = page.iter().filter(is_in_folder);
            names.extend(found.map(|name| name[prefix.len()..].to_owned()));
            from = last;
        }
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        let (sql, name) = (&self.shared.sql.delete, self.name(name));
        let deleted = self.ask(|session| {
            session.run(async |client| client.execute_typed(sql, &[(&name, Type::TEXT)]).await)
        });
        match deleted {
            Err(error) if is_missing(&error) => Ok(()),
            deleted => deleted.map(drop),
        }
    }

    fn epoch(&self) -> u64 {
        self.shared.connections.load(Ordering::Acquire)
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        let (sql, name) = (&self.shared.sql.exists, self.name(name));
        let found = self.read(|session| {
            session.run(async |client| {
                client.query_typed_one(sql, &[(&name, Type::TEXT)]).await?.try_get(0)
            })
        })?;
        Ok(found.unwrap_or(false))
    }

    fn wait_for(&self, name: &str, timeout: Duration) -> Option<io::Result<()>> {
        let until = self.shared.clock.monotonic_nanos().saturating_add(nanos(timeout));
        let name = self.name(name);
        let wait = || {
            let mut listener = self.listener()?;
            let mut waited = self.listen(&mut listener, &name, until);
            let is_lost =
                |error: &io::Error| !is_answer(error) && error.kind() != ErrorKind::TimedOut;
            if waited.as_ref().is_err_and(is_lost) {
                // The server may have been restarted.
                listener = self.listener()?;
                waited = self.listen(&mut listener, &name, until);
            }
            if waited.as_ref().map_or_else(is_answer, |()| true) {
                let mut idle = lock(&self.shared.listeners);
                if idle.len() < IDLE_MAX {
                    idle.push(listener);
                }
            }
            waited
        };
        Some(wait())
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() > CHUNK_BYTES {
            return Err(ErrorKind::FileTooLarge.into());
        }
        let (sql, name) = (&self.shared.sql.replace, self.name(name));
        let length = bytes.len() as i64;
        let parameters: [Parameter<'_>; 3] =
            [(&name, Type::TEXT), (&length, Type::INT8), (&bytes, Type::BYTEA)];
        self.write(|session| {
            session.run(async |client| client.execute_typed(sql, &parameters).await)
        })?;
        Ok(())
    }

    /// Excludes other archivers by an advisory lock of the server, as long as its session lasts.
    /// After the server has ended the session, only [`Bucket::put_new`] excludes them.
    fn lock(&self) -> Result<Option<Box<dyn Send + Sync>>> {
        let Shared { address, .. } = &*self.shared;
        let place = format!("{self:?}");
        let failed = |error| Error::storage(&place, error);
        let mut session = self.connect().map_err(failed)?;
        let locked = format!("plimsoll: archive {}/{}", address.schema, address.prefix);
        let sql = "SELECT pg_try_advisory_lock(hashtextextended($1, 0::bigint))";
        let answer = session.run(async |client| {
            client.query_typed_one(sql, &[(&locked, Type::TEXT)]).await?.try_get(0)
        });
        match answer.map_err(failed)? {
            true => Ok(Some(Box::new(Mutex::new(session)))),
            false => Err(Error::OtherArchiver { place, pid: None }),
        }
    }
}

/// Reads an object chunk by chunk, without a session in between.
struct ChunkReader {
    bucket: Postgres,
    name: String,
    id: Option<Vec<u8>>,
    /// The next chunk.
    number: i64,
    chunk: Cursor<Vec<u8>>,
    /// Bytes after this chunk.
    left: u64,
}

impl Read for ChunkReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let n = self.chunk.read(into)?;
            if n > 0 || self.left == 0 || into.is_empty() {
                return Ok(n);
            }
            let sql = &self.bucket.shared.sql.chunk;
            let parameters: [Parameter<'_>; 2] =
                [(&self.id, Type::BYTEA), (&self.number, Type::INT8)];
            let row = self.bucket.read(|session| {
                session.run(async |client| {
                    let row = client.query_typed_opt(sql, &parameters).await?;
                    row.map(|row| row.try_get::<_, Vec<u8>>(0)).transpose()
                })
            })?;
            let chunk = row.flatten().filter(|chunk| !chunk.is_empty()).ok_or_else(|| {
                let what = format!("{}: a part of it is missing", self.name);
                io::Error::new(ErrorKind::UnexpectedEof, what)
            })?;
            self.left = self.left.saturating_sub(chunk.len() as u64);
            self.number += 1;
            self.chunk = Cursor::new(chunk);
        }
    }
}

/// The next bytes, fewer than a chunk only at the end.
fn read_chunk(bytes: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut chunk = Vec::new();
    bytes.take(CHUNK_BYTES as u64).read_to_end(&mut chunk)?;
    Ok(chunk)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
