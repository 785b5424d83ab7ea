//! `SIGBUS` of mapped files: accessing a page that the file no longer has must not end the process.
//!
//! Another process may truncate a file while it is mapped here. The system then raises `SIGBUS` on
//! access, which ends a process without a handler. This handler replaces the whole mapping with
//! private zeroed memory and marks it as lost. The owner of a mapping must therefore distinguish
//! zeros from valid contents.
//!
//! 1. Every other `SIGBUS` goes to the previously installed handler, or to the system.
//! 2. The handler is installed when the first file is mapped, and again whenever one is mapped and
//!    another handler was installed meanwhile.
//! 3. A handler that was installed later and raises the signal again for its predecessor, as
//!    Python's `faulthandler` does, is supported. Such a signal has no address, so every mapping
//!    whose file was truncated is replaced.
//! 4. The handler allocates nothing and takes no lock.
#![allow(unsafe_code, reason = "installs a signal handler, which replaces memory")]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::fork;
use crate::mutex::lock;

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// A slot in the list of mappings. It is never freed, but reused for other mappings.
#[derive(Debug)]
struct Place {
    /// 0: no mapping. Written last when a mapping begins, and first when it ends.
    base: AtomicUsize,
    bytes: AtomicUsize,
    file: AtomicI32,
    is_lost: AtomicBool,
    next: AtomicPtr<Place>,
}

/// The newest slot.
static PLACES: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());

/// The previous handler; null: the system's.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// Set while a signal is passed on, so that a signal that comes back does not loop for ever.
static PASSES_ON: AtomicBool = AtomicBool::new(false);

/// Keeps the loss of a mapping from ending the process, until dropped. Drop it before unmapping.
#[derive(Debug)]
pub(super) struct Guarded(&'static Place);

impl Guarded {
    /// `base` is a mapping of `bytes` of the file, which stays open until this is dropped.
    pub(super) fn new<T>(base: NonNull<T>, bytes: usize, file: &OwnedFd) -> Self {
        static ADDING: Mutex<()> = Mutex::new(());
        // A child that is forked meanwhile would find the mutex locked.
        let _no_fork = fork::block_forks();
        let _alone = lock(&ADDING);
        install();
        let free = places().find(|place| place.base.load(Ordering::Acquire) == 0);
        let place = free.unwrap_or_else(|| {
            let place: &'static Place = Box::leak(Box::new(Place {
                base: AtomicUsize::new(0),
                bytes: AtomicUsize::new(0),
                file: AtomicI32::new(-1),
                is_lost: AtomicBool::new(false),
                next: AtomicPtr::new(PLACES.load(Ordering::Acquire)),
            }));
            PLACES.store(ptr::from_ref(place).cast_mut(), Ordering::Release);
            place
        });
        place.bytes.store(bytes, Ordering::Relaxed);
        place.file.store(file.as_raw_fd(), Ordering::Relaxed);
        place.is_lost.store(false, Ordering::Relaxed);
        // Release: a handler that sees the address sees the other fields.
        place.base.store(base.as_ptr().expose_provenance(), Ordering::Release);
        Self(place)
    }

    /// Whether the mapping was replaced; it is private to this process then.
    pub(super) fn is_lost(&self) -> bool {
        self.0.is_lost.load(Ordering::Relaxed)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.0.base.store(0, Ordering::Release);
    }
}

fn places() -> impl Iterator<Item = &'static Place> {
    let place = |at: &AtomicPtr<Place>| {
        // SAFETY: null, or a slot, which is never freed.
        unsafe { at.load(Ordering::Acquire).as_ref() }
    };
    std::iter::successors(place(&PLACES), move |before| place(&before.next))
}

impl Place {
    fn has(&self, address: usize) -> bool {
        let base = self.base.load(Ordering::Acquire);
        base != 0 && (base..base + self.bytes.load(Ordering::Relaxed)).contains(&address)
    }

    /// Whether the file is shorter than the mapping.
    fn is_cut(&self) -> bool {
        let (base, file) = (self.base.load(Ordering::Acquire), self.file.load(Ordering::Relaxed));
        if base == 0 || file < 0 {
            return false;
        }
        // SAFETY: the file is open while the slot has a mapping.
        let file = unsafe { BorrowedFd::borrow_raw(file) };
        rustix::fs::fstat(file)
            .is_ok_and(|stat| (stat.st_size as usize) < self.bytes.load(Ordering::Relaxed))
    }

    /// Replaces the mapping by zeros; returns whether it did.
    fn replace(&self) -> bool {
        let at = ptr::with_exposed_provenance_mut(self.base.load(Ordering::Acquire));
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
        // Set first, so that a reader that finds zeros also finds the mark.
        self.is_lost.store(true, Ordering::SeqCst);
        // SAFETY: exactly one mapping. Its owner removes it from the list before unmapping it, and
        // reads it as atomic words only.
        unsafe { mmap_anonymous(at, self.bytes.load(Ordering::Relaxed), protection, flags) }.is_ok()
    }
}

fn action_now() -> libc::sigaction {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only a query; all-zero bytes are a valid value if it fails.
    unsafe {
        libc::sigaction(libc::SIGBUS, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    }
}

/// Installs the handler, unless it is installed already.
fn install() {
    if cfg!(any(miri, loom, shuttle)) {
        return;
    }
    let handler: Handler = on_bus_error;
    let before = action_now();
    if before.sa_sigaction == handler as usize {
        return;
    }
    // Leaked, because the handler may be reading the previous one. Happens only as often as the
    // program installs its own handlers.
    BEFORE.store(Box::into_raw(Box::new(before)), Ordering::Release);
    let mut action = before;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler is async-signal-safe.
    unsafe {
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
    }
}

extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system passes valid signal information.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    let is_handled = if code == libc::BUS_ADRERR {
        places().find(|place| place.has(address)).is_some_and(Place::replace)
    } else if code <= 0 {
        // Raised by software, possibly for an access that another handler could not serve; the
        // access will be repeated. The failing mapping is unknown, so check every truncated file.
        let is_new = |place: &&Place| place.is_cut() && !place.is_lost.load(Ordering::SeqCst);
        places().filter(is_new).filter(|place| place.replace()).count() > 0
    } else {
        false
    };
    if !is_handled {
        pass_on(signal, info, context, code);
    }
}

/// Calls the previous handler.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, code: c_int) {
    // SAFETY: null, or a value stored by `install`, which is never freed.
    let before = unsafe { BEFORE.load(Ordering::Acquire).as_ref() };
    let handler = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    // A `SIGBUS` that the kernel raises for a failed access cannot be ignored.
    let is_ignored = handler == libc::SIG_IGN && code <= 0;
    let is_default = handler == libc::SIG_DFL || handler == libc::SIG_IGN;
    let goes_round = PASSES_ON.swap(true, Ordering::SeqCst);
    if is_ignored {
        PASSES_ON.store(false, Ordering::SeqCst);
    } else if is_default || goes_round {
        // SAFETY: the system's action ends the process once this returns.
        unsafe {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
            action.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, &raw const action, ptr::null_mut());
            libc::raise(signal);
        }
    } else if before.is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0) {
        // SAFETY: a handler with these flags takes these arguments.
        let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
        handler(signal, info, context);
        PASSES_ON.store(false, Ordering::SeqCst);
    } else {
        // SAFETY: any other handler takes the signal's number.
        let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
        handler(signal);
        PASSES_ON.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use rustix::fs::{OFlags, ftruncate};

    use super::*;
    use crate::os::place::Place;
    use crate::os::shared_words::OsWords;
    use crate::sharing::SharedWords as _;

    static REPLACED: OnceLock<libc::sigaction> = OnceLock::new();

    /// Like Python's `faulthandler`: raises the signal again for the handler that it replaced.
    extern "C" fn reraise(signal: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
        // SAFETY: a previously installed action, and a signal that is handled at once.
        unsafe {
            libc::sigaction(
                signal,
                REPLACED.get().map_or(ptr::null(), ptr::from_ref),
                ptr::null_mut(),
            );
            libc::raise(signal);
        }
    }

    #[test]
    fn reraised_signal_is_handled() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("words");
        let words = OsWords::open(&Place::by_path(&path), 1088).unwrap();
        words.words()[0].store(7, Ordering::SeqCst);
        let before = REPLACED.get_or_init(action_now);
        let (ours, theirs): (Handler, Handler) = (on_bus_error, reraise);
        assert_eq!(before.sa_sigaction, ours as usize);
        let mut action = *before;
        action.sa_sigaction = theirs as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        // SAFETY: the handler is async-signal-safe.
        assert_eq!(unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) }, 0);
        ftruncate(Place::by_path(&path).open(OFlags::RDWR).unwrap(), 0).unwrap();
        assert_eq!(words.words()[0].load(Ordering::SeqCst), 0);
        assert_eq!(action_now().sa_sigaction, ours as usize);
        // Installing the other handler in front again does not make the signal loop.
        // SAFETY: as above.
        assert_eq!(unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) }, 0);
        let again = OsWords::open(&Place::by_path(&path), 1088).unwrap();
        again.words()[0].store(7, Ordering::SeqCst);
        ftruncate(Place::by_path(&path).open(OFlags::RDWR).unwrap(), 0).unwrap();
        assert_eq!(again.words()[0].load(Ordering::SeqCst), 0);
    }
}
