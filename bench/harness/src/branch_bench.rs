//! `bench branch-bench`: the five workloads of BranchBench (Columbia, 2026), with keys and values
//! instead of SQL.
//!
//! Workers explore variants of a small order database. In each step, a worker creates a branch,
//! changes the schema and data there, queries it, compares it with other branches, and may delete
//! it. Each worker has a tree of branches below main. The numbers of workers and steps, the shape
//! of the trees and the work of a step are those of BranchBench.
//!
//! What stands for SQL:
//! - a change of the schema (DDL): a transaction that rewrites the customers of a district with one
//!   more column;
//! - a change of data (DML): a transaction that adds an order of ten lines and changes the balance
//!   of its customer; in `software_dev` a backfill of all customers;
//! - a query: the sum of the balances of a district; in `mcts` the sum of all order lines;
//! - a cross-branch query: the same query on another branch of the worker.
//!
//! Every commit is durable. After each step, the worker checks that the branch has all changes of
//! its ancestors and no others.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use plimsoll::{Branch, Db, Durability, Keyspace, Options, Snapshot};

use crate::quiet;
use crate::results::Results;
use crate::sizes::{parse_size, show_size};
use crate::statistics::quantile;
use crate::table::{self, number};
use crate::work_folder::Places;

/// Order lines of an order.
const LINES: u64 = 10;

/// Customers of a district.
const DISTRICT: u64 = 300;

/// A workload of BranchBench.
#[derive(Clone, Copy)]
struct Workload {
    name: &'static str,
    workers: u64,
    steps: u64,
    /// The most children of main for each worker, and of any other branch.
    fanout: [usize; 2],
    /// The most ancestors of a branch.
    depth: u64,
    ddl: u64,
    dml: u64,
    queries: u64,
    cross: u64,
    /// The probability that the branch of a step is deleted at its end.
    prune: f64,
    /// Whether a change of data rewrites all customers.
    backfills: bool,
    /// Whether a query reads all order lines.
    sums_lines: bool,
}

const PLAIN: Workload = Workload {
    name: "",
    workers: 1,
    steps: 1,
    fanout: [10, 10],
    depth: 1,
    ddl: 0,
    dml: 1,
    queries: 1,
    cross: 0,
    prune: 0.0,
    backfills: false,
    sums_lines: false,
};

const WORKLOADS: [Workload; 5] = [
    Workload {
        name: "software_dev",
        workers: 5,
        steps: 20,
        fanout: [5, 3],
        depth: 4,
        ddl: 1,
        queries: 2,
        cross: 1,
        prune: 0.1,
        backfills: true,
        ..PLAIN
    },
    Workload { name: "failure_repro", steps: 10, ddl: 5, dml: 45, prune: 1.0, ..PLAIN },
    Workload {
        name: "data_cleaning",
        workers: 10,
        steps: 20,
        fanout: [10, 3],
        depth: 3,
        ddl: 1,
        cross: 2,
        ..PLAIN
    },
    Workload {
        name: "mcts",
        workers: 10,
        steps: 100,
        depth: 25,
        prune: 0.1,
        sums_lines: true,
        ..PLAIN
    },
    Workload { name: "simulation", workers: 1000, dml: 50, cross: 1, prune: 1.0, ..PLAIN },
];

#[derive(Args, Debug)]
pub(crate) struct BranchBench {
    /// Memory budget of the store
    #[arg(long, default_value = "64MiB", value_parser = parse_size)]
    memory: u64,
    /// Customers of the database
    #[arg(long, default_value_t = 10_000)]
    customers: u64,
    /// Orders of the database
    #[arg(long, default_value_t = 3_000)]
    orders: u64,
    /// Divides the numbers of workers and of steps
    #[arg(long, default_value_t = 1)]
    divide: u64,
}

/// The database.
struct Shop {
    db: Db,
    customers: Keyspace,
    lines: Keyspace,
    /// The number of customers.
    count: u64,
}

/// A branch of a worker, and what must be there.
#[derive(Clone)]
struct Node {
    branch: Branch,
    depth: u64,
    children: usize,
    /// The sum of all order lines.
    total: u64,
}

/// The times of a worker's operations, in microseconds.
#[derive(Default)]
struct Times {
    create: Vec<f64>,
    query: Vec<f64>,
    steps: u64,
}

/// The value of a customer: a balance, and columns.
fn customer(balance: u64, columns: usize) -> Vec<u8> {
    let mut value = balance.to_le_bytes().to_vec();
    value.resize(100 + 8 * columns, b'c');
    value
}

fn first_number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().expect("values begin with a number"))
}

/// The key of an order line; orders of different steps have different numbers.
fn line_key(order: u64, line: u64) -> Vec<u8> {
    [order.to_be_bytes(), line.to_be_bytes()].concat()
}

impl Shop {
    fn open(path: &Path, memory: u64, customers: u64, orders: u64) -> Result<Self> {
        let options = Options::new().memory_bytes(memory).durability(Durability::Sync);
        let db = Db::open(path, options)?;
        let (clients, lines) = (db.keyspace("customers")?, db.keyspace("lines")?);
        db.bulk_load(&clients, (0..customers).map(|id| (id.to_be_bytes(), customer(100, 0))))?;
        let all = (0..orders).flat_map(|order| (0..LINES).map(move |line| line_key(order, line)));
        db.bulk_load(&lines, all.map(|key| (key, 1_u64.to_le_bytes())))?;
        Ok(Self { db, customers: clients, lines, count: customers })
    }

    /// Rewrites customers with one more column.
    fn rewrite(&self, branch: &Branch, first: u64, count: u64) -> Result<()> {
        branch.transact(|tx| {
            for id in first..(first + count).min(self.count) {
                let old = tx.get(&self.customers, id.to_be_bytes())?;
                let old = old.map(|value| (first_number(&value), (value.len() - 100) / 8));
                let (balance, columns) = old.unwrap_or_default();
                tx.put(&self.customers, id.to_be_bytes(), customer(balance, columns + 1))?;
            }
            Ok::<_, plimsoll::Error>(())
        })?;
        Ok(())
    }

    /// Adds an order.
    fn order(&self, branch: &Branch, order: u64, client: u64) -> Result<()> {
        branch.transact(|tx| {
            for line in 0..LINES {
                tx.put(&self.lines, line_key(order, line), 1_u64.to_le_bytes())?;
            }
            let key = client.to_be_bytes();
            let old = tx.get(&self.customers, key)?;
            let columns = old.as_ref().map_or(0, |value| (value.len() - 100) / 8);
            let balance = old.map_or(0, |value| first_number(&value));
            tx.put(&self.customers, key, customer(balance + LINES, columns))
        })?;
        Ok(())
    }

    /// The sum of the balances of a district.
    fn balances(&self, state: &Snapshot, first: u64) -> Result<u64> {
        let range = first.to_be_bytes()..(first + DISTRICT).to_be_bytes();
        sum(state, &self.customers, range)
    }

    fn total(&self, state: &Snapshot) -> Result<u64> {
        sum(state, &self.lines, ..)
    }
}

fn sum(state: &Snapshot, keys: &Keyspace, range: impl plimsoll::KeyRange) -> Result<u64> {
    let mut sum = 0;
    let mut rows = state.range(keys, range)?;
    while let Some((_, value)) = rows.advance()? {
        sum += first_number(value);
    }
    Ok(sum)
}

/// Measures `act` in microseconds.
fn timed<T>(times: &mut Vec<f64>, act: impl FnOnce() -> Result<T>) -> Result<T> {
    let begun = Instant::now();
    let done = act()?;
    times.push(begun.elapsed().as_secs_f64() * 1e6);
    Ok(done)
}

impl Workload {
    fn divided(self, by: u64) -> Self {
        let part = |count: u64| count.div_ceil(by);
        Self { workers: part(self.workers), steps: part(self.steps), ..self }
    }

    /// The steps of one worker.
    fn work(&self, shop: &Shop, worker: u64, root: &Node) -> Result<Times> {
        let (mut times, mut nodes) = (Times::default(), vec![root.clone()]);
        let mut random = fastrand::Rng::with_seed(worker);
        for step in 0..self.steps {
            let open: Vec<usize> = (0..nodes.len())
                .filter(|at| {
                    let node = &nodes[*at];
                    let fanout = self.fanout[usize::from(node.depth > 0)];
                    node.depth < self.depth && node.children < fanout
                })
                .collect();
            ensure!(!open.is_empty(), "the tree of worker {worker} is full");
            let parent = open[random.usize(0..open.len())];
            nodes[parent].children += 1;
            let name = format!("{}-{worker}-{step}", self.name);
            let node = self.step(shop, &mut times, &mut random, &nodes, parent, &name)?;
            times.steps += 1;
            match random.f64() < self.prune {
                true => shop.db.delete_branch(&name)?,
                false => nodes.push(node),
            }
        }
        Ok(times)
    }

    fn step(
        &self,
        shop: &Shop,
        times: &mut Times,
        random: &mut fastrand::Rng,
        nodes: &[Node],
        parent: usize,
        name: &str,
    ) -> Result<Node> {
        let parent = &nodes[parent];
        let branch =
            timed(&mut times.create, || Ok(shop.db.create_branch(name, &parent.branch)?))?;
        let mut node = Node { branch, depth: parent.depth + 1, children: 0, total: parent.total };
        let district =
            |random: &mut fastrand::Rng| random.u64(0..shop.count.div_ceil(DISTRICT)) * DISTRICT;
        for _ in 0..self.ddl {
            shop.rewrite(&node.branch, district(random), DISTRICT)?;
        }
        for _ in 0..self.dml {
            if self.backfills {
                shop.rewrite(&node.branch, 0, shop.count)?;
            } else {
                let order = random.u64(1 << 40..1 << 63);
                shop.order(&node.branch, order, random.u64(0..shop.count))?;
                node.total += LINES;
            }
        }
        let mut query = |branch: &Branch, first: u64| {
            timed(&mut times.query, || {
                let state = branch.snapshot();
                if self.sums_lines { shop.total(&state) } else { shop.balances(&state, first) }
            })
        };
        for _ in 0..self.queries {
            query(&node.branch, district(random))?;
        }
        for _ in 0..self.cross {
            let (first, other) = (district(random), random.usize(0..nodes.len()));
            query(&node.branch, first)?;
            query(&nodes[other].branch, first)?;
        }
        let total = shop.total(&node.branch.snapshot())?;
        ensure!(total == node.total, "branch {name} has {total} lines instead of {}", node.total);
        Ok(node)
    }

    /// Runs all workers. Returns their times and the seconds.
    fn run(&self, shop: &Shop, orders: u64) -> Result<(Vec<Times>, f64)> {
        let main = shop.db.main();
        let root = Node { branch: main, depth: 0, children: 0, total: orders * LINES };
        let begun = Instant::now();
        let times = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.workers)
                .map(|worker| {
                    let root = &root;
                    scope.spawn(move || self.work(shop, worker, root))
                })
                .collect();
            workers.into_iter().map(|it| it.join().expect("a worker panicked")).collect()
        });
        Ok((
            Result::<Vec<_>>::from_iter::<Vec<Result<Times>>>(times)?,
            begun.elapsed().as_secs_f64(),
        ))
    }
}

impl BranchBench {
    /// Measures, prints a table, keeps the results.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        let mut results = Results::new("branch-bench", places.results().as_deref());
        quiet::check(&mut results);
        let work = places.work("branch-bench")?;
        let settings = format!(
            "memory={} customers={} orders={}",
            show_size(self.memory),
            self.customers,
            self.orders
        );
        let mut rows = Vec::new();
        for workload in WORKLOADS {
            println!("{} ...", workload.name);
            let values = self.measure(workload, &work.path().join(workload.name))?;
            for (metric, value) in values {
                results.note(workload.name, &settings, metric, value);
            }
            let cells = values.iter().map(|(_, value)| number(*value));
            rows.push([workload.name.to_owned()].into_iter().chain(cells).collect());
        }
        table::print(
            &["workload", "steps", "seconds", "create us", "p99", "query us", "p99", "MiB"],
            &rows,
        );
        results.save()
    }

    fn measure(&self, workload: Workload, path: &Path) -> Result<[(&'static str, f64); 7]> {
        let workload = workload.divided(self.divide);
        let shop = Shop::open(path, self.memory, self.customers, self.orders)?;
        let (times, seconds) =
            workload.run(&shop, self.orders).with_context(|| workload.name.to_owned())?;
        let all = |of: fn(&Times) -> &Vec<f64>| -> Vec<f64> {
            times.iter().flat_map(|times| of(times).iter().copied()).collect()
        };
        let (create, query) = (all(|times| &times.create), all(|times| &times.query));
        shop.db.close()?;
        let mut bytes = 0;
        for folder in [path.to_owned(), path.join("log"), path.join("index")] {
            for entry in std::fs::read_dir(folder).into_iter().flatten() {
                bytes += entry?.metadata()?.len();
            }
        }
        std::fs::remove_dir_all(path)?;
        Ok([
            ("steps", times.iter().map(|times| times.steps).sum::<u64>() as f64),
            ("seconds", seconds),
            ("create_us", quantile(&create, 0.5)),
            ("create_p99_us", quantile(&create, 0.99)),
            ("query_us", quantile(&query, 0.5)),
            ("query_p99_us", quantile(&query, 0.99)),
            ("disk_mib", bytes as f64 / f64::from(1 << 20)),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_completes() {
        let bench = BranchBench { memory: 32 << 20, customers: 900, orders: 20, divide: 10 };
        for workload in WORKLOADS {
            let folder = tempfile::tempdir().unwrap();
            let values = bench.measure(workload, &folder.path().join("store")).unwrap();
            let steps = workload.workers.div_ceil(10) * workload.steps.div_ceil(10);
            assert_eq!(values[0], ("steps", steps as f64), "{}", workload.name);
            assert!(values.iter().all(|(_, value)| *value > 0.0), "{values:?}");
        }
    }
}
