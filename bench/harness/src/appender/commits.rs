//! Durable commits of Plimsoll's store: each append is a transaction of some puts under keys
//! without order.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use plimsoll::{Db, Options, Retention};
use plimsoll_disk::clock::SystemClock;

use super::Appender;
use crate::counting_disk::CountingDisk;
use crate::payload;
use crate::peer::{Peer as _, PlimsollPeer};

const BUDGET_BYTES: u64 = 256 << 20;

/// A store.
pub(crate) struct CommitAppender {
    store: PlimsollPeer,
    payload: Vec<u8>,
    puts: u64,
}

impl CommitAppender {
    pub(crate) fn make(
        folder: &Path,
        disk: Arc<CountingDisk>,
        puts: u64,
        payload_bytes: usize,
    ) -> Result<Self> {
        let options =
            Options::new().memory_bytes(BUDGET_BYTES).world(disk, Arc::new(SystemClock::new()));
        let store = PlimsollPeer::of(Db::open(folder, options)?, Retention::Forever)?;
        let mut payload = vec![0; payload_bytes];
        payload::fill(1, &mut payload);
        Ok(Self { store, payload, puts })
    }
}

impl Appender for CommitAppender {
    fn append(&self, number: u64) -> Result<()> {
        self.store.commit(&mut |transaction| {
            let mut keys =
                (0..self.puts).map(|put| payload::mix((number << 16) + put).to_be_bytes());
            keys.try_for_each(|key| transaction.put(&key, &self.payload))
        })
    }
}
