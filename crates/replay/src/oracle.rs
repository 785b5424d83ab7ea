//! libCacheSim's oracleGeneral: records of 24 bytes, little-endian: u32 time, u64 object, u32
//! bytes, i64 next access.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::request::{Operation, Request, Requests};

const RECORD_BYTES: usize = 24;

/// More requests than any trace has. A next access beyond it indicates text or another format.
const MAX_REQUESTS: i64 = 1 << 56;

/// The records of a file.
pub(crate) struct Oracle<R> {
    path: PathBuf,
    reader: R,
    records: u64,
}

impl<R: Read> Oracle<R> {
    pub(crate) fn new(path: &Path, reader: R) -> Self {
        Self { path: path.to_owned(), reader, records: 0 }
    }

    fn malformed(&self, message: String) -> Error {
        Error::Malformed {
            path: self.path.clone(),
            at: format!("after {} whole records", self.records),
            message,
        }
    }

    /// Fills the record; returns the number of bytes read.
    fn fill(&mut self, record: &mut [u8; RECORD_BYTES]) -> Result<usize> {
        let mut len = 0;
        while len < RECORD_BYTES {
            match self.reader.read(&mut record[len..]) {
                Ok(0) => break,
                Ok(read) => len += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(self.malformed(format!("cannot be decompressed or read: {error}")));
                }
            }
        }
        Ok(len)
    }
}

impl<R: Read> Requests for Oracle<R> {
    fn next(&mut self, request: &mut Request) -> Result<bool> {
        let mut record = [0; RECORD_BYTES];
        match self.fill(&mut record)? {
            0 => return Ok(false),
            RECORD_BYTES => {}
            len => {
                let what = format!(
                    "ends inside a record ({len} of {RECORD_BYTES} bytes): truncated, or another \
                     format"
                );
                return Err(self.malformed(what));
            }
        }
        let next = i64::from_le_bytes(record[16..].try_into().expect("eight bytes"));
        if !(-2..MAX_REQUESTS).contains(&next) && next != i64::MAX {
            return Err(self.malformed(format!(
                "next access {next} is not a position in a trace: the trace is corrupt, or has \
                 another format"
            )));
        }
        self.records += 1;
        request.operation = Operation::ReadThrough;
        request.key.clear();
        request.key.extend_from_slice(&record[4..12]);
        request.value_bytes =
            u64::from(u32::from_le_bytes(record[12..16].try_into().expect("four bytes")));
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: u64, bytes: u32, next: i64) -> Vec<u8> {
        [&7_u32.to_le_bytes()[..], &id.to_le_bytes(), &bytes.to_le_bytes(), &next.to_le_bytes()]
            .concat()
    }

    fn read(bytes: &[u8]) -> Result<Vec<Request>> {
        let mut oracle = Oracle::new(Path::new("trace"), bytes);
        let (mut request, mut all) = (Request::default(), Vec::new());
        while oracle.next(&mut request)? {
            all.push(request.clone());
        }
        Ok(all)
    }

    #[test]
    fn records_become_requests() {
        let all = read(&[record(1, 100, 3), record(2, 0, -1)].concat()).unwrap();
        assert_eq!(all.len(), 2);
        assert_eq!((&all[0].key[..], all[0].value_bytes), (&1_u64.to_le_bytes()[..], 100));
    }

    #[test]
    fn damaged_trace_error_has_its_place() {
        let cut = [record(1, 100, 3), record(2, 5, -1)].concat();
        let problem = read(&cut[..40]).unwrap_err().to_string();
        assert!(
            problem.contains("after 1 whole records") && problem.contains("16 of 24"),
            "{problem}"
        );
        let problem = read(&record(1, 1, -77)).unwrap_err().to_string();
        assert!(problem.contains("after 0 whole records") && problem.contains("-77"), "{problem}");
        let problem =
            read(b"text that fills two records, byte for byte: 48..").unwrap_err().to_string();
        assert!(problem.contains("another format"), "{problem}");
    }

    #[test]
    fn notations_for_no_next_access_are_accepted() {
        let all: Vec<_> = [-2, -1, 0, 1 << 40, i64::MAX]
            .into_iter()
            .flat_map(|next| record(1, 1, next))
            .collect();
        assert_eq!(read(&all).unwrap().len(), 5);
    }
}
