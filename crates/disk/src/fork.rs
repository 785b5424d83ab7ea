//! Makes the resources of a parent process unusable in its forked children.
//!
//! A child has its parent's memory and descriptors, but none of its threads: a mutex that a thread
//! held stays locked in the child, and changes that the child makes to a file affect the parent.
//! Therefore:
//! 1. An object that belongs to a process records where it was created ([`Origin`]) and refuses to
//!    work elsewhere.
//! 2. System locks do not extend to a child. A lock is released when the last copy of its
//!    descriptor is closed; with a copy in a child, it would outlive its holder. Before `fork`
//!    returns in the child, these descriptors are redirected to nothing ([`opened`]).
//! 3. Shared memory does not extend to a child either: the child gets private zeros in its place
//!    ([`mapped`]).
//!
//! A child created without the fork handlers, by a bare `clone`, has none of this protection.
#![allow(
    unsafe_code,
    reason = "registers fork handlers, and replaces descriptors and memory in a child"
)]

use std::cell::RefCell;
use std::ffi::c_int;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{DupFlags, dup3};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::descriptor::above_standard_streams;
use crate::mutex::lock;

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> c_int;
}

/// The number of forks between this process and the first one that called [`Origin::here`].
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The resources that a forked child must not inherit. No thread forks while another holds this
/// lock.
static INHERITED: Mutex<Inherited> =
    Mutex::new(Inherited { descriptors: Vec::new(), memory: Vec::new(), nothing: None });

thread_local! {
    /// Held by a thread while it forks.
    static FORKING: RefCell<Option<MutexGuard<'static, Inherited>>> = const { RefCell::new(None) };
}

#[derive(Debug)]
struct Inherited {
    descriptors: Vec<RawFd>,
    /// Address and length of mappings.
    memory: Vec<(usize, usize)>,
    /// The descriptor that replaces others in a child.
    nothing: Option<OwnedFd>,
}

fn inherited() -> MutexGuard<'static, Inherited> {
    lock(&INHERITED)
}

/// The process in which an object was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin(u32);

impl Origin {
    /// This process.
    pub fn here() -> Self {
        register_fork_handlers();
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this process is a forked child of the origin. One load from memory.
    #[inline]
    pub fn is_foreign(self) -> bool {
        // Relaxed: the value changes only while a new process has a single thread, before that
        // thread does anything else.
        self.0 != FORKS.load(Ordering::Relaxed)
    }

    /// The origin of the parent, as seen in a child.
    #[cfg(test)]
    pub(crate) fn parent() -> Self {
        Self(Self::here().0.wrapping_sub(1))
    }
}

impl Default for Origin {
    fn default() -> Self {
        Self::here()
    }
}

fn register_fork_handlers() {
    static ONCE: Once = Once::new();
    if cfg!(any(miri, loom, shuttle)) {
        return;
    }
    ONCE.call_once(|| {
        // SAFETY: the handlers do not unwind, and do only what is allowed in a child of a
        // multithreaded process.
        let refused = unsafe { pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        assert_eq!(refused, 0, "cannot register the fork handlers: out of memory");
    });
}

extern "C" fn before() {
    let _ = FORKING.try_with(|forking| *forking.borrow_mut() = Some(inherited()));
}

extern "C" fn in_parent() {
    let _ = FORKING.try_with(|forking| drop(forking.borrow_mut().take()));
}

extern "C" fn in_child() {
    // Relaxed: see `Origin::is_foreign`.
    FORKS.fetch_add(1, Ordering::Relaxed);
    let _ = FORKING.try_with(|forking| {
        if let Some(mut inherited) = forking.borrow_mut().take() {
            inherited.replace_all();
        }
    });
}

impl Inherited {
    /// Replaces every descriptor and mapping. Runs once, because the child may later close
    /// descriptors and reuse their numbers. Allocates nothing.
    fn replace_all(&mut self) {
        for (descriptor, nothing) in self.descriptors.iter().zip(self.nothing.iter().cycle()) {
            // SAFETY: the descriptor is open, because its owner removes it from this list before
            // closing it. It is not closed here.
            let mut there = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(*descriptor) });
            let _ = dup3(nothing, &mut there, DupFlags::CLOEXEC);
        }
        for (address, bytes) in &self.memory {
            let at = std::ptr::with_exposed_provenance_mut(*address);
            let (protection, flags) =
                (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
            // SAFETY: exactly one mapping. Its owner removes it from this list before unmapping it,
            // and reads it as atomic words only.
            let _ = unsafe { mmap_anonymous(at, *bytes, protection, flags) };
        }
        self.descriptors.clear();
        self.memory.clear();
    }
}

/// Withholds a resource from forked children until dropped. Drop it before closing or unmapping the
/// resource.
#[derive(Debug)]
pub(crate) enum Kept {
    Descriptor(RawFd),
    Memory(usize),
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut inherited = inherited();
        match self {
            Self::Descriptor(own) => inherited.descriptors.retain(|descriptor| descriptor != own),
            Self::Memory(own) => inherited.memory.retain(|(address, _)| address != own),
        }
    }
}

/// Opens a descriptor that forked children must not have. No thread forks meanwhile.
pub(crate) fn opened(open: impl FnOnce() -> io::Result<OwnedFd>) -> io::Result<(Kept, OwnedFd)> {
    register_fork_handlers();
    let mut inherited = inherited();
    if inherited.nothing.is_none() {
        inherited.nothing = Some(above_standard_streams(eventfd(0, EventfdFlags::CLOEXEC)?)?);
    }
    let descriptor = open()?;
    inherited.descriptors.push(descriptor.as_raw_fd());
    Ok((Kept::Descriptor(descriptor.as_raw_fd()), descriptor))
}

/// From now on, this memory is private and zero in a forked child. It must stay mapped until the
/// result is dropped.
pub(crate) fn mapped<T>(base: NonNull<T>, bytes: usize) -> Kept {
    register_fork_handlers();
    let address = base.as_ptr().expose_provenance();
    inherited().memory.push((address, bytes));
    Kept::Memory(address)
}

/// No thread forks until the result is dropped. Used around process-wide mutexes, which a child
/// would otherwise find locked.
pub(crate) fn block_forks() -> impl Sized {
    register_fork_handlers();
    inherited()
}
