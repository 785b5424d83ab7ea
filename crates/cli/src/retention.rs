//! Parses a keyspace's retention, in the notation in which [`Retention`] is printed.

use plimsoll::Retention;

use crate::duration::parse_duration;

/// Parses `forever`, `latest`, `1000glsns`, or a duration such as `7d`.
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
    let refusal = |_| {
        format!(
            "`{text}` is not a retention; write forever, latest, 1000glsns, or an age such as 7d"
        )
    };
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        // Ambiguous: seconds or GLSNs.
        return Err(refusal(String::new()));
    }
    parse_duration(text).map(Retention::Time).map_err(refusal)
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
    fn printed_retention_parses_back() {
        for text in ["forever", "latest", "1000glsns", "7d", "90s", "1500ms", "1501us", "0s"] {
            assert_eq!(parse_retention(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn bare_number_is_refused_as_ambiguous() {
        for text in ["1000", "", "always", "glsns"] {
            assert!(parse_retention(text).unwrap_err().contains("1000glsns"), "{text}");
        }
    }
}
