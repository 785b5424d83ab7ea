//! The address in a URL such as `postgres://user@host/database/schema`.
//!
//! The URL is that of libpq, followed by the schema of the bucket and, optionally, a prefix of its
//! objects. It holds no password, because members store and print it.

use std::fmt;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::postgres::tls::{Tls, Verified, read_file};

/// The longest name of a schema: PostgreSQL cuts longer ones.
const SCHEMA_BYTES_MAX: usize = 63;

/// The port if the URL names none.
const PORT: u16 = 5432;

/// A server: a name or IP address, or the folder of its Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) port: u16,
}

impl Host {
    pub(super) fn is_socket(&self) -> bool {
        self.name.starts_with('/')
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

/// The place of a bucket, and how its server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) user: String,
    /// At least one: the first that accepts writes is used.
    pub(super) hosts: Vec<Host>,
    pub(super) database: String,
    pub(super) schema: String,
    /// Empty, or ends with `/`.
    pub(super) prefix: String,
    pub(super) tls: Tls,
    /// The file of passwords.
    passfile: Option<PathBuf>,
}

impl Address {
    /// The address in a URL. Parts that the URL omits come from the environment variables of libpq.
    ///
    /// # Errors
    /// [`Error::Url`]
    pub(super) fn parse(url: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let parsed = parse(url, &variable);
        parsed.map_err(|what| Error::Url { url: without_password(url), what })
    }

    /// The password of a server: that of `PGPASSWORD`, or that of the file of passwords. Read for
    /// each connection, because it may be changed while the store is open.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn password(&self, host: &Host) -> io::Result<Option<String>> {
        if let Some(password) = std::env::var("PGPASSWORD").ok().filter(|value| !value.is_empty()) {
            return Ok(Some(password));
        }
        let Some(path) = &self.passfile else { return Ok(None) };
        let of_file =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let text = match read_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(of_file)?,
        };
        if std::fs::metadata(path).map_err(of_file)?.permissions().mode() & 0o077 != 0 {
            let what = "other users may read this file of passwords; `chmod 600` it";
            return Err(of_file(io::Error::new(io::ErrorKind::PermissionDenied, what)));
        }
        let name = if host.is_socket() { "localhost" } else { &host.name };
        let port = host.port.to_string();
        let asked = [name, &port, &self.database, &self.user];
        Ok(password_in(&String::from_utf8_lossy(&text), &asked))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.hosts.iter().map(Host::to_string).collect();
        write!(f, "{}/{}", hosts.join(","), self.database)
    }
}

/// A URL without the password that it should not contain.
fn without_password(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("postgres", url));
    let without_query = |text: &str| text.split('?').next().unwrap_or_default().to_owned();
    // A password may contain any sign: the last `@` ends it.
    let shown = rest.rsplit_once('@').map_or_else(
        || without_query(rest),
        |(user, rest)| {
            let user = user.split([':', '/', '?']).next().unwrap_or_default();
            format!("{user}@{}", without_query(rest))
        },
    );
    format!("{scheme}://{shown}")
}

fn parse(url: &str, variable: &impl Fn(&str) -> Option<String>) -> Result<Address, String> {
    let form = "write postgres://USER@HOST/DATABASE/SCHEMA";
    let (_, rest) = url.split_once("://").ok_or(form)?;
    // A password may contain `/` and `?`. The `@` of a parameter is behind its `=`.
    let user = rest.rsplit_once('@').map_or("", |(user, _)| user);
    let is_parameter = user.split_once('?').is_some_and(|(_, query)| query.contains('='));
    if user.contains(':') && !is_parameter {
        return Err(PASSWORD.to_owned());
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').ok_or(form)?;
    let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    if user.contains(':') || path.contains('@') {
        return Err(PASSWORD.to_owned());
    }
    let mut hosts = hosts.to_owned();
    let mut port = variable("PGPORT");
    let mut mode = variable("PGSSLMODE");
    let mut roots = variable("PGSSLROOTCERT");
    let mut passfile = variable("PGPASSFILE");
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').ok_or("a parameter has no value")?;
        let value = decoded(value)?;
        match name {
            "host" => hosts = value,
            "port" => port = Some(value),
            "sslmode" => mode = Some(value),
            "sslrootcert" => roots = Some(value),
            "passfile" => passfile = Some(value),
            "password" => return Err(PASSWORD.to_owned()),
            // Always so.
            "target_session_attrs" if ["read-write", "primary"].contains(&&*value) => {}
            _ => {
                return Err(format!(
                    "it has the parameter {name}, which is not supported; the supported ones are \
                     host, port, sslmode, sslrootcert and passfile"
                ));
            }
        }
    }
    let mut parts = path.trim_end_matches('/').split('/').map(decoded);
    let database = parts.next().transpose()?.filter(|name| !name.is_empty()).ok_or(form)?;
    let schema = parts.next().transpose()?.ok_or(
        "it names no schema; write postgres://USER@HOST/DATABASE/SCHEMA, where only this \
         cluster or archive uses the schema",
    )?;
    check_schema(&schema)?;
    let mut prefix = String::new();
    for part in parts {
        let part = part?;
        check_part(&part)?;
        prefix += &part;
        prefix.push('/');
    }
    let home = variable("HOME").map(PathBuf::from);
    let in_home = |name: &str| home.as_ref().map(|home| home.join(name));
    let user = match decoded(user)? {
        user if !user.is_empty() => user,
        _ => ["PGUSER", "USER", "LOGNAME"]
            .into_iter()
            .find_map(variable)
            .ok_or("it names no user; write postgres://USER@HOST/DATABASE/SCHEMA")?,
    };
    let address = Address {
        user,
        hosts: hosts_in(&hosts, port.as_deref(), variable)?,
        database,
        schema,
        prefix,
        tls: tls(mode.as_deref(), roots, in_home(".postgresql/root.crt"))?,
        passfile: passfile.map(PathBuf::from).or_else(|| in_home(".pgpass")),
    };
    Ok(address)
}

const PASSWORD: &str = "it contains a password, which would be stored and shown; leave it out, and \
                        give it in PGPASSWORD or in ~/.pgpass";

fn hosts_in(
    hosts: &str,
    port: Option<&str>,
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<Vec<Host>, String> {
    let number = |port: &str| {
        port.parse::<u16>().map_err(|_| "a port must be a number from 0 to 65535".to_owned())
    };
    let default = port.map_or(Ok(PORT), number)?;
    let from_variable = variable("PGHOST").unwrap_or_else(|| "/var/run/postgresql".to_owned());
    let hosts = if hosts.is_empty() { &from_variable } else { hosts };
    let mut found = Vec::new();
    for host in hosts.split(',') {
        let (name, port) = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
            Some((name, port)) => (name, port.strip_prefix(':')),
            None => host.rsplit_once(':').map_or((host, None), |(name, port)| (name, Some(port))),
        };
        let name = decoded(name)?;
        if name.is_empty() {
            return Err("a host has no name".to_owned());
        }
        found.push(Host { name, port: port.map_or(Ok(default), number)? });
    }
    Ok(found)
}

/// How a connection is encrypted, as libpq decides it.
fn tls(
    mode: Option<&str>,
    roots: Option<String>,
    own_roots: Option<PathBuf>,
) -> Result<Tls, String> {
    let is_named = roots.is_some();
    let roots = roots.map(PathBuf::from).or(own_roots);
    let named = |verified| {
        let roots = roots.clone().ok_or(
            "verify-ca and verify-full need the certificate of the authority; name its file as \
             sslrootcert",
        )?;
        Ok::<_, String>(Tls::Required(Some((verified, roots))))
    };
    match mode.unwrap_or("prefer") {
        "disable" => Ok(Tls::Disabled),
        "allow" | "prefer" => Ok(Tls::Preferred),
        // As libpq does if the file exists.
        "require" if is_named || roots.as_ref().is_some_and(|path| read_file(path).is_ok()) => {
            named(Verified::Authority)
        }
        "require" => Ok(Tls::Required(None)),
        "verify-ca" => named(Verified::Authority),
        "verify-full" => named(Verified::AuthorityAndName),
        other => Err(format!(
            "sslmode={other} is unknown; write disable, prefer, require, verify-ca or verify-full"
        )),
    }
}

fn check_schema(schema: &str) -> Result<(), String> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    let is_own = schema.starts_with("pg_") || schema == "information_schema";
    if schema.is_empty()
        || schema.len() > SCHEMA_BYTES_MAX
        || !schema.bytes().all(is_good)
        || is_own
    {
        return Err(format!(
            "{schema:?} cannot be the schema of a bucket; use at most {SCHEMA_BYTES_MAX} letters, \
             digits, `-` and `_`, not beginning with pg_"
        ));
    }
    Ok(())
}

fn check_part(part: &str) -> Result<(), String> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    match !part.is_empty() && !part.starts_with('.') && part.bytes().all(is_good) {
        true => Ok(()),
        false => Err(format!("{part:?} cannot be in a prefix; use letters, digits, `-`, `_`, `.`")),
    }
}

/// Text whose percent signs are decoded.
fn decoded(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut left = text.bytes();
    while let Some(byte) = left.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(left.next()), digit(left.next())) else {
            return Err("a percent sign is not followed by two hexadecimal digits".to_owned());
        };
        bytes.push((16 * high + low) as u8);
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())
}

/// The password for a host, port, database and user in the text of a file of passwords.
fn password_in(text: &str, asked: &[&str; 4]) -> Option<String> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut fields = vec![String::new()];
        let (mut chars, mut is_wild) = (line.chars(), [true; 4]);
        while let Some(sign) = chars.next() {
            let number = fields.len() - 1;
            let field = fields.last_mut()?;
            match sign {
                ':' if number < 4 => fields.push(String::new()),
                '\\' => {
                    field.extend(chars.next());
                    is_wild.get_mut(number).map(|wild| *wild = false).unwrap_or_default();
                }
                _ => field.push(sign),
            }
        }
        let password = (fields.len() == 5).then(|| fields.pop()).flatten()?;
        let is_for = |number: usize| {
            fields[number] == asked[number] || fields[number] == "*" && is_wild[number]
        };
        (0..4).all(is_for).then_some(password)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str) -> Result<Address> {
        Address::parse(url, |name| match name {
            "USER" => Some("ada".to_owned()),
            "HOME" => Some("/nowhere".to_owned()),
            _ => None,
        })
    }

    #[test]
    fn a_url_names_user_hosts_database_schema_and_prefix() {
        let found = address("postgres://eve@[::1]:5433,two/data%20base/users/base/1").unwrap();
        assert_eq!(found.user, "eve");
        assert_eq!(found.to_string(), "[::1]:5433,two:5432/data base");
        assert_eq!((&*found.schema, &*found.prefix), ("users", "base/1/"));
        assert_eq!(found.tls, Tls::Preferred);
        let found =
            address("postgresql:///d/s?host=/run/postgresql&port=9&sslmode=disable").unwrap();
        assert_eq!((&*found.user, found.tls), ("ada", Tls::Disabled));
        assert_eq!(found.hosts, [Host { name: "/run/postgresql".to_owned(), port: 9 }]);
        let found = address("postgres://%2Frun%2Fsocket/d/s/").unwrap();
        assert_eq!(found.hosts[0].name, "/run/socket");
        let full = address("postgres://h/d/s?sslmode=verify-full&sslrootcert=/ca").unwrap();
        let roots = PathBuf::from("/ca");
        assert_eq!(full.tls, Tls::Required(Some((Verified::AuthorityAndName, roots))));
        assert_eq!(address("postgres://h/d/s?sslmode=require").unwrap().tls, Tls::Required(None));
    }

    #[test]
    fn a_url_that_names_no_bucket_is_refused() {
        for url in [
            "postgres://host",
            "postgres://host/",
            "postgres://host/database",
            "postgres://host/database/",
            "postgres://host/database/pg_toast",
            "postgres://host/database/a;b",
            "postgres://host/database/a/../b",
            "postgres://host/database/a//b",
            "postgres://host:port/database/a",
            "postgres://host:99999/database/a",
            "postgres://host,/database/a",
            "postgres://host/data%2/a",
            "postgres://host/database/a?sslmode=no",
            "postgres://host/database/a?options=-cfsync=off",
            "postgres://host/database/a?sslmode",
        ] {
            assert!(matches!(address(url), Err(Error::Url { .. })), "{url}");
        }
    }

    #[test]
    fn a_password_in_a_url_is_refused_and_not_shown() {
        for url in [
            "postgres://ada:geheim@host/database/a",
            "postgres://ada:ge@heim@host/database/a",
            "postgres://ada:ge?heim@host/database/a",
            "postgres://ada:geheim?x@host/database/a",
            "postgres://ada:geheim/x@host/database/a",
            "postgres://ada:12/geheim@host/database/a",
            "postgres://ada:12/geheim@host/database/a?sslmode=require",
            "postgres://host/database/a?password=geheim",
            "postgres://ada:geheim@host",
        ] {
            let refused = address(url).unwrap_err();
            let shown = format!("{refused} {refused:?}");
            assert!(!shown.contains("heim"), "{shown}");
        }
        let refused = address("postgres://ada:geheim@host/d/a").unwrap_err().to_string();
        assert!(
            refused.starts_with("postgres://ada@host/d/a: it contains a password"),
            "{refused}"
        );
    }

    #[test]
    fn a_password_is_that_of_the_first_line_that_fits() {
        let text = "# host:1:d:u:comment\nhost:1:d:u:one\nhost:*:d:u:t\\:wo\n\\*:*:*:*:never\n\
                    half:1\n*:*:e:*:th:ree\n";
        let find = |host, port, database| password_in(text, &[host, port, database, "u"]);
        assert_eq!(find("host", "1", "d").as_deref(), Some("one"));
        assert_eq!(find("host", "2", "d").as_deref(), Some("t:wo"));
        assert_eq!(find("other", "2", "e").as_deref(), Some("th:ree"));
        assert_eq!(find("other", "2", "d"), None);
    }
}
