//! Lists test: transactions append to lists and read them, and their history must be strictly
//! serializable.
//!
//! Each value is appended once, so a list tells which transactions wrote it, in which order, and a
//! read of it tells which of them the reader has seen. From that follows who came before whom;
//! together with the times at which transactions began and had returned there must be no circle.
//! (Kingsbury and Alvaro, "Elle: Inferring Isolation Anomalies from Experimental Observations",
//! VLDB 2020: list-append.) Nothing of the store's own order is used.
//!
//! [`history`] is what processes print of their transactions ([`crate::workers::lister`] is one),
//! [`check`] looks at each transaction by itself, and [`order`] for circles.

pub mod check;
pub mod history;
pub mod order;
