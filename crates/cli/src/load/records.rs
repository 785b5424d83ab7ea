//! Splits delimited text into records and fields: CSV as in RFC 4180, TSV without quotes.
//!
//! The parser is strict where leniency would lose data: an unclosed quote, text after a closing
//! quote, a carriage return in an unquoted CSV field and an oversized record are errors with their
//! line. The `csv` crate accepts all of them, so it is not used here. The parser is lenient where
//! nothing is lost: LF and CRLF end a record, the last record needs no line end, blank lines are
//! skipped, and a quote inside an unquoted field is an ordinary character.

use std::io::BufRead;

use super::Problem;

/// Records of a text.
#[derive(Debug)]
pub(super) struct Records<R> {
    input: R,
    delimiter: u8,
    quotes: bool,
    row_bytes_max: usize,
    /// The current line, from 1.
    line: u64,
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// Whether a field of the record is quoted; such a record is not blank.
    is_quoted: bool,
    /// Set after an error within a record. The next call skips the rest of the record; the failed
    /// one does not, because the rest may be slow to arrive.
    bad: Option<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// At the beginning of a field.
    FieldStart,
    Plain,
    /// Inside quotes that were opened on this line.
    Quoted(u64),
    /// After a quote inside quotes: either the closing one or the first of a doubled one.
    MaybeClosed(u64),
    /// After a carriage return outside quotes: the first half of a line end, or TSV data.
    Returned,
}

impl<R: BufRead> Records<R> {
    pub(super) fn new(input: R, delimiter: u8, quotes: bool, row_bytes_max: usize) -> Self {
        Self {
            input,
            delimiter,
            quotes,
            row_bytes_max,
            line: 1,
            bytes: Vec::new(),
            ends: Vec::new(),
            is_quoted: false,
            bad: None,
        }
    }

    /// Reads the next record; returns its first line, `None` at the end. After an error of one
    /// record, the next record begins where that one ends; quoted fields after the error are
    /// skipped whole.
    pub(super) fn next(&mut self) -> Result<Option<u64>, Problem> {
        if let Some(state) = self.bad.take() {
            self.skip_rest(state)?;
        }
        loop {
            let first_line = self.line;
            self.bytes.clear();
            self.ends.clear();
            self.is_quoted = false;
            // Release the memory of a long row.
            self.bytes.shrink_to(64 * 1024);
            if !self.read_record(first_line)? {
                return Ok(None);
            }
            let blank = self.ends.len() == 1 && self.bytes.is_empty() && !self.is_quoted;
            if !blank {
                return Ok(Some(first_line));
            }
        }
    }

    /// Whether a field of the record is quoted.
    pub(super) fn is_quoted(&self) -> bool {
        self.is_quoted
    }

    /// The number of fields of the record.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// A field of the record.
    pub(super) fn field(&self, place: usize) -> &[u8] {
        let start = if place == 0 { 0 } else { self.ends[place - 1] };
        &self.bytes[start..self.ends[place]]
    }

    /// Reads a record; `false` at the end of the input.
    fn read_record(&mut self, first_line: u64) -> Result<bool, Problem> {
        let mut state = State::FieldStart;
        loop {
            let buffer = self.input.fill_buf().map_err(|error| Problem::unreadable(&error))?;
            if buffer.is_empty() {
                return self.end_of_input(state);
            }
            let bytes = buffer.len();
            let mut used = 0;
            let mut complete = false;
            while used < bytes && !complete {
                let byte = buffer[used];
                used += 1;
                self.line += u64::from(byte == b'\n');
                state = match (state, byte) {
                    (State::Quoted(opened), b'"') => State::MaybeClosed(opened),
                    (State::Quoted(opened), _) => {
                        self.bytes.push(byte);
                        State::Quoted(opened)
                    }
                    (State::MaybeClosed(opened), b'"') => {
                        self.bytes.push(byte);
                        State::Quoted(opened)
                    }
                    (_, b'\n') => {
                        complete = true;
                        state
                    }
                    (State::Returned, _) if self.quotes => {
                        self.bad = Some(self.skip_byte(State::Plain, byte));
                        self.input.consume(used);
                        return Err(Problem::of_row(
                            self.line,
                            "a carriage return without a line feed; lines end with LF or CRLF, \
                             and a field that holds one is quoted",
                        ));
                    }
                    (State::Returned, _) => {
                        self.bytes.push(b'\r');
                        // Process this byte again.
                        used -= 1;
                        State::Plain
                    }
                    (_, _) if byte == self.delimiter => {
                        self.ends.push(self.bytes.len());
                        State::FieldStart
                    }
                    (_, b'\r') => State::Returned,
                    (State::MaybeClosed(_), _) => {
                        self.bad = Some(State::Plain);
                        self.input.consume(used);
                        return Err(Problem::of_row(
                            self.line,
                            "there is text after a closing quote; write a quote inside a field \
                             twice",
                        ));
                    }
                    (State::FieldStart, b'"') if self.quotes => {
                        self.is_quoted = true;
                        State::Quoted(self.line)
                    }
                    (_, _) => {
                        // The part of the field in the buffer.
                        let rest = &buffer[used - 1..];
                        let ends =
                            |&byte: &u8| byte == b'\n' || byte == b'\r' || byte == self.delimiter;
                        let len = rest.iter().position(ends).unwrap_or(rest.len());
                        self.bytes.extend_from_slice(&rest[..len]);
                        used += len - 1;
                        State::Plain
                    }
                };
            }
            self.input.consume(used);
            if complete {
                self.ends.push(self.bytes.len());
                return Ok(true);
            }
            // Fields take memory too, even empty ones.
            if self.bytes.len() + self.ends.len() * size_of::<usize>() > self.row_bytes_max {
                let hint = if self.quotes { " (is a closing quote missing?)" } else { "" };
                // With a quote, the start of the next row is unknown.
                self.bad = (!self.is_quoted).then_some(state);
                return Err(Problem {
                    is_of_one_row: !self.is_quoted,
                    ..Problem::too_long(first_line, self.row_bytes_max, hint)
                });
            }
        }
    }

    /// Skips the rest of a malformed record.
    fn skip_rest(&mut self, mut state: State) -> Result<(), Problem> {
        loop {
            let buffer = self.input.fill_buf().map_err(|error| Problem::unreadable(&error))?;
            if buffer.is_empty() {
                return match state {
                    State::Quoted(opened) => Err(never_closed(opened)),
                    _ => Ok(()),
                };
            }
            let (bytes, mut used, mut complete) = (buffer.to_vec(), 0, false);
            while used < bytes.len() && !complete {
                let byte = bytes[used];
                used += 1;
                complete = byte == b'\n' && !matches!(state, State::Quoted(_));
                state = self.skip_byte(state, byte);
                self.line += u64::from(byte == b'\n');
            }
            self.input.consume(used);
            if complete {
                return Ok(());
            }
        }
    }

    /// The state after a byte of a malformed record, in which no byte is an error.
    fn skip_byte(&self, state: State, byte: u8) -> State {
        match (state, byte) {
            (State::Quoted(opened), b'"') => State::MaybeClosed(opened),
            (State::Quoted(opened), _) | (State::MaybeClosed(opened), b'"') => {
                State::Quoted(opened)
            }
            (_, _) if byte == self.delimiter => State::FieldStart,
            (State::FieldStart, b'"') if self.quotes => State::Quoted(self.line),
            (_, _) => State::Plain,
        }
    }

    fn end_of_input(&mut self, state: State) -> Result<bool, Problem> {
        match state {
            State::Quoted(opened) => Err(never_closed(opened)),
            State::FieldStart if self.ends.is_empty() => Ok(false),
            _ => {
                self.ends.push(self.bytes.len());
                Ok(true)
            }
        }
    }
}

fn never_closed(opened: u64) -> Problem {
    Problem::new(opened, "the quote that opens on this line is never closed")
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    const MAX: usize = 4 << 20;

    fn read(text: &[u8], delimiter: u8, quotes: bool) -> Result<Vec<(u64, Vec<String>)>, Problem> {
        // With the smallest buffer every byte is a boundary; with a large one all data is buffered.
        let in_pieces = read_through(BufReader::with_capacity(3, text), delimiter, quotes);
        assert_eq!(read_through(text, delimiter, quotes), in_pieces);
        in_pieces
    }

    fn read_through(
        text: impl BufRead,
        delimiter: u8,
        quotes: bool,
    ) -> Result<Vec<(u64, Vec<String>)>, Problem> {
        let mut records = Records::new(text, delimiter, quotes, MAX);
        let mut all = Vec::new();
        while let Some(line) = records.next()? {
            let fields = (0..records.len())
                .map(|place| String::from_utf8_lossy(records.field(place)).into_owned());
            all.push((line, fields.collect()));
        }
        Ok(all)
    }

    fn csv(text: &str) -> Result<Vec<(u64, Vec<String>)>, Problem> {
        read(text.as_bytes(), b',', true)
    }

    fn records(expected: &[(u64, &[&str])]) -> Vec<(u64, Vec<String>)> {
        let own = |fields: &[&str]| fields.iter().map(|&field| field.to_owned()).collect();
        expected.iter().map(|&(line, fields)| (line, own(fields))).collect()
    }

    #[test]
    fn fields_are_split_and_unquoted() {
        type Expected<'a> = &'a [(u64, &'a [&'a str])];
        let cases: &[(&str, Expected<'_>)] = &[
            ("", &[]),
            ("a,b\n1,2\n", &[(1, &["a", "b"]), (2, &["1", "2"])]),
            ("a,b\r\n1,2", &[(1, &["a", "b"]), (2, &["1", "2"])]),
            ("a,\n,b\n,\n", &[(1, &["a", ""]), (2, &["", "b"]), (3, &["", ""])]),
            ("\n\na\n\n\r\nb\n", &[(3, &["a"]), (6, &["b"])]),
            ("\"x, \"\"y\"\"\nz\",2\nn,3", &[(1, &["x, \"y\"\nz", "2"]), (3, &["n", "3"])]),
            ("\"a\"\r\n\"\"\"\"\n", &[(1, &["a"]), (2, &["\""])]),
            ("a\"b,c\n", &[(1, &["a\"b", "c"])]),
            ("\"a\r\n\"\n", &[(1, &["a\r\n"])]),
            ("a,\"\"", &[(1, &["a", ""])]),
            ("a\n\"\"\n\r\n\"\"\r\n\"\"", &[(1, &["a"]), (2, &[""]), (4, &[""]), (5, &[""])]),
            ("a,\r\nb,\"\"\r", &[(1, &["a", ""]), (2, &["b", ""])]),
        ];
        for (text, expected) in cases {
            assert_eq!(csv(text).unwrap(), records(expected), "{text:?}");
        }
    }

    #[test]
    fn tsv_quotes_are_ordinary_characters() {
        let expected = records(&[(1, &["\"a", "b\""]), (2, &["c", ""])]);
        assert_eq!(read(b"\"a\tb\"\nc\t\n", b'\t', false).unwrap(), expected);
        let expected = records(&[(1, &["a\r", "\rb\rc"]), (2, &["\r\rd", "e\r"])]);
        assert_eq!(read(b"a\r\t\rb\rc\r\n\r\rd\te\r\r\n", b'\t', false).unwrap(), expected);
    }

    #[test]
    fn bare_carriage_returns_are_refused() {
        for text in ["k,v\r1,2\r3,4\r", "k,v\n\"1\"\r\"2\",3\n", "k,v\r\r\n1,2\r\r\n", "k\n\r1\n"] {
            let problem = csv(text).unwrap_err();
            assert!(problem.message.contains("carriage return"), "{text:?}: {problem:?}");
        }
    }

    #[test]
    fn an_open_quote_is_reported_where_it_opens() {
        let problem = csv("a,b\n1,2\n3,\"open\n4,5\n").unwrap_err();
        assert_eq!(problem.line, 3);
        assert!(problem.message.contains("never closed"));
    }

    #[test]
    fn text_after_a_closing_quote_is_reported() {
        let problem = csv("a,b\n\"1\"x,2\n").unwrap_err();
        assert_eq!(problem.line, 2);
        assert!(problem.message.contains("closing quote"));
    }

    #[test]
    fn malformed_row_ends_after_its_quoted_fields() {
        // The malformed row and the next, across line breaks in quotes, also with the smallest
        // buffer.
        for bad in [
            "\"1\"x,\"first\nsecond,third\"\n",
            "\"1\"x,\"a \"\"quote\"\"\n\"\n",
            "1\r2,\"first\n\"\n",
            "1\r,\"\n\"\n",
        ] {
            let text = format!("{bad}4,d\n");
            for capacity in [3, 4096] {
                let mut rows = Records::new(
                    BufReader::with_capacity(capacity, text.as_bytes()),
                    b',',
                    true,
                    MAX,
                );
                assert!(rows.next().unwrap_err().is_of_one_row, "{bad:?}");
                assert_eq!(rows.next().unwrap(), Some(3), "{bad:?}");
                assert_eq!((rows.field(0), rows.field(1)), (&b"4"[..], &b"d"[..]));
                assert_eq!(rows.next().unwrap(), None);
            }
        }
        let mut rows = Records::new(&b"\"1\"x,\"open\n4,d\n"[..], b',', true, MAX);
        assert!(rows.next().unwrap_err().is_of_one_row);
        let problem = rows.next().unwrap_err();
        assert!(
            (problem.line, problem.is_of_one_row) == (1, false)
                && problem.message.contains("never closed")
        );
    }

    #[test]
    fn endless_row_is_refused() {
        let text = [b"a\n\"", &vec![b'x'; MAX + 10][..]].concat();
        let problem = read(&text, b',', true).unwrap_err();
        assert_eq!(problem.line, 2);
        assert!(problem.message.contains("longer than 4.0 MiB"), "{}", problem.message);
        // Each delimiter ends a field, which takes memory too.
        let text = [&vec![b','; MAX / 4][..], b"\n"].concat();
        let problem = read_through(BufReader::new(&text[..]), b',', true).unwrap_err();
        assert!(problem.message.contains("longer than 4.0 MiB"), "{}", problem.message);
    }
}
