//! Lists test: transactions append to lists and read them, and their history must be strictly
//! serializable.
//!
//! Each value is appended once, so a list shows the order of its writers, and a read shows which of
//! them the reader has seen. These dependencies, together with the start and return times of
//! transactions, must form no cycle (Kingsbury and Alvaro, "Elle: Inferring Isolation Anomalies
//! from Experimental Observations", VLDB 2020: list-append). The check does not use the store's own
//! order.
//!
//! [`history`] is the output of processes that run such transactions ([`crate::workers::lister`]),
//! [`check`] checks each transaction by itself, and [`order`] searches for cycles.

pub mod check;
pub mod history;
pub mod order;
