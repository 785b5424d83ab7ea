//! The standard library's ordered map as a store.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{PoisonError, RwLock};

use anyhow::Result;

use super::{Peer, Put};

type Bytes = Box<[u8]>;

/// A map behind a lock.
#[derive(Debug, Default)]
pub(crate) struct BtreePeer {
    map: RwLock<BTreeMap<Bytes, Bytes>>,
}

impl Peer for BtreePeer {
    fn commit(&self, fill: &mut dyn FnMut(&mut dyn Put) -> Result<()>) -> Result<()> {
        let mut puts = Puts(Vec::new());
        fill(&mut puts)?;
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        for (key, value) in puts.0 {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
        Ok(())
    }

    fn get(&self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        Ok(map.get(key).map(|value| found(value)).is_some())
    }

    fn scan(&self, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let pairs = map.range::<[u8], _>((Bound::Included(from), Bound::Unbounded));
        for (key, value) in pairs {
            if !each(key, value) {
                break;
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct Puts(Vec<(Bytes, Option<Bytes>)>);

impl Put for Puts {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.push((key.into(), Some(value.into())));
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.0.push((key.into(), None));
        Ok(())
    }
}
