//! Deterministic simulation of the whole store from one seed.
//!
//! A *workload* ([`op`]) is generated from a seed and run ([`driver`]) against a store on a
//! simulated disk with faults ([`world`]) and against a *model* ([`model`]), comparing answer by
//! answer. Built on that:
//! - [`crash`]: the power is cut at every sync;
//! - [`faults`]: reads fail or return wrong bits, the disk is full, syncs fail, memory is short;
//! - [`metamorphic`]: the same workload under other budgets and other background work gives the
//!   same answers;
//! - [`flip`]: each byte of a closed store is changed;
//! - [`rot`]: a closed store is damaged in other ways;
//! - [`members`]: several processes share a store on one simulated disk, and are killed, stopped,
//!   join and leave;
//! - [`expiry`]: values expire while time passes and clocks differ;
//! - [`branches`]: branches are created, written, merged and deleted;
//! - [`sync`]: several stores exchange commits;
//! - [`order`]: an order outside of several replicas orders their commits;
//! - [`kill`]: a child process on a real disk is killed;
//! - [`real`]: the power of a real file system is cut under such a child, its system calls fail,
//!   other processes read at the same time;
//! - [`bank`]: many threads, whose history must be serializable;
//! - [`workers`]: several processes on one store, killed, stopped and started again;
//! - [`lists`]: the history of such processes must be strictly serializable;
//! - [`stress`]: threads, kills and a changing budget, for any length of time, with memory measured
//!   from outside.
//!
//! A [`case`] names one run, so that its seed replays it; [`minimise`] shortens a failing workload;
//! [`planted`] checks that the simulation finds planted bugs.

pub mod bank;
pub mod branches;
pub mod case;
pub mod content;
pub mod crash;
pub mod driver;
pub mod expiry;
pub mod failure;
pub mod faults;
pub mod flip;
mod judge;
pub mod kill;
pub mod lists;
pub mod members;
pub mod metamorphic;
pub mod minimise;
pub mod model;
pub mod op;
pub mod order;
pub mod planted;
pub mod real;
pub mod rot;
mod run_case;
pub mod stress;
pub mod sync;
pub mod workers;
pub mod world;
