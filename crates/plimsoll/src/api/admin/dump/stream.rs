//! A dump as a stream of records, each with a checksum.

use std::io::{ErrorKind, Read, Write};

use plimsoll_disk::checksum::Running;

use crate::api::admin::dump::records::{
    END, HEADER, Header, MAGIC, PAYLOAD_BYTES_MAX, Record, cut_short, damaged, malformed,
};
use crate::types::error::{Error, Result};

/// Writes a dump.
pub(crate) struct DumpWriter<'a> {
    out: &'a mut dyn Write,
    sum: Running,
    payload: Vec<u8>,
    pub(crate) bytes: u64,
    records: u64,
    changes: u64,
}

impl<'a> DumpWriter<'a> {
    pub(crate) fn begin(out: &'a mut dyn Write, header: &Header) -> Result<Self> {
        let (sum, payload) = (Running::new(0), Vec::new());
        let mut writer = Self { out, sum, payload, bytes: 0, records: 0, changes: 0 };
        writer.out.write_all(MAGIC)?;
        writer.sum.take(MAGIC);
        writer.bytes = MAGIC.len() as u64;
        header.encode(&mut writer.payload);
        writer.write_out(HEADER)?;
        Ok(writer)
    }

    pub(crate) fn write(&mut self, record: &Record<'_>) -> Result<()> {
        self.payload.clear();
        record.encode(&mut self.payload);
        self.changes += u64::from(matches!(record, Record::Change(_) | Record::Version { .. }));
        self.write_out(record.kind())
    }

    /// Writes the last record; returns the bytes of the dump.
    pub(crate) fn end(mut self) -> Result<u64> {
        self.write(&Record::End { records: self.records, changes: self.changes })?;
        self.out.flush()?;
        Ok(self.bytes)
    }

    /// Writes the payload as a record.
    fn write_out(&mut self, kind: u8) -> Result<()> {
        let len = u32::try_from(self.payload.len()).expect("bounded by what it holds");
        let mut head = [0; 5];
        head[..4].copy_from_slice(&len.to_le_bytes());
        head[4] = kind;
        self.sum.take(&head);
        self.sum.take(&self.payload);
        let sum = self.sum.sum().to_le_bytes();
        self.sum.take(&sum);
        for part in [&head[..], &self.payload, &sum] {
            self.out.write_all(part)?;
            self.bytes += part.len() as u64;
        }
        self.records += 1;
        Ok(())
    }
}

/// Reads a dump.
pub(crate) struct DumpReader<'a> {
    from: &'a mut dyn Read,
    sum: Running,
    payload: Vec<u8>,
    pub(crate) at: u64,
    records: u64,
    changes: u64,
}

impl<'a> DumpReader<'a> {
    pub(crate) fn begin(from: &'a mut dyn Read) -> Result<(Self, Header)> {
        let (sum, payload) = (Running::new(0), Vec::new());
        let mut reader = Self { from, sum, payload, at: 0, records: 0, changes: 0 };
        let mut magic = [0; MAGIC.len()];
        if reader.fill(&mut magic)? < magic.len() || magic != *MAGIC {
            return Err(Error::format(
                "this is not a dump of a store: it does not begin with PLIMDUMP; decompress it \
                 first if it is compressed",
            ));
        }
        reader.sum.take(&magic);
        let kind = reader.read_in()?;
        if kind != HEADER {
            return Err(damaged(reader.at, "it has no header"));
        }
        let header = Header::decode(&reader.payload)?;
        Ok((reader, header))
    }

    /// The next record.
    pub(crate) fn read(&mut self) -> Result<Record<'_>> {
        let (before, changes) = (self.records, self.changes);
        let kind = self.read_in()?;
        if kind == END {
            // Nothing may follow.
            let mut more = [0];
            if self.fill(&mut more)? > 0 {
                return Err(damaged(self.at, "bytes follow the last record"));
            }
        }
        let record = Record::decode(kind, &self.payload)?;
        match record {
            Record::Change(_) | Record::Version { .. } => self.changes += 1,
            Record::End { records, changes: all } if (records, all) != (before, changes) => {
                return Err(malformed());
            }
            _ => {}
        }
        Ok(record)
    }

    /// Reads a record into the payload; returns its kind.
    fn read_in(&mut self) -> Result<u8> {
        let begin = self.at;
        let mut head = [0; 5];
        self.fill_whole(&mut head)?;
        let [a, b, c, d, kind] = head;
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        if len > PAYLOAD_BYTES_MAX {
            return Err(damaged(begin, "a record is longer than the maximum"));
        }
        let mut payload = std::mem::take(&mut self.payload);
        payload.resize(len, 0);
        self.fill_whole(&mut payload)?;
        self.payload = payload;
        let mut sum = [0; 8];
        self.fill_whole(&mut sum)?;
        self.sum.take(&head);
        self.sum.take(&self.payload);
        if self.sum.sum() != u64::from_le_bytes(sum) {
            return Err(damaged(begin, "the checksum of a record does not match"));
        }
        self.sum.take(&sum);
        self.records += 1;
        Ok(kind)
    }

    fn fill_whole(&mut self, into: &mut [u8]) -> Result<()> {
        if self.fill(into)? < into.len() { Err(cut_short(self.at)) } else { Ok(()) }
    }

    /// Reads until `into` is full or the stream ends.
    fn fill(&mut self, into: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while filled < into.len() {
            match self.from.read(&mut into[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.at += filled as u64;
        Ok(filled)
    }

    /// The error for a record that must not follow the previous one.
    pub(crate) fn out_of_place(&self) -> Error {
        damaged(self.at, "a record is out of place")
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_disk::codec;
    use plimsoll_log::glsn::Glsn;

    use super::*;
    use crate::api::admin::dump::records::{Change, Content, SystemKey};
    use crate::types::expiry::Expiry;

    fn header() -> Header {
        let (first, last) = (Glsn(3), Glsn(9));
        let (store, dump, floor_micros) = (1 << 100, 7, 1_700_000_000_000_000);
        let keyspace = "notes".to_owned();
        Header { content: Content::History, store, dump, first, last, floor_micros, keyspace }
    }

    #[test]
    fn records_come_back_as_they_were_written() {
        let expiry = Expiry::from_micros(1 << 50);
        let put = Change::Put { space: 16, key: b"\xff\0", expiry: None, len: 3, piece: b"abc" };
        let expiring = Change::Put { space: 16, key: b"\xff\0", expiry, len: 3, piece: b"abc" };
        let system = |key, value| Record::Change(Change::System { key, value });
        let records = [
            Record::Keyspace { name: b"notes", settings: b"1234\0\0" },
            Record::Limits(b"limits"),
            Record::Version { glsn: Glsn(2), change: put },
            Record::VersionsEnd { versions: 1 },
            Record::Commit { glsn: Glsn(3), micros: 5, read_at: Glsn(1), metadata: b"by Ada" },
            Record::Change(Change::DeleteRange { space: 16, first: b"", end: Some(b"n") }),
            Record::Change(Change::DeleteRange { space: 17, first: b"m", end: None }),
            Record::Change(Change::Delete { space: 1, key: b"" }),
            Record::Change(put),
            Record::Change(expiring),
            Record::Piece(b"xyz"),
            system(SystemKey::Live(b"notes"), Some(b"r")),
            system(SystemKey::Dropped(17, b"notes"), Some(b"")),
            system(SystemKey::Mark(b"\x01streams"), None),
            Record::Change(Change::Cursor { name: b"mailer", next: None }),
            Record::Change(Change::Tag { name: b"v1", record: Some(&[7; 17]) }),
            Record::Change(Change::Tag { name: b"v1", record: None }),
            Record::Change(Change::Branch { key: &[0, 0, 0, 1], record: Some(&[7; 30]) }),
            Record::CommitEnd { changes: 8 },
            Record::Entries { first: Glsn(4), count: 2, micros: 6, stream: 7 },
            Record::Entry { len: 0, piece: b"" },
            Record::Lost { first: Glsn(6), count: 1, micros: 7 },
            Record::Empty { first: Glsn(7), count: 3, micros: 8 },
        ];
        let mut out = Vec::new();
        let mut writer = DumpWriter::begin(&mut out, &header()).unwrap();
        records.iter().for_each(|record| writer.write(record).unwrap());
        let bytes = writer.end().unwrap();
        assert_eq!(bytes, out.len() as u64);
        let mut from = &out[..];
        let (mut reader, read) = DumpReader::begin(&mut from).unwrap();
        assert_eq!(read, header());
        for record in &records {
            assert_eq!(reader.read().unwrap(), *record);
        }
        assert_eq!(reader.read().unwrap(), Record::End { records: 24, changes: 13 });
    }

    #[test]
    fn keys_of_the_system_keyspace_keep_their_bytes() {
        for key in [&b"notes"[..], b"\x02\0\0\0\x11notes", b"\x01streams", b"\x02x"] {
            assert_eq!(SystemKey::of(key).key(), key);
        }
    }

    #[test]
    fn a_change_of_an_unknown_kind_asks_for_a_newer_version() {
        let decoded = Change::decode(&mut codec::Reader::new(&[4, 1, 1, 7]));
        assert!(matches!(decoded, Err(Error::Format { .. })), "{decoded:?}");
    }
}
