//! The whole store under one seed.
