//! Whole numbers as people write them on the command line: counts, GLSNs, streams.

/// Parses a count, which may be 0.
pub(crate) fn parse_count(text: &str) -> Result<u64, String> {
    whole(text).ok_or_else(|| format!("`{text}` is not a count; write a whole number, e.g. 10"))
}

/// Parses a count of at least one.
pub(crate) fn parse_positive(text: &str) -> Result<u64, String> {
    let count = whole(text).filter(|&count| count > 0);
    count.ok_or_else(|| format!("`{text}` is not a whole number of at least 1; write e.g. 10"))
}

/// Parses a GLSN.
pub(crate) fn parse_glsn(text: &str) -> Result<u64, String> {
    whole(text).ok_or_else(|| format!("`{text}` is not a GLSN; write a whole number, e.g. 120"))
}

/// Parses a stream number.
pub(crate) fn parse_stream(text: &str) -> Result<u32, String> {
    let stream = whole(text).and_then(|number| u32::try_from(number).ok());
    stream.ok_or_else(|| {
        format!("`{text}` is not the number of a stream; write 0 for transactions, or e.g. 7")
    })
}

/// Digits only.
fn whole(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_numbers_are_accepted() {
        assert_eq!(
            (parse_count("0"), parse_glsn("120"), parse_stream("7")),
            (Ok(0), Ok(120), Ok(7))
        );
        assert_eq!(parse_positive("1"), Ok(1));
        for text in ["", "-1", "+1", "x", "1.5", "99999999999999999999"] {
            let refusals = [parse_count(text), parse_positive(text), parse_glsn(text)];
            for refusal in refusals.into_iter().chain([parse_stream(text).map(u64::from)]) {
                let message = refusal.unwrap_err();
                assert!(
                    message.contains(&format!("`{text}` is not")) && message.contains("write"),
                    "{message}"
                );
            }
        }
        assert!(parse_positive("0").is_err());
        assert!(parse_stream("4294967296").is_err());
    }
}
