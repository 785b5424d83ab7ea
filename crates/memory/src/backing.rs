//! The source of memory.

/// The source of an arena's bytes, and of the mappings of large buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// An anonymous mapping, with huge pages where the system has them. Pages are taken from the
    /// system at first touch.
    Mapped,
    /// One zeroed heap block: for Miri and for systems without mappings.
    Heap,
}
