//! The URL of a stream, and the credentials of the environment.
//!
//! `nats://HOST[:PORT][,HOST[:PORT]…]/STREAM[/PREFIX]` with the parameters `replicas`, `monitor`
//! and `unsafe_assume_sync`; `tls://` instead of `nats://` requires TLS. A URL is stored in the
//! folder of a member, and printed, so it must not contain credentials.

use std::env;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;

use async_nats::{ConnectOptions, ServerAddr};

use crate::error::{Error, Result};

/// The replicas of a stream, unless the URL asks for another number.
const REPLICAS: u64 = 3;

/// The longest name of a stream.
const STREAM_BYTES_MAX: usize = 100;

/// The longest time to connect to one server.
const CONNECT: Duration = Duration::from_secs(2);

/// A server that does not answer for about three of these is given up for another one.
const PING: Duration = Duration::from_secs(1);

/// The place of a bucket in a stream.
#[derive(Clone, Debug)]
pub(super) struct Address {
    /// As given. Messages name the bucket so.
    pub(super) url: String,
    /// Each with its scheme.
    pub(super) servers: Vec<ServerAddr>,
    pub(super) stream: String,
    /// The folders in the stream before those of the bucket's objects.
    pub(super) prefix: Vec<String>,
    /// The replicas that the stream must have at least.
    pub(super) replicas: u64,
    /// The monitoring ports that show whether the servers sync each message.
    pub(super) monitors: Vec<String>,
    /// Whether the user answers for this instead.
    pub(super) assumes_sync: bool,
}

impl Address {
    /// The address that a URL names. Makes no request.
    pub(super) fn parse(url: &str) -> Result<Self> {
        let refuse = |what: String| {
            let what = format!("{what}; write nats://HOST[:PORT][,HOST[:PORT]...]/STREAM[/PREFIX]");
            Err(Error::Url { url: without_secret(url), what })
        };
        let Some((scheme, rest)) = url.split_once("://") else {
            return refuse("the URL has no scheme".to_owned());
        };
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut parts = place.split('/');
        let authority = parts.next().unwrap_or_default();
        // A password may contain `/` and `?`.
        if rest.contains('@') {
            return refuse(
                "the URL contains credentials; leave them out, and set NATS_CREDS (a file), \
                 NATS_USER and NATS_PASSWORD, or NATS_TOKEN in the environment"
                    .to_owned(),
            );
        }
        let mut servers = Vec::new();
        for host in authority.split(',').map(str::trim) {
            match format!("{scheme}://{host}").parse() {
                Ok(server) if !host.is_empty() => servers.push(server),
                Ok(_) => return refuse("the URL lacks a server".to_owned()),
                Err(error) => return refuse(format!("a server cannot be parsed: {error}")),
            }
        }
        let mut names = parts.filter(|part| !part.is_empty()).map(str::to_owned);
        let stream = names.next().unwrap_or_default();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if stream.is_empty() || stream.len() > STREAM_BYTES_MAX || !stream.chars().all(is_plain) {
            return refuse(format!(
                "the name of the stream must have 1 to {STREAM_BYTES_MAX} letters, digits, `-` and \
                 `_`"
            ));
        }
        let mut address = Self {
            url: url.to_owned(),
            servers,
            stream,
            prefix: names.collect(),
            replicas: REPLICAS,
            monitors: Vec::new(),
            assumes_sync: false,
        };
        for parameter in query.split('&').filter(|it| !it.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match (name, value) {
                ("replicas", number) => match number.parse() {
                    Ok(replicas @ 1..=5) => address.replicas = replicas,
                    _ => return refuse("`replicas` must be 1 to 5".to_owned()),
                },
                ("monitor", urls) => {
                    for url in urls.split(',').map(|url| url.trim_end_matches('/')) {
                        if !url.starts_with("http://") || url.contains('@') {
                            return refuse(
                                "`monitor` must name monitoring ports, such as \
                                 monitor=http://HOST:8222,http://HOST:8222"
                                    .to_owned(),
                            );
                        }
                        address.monitors.push(url.to_owned());
                    }
                }
                ("unsafe_assume_sync", "true") => address.assumes_sync = true,
                ("unsafe_assume_sync", "false") => {}
                _ => {
                    return refuse(
                        "the URL has an unknown parameter; there are `replicas`, `monitor` and \
                         `unsafe_assume_sync=true`"
                            .to_owned(),
                    );
                }
            }
        }
        Ok(address)
    }
}

/// The URL without its parameters and what is before the last `@`.
fn without_secret(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("nats", url));
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    format!("{scheme}://{}", place.split('?').next().unwrap_or_default())
}

/// How to connect, with the credentials of the environment: `NATS_CREDS` (a file), `NATS_USER` and
/// `NATS_PASSWORD`, or `NATS_TOKEN`; for TLS `NATS_CA`, and `NATS_CERT` with `NATS_KEY` (files).
pub(super) async fn connect_options(servers: &[ServerAddr]) -> io::Result<ConnectOptions> {
    let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let mut options = ConnectOptions::new()
        .name("plimsoll")
        .no_echo()
        // A server could name others without TLS.
        .ignore_discovered_servers()
        .require_tls(servers.iter().any(ServerAddr::tls_required))
        .connection_timeout(CONNECT)
        .ping_interval(PING)
        .subscription_capacity(1024)
        .client_capacity(64);
    if let Some(file) = set("NATS_CREDS") {
        // Not as a missing object.
        let failed =
            |error| io::Error::new(ErrorKind::PermissionDenied, format!("{file}: {error}"));
        options = options.credentials_file(&file).await.map_err(failed)?;
    } else if let Some(user) = set("NATS_USER") {
        options = options.user_and_password(user, set("NATS_PASSWORD").unwrap_or_default());
    } else if let Some(token) = set("NATS_TOKEN") {
        options = options.token(token);
    }
    if let Some(file) = set("NATS_CA") {
        options = options.add_root_certificates(PathBuf::from(file)).require_tls(true);
    }
    match (set("NATS_CERT"), set("NATS_KEY")) {
        (Some(cert), Some(key)) => {
            options = options.add_client_certificate(cert.into(), key.into());
        }
        (None, None) => {}
        _ => {
            let what = "only one of NATS_CERT and NATS_KEY is set; set both, or neither";
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_servers_a_stream_a_prefix_and_parameters() {
        let url = "nats://a,b:4223/users/base?monitor=http://a:8222,http://b:8222/&replicas=1";
        let address = Address::parse(url).unwrap();
        assert_eq!(address.servers.len(), 2);
        assert_eq!((address.servers[0].port(), address.servers[1].port()), (4222, 4223));
        assert_eq!((address.stream.as_str(), &address.prefix[..]), ("users", &["base".into()][..]));
        assert_eq!(address.monitors, ["http://a:8222", "http://b:8222"]);
        assert_eq!((address.replicas, address.assumes_sync), (1, false));
        let plain = Address::parse("tls://host/users?unsafe_assume_sync=true").unwrap();
        assert_eq!((plain.replicas, plain.assumes_sync), (3, true));
        assert!(plain.prefix.is_empty());
    }

    #[test]
    fn urls_without_a_stream_with_credentials_or_unknown_parameters_are_refused() {
        for url in [
            "nats://host",
            "nats:///stream",
            "nats://a,,b/stream",
            "nats://host/a.b",
            "nats://host/stream?monitor=host:8222",
            "nats://host/stream?replicas=0",
            "nats://host/stream?sync=always",
        ] {
            assert!(matches!(Address::parse(url), Err(Error::Url { .. })), "{url}");
        }
        let refused = Address::parse("nats://me:secret@host/stream").unwrap_err().to_string();
        assert!(refused.contains("nats://host/stream: ") && !refused.contains("secret"));
        assert!(refused.contains("NATS_CREDS"), "{refused}");
        for url in [
            "nats://me:sec/ret@host/stream",
            "nats://me:sec?ret@host/stream",
            "nats://host/stream?token=secret",
        ] {
            let refused = Address::parse(url).unwrap_err();
            let shown = format!("{refused} {refused:?}");
            assert!(!shown.contains("ret"), "{shown}");
        }
    }
}
