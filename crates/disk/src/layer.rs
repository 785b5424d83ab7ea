//! A disk that wraps another one and changes some of its calls.

use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::sharing::{LockFile, SharedWords};
use crate::vfs::{Caching, DirEntry, DirLock, Disk, File, LockError, Open};

macro_rules! layer {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        /// A disk that wraps another one: calls that it does not implement reach the disk below.
        /// Every layer implements [`Disk`].
        pub trait DiskLayer: Send + Sync + Debug {
            /// The disk below.
            fn below(&self) -> &dyn Disk;

            /// As [`Disk::of_store`]. Does not reach the disk below, because the disk that it
            /// returns would be without this layer.
            fn of_store(
                &self,
                folder: &Path,
                lasting: &'static [&'static str],
            ) -> io::Result<Option<(Arc<dyn Disk>, PathBuf)>> {
                let _ = (folder, lasting);
                Ok(None)
            }

            $(
                #[doc = concat!("As [`Disk::", stringify!($name), "`].")]
                fn $name(&self $(, $argument: $type)*) -> $result {
                    self.below().$name($($argument),*)
                }
            )*
        }

        impl<L: DiskLayer> Disk for L {
            fn of_store(
                &self,
                folder: &Path,
                lasting: &'static [&'static str],
            ) -> io::Result<Option<(Arc<dyn Disk>, PathBuf)>> {
                DiskLayer::of_store(self, folder, lasting)
            }

            $(
                fn $name(&self $(, $argument: $type)*) -> $result {
                    DiskLayer::$name(self $(, $argument)*)
                }
            )*
        }
    };
}

layer! {
    has_page_cache() -> bool;
    process_id() -> u32;
    check_own() -> io::Result<()>;
    open(path: &Path, open: Open, caching: Caching) -> io::Result<Arc<dyn File>>;
    create_dir(path: &Path) -> io::Result<()>;
    list(dir: &Path) -> io::Result<Vec<DirEntry>>;
    names(dir: &Path) -> io::Result<Vec<String>>;
    entry(path: &Path) -> io::Result<Option<DirEntry>>;
    rename(from: &Path, to: &Path) -> io::Result<()>;
    remove(path: &Path) -> io::Result<()>;
    remove_dir(path: &Path) -> io::Result<()>;
    hard_link(from: &Path, to: &Path) -> io::Result<()>;
    sync_files(files: &[Arc<dyn File>]) -> io::Result<()>;
    sync_dir(dir: &Path) -> io::Result<()>;
    resolve(path: &Path) -> io::Result<PathBuf>;
    lock(dir: &Path) -> Result<Box<dyn DirLock>, LockError>;
    lock_shared(dir: &Path) -> Result<Box<dyn DirLock>, LockError>;
    lock_file(path: &Path) -> io::Result<Box<dyn LockFile>>;
    lock_file_to_read(path: &Path) -> io::Result<Box<dyn LockFile>>;
    locked_by(dir: &Path) -> io::Result<Option<(Option<u32>, String)>>;
    is_in_use(dir: &Path) -> io::Result<bool>;
    not_for_sharing(path: &Path) -> io::Result<Option<&'static str>>;
    shared_words(path: &Path, count: usize) -> io::Result<Arc<dyn SharedWords>>;
    shared_words_to_read(path: &Path, count: usize) -> io::Result<Arc<dyn SharedWords>>;
}
