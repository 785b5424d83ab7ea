//! The state of a frame, in one word that readers and the evictor agree on without a lock.
//!
//! ```text
//! 63        24 23    22 21  20 19     0
//! | version   | status | heat | pins   |
//!
//!        begin            finish              try_evict (pins = 0)
//! free ---------> loading --------> resident --------------------> free, version + 1
//!  ^                 | fail            try_hold, unpin, cool
//!  +--- version + 1 -+
//! ```
//!
//! An eviction that finds the page in use moves the frame back: free → resident with the next
//! version.
//!
//! A reader publishes the frame ([`super::hazard`]) and reads its word again. A reader without a
//! free hazard slot counts itself into `pins` instead, as do threads that load a page or wait for
//! one.
//!
//! Invariants:
//! 1. A frame moves along the arrows only under the pool's lock, except `try_hold` and `unpin`,
//!    which need no lock.
//! 2. The key changes only while the frame is free. Therefore, a reader that reads the word, then
//!    the key, publishes the frame, and finds the same word again, holds the page of that key: a
//!    change would have raised the version. The version never resets, even if a descriptor's memory
//!    went back to the system: before the frame is used again its version continues from the last
//!    version of any such frame ([`Frame::raise_version`]).
//! 3. Bytes are written only while the frame is loading, and read only while it is pinned or
//!    published.
//! 4. A hit writes to the word only if it makes the page hotter.

use super::Touch;
use super::hazard::{self, Hazard, HoldOutcome};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Identifies a page by its file's id in the pool and its number in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageKey {
    pub(super) file: u64,
    pub(super) number: u32,
}

impl PageKey {
    /// Hashes a key to 64 bits; the table and the ghosts use different bits.
    #[inline]
    pub(super) fn hash(self) -> u64 {
        let file = self.file.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = file ^ u64::from(self.number).wrapping_mul(0xff51_afd7_ed55_8ccd);
        (mixed ^ mixed >> 32).wrapping_mul(0xc4ce_b9fe_1a85_ec53)
    }
}

const PIN: u64 = 1;
const PINS: u64 = (1 << 20) - 1;
const HEAT_SHIFT: u32 = 20;
const HEAT: u64 = 0b11 << HEAT_SHIFT;
const STATUS: u64 = 0b11 << 22;
const FREE: u64 = 0;
const LOADING: u64 = 1 << 22;
const RESIDENT: u64 = 2 << 22;
const VERSION: u64 = 1 << 24;

/// The value of keeping a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Heat {
    /// Accessed by scans only.
    Scan = 0,
    /// Accessed once.
    Cold = 1,
    /// Accessed again; the clock cools the page to `Cold` before it evicts the page.
    Hot = 2,
    /// Hot, and accessed since the clock's hand last passed.
    HotAndTouched = 3,
}

impl Heat {
    fn of(word: u64) -> Self {
        match (word & HEAT) >> HEAT_SHIFT {
            0 => Self::Scan,
            1 => Self::Cold,
            2 => Self::Hot,
            _ => Self::HotAndTouched,
        }
    }

    /// The heat of a page that `touch` brings in.
    pub(super) fn first(touch: Touch) -> Self {
        match touch {
            Touch::Point | Touch::Again => Self::Cold,
            Touch::Scan => Self::Scan,
        }
    }

    fn touched(self, touch: Touch) -> Self {
        match (touch, self) {
            (Touch::Scan | Touch::Again, heat) => heat,
            (Touch::Point, Self::Scan) => Self::Cold,
            (Touch::Point, Self::Cold) => Self::Hot,
            (Touch::Point, Self::Hot | Self::HotAndTouched) => Self::HotAndTouched,
        }
    }

    fn cooled(self) -> Self {
        match self {
            Self::HotAndTouched => Self::Hot,
            Self::Hot => Self::Cold,
            Self::Cold | Self::Scan => Self::Scan,
        }
    }
}

/// A snapshot of a frame's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State(u64);

impl State {
    pub(super) fn is_free(self) -> bool {
        self.0 & STATUS == FREE
    }

    pub(super) fn is_resident(self) -> bool {
        self.0 & STATUS == RESIDENT
    }

    pub(super) fn is_pinned(self) -> bool {
        self.0 & PINS > 0
    }

    pub(super) fn heat(self) -> Heat {
        Heat::of(self.0)
    }

    /// The version alone; later ones are greater.
    pub(super) fn version(self) -> u64 {
        self.0 & !(VERSION - 1)
    }

    fn with_heat(self, heat: Heat) -> u64 {
        self.0 & !HEAT | (heat as u64) << HEAT_SHIFT
    }

    fn pinned(self, touch: Touch) -> u64 {
        assert!(self.0 & PINS < PINS / 2, "a page is pinned more than half a million times");
        self.with_heat(self.heat().touched(touch)) + PIN
    }

    fn freed(self) -> u64 {
        (self.0 & !(STATUS | HEAT | PINS)).wrapping_add(VERSION)
    }

    /// The same page, after an eviction that was undone.
    fn kept(self) -> u64 {
        self.0.wrapping_add(VERSION)
    }

    /// Whether the frame held the same page throughout.
    fn is_as(self, before: Self) -> bool {
        self.0 & !(HEAT | PINS) == before.0 & !(HEAT | PINS)
    }
}

/// The descriptor of a frame. All zeros is a free frame.
#[repr(align(32))]
pub(super) struct Frame {
    word: AtomicU64,
    file: AtomicU64,
    number: AtomicU32,
}

/// The means by which a reader keeps a page in its frame.
pub(super) enum Pin {
    Published(Hazard),
    /// A pin counted in the frame's word; [`Frame::unpin`] releases it.
    Counted,
}

impl Frame {
    #[cfg(any(loom, all(test, shuttle)))]
    pub(super) fn new() -> Self {
        Self { word: AtomicU64::new(0), file: AtomicU64::new(0), number: AtomicU32::new(0) }
    }

    pub(super) fn state(&self) -> State {
        State(self.word.load(Ordering::Relaxed))
    }

    /// The page it holds; certain only under the pool's lock or after a pin.
    pub(super) fn key(&self) -> PageKey {
        PageKey {
            file: self.file.load(Ordering::Relaxed),
            number: self.number.load(Ordering::Relaxed),
        }
    }

    /// The address that hazard slots publish.
    #[inline]
    pub(super) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Holds the frame if it has the page of `key`.
    #[inline]
    pub(super) fn try_hold(&self, key: PageKey, touch: Touch) -> Option<Pin> {
        let seen = self.look(key)?;
        match hazard::hold(self.address(), || self.is_unchanged(seen)) {
            HoldOutcome::Held(hazard) => {
                self.warm(seen, touch);
                Some(Pin::Published(hazard))
            }
            HoldOutcome::Gone => None,
            HoldOutcome::NoSlot => self.try_pin(key, touch).then_some(Pin::Counted),
        }
    }

    /// The word, if the frame holds the page of `key`.
    #[inline]
    fn look(&self, key: PageKey) -> Option<State> {
        // Acquire: pairs with the Release in `begin` and `finish`, so that the key is no older than
        // the word, and the bytes are visible.
        let seen = State(self.word.load(Ordering::Acquire));
        (seen.is_resident() && self.key() == key).then_some(seen)
    }

    /// Whether the page is still the one of `seen`; for a reader that has published the frame.
    #[inline]
    fn is_unchanged(&self, seen: State) -> bool {
        // SeqCst: the last step of a reader in `hazard`.
        State(self.word.load(Ordering::SeqCst)).is_as(seen)
    }

    /// Records an access, unless the frame has changed since `seen`.
    #[inline]
    fn warm(&self, seen: State, touch: Touch) {
        let heat = seen.heat().touched(touch);
        if heat != seen.heat() {
            let _ = self.word.compare_exchange(
                seen.0,
                seen.with_heat(heat),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// Pins the frame if it holds the page of `key`.
    #[cold]
    fn try_pin(&self, key: PageKey, touch: Touch) -> bool {
        let mut seen = State(self.word.load(Ordering::Acquire));
        while seen.is_resident() && self.key() == key {
            match self.word.compare_exchange_weak(
                seen.0,
                seen.pinned(touch),
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => return true,
                Err(now) => seen = State(now),
            }
        }
        false
    }

    pub(super) fn unpin(&self) {
        // Release: pairs with the Acquire in `try_evict`, so that the next load into the frame
        // comes after this reader.
        let seen = self.word.fetch_sub(PIN, Ordering::Release);
        debug_assert!(seen & PINS > 0);
    }

    /// Raises the version of a free frame to at least `version`. Under the pool's lock.
    pub(super) fn raise_version(&self, version: u64) {
        let seen = self.state();
        assert!(seen.is_free(), "only a free frame's version is raised");
        if seen.version() < version {
            self.word.store(version, Ordering::Relaxed);
        }
    }

    /// Assigns a page to a free frame, and pins the frame for the thread that loads it.
    pub(super) fn begin(&self, key: PageKey, heat: Heat) {
        let seen = self.state();
        assert!(seen.is_free(), "only a free frame is filled");
        self.file.store(key.file, Ordering::Relaxed);
        self.number.store(key.number, Ordering::Relaxed);
        // Release: pairs with the Acquire in `try_pin`. A plain store suffices, because readers pin
        // resident frames only.
        self.word.store(seen.with_heat(heat) | LOADING | PIN, Ordering::Release);
    }

    /// Pins a loading frame for a thread that waits for it.
    pub(super) fn join(&self, touch: Touch) {
        let seen = self.state();
        self.word.store(seen.pinned(touch), Ordering::Relaxed);
    }

    /// Marks the page as loaded; the pins of its waiters stay.
    pub(super) fn finish(&self) {
        let seen = self.state();
        // Release: pairs with the Acquire in `try_pin`.
        self.word.store(seen.0 & !STATUS | RESIDENT, Ordering::Release);
    }

    /// Frees the frame after a failed load, and drops all pins.
    pub(super) fn fail(&self) {
        let seen = self.state();
        self.word.store(seen.freed(), Ordering::Release);
    }

    /// Frees the frame if it is resident, neither pinned nor published, and unchanged since `seen`.
    pub(super) fn try_evict(&self, seen: State) -> bool {
        self.try_evict_unless(seen, || hazard::is_held(self.address()))
    }

    /// Like [`Frame::try_evict`]; `is_held` returns whether a hazard slot publishes the frame.
    fn try_evict_unless(&self, seen: State, is_held: impl Fn() -> bool) -> bool {
        // A hot page is likely to be in use, and freeing its frame even for a moment would send its
        // readers to the lock.
        if seen.heat() >= Heat::Hot && is_held() {
            return false;
        }
        // SeqCst: the second step of `hazard`. It includes an Acquire, which pairs with the Release
        // in `unpin`.
        let is_free = seen.is_resident()
            && !seen.is_pinned()
            && self
                .word
                .compare_exchange(seen.0, seen.freed(), Ordering::SeqCst, Ordering::Relaxed)
                .is_ok();
        hazard::order_for_loom();
        if is_free && is_held() {
            // Release: pairs with the Acquire in `try_hold`. A plain store suffices, because the
            // lock is held and readers do not change a free frame.
            self.word.store(seen.kept(), Ordering::Release);
            return false;
        }
        is_free
    }

    /// Takes one degree of heat, unless the frame has changed since `seen`.
    pub(super) fn cool(&self, seen: State) {
        let cooled = seen.with_heat(seen.heat().cooled());
        let _ = self.word.compare_exchange(seen.0, cooled, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Makes the page the first to be evicted.
    pub(super) fn make_coldest(&self) {
        self.word.fetch_and(!HEAT, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::sync::AtomicUsize;

    const FIRST: PageKey = PageKey { file: 1, number: 1 };
    const SECOND: PageKey = PageKey { file: 1, number: 2 };

    /// Runs a model of three threads with a bounded number of preemptions, because all orders would
    /// take an hour.
    fn bounded(scene: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(scene);
    }

    /// A frame and a model of its bytes: the number of the page in it. Loom reports a read that
    /// races with a write.
    struct Model {
        frame: Frame,
        bytes: UnsafeCell<u32>,
        /// A slot for each reader.
        slots: [AtomicUsize; 2],
    }

    impl Model {
        /// A frame with the first page, not held.
        fn resident() -> Arc<Self> {
            let slots = [AtomicUsize::new(0), AtomicUsize::new(0)];
            let model = Self { frame: Frame::new(), bytes: UnsafeCell::new(0), slots };
            model.fill(FIRST);
            Arc::new(model)
        }

        /// Fills a free frame, as under the lock.
        fn fill(&self, key: PageKey) {
            self.frame.begin(key, Heat::Cold);
            #[allow(unsafe_code, reason = "loom's cell gives raw pointers only")]
            // SAFETY (of the model): loom reports a race if there is one.
            self.bytes.with_mut(|bytes| unsafe { *bytes = key.number });
            self.frame.finish();
            self.frame.unpin();
        }

        fn evict(&self) -> bool {
            let is_held = || {
                self.slots.iter().any(|slot| slot.load(Ordering::SeqCst) == self.frame.address())
            };
            self.frame.try_evict_unless(self.frame.state(), is_held)
        }

        fn look_at_bytes(&self, key: PageKey) {
            #[allow(unsafe_code, reason = "loom's cell gives raw pointers only")]
            // SAFETY (of the model): loom reports a race if there is one.
            let number = self.bytes.with(|bytes| unsafe { *bytes });
            assert_eq!(number, key.number);
        }

        /// A read with a hazard slot. Returns whether it got the page.
        fn read(&self, slot: usize, key: PageKey) -> bool {
            let (frame, slot) = (&self.frame, &self.slots[slot]);
            let Some(seen) = frame.look(key) else { return false };
            let held = hazard::publish(slot, frame.address(), || frame.is_unchanged(seen));
            if held {
                frame.warm(seen, Touch::Point);
                self.look_at_bytes(key);
                slot.store(0, Ordering::Release);
            }
            held
        }

        /// A read without a hazard slot.
        fn read_counted(&self, key: PageKey) -> bool {
            let pinned = self.frame.try_pin(key, Touch::Point);
            if pinned {
                self.look_at_bytes(key);
                self.frame.unpin();
            }
            pinned
        }
    }

    #[test]
    fn loom_held_page_is_the_requested_one_while_frames_are_reused() {
        loom::model(|| {
            let model = Model::resident();
            let reader = thread::spawn({
                let model = Arc::clone(&model);
                move || (model.read(0, FIRST), model.read(0, SECOND))
            });
            let evicted = model.evict();
            if evicted {
                model.fill(SECOND);
            }
            let (_, second) = reader.join().unwrap();
            assert!(evicted || !second);
            assert!(!model.frame.state().is_pinned());
        });
    }

    #[test]
    fn loom_evicted_and_reloaded_page_is_read_whole() {
        loom::model(|| {
            let model = Model::resident();
            let reader = thread::spawn({
                let model = Arc::clone(&model);
                move || model.read(0, FIRST)
            });
            for key in [SECOND, FIRST] {
                if model.evict() {
                    model.fill(key);
                }
            }
            reader.join().unwrap();
        });
    }

    #[test]
    fn loom_both_kinds_of_readers_find_a_page_under_the_clock() {
        bounded(|| {
            let model = Model::resident();
            let published = thread::spawn({
                let model = Arc::clone(&model);
                move || model.read(0, FIRST)
            });
            let counted = thread::spawn({
                let model = Arc::clone(&model);
                move || model.read_counted(FIRST)
            });
            model.frame.cool(model.frame.state());
            assert!(published.join().unwrap() && counted.join().unwrap());
            assert!(!model.frame.state().is_pinned() && model.frame.state().is_resident());
        });
    }

    #[test]
    fn loom_page_published_twice_stays_for_both() {
        bounded(|| {
            let model = Model::resident();
            let readers = [0, 1].map(|slot| {
                let model = Arc::clone(&model);
                thread::spawn(move || model.read(slot, FIRST))
            });
            if model.evict() {
                model.fill(SECOND);
            }
            for reader in readers {
                reader.join().unwrap();
            }
        });
    }

    #[test]
    fn loom_counted_page_is_not_evicted() {
        loom::model(|| {
            let model = Model::resident();
            let reader = thread::spawn({
                let model = Arc::clone(&model);
                move || model.read_counted(FIRST)
            });
            if model.evict() {
                model.fill(SECOND);
            }
            reader.join().unwrap();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_point_touch_heats_and_scan_changes_nothing() {
        assert_eq!(Heat::first(Touch::Point).touched(Touch::Point), Heat::Hot);
        assert_eq!(Heat::first(Touch::Scan).touched(Touch::Scan), Heat::Scan);
        assert_eq!(Heat::first(Touch::Scan).touched(Touch::Point), Heat::Cold);
        assert_eq!(Heat::Hot.touched(Touch::Scan), Heat::Hot);
        assert_eq!(Heat::HotAndTouched.cooled().cooled(), Heat::Cold);
    }

    #[test]
    fn version_grows_with_every_eviction() {
        let mut state = State(RESIDENT | HEAT | 3);
        for version in 1..1000 {
            state = State(state.freed());
            assert!(state.is_free() && !state.is_pinned() && state.heat() == Heat::Scan);
            assert_eq!(state.0 / VERSION, version);
        }
        assert!(State(State(u64::MAX).freed()).is_free());
    }
}
