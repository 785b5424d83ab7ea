//! One load for a key, however many ask for it at once.
//!
//! A load is registered before it begins. Whoever changes the key meanwhile finds it there and takes it out: those who wait already get what
//! it loads, but it is not cached, and whoever asks from then on loads anew.
//!
//! Laws:
//! 1. The change is made at its source first, then here (`supersede`), then in the cache. A load either began after the change, or is superseded.
//! 2. What a load brings enters the cache under the load's lock, and only if it was not superseded.
//! 3. Waiters park. An error reaches all of them; a load that panics lets the next of them load.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// A load failed: with what its closure returned, for everybody who waited for it.
#[derive(Clone, Debug)]
pub struct LoadFailed(Arc<dyn Error + Send + Sync>);

impl LoadFailed {
    /// What the closure returned.
    pub fn cause(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0
    }
}

impl fmt::Display for LoadFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the value could not be loaded: {}", self.0)
    }
}

impl Error for LoadFailed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

/// What a load ended with.
pub(super) type Loaded = Result<Arc<Vec<u8>>, LoadFailed>;

/// Loads under way.
#[derive(Default)]
pub(super) struct Loads {
    by_key: Mutex<HashMap<Box<[u8]>, Arc<Load>>>,
    /// So that who changes a key need not take the lock while nothing is loading.
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

/// What somebody who asks for a key is to do.
pub(super) enum Turn<'a> {
    Load(Loading<'a>),
    Take(Loaded),
    /// Whoever loaded gave up: ask again.
    Again,
}

/// The right and the duty to load a key.
pub(super) struct Loading<'a> {
    loads: &'a Loads,
    key: &'a [u8],
    load: Arc<Load>,
}

impl Loads {
    /// Registers a load of this key, or waits for the one under way.
    pub(super) fn begin<'a>(&'a self, key: &'a [u8]) -> Turn<'a> {
        let mut by_key = self.lock();
        if let Some(load) = by_key.get(key).map(Arc::clone) {
            drop(by_key);
            return load.wait();
        }
        let load = Arc::new(Load::default());
        by_key.insert(key.into(), Arc::clone(&load));
        // SeqCst: registered first, then the source is read; pairs with the fence in `supersede`.
        self.count.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Turn::Load(Loading { loads: self, key, load })
    }

    /// The key has changed at its source: what is being loaded may be what it was before.
    pub(super) fn supersede(&self, key: &[u8]) {
        // The source was changed first, then it is looked who loads; pairs with the fence in `begin`.
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        if let Some(load) = self.lock().remove(key) {
            load.lock().superseded = true;
        }
    }

    /// Whatever is being loaded may be what it was before: [`Loads::supersede`] for every key.
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
        let state = self.ended.wait_while(self.lock(), pending).expect("no code under this lock panics");
        match &state.outcome {
            Outcome::Ended(loaded) => Turn::Take(loaded.clone()),
            Outcome::Pending | Outcome::Abandoned => Turn::Again,
        }
    }
}

impl Loading<'_> {
    /// Ends the load. What it brought is handed to `cache`, unless the key has changed meanwhile, and to everybody who waits.
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
#[allow(clippy::unwrap_used, reason = "a test fails where something is not as it should be")]
mod tests {
    use super::*;
    use crate::budget::{Backing, Budget};
    use crate::cache::{Cache, CacheOptions};

    #[test]
    fn what_was_being_loaded_when_the_key_changed_or_all_was_dropped_is_handed_out_and_not_cached() {
        let budget = Budget::new(1 << 20, Backing::Heap).unwrap();
        let cache = Cache::new(&budget, CacheOptions::of_bytes(256 << 10)).unwrap();
        let changes: [&dyn Fn(); 4] =
            [&|| {}, &|| _ = cache.remove(b"key"), &|| _ = cache.insert(b"key", b"new"), &|| cache.clear()];
        let expected: [Option<&[u8]>; 4] = [Some(b"old"), None, Some(b"new"), None];
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
