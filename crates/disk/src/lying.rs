//! A simulated disk in memory that injects crashes and faults by seed.
//!
//! Between crashes it behaves like a real disk. It keeps the visible state apart from the durable
//! state, and a power cut exposes the difference:
//! 1. Each unsynced write independently survives whole, is torn at sectors of 512 bytes, or is
//!    lost; a later write may survive an earlier one. Changes of a file's length take effect in
//!    order, but independently of the bytes; a file that grew without its bytes reads zeros there.
//! 2. Of the unsynced operations on the names of a folder, a prefix survives. Syncing a file does
//!    not save its name.
//! 3. A failed sync saves only some of the writes. Readers cannot tell which until the next crash,
//!    and later syncs do not save the others.
//! 4. Handles and locks do not survive.
//!
//! One seed and one sequence of calls always give the same results. Clones are the same disk;
//! [`LyingDisk::snapshot`] copies it.

mod bytes;
mod chosen;
mod file;
mod lock;
mod member;
mod names;
mod process;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::io::Errno;

use crate::clock::ManualClock;
use crate::image::{PAGE_BYTES, end_of};
use crate::lying::bytes::Bytes;
use crate::lying::chosen::Chosen;
use crate::lying::file::LyingFile;
use crate::lying::lock::LyingLock;
use crate::lying::names::DurableNames;
pub use crate::lying::process::{AtChange, Process};
use crate::mutex::lock;
use crate::path_error::{at_path, of_kind};
use crate::random::Random;
use crate::sharing::{LockFile, SharedWords};
use crate::sharing_in_memory::SharingInMemory;
use crate::tree::{Change, NodeId, ROOT, Tree};
use crate::vfs::{Caching, DirEntry, DirLock, Disk, File, HELD_BY_THIS_PROCESS, LockError, Open};

const LOCK_NAME: &str = "LOCK";

/// The id of the process that uses the disk directly. It is fixed, because the length of a real id
/// varies from run to run.
const PID: u32 = 1;

/// Counts of the faults injected so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Injected {
    /// Power cuts.
    pub power_cuts: u64,
    /// Unsynced writes that were lost entirely.
    pub lost_writes: u64,
    /// Unsynced writes that survived partially.
    pub torn_writes: u64,
    /// Unsynced operations on names that did not survive.
    pub lost_names: u64,
    /// Reads that failed.
    pub failed_reads: u64,
    /// Reads that returned a wrong bit.
    pub flipped_bits: u64,
    /// Bytes changed permanently.
    pub corrupted_bytes: u64,
    /// Syncs that failed while the power was on.
    pub failed_syncs: u64,
    /// Renames that failed while the power was on.
    pub failed_renames: u64,
    /// Removals of files that failed while the power was on.
    pub failed_removals: u64,
    /// Writes refused for lack of space.
    pub refused_writes: u64,
    /// Reads and syncs that took time.
    pub slow_calls: u64,
}

/// A simulated disk with faults by seed.
#[derive(Clone)]
pub struct LyingDisk {
    state: Arc<Mutex<State>>,
    sharing: SharingInMemory,
}

#[derive(Clone, Debug)]
struct State {
    tree: Tree<Bytes>,
    names: DurableNames,
    /// Number of handles of each open file.
    handles: BTreeMap<NodeId, u64>,
    locked: BTreeSet<NodeId>,
    /// Number of holders that share the lock of a folder.
    shared: BTreeMap<NodeId, usize>,
    /// Incremented at each crash, which invalidates earlier handles and locks.
    generation: u64,
    power_is_cut: bool,
    cut_at_sync: Option<u64>,
    sync_count: u64,
    /// The sync that fails, in terms of `sync_count`, and the rename or link that fails, in terms
    /// of `rename_count`.
    fail_sync: Option<u64>,
    rename_count: u64,
    fail_rename: Option<u64>,
    /// The same for removals.
    remove_count: u64,
    fail_remove: Option<u64>,
    fail_reads: f64,
    flip_bits: f64,
    pages_max: Option<u64>,
    slow: Option<(Arc<ManualClock>, Duration)>,
    injected: Injected,
    /// Bytes announced by [`File::will_read`].
    announced_bytes: u64,
    /// Whether the file system refuses to preallocate ([`File::allocate`]).
    refuses_room: bool,
    /// Chooses which writes survive. Separate from `read_random`, so that the number of reads does
    /// not affect the choice.
    crash_random: Random,
    read_random: Random,
    chosen: Chosen,
}

impl LyingDisk {
    /// An empty disk.
    pub fn new(seed: u64) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(seed))), sharing: SharingInMemory::default() }
    }

    /// Reseeds all choices from now on, e.g. to see other outcomes of one crash.
    pub fn reseed(&self, seed: u64) {
        self.state().reseed(seed);
    }

    /// Makes the file system refuse to preallocate ([`File::allocate`]), as some do.
    pub fn refuse_room(&self, refuses: bool) {
        self.state().refuses_room = refuses;
    }

    /// The number of `sync` and `sync_dir` calls made while the power was on, including failed
    /// ones.
    pub fn sync_count(&self) -> u64 {
        self.state().sync_count
    }

    /// Cuts the power at the `n`-th sync, counted as in [`LyingDisk::sync_count`] (at the next one
    /// if that is past).
    ///
    /// That call and everything after it fails until [`LyingDisk::restore_power`]. The seed decides
    /// whether that sync still took effect.
    pub fn cut_power_at_sync(&self, n: u64) {
        self.state().cut_at_sync = Some(n);
    }

    /// Cuts the power now.
    pub fn cut_power(&self) {
        self.state().cut_power();
    }

    /// Whether every call fails because the power is cut.
    pub fn power_is_cut(&self) -> bool {
        self.state().power_is_cut
    }

    /// Restores the power and exposes the disk in its state after the crash. Cuts the power first
    /// if it is on; cancels a scheduled cut.
    pub fn restore_power(&self) {
        self.state().restore_power();
        self.sharing.forget_all();
    }

    /// Makes each read fail with this probability.
    pub fn fail_reads(&self, probability: f64) {
        self.state().fail_reads = probability;
    }

    /// Makes each read return one wrong bit with this probability. The next read may be correct.
    pub fn flip_bits(&self, probability: f64) {
        self.state().flip_bits = probability;
    }

    /// Makes the next `sync` or `sync_dir` fail, like [`LyingDisk::fail_sync`].
    pub fn fail_next_sync(&self) {
        self.fail_sync(1);
    }

    /// Makes the `n`-th `sync` or `sync_dir` from now fail (1: the next one). Of the bytes that a
    /// file's sync should have saved, the seed chooses a part that is durable; the rest never
    /// becomes durable, even if later syncs succeed. Readers see all bytes until a crash. Names
    /// stay unsynced.
    pub fn fail_sync(&self, n: u64) {
        let mut state = self.state();
        state.fail_sync = Some(state.sync_count.saturating_add(n));
    }

    /// Makes the `n`-th rename or link from now fail (1: the next one); the seed decides whether it
    /// took effect nevertheless.
    pub fn fail_rename(&self, n: u64) {
        let mut state = self.state();
        state.fail_rename = Some(state.rename_count.saturating_add(n));
    }

    /// Makes the `n`-th removal of a file from now fail (1: the next one); the seed decides whether
    /// it took effect nevertheless.
    pub fn fail_remove(&self, n: u64) {
        let mut state = self.state();
        state.fail_remove = Some(state.remove_count.saturating_add(n));
    }

    /// Flips the bits in `mask` of one byte of a file permanently. An error if the file ends before
    /// that byte.
    pub fn corrupt(&self, path: &Path, offset: u64, mask: u8) -> io::Result<()> {
        let mut state = self.state();
        let id = state.tree.file(path)?;
        let file = state.file_mut(id, path)?;
        if offset >= file.current().len() {
            return Err(of_kind(path, ErrorKind::UnexpectedEof));
        }
        file.corrupt(offset, mask);
        state.injected.corrupted_bytes += 1;
        Ok(())
    }

    /// Leaves `free_bytes` bytes free (in whole blocks of 4096); `None` removes the limit. Writes
    /// beyond that fail with `StorageFull` after writing the prefix that fits. Only blocks that
    /// were never written need space; removing and truncating files frees it.
    pub fn fill_up(&self, free_bytes: Option<u64>) {
        let mut state = self.state();
        state.pages_max = free_bytes.map(|bytes| state.pages_used() + bytes / PAGE_BYTES);
    }

    /// Makes each read and each sync advance this clock by a random time, at most this duration;
    /// `None` disables it.
    pub fn slow_down(&self, slow: Option<(Arc<ManualClock>, Duration)>) {
        self.state().slow = slow;
    }

    /// Counts of the faults injected so far.
    pub fn injected(&self) -> Injected {
        self.state().injected
    }

    /// The number of bytes announced with [`File::will_read`].
    pub fn announced_bytes(&self) -> u64 {
        self.state().announced_bytes
    }

    /// An independent copy of the disk (with unsynced contents and settings), without handles and
    /// locks.
    pub fn snapshot(&self) -> LyingDisk {
        let mut state = self.state().clone();
        state.handles.clear();
        state.locked.clear();
        state.shared.clear();
        state.chosen.cancel_cut();
        state.sweep();
        Self { state: Arc::new(Mutex::new(state)), sharing: SharingInMemory::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Restores the power as if only the process had ended at the cut. Every write and every name
    /// still exists, synced or not; a later power cut may lose the unsynced ones. Cancels a
    /// scheduled cut.
    pub fn restart_process(&self) {
        self.state().invalidate_handles();
        self.sharing.forget_all();
    }

    fn lock_alone(&self, dir: &Path) -> Result<LyingLock, LockError> {
        let mut state = self.powered(dir).map_err(LockError::Io)?;
        let (folder, file) = state.lock(dir)?;
        Ok(LyingLock::new(self.clone(), state.generation, folder, Some(file)))
    }

    fn lock_beside(&self, dir: &Path) -> Result<LyingLock, LockError> {
        let mut state = self.powered(dir).map_err(LockError::Io)?;
        let folder = state.tree.folder(dir).map_err(LockError::Io)?;
        if state.locked.contains(&folder) {
            return Err(LockError::Held { pid: Some(PID), who: HELD_BY_THIS_PROCESS.to_owned() });
        }
        *state.shared.entry(folder).or_default() += 1;
        Ok(LyingLock::new(self.clone(), state.generation, folder, None))
    }

    /// The state; fails if the power is cut.
    fn powered(&self, path: &Path) -> io::Result<MutexGuard<'_, State>> {
        let state = self.state();
        if state.power_is_cut { Err(dead(path, "the power is cut")) } else { Ok(state) }
    }
}

impl fmt::Debug for LyingDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LyingDisk").finish_non_exhaustive()
    }
}

fn dead(path: &Path, why: &str) -> io::Error {
    at_path(path, io::Error::other(why.to_owned()))
}

impl State {
    /// Renames or links, unless the call is chosen to fail.
    fn change_name(
        &mut self,
        from: &Path,
        operate: impl FnOnce(&mut Tree<Bytes>) -> io::Result<Vec<Change>>,
    ) -> io::Result<()> {
        self.rename_count += 1;
        let count = self.rename_count;
        let fails = self.fail_rename.take_if(|n| count >= *n).is_some();
        self.injected.failed_renames += u64::from(fails);
        if !fails || self.crash_random.chance(0.5) {
            let operation = operate(&mut self.tree)?;
            self.names.add(operation);
        }
        if fails { Err(at_path(from, Errno::IO)) } else { Ok(()) }
    }

    /// Removes a file, unless the call is chosen to fail.
    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.remove_count += 1;
        let count = self.remove_count;
        let fails = self.fail_remove.take_if(|n| count >= *n).is_some();
        self.injected.failed_removals += u64::from(fails);
        if !fails || self.crash_random.chance(0.5) {
            let operation = self.tree.remove(path)?;
            self.names.add(operation);
        }
        if fails { Err(at_path(path, Errno::IO)) } else { Ok(()) }
    }

    fn new(seed: u64) -> Self {
        let mut state = Self {
            tree: Tree::new(),
            names: DurableNames::default(),
            handles: BTreeMap::new(),
            locked: BTreeSet::new(),
            shared: BTreeMap::new(),
            generation: 0,
            power_is_cut: false,
            cut_at_sync: None,
            sync_count: 0,
            fail_sync: None,
            rename_count: 0,
            fail_rename: None,
            remove_count: 0,
            fail_remove: None,
            fail_reads: 0.0,
            flip_bits: 0.0,
            pages_max: None,
            slow: None,
            injected: Injected::default(),
            announced_bytes: 0,
            refuses_room: false,
            crash_random: Random::new(0),
            read_random: Random::new(0),
            chosen: Chosen::default(),
        };
        state.reseed(seed);
        state
    }

    fn reseed(&mut self, seed: u64) {
        let mut random = Random::new(seed);
        self.crash_random = Random::new(random.next_u64());
        self.read_random = Random::new(random.next_u64());
    }

    fn cut_power(&mut self) {
        if !self.power_is_cut {
            self.power_is_cut = true;
            self.injected.power_cuts += 1;
        }
    }

    fn restore_power(&mut self) {
        self.cut_power();
        self.names.crash(&mut self.crash_random, &mut self.injected);
        self.tree.reset(self.names.folders());
        for file in self.tree.files_mut() {
            file.crash(&mut self.crash_random, &mut self.injected);
        }
        self.invalidate_handles();
    }

    /// Invalidates all earlier handles and locks.
    fn invalidate_handles(&mut self) {
        self.handles.clear();
        self.locked.clear();
        self.shared.clear();
        self.sweep();
        self.generation += 1;
        self.power_is_cut = false;
        self.cut_at_sync = None;
        self.chosen.cancel_cut();
    }

    /// Drops nodes without a current name, a durable name or a handle.
    fn sweep(&mut self) {
        let starts = [ROOT]
            .into_iter()
            .chain(self.handles.keys().copied())
            .chain(self.names.unsynced_nodes());
        let kept = self.tree.reach(starts, self.names.folders());
        self.tree.keep(&kept);
        self.names.retain(&kept);
    }

    fn file(&self, id: NodeId, path: &Path) -> io::Result<&Bytes> {
        self.tree.get(id).ok_or_else(|| of_kind(path, ErrorKind::NotFound))
    }

    fn file_mut(&mut self, id: NodeId, path: &Path) -> io::Result<&mut Bytes> {
        self.tree.get_mut(id).ok_or_else(|| of_kind(path, ErrorKind::NotFound))
    }

    fn open(&mut self, path: &Path, open: Open) -> io::Result<NodeId> {
        if open != Open::CreateNew {
            return self.tree.file(path);
        }
        self.change(path, |state| {
            let (id, operation) = state.tree.create_file(path, Bytes::default())?;
            state.names.add(operation);
            Ok(id)
        })
    }

    fn close(&mut self, id: NodeId) {
        if let Some(count) = self.handles.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                self.handles.remove(&id);
                if self.tree.links(id) == 0 {
                    self.sweep();
                }
            }
        }
    }

    /// Advances the clock by a random time.
    fn take_time(&mut self) {
        if let Some((clock, most)) = &self.slow {
            let nanos = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX).saturating_add(1);
            clock.advance(Duration::from_nanos(self.read_random.below(nanos)));
            self.injected.slow_calls += 1;
        }
    }

    fn read(&mut self, id: NodeId, path: &Path, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.take_time();
        self.count_read(path)?;
        if self.read_random.chance(self.fail_reads) {
            self.injected.failed_reads += 1;
            return Err(at_path(path, Errno::IO));
        }
        let n = self.file(id, path)?.current().read(buf, offset);
        if n > 0 && self.read_random.chance(self.flip_bits) {
            self.injected.flipped_bits += 1;
            let bit = self.read_random.below(n as u64 * 8);
            buf[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        Ok(n)
    }

    fn write(&mut self, id: NodeId, path: &Path, bytes: &[u8], offset: u64) -> io::Result<()> {
        end_of(offset, bytes.len() as u64).map_err(|e| at_path(path, e))?;
        let spare = self.pages_max.map(|max| max.saturating_sub(self.pages_used()));
        let file = self.file(id, path)?;
        let fitting =
            spare.map_or(bytes.len(), |spare| file.current().fitting(offset, bytes.len(), spare));
        if !bytes[..fitting].is_empty() {
            self.change(path, |state| {
                state.file_mut(id, path)?.write(&bytes[..fitting], offset);
                Ok(())
            })?;
        }
        if fitting < bytes.len() {
            self.injected.refused_writes += 1;
            return Err(of_kind(path, ErrorKind::StorageFull));
        }
        Ok(())
    }

    fn set_len(&mut self, id: NodeId, path: &Path, len: u64) -> io::Result<()> {
        end_of(0, len).map_err(|e| at_path(path, e))?;
        self.change(path, |state| {
            state.file_mut(id, path)?.set_len(len);
            Ok(())
        })
    }

    /// Blocks of every file that has a name or a handle.
    fn pages_used(&self) -> u64 {
        let alive = self
            .tree
            .files()
            .filter(|(id, _)| self.tree.links(*id) > 0 || self.handles.contains_key(id));
        alive.map(|(_, file)| file.current().page_count()).sum()
    }

    fn sync(&mut self, id: NodeId, path: &Path) -> io::Result<()> {
        match self.begin_sync() {
            Sync::Succeeds => self.file_mut(id, path)?.sync(),
            Sync::Fails => {
                if let Some(file) = self.tree.get_mut(id) {
                    file.fail_sync(&mut self.crash_random, &mut self.injected);
                }
                return Err(at_path(path, Errno::IO));
            }
            Sync::IsCut { after } => {
                if after {
                    self.file_mut(id, path)?.sync();
                }
                return Err(dead(path, "the power is cut"));
            }
        }
        Ok(())
    }

    fn sync_dir(&mut self, dir: &Path) -> io::Result<()> {
        let folder = self.tree.folder(dir)?;
        let sync = self.begin_sync();
        if matches!(sync, Sync::Succeeds | Sync::IsCut { after: true }) {
            self.names.sync(folder);
            self.sweep();
        }
        match sync {
            Sync::Succeeds => Ok(()),
            Sync::Fails => Err(at_path(dir, Errno::IO)),
            Sync::IsCut { .. } => Err(dead(dir, "the power is cut")),
        }
    }

    /// Counts a sync and decides its outcome.
    fn begin_sync(&mut self) -> Sync {
        self.sync_count += 1;
        self.take_time();
        if self.cut_at_sync.is_some_and(|n| self.sync_count >= n) {
            self.cut_power();
            return Sync::IsCut { after: self.crash_random.chance(0.5) };
        }
        if self.fail_sync.take_if(|n| self.sync_count >= *n).is_some() {
            self.injected.failed_syncs += 1;
            return Sync::Fails;
        }
        Sync::Succeeds
    }
}

/// The outcome of a sync.
#[derive(Clone, Copy, Debug)]
enum Sync {
    Succeeds,
    Fails,
    /// The power is cut, before or `after` the sync took effect.
    IsCut {
        after: bool,
    },
}

impl Disk for LyingDisk {
    fn open(&self, path: &Path, open: Open, caching: Caching) -> io::Result<Arc<dyn File>> {
        let mut state = self.powered(path)?;
        let id = state.open(path, open)?;
        *state.handles.entry(id).or_default() += 1;
        Ok(Arc::new(LyingFile {
            disk: self.clone(),
            generation: state.generation,
            id,
            writable: open != Open::Read,
            direct: caching == Caching::Direct,
            path: path.to_owned(),
        }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.powered(path)?.change(path, |state| {
            let (_, operation) = state.tree.create_dir(path)?;
            state.names.add(operation);
            Ok(())
        })
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.powered(dir)?.tree.list(dir, |file| file.current().len())
    }

    fn entry(&self, path: &Path) -> io::Result<Option<DirEntry>> {
        self.powered(path)?.tree.entry(path, |file| file.current().len())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.powered(from)?
            .change(from, |state| state.change_name(from, |tree| tree.rename(from, to)))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.powered(path)?.change(path, |state| state.remove(path))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.powered(path)?.change(path, |state| {
            let operation = state.tree.remove_dir(path)?;
            state.names.add(operation);
            Ok(())
        })
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.powered(to)?
            .change(to, |state| state.change_name(from, |tree| tree.hard_link(from, to)))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.powered(dir)?.sync_dir(dir)
    }

    fn lock(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
        Ok(Box::new(self.lock_alone(dir)?))
    }

    fn lock_shared(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
        Ok(Box::new(self.lock_beside(dir)?))
    }

    fn locked_by(&self, dir: &Path) -> io::Result<Option<(Option<u32>, String)>> {
        let state = self.powered(dir)?;
        let folder = state.tree.folder(dir)?;
        Ok(state.locked.contains(&folder).then(|| (Some(PID), HELD_BY_THIS_PROCESS.to_owned())))
    }

    fn lock_file(&self, path: &Path) -> io::Result<Box<dyn LockFile>> {
        drop(self.powered(path)?);
        Ok(self.sharing.lock_file(path))
    }

    fn shared_words(&self, path: &Path, count: usize) -> io::Result<Arc<dyn SharedWords>> {
        drop(self.powered(path)?);
        Ok(self.sharing.words(path, count))
    }
}
