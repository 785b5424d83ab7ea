//! Which past versions a keyspace keeps, as people write and read it.

use plimsoll::Retention;

use crate::duration::{parse_duration, write_duration};
use crate::size::show_count;
use crate::time::show_duration;

/// Reads `forever`, `latest`, `1000glsns`, or a duration such as `7d`.
pub(crate) fn parse_retention(text: &str) -> Result<Retention, String> {
    match text {
        "forever" => return Ok(Retention::Forever),
        "latest" => return Ok(Retention::Latest),
        _ => {}
    }
    if let Some(number) = text.strip_suffix("glsns").or_else(|| text.strip_suffix("GLSNs")) {
        let refusal = |_| format!("`{text}` has no number of GLSNs; write e.g. 1000glsns");
        return number.trim().parse().map(Retention::Glsns).map_err(refusal);
    }
    let refusal = |_| format!("`{text}` is no retention; write forever, latest, 1000glsns, or an age such as 7d");
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        // Seconds or GLSNs: not for us to guess.
        return Err(refusal(String::new()));
    }
    parse_duration(text).map(Retention::Time).map_err(refusal)
}

/// What a keyspace keeps, in words.
pub(crate) fn show_retention(retention: Retention) -> String {
    match retention {
        Retention::Forever => "keeps every version".to_owned(),
        Retention::Latest => "keeps the latest version".to_owned(),
        Retention::Glsns(glsns) => format!("keeps what the last {} GLSNs can see", show_count(glsns)),
        Retention::Time(time) => format!("keeps what a reader of the last {} can see", show_duration(time)),
        other => format!("{other:?}"),
    }
}

/// As [`parse_retention`] reads it.
pub(crate) fn write_retention(retention: Retention) -> String {
    match retention {
        Retention::Forever => "forever".to_owned(),
        Retention::Latest => "latest".to_owned(),
        Retention::Glsns(glsns) => format!("{glsns}glsns"),
        Retention::Time(time) => write_duration(time),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_retention_can_be_written() {
        assert_eq!(parse_retention("forever"), Ok(Retention::Forever));
        assert_eq!(parse_retention("latest"), Ok(Retention::Latest));
        assert_eq!(parse_retention("1000glsns"), Ok(Retention::Glsns(1000)));
        assert_eq!(parse_retention("7d"), Ok(Retention::Time(Duration::from_secs(7 * 86_400))));
    }

    #[test]
    fn what_is_written_is_read_again() {
        for text in ["forever", "latest", "1000glsns", "7d", "90s", "1500ms", "0s"] {
            assert_eq!(write_retention(parse_retention(text).unwrap()), text);
        }
    }

    #[test]
    fn a_number_alone_is_refused_for_it_may_mean_either() {
        for text in ["1000", "", "always", "glsns"] {
            assert!(parse_retention(text).unwrap_err().contains("1000glsns"), "{text}");
        }
    }
}
