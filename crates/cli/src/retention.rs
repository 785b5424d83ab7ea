//! Reads which past versions a keyspace keeps, in the spelling in which [`Retention`] is printed.

use plimsoll::Retention;

use crate::duration::parse_duration;

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
    let refusal = |_| {
        format!("`{text}` is no retention; write forever, latest, 1000glsns, or an age such as 7d")
    };
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        // Seconds or GLSNs: not for us to guess.
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
    fn what_is_printed_is_read_again() {
        for text in ["forever", "latest", "1000glsns", "7d", "90s", "1500ms", "1501us", "0s"] {
            assert_eq!(parse_retention(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_number_alone_is_refused_for_it_may_mean_either() {
        for text in ["1000", "", "always", "glsns"] {
            assert!(parse_retention(text).unwrap_err().contains("1000glsns"), "{text}");
        }
    }
}
