//! One connection to a PostgreSQL server that keeps commits.
//!
//! A server that could lose an acknowledged commit, and one that only reads, is refused when the
//! connection is opened. A request that fails or takes too long closes the connection, unless the
//! server has answered with an error.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client, Config, Error as PgError};

use crate::postgres::address::{Address, Host};

/// The longest time to connect to one server.
const CONNECT: Duration = Duration::from_secs(5);

/// The keepalive of connections: a dead peer is noticed after a minute.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Settings of a session, which override those of the role and the database:
/// 1. A commit is durable before it is acknowledged and before others see it.
/// 2. A transaction sees what was committed before each of its statements.
/// 3. The server ends sessions, and so locks, of clients that died: idle ones after a minute.
/// 4. No name is looked up in a schema in which another role may create functions.
/// 5. A request that row security would restrict fails, because a row that is hidden is not absent.
const SETTINGS: &str = "-c synchronous_commit=on \
     -c default_transaction_isolation=read\\ committed \
     -c search_path=pg_catalog,pg_temp -c row_security=off \
     -c statement_timeout=60s \
     -c lock_timeout=0 \
     -c idle_in_transaction_session_timeout=60s \
     -c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3 \
     -c tcp_user_timeout=60000";

/// Queries the settings that decide whether a server is accepted.
const CHECK: &str = "SELECT current_setting('fsync'), current_setting('full_page_writes'), \
     current_setting('synchronous_commit'), current_setting('transaction_read_only'), \
     pg_is_in_recovery(), EXISTS (SELECT FROM pg_class c JOIN pg_namespace n \
     ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname IN ('objects', 'chunks') \
     AND c.relpersistence <> 'p')";

/// An idle session is checked again after this time.
const CHECK_EVERY: Duration = Duration::from_secs(60);

/// A connection, and the runtime that works while a request is made.
#[derive(Debug)]
pub(super) struct Session {
    client: Client,
    notifications: UnboundedReceiver<String>,
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    /// The server and the database, in messages.
    place: String,
    schema: String,
    clock: SystemClock,
    /// When the settings were checked last.
    checked: u64,
    /// The longest time of a request.
    limit: Duration,
}

impl Session {
    /// Connects to the first server of an address that accepts writes.
    ///
    /// # Errors
    /// Those of the last server; `InvalidInput` if it could lose commits.
    pub(super) fn open(address: &Address, limit: Duration) -> io::Result<Self> {
        let mut failures = Vec::new();
        for host in &address.hosts {
            match Self::open_at(address, host, limit) {
                Ok(session) => return Ok(session),
                Err(error) => failures.push(error),
            }
        }
        // While one of the servers may come back or be promoted, it is worth trying again.
        let is_final = |error: &&io::Error| {
            use ErrorKind::{InvalidInput, NotFound, PermissionDenied};
            [InvalidInput, NotFound, PermissionDenied].contains(&error.kind())
        };
        let shown = failures.iter().find(|error| !is_final(error)).or(failures.last());
        let kind = shown.map_or(ErrorKind::InvalidInput, io::Error::kind);
        let texts: Vec<String> = failures.iter().map(io::Error::to_string).collect();
        Err(io::Error::new(kind, texts.join("; ")))
    }

    fn open_at(address: &Address, host: &Host, limit: Duration) -> io::Result<Self> {
        let place = format!("{host}/{}", address.database);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let mut config = Config::new();
        config
            .host(&host.name)
            .port(host.port)
            .user(&address.user)
            .dbname(&address.database)
            .application_name("plimsoll")
            .options(SETTINGS)
            .ssl_mode(if host.is_socket() { SslMode::Disable } else { address.tls.mode() })
            .keepalives_idle(KEEPALIVE)
            .keepalives_interval(KEEPALIVE / 3)
            .keepalives_retries(3)
            .tcp_user_timeout(2 * KEEPALIVE);
        let password = address.password(host).map_err(|error| at(&place, error))?;
        if let Some(password) = &password {
            config.password(password);
        }
        let tls = address.tls.connector().map_err(|error| at(&place, error))?;
        let connect = async { timeout(CONNECT, config.connect(tls)).await };
        let (client, mut connection) = match runtime.block_on(connect) {
            Ok(Ok(connected)) => connected,
            Ok(Err(error)) => {
                runtime.shutdown_background();
                return Err(failed(&place, &error));
            }
            Err(_) => {
                // A look-up of the host's name may still be waiting.
                runtime.shutdown_background();
                return Err(late(&place, CONNECT));
            }
        };
        let (sender, notifications) = unbounded_channel();
        runtime.spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await
            {
                if let AsyncMessage::Notification(notification) = message {
                    // Nobody waits once the session is dropped.
                    let _ = sender.send(notification.payload().to_owned());
                }
            }
        });
        let mut session = Self {
            client,
            notifications,
            runtime: Some(runtime),
            place,
            schema: address.schema.clone(),
            clock: SystemClock::new(),
            checked: 0,
            limit,
        };
        session.check()?;
        Ok(session)
    }

    /// Checks the settings again if that was long ago, because they may change while a session is
    /// idle.
    ///
    /// # Errors
    /// As for [`Session::open`].
    pub(super) fn check_again(&mut self) -> io::Result<()> {
        let age = self.clock.monotonic_nanos().saturating_sub(self.checked);
        if u128::from(age) < CHECK_EVERY.as_nanos() { Ok(()) } else { self.check() }
    }

    /// Fails if the server could lose a commit that it has acknowledged, or only reads.
    fn check(&mut self) -> io::Result<()> {
        self.checked = self.clock.monotonic_nanos();
        let schema = self.schema.clone();
        let rows =
            self.run(async |client| client.query_typed(CHECK, &[(&schema, Type::TEXT)]).await)?;
        let row = rows.first().ok_or_else(|| at(&self.place, ErrorKind::InvalidData.into()))?;
        let read = |number: usize| row.try_get::<_, String>(number);
        let is = |number: usize| row.try_get::<_, bool>(number);
        let settings = (read(0), read(1), read(2), read(3), is(4), is(5));
        let (Ok(fsync), Ok(pages), Ok(commit), Ok(read_only), Ok(is_standby), Ok(is_unlogged)) =
            settings
        else {
            return Err(at(&self.place, ErrorKind::InvalidData.into()));
        };
        let is_weak = !["on", "remote_apply"].contains(&&*commit);
        let is_transient = is_standby || read_only != "off";
        let what = match () {
            () if is_standby => {
                "the server is a standby, whose data may be old; name the primary, or all servers \
                 as HOST,HOST"
            }
            () if is_transient => "the server accepts no writes; name the one that does",
            () if fsync != "on" => {
                "the server could lose commits, because fsync is off; set fsync = on there"
            }
            () if pages != "on" => {
                "the server could lose commits, because full_page_writes is off; set \
                 full_page_writes = on there"
            }
            () if is_unlogged => {
                "a crash of the server would empty the tables of the bucket, because they are not \
                 logged; ALTER TABLE ... SET LOGGED there"
            }
            () if is_weak => {
                "the server could lose commits, because synchronous_commit cannot be set to on; \
                 connect without a pooler, or with one that keeps sessions apart"
            }
            () => return Ok(()),
        };
        // A standby may be promoted soon.
        let kind = if is_transient { ErrorKind::Other } else { ErrorKind::InvalidInput };
        Err(at(&self.place, io::Error::new(kind, what)))
    }

    /// Makes a request.
    ///
    /// # Errors
    /// The request; `TimedOut` if it takes too long. It may then still be carried out.
    pub(super) fn run<T>(
        &mut self,
        request: impl AsyncFnOnce(&Client) -> Result<T, PgError>,
    ) -> io::Result<T> {
        let Self { client, runtime, limit, place, .. } = self;
        let Some(runtime) = runtime else { return Err(at(place, ErrorKind::NotConnected.into())) };
        let answer = runtime.block_on(async { timeout(*limit, request(client)).await });
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(failed(place, &error)),
            Err(_) => Err(late(place, *limit)),
        }
    }

    /// Whether the connection is usable, as far as this side knows.
    pub(super) fn is_open(&mut self) -> bool {
        let Self { client, runtime, .. } = self;
        let Some(runtime) = runtime else { return false };
        // Let the connection notice that the server has closed it.
        runtime.block_on(async {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        });
        !client.is_closed()
    }

    /// Waits for a notification; `None` if there is none within `time`.
    ///
    /// # Errors
    /// The connection was closed.
    pub(super) fn notified(&mut self, time: Duration) -> io::Result<Option<String>> {
        let Self { runtime, notifications, place, .. } = self;
        let Some(runtime) = runtime else { return Err(at(place, ErrorKind::NotConnected.into())) };
        match runtime.block_on(async { timeout(time, notifications.recv()).await }) {
            Ok(Some(notification)) => Ok(Some(notification)),
            Ok(None) => Err(at(place, ErrorKind::ConnectionReset.into())),
            Err(_) => Ok(None),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Without waiting for the look-up of a name.
            runtime.shutdown_background();
        }
    }
}

/// Names the server in an error.
fn at(place: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{place}: {error}"))
}

fn late(place: &str, limit: Duration) -> io::Error {
    let what = format!("{place}: no answer within {} s", limit.as_secs_f32());
    io::Error::new(ErrorKind::TimedOut, what)
}

/// Whether an error says that the bucket's tables do not exist.
pub(super) fn is_missing(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Missing>())
}

/// Whether the server has answered with an error, so that the connection is usable.
pub(super) fn is_answer(error: &io::Error) -> bool {
    is_missing(error) || error.get_ref().is_some_and(|inner| inner.is::<Answer>())
}

/// The tables of the bucket do not exist.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Missing(String);

/// The server has refused a request, and goes on.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Answer(String);

/// An error of the client or of the server.
fn failed(place: &str, error: &PgError) -> io::Error {
    if let Some(answer) = error.as_db_error() {
        let code = answer.code();
        let text = format!("{place}: {} (SQLSTATE {})", answer.message(), code.code());
        let is_class = |class: &str| code.code().starts_with(class);
        if [&SqlState::UNDEFINED_TABLE, &SqlState::INVALID_SCHEMA_NAME].contains(&code) {
            return io::Error::new(ErrorKind::NotFound, Missing(text));
        }
        let kind = match () {
            () if is_class("28") || *code == SqlState::INSUFFICIENT_PRIVILEGE => {
                ErrorKind::PermissionDenied
            }
            () if *code == SqlState::INVALID_CATALOG_NAME => ErrorKind::NotFound,
            () if *code == SqlState::DISK_FULL => ErrorKind::StorageFull,
            // The server ends the connection, or was replaced as the primary: connect again.
            () if is_class("57") || is_class("08") || is_class("25") => {
                return io::Error::new(ErrorKind::ConnectionReset, text);
            }
            () => ErrorKind::Other,
        };
        return io::Error::new(kind, Answer(text));
    }
    let mut text = format!("{place}: {error}");
    let mut kind = match error.is_closed() {
        true => ErrorKind::ConnectionReset,
        false => ErrorKind::Other,
    };
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        if let Some(inner) = inner.downcast_ref::<io::Error>() {
            // The socket of a server that is stopped does not exist.
            kind = match inner.kind() {
                ErrorKind::NotFound => ErrorKind::ConnectionRefused,
                kind => kind,
            };
        }
        source = inner.source();
    }
    if text.ends_with("password missing") {
        let what = format!("{place}: the server asks for a password; set PGPASSWORD or ~/.pgpass");
        return io::Error::new(ErrorKind::PermissionDenied, what);
    }
    io::Error::new(kind, text)
}
