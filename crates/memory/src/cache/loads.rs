//! Shared loads: concurrent requests for a key share one load.
//!
//! A load is registered before it begins. A change of the key meanwhile removes the load from the
//! register: present waiters still get its result, but it is not cached, and later requests start a
//! new load.
//!
//! Invariants:
//! 1. A change is made at its source first, then here (`supersede`), then in the cache. A load
//!    either began after the change, or is superseded.
//! 2. A load's result enters the cache under the load's lock, and only if the load was not
//!    superseded.
//! 3. Waiters sleep. An error reaches all of them; if a load panics, the next waiter loads.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// A load failed. Holds the closure's error, for every caller that waited for it.
#[derive(Clone, Debug)]
pub struct LoadFailed(Arc<dyn Error + Send + Sync>);

impl LoadFailed {
    /// The closure's error.
    pub fn cause(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0
    }
}

impl fmt::Display for LoadFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot load the value: {}", self.0)
    }
}

impl Error for LoadFailed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

/// The result of a load.
pub(super) type Loaded = Result<Arc<Vec<u8>>, LoadFailed>;

/// Loads in progress.
#[derive(Default)]
pub(super) struct Loads {
    by_key: Mutex<HashMap<Box<[u8]>, Arc<Load>>>,
    /// Number of loads, so that a change need not take the lock while nothing is loading.
    count: AtomicUsize,
}

#[derive(Default)]
struct Load {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    superseded: bool,
    outcome: Outcome,
}

#[derive(Default)]
enum Outcome {
    #[default]
    Pending,
    Ended(Loaded),
    /// Its closure panicked.
    Abandoned,
}

/// The next step for a caller that asks for a key.
pub(super) enum Turn<'a> {
    Load(Loading<'a>),
    Take(Loaded),
    /// The loading thread panicked: ask again.
    Again,
}

/// A registered load, which the holder must perform.
pub(super) struct Loading<'a> {
    loads: &'a Loads,
    key: &'a [u8],
    load: Arc<Load>,
}

impl Loads {
    /// Registers a load of this key, or waits for the one in progress.
    pub(super) fn begin<'a>(&'a self, key: &'a [u8]) -> Turn<'a> {
        let mut by_key = self.lock();
        if let Some(load) = by_key.get(key).map(Arc::clone) {
            drop(by_key);
            return load.wait();
        }
        let load = Arc::new(Load::default());
        by_key.insert(key.into(), Arc::clone(&load));
        // SeqCst: order the registration before the read of the source; pairs with the fence in
        // `supersede`.
        self.count.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Turn::Load(Loading { loads: self, key, load })
    }

    /// Marks a load of this key as out of date, after the key has changed at its source.
    pub(super) fn supersede(&self, key: &[u8]) {
        // Order the change of the source before the read of the register; pairs with the fence in
        // `begin`.
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        if let Some(load) = self.lock().remove(key) {
            load.lock().superseded = true;
        }
    }

    /// [`Loads::supersede`] for every key.
    pub(super) fn supersede_all(&self) {
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        for load in std::mem::take(&mut *self.lock()).into_values() {
            load.lock().superseded = true;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, Arc<Load>>> {
        self.by_key.lock().expect("no code under this lock panics")
    }
}

impl Load {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code under this lock panics")
    }

    fn wait<'a>(&self) -> Turn<'a> {
        let pending = |state: &mut State| matches!(state.outcome, Outcome::Pending);
        let state =
            self.ended.wait_while(self.lock(), pending).expect("no code under this lock panics");
        match &state.outcome {
            Outcome::Ended(loaded) => Turn::Take(loaded.clone()),
            Outcome::Pending | Outcome::Abandoned => Turn::Again,
        }
    }
}

impl Loading<'_> {
    /// Ends the load. Its result is passed to `cache`, unless the key has changed meanwhile, and to
    /// all waiters.
    pub(super) fn end<E>(self, loaded: Result<Vec<u8>, E>, cache: impl FnOnce(&[u8])) -> Loaded
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let loaded = loaded.map(Arc::new).map_err(|error| LoadFailed(Arc::from(error.into())));
        let mut state = self.load.lock();
        if let (Ok(value), false) = (&loaded, state.superseded) {
            cache(value);
        }
        state.outcome = Outcome::Ended(loaded.clone());
        loaded
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        let mut by_key = self.loads.lock();
        if by_key.get(self.key).is_some_and(|load| Arc::ptr_eq(load, &self.load)) {
            by_key.remove(self.key);
        }
        drop(by_key);
        self.loads.count.fetch_sub(1, Ordering::SeqCst);
        let mut state = self.load.lock();
        if matches!(state.outcome, Outcome::Pending) {
            state.outcome = Outcome::Abandoned;
        }
        drop(state);
        self.load.ended.notify_all();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::budget::{Backing, Budget};
    use crate::cache::{Cache, CacheOptions};

    #[test]
    fn superseded_load_is_returned_but_not_cached() {
        let budget = Budget::new(1 << 20, Backing::Heap).unwrap();
        let cache = Cache::new(&budget, CacheOptions::of_bytes(256 << 10)).unwrap();
        let restore_entries = || {
            cache.restore_entries(&[cache.restorable(b"key", [b"new", b""], 0)], || true).entered
        };
        let changes: [&dyn Fn(); 9] = [
            &|| {},
            &|| _ = cache.remove(b"key"),
            &|| _ = cache.insert(b"key", b"new"),
            &|| cache.clear(),
            &|| assert!(cache.insert_if(b"key", &[b"new"], || true)),
            &|| assert!(cache.offer(b"key", &[b"ne", b"w"], || true)),
            &|| assert!(cache.insert_for(b"key", b"new", Duration::from_secs(60))),
            &|| assert!(!cache.replace(b"key", &[b"new"])),
            &|| assert_eq!(restore_entries(), 1),
        ];
        let new: Option<&[u8]> = Some(b"new");
        let expected = [Some(&b"old"[..]), None, new, None, new, new, new, None, new];
        for (change, expected) in changes.into_iter().zip(expected) {
            cache.clear();
            let load = || {
                change();
                Ok::<_, std::io::Error>(b"old".to_vec())
            };
            assert_eq!(cache.get_or_load(b"key", load).unwrap(), b"old");
            assert_eq!(cache.get(b"key").as_deref(), expected);
        }
        assert_eq!(cache.inner.loads.count.load(Ordering::SeqCst), 0);
    }
}
