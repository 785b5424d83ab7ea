//! THE LINE.
