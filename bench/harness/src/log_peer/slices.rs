//! Slices of time for a log in this process.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::Slices;
use crate::allocations;

const SLICE: Duration = Duration::from_millis(2);

/// An operation that is optimised away never fills a slice.
const MAX_REPEATS: usize = 1 << 22;

/// Times `operation` in slices, after running it often enough to be warm.
pub(crate) fn measure(slices: usize, mut operation: impl FnMut() -> Result<()>) -> Result<Slices> {
    let repeats = repeats(&mut operation)?;
    let mut nanos = Vec::with_capacity(slices);
    let before = allocations::count();
    for _ in 0..slices {
        nanos.push(slice(repeats, &mut operation)?);
    }
    let all = (slices * repeats) as f64;
    Ok(Slices { nanos, allocations: (allocations::count() - before) as f64 / all })
}

/// The number of operations that fill a slice.
fn repeats(operation: &mut impl FnMut() -> Result<()>) -> Result<usize> {
    let mut repeats = 1;
    loop {
        let nanos = slice(repeats, operation)?;
        if nanos * repeats as f64 >= SLICE.as_nanos() as f64 / 4.0 || repeats >= MAX_REPEATS {
            return Ok(((SLICE.as_nanos() as f64 / nanos) as usize).clamp(1, MAX_REPEATS));
        }
        repeats *= 2;
    }
}

/// Nanoseconds per operation.
fn slice(repeats: usize, operation: &mut impl FnMut() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..repeats {
        operation()?;
    }
    Ok(start.elapsed().as_nanos() as f64 / repeats as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_of_an_operation_are_told_apart_from_none() {
        let boxed = measure(5, || {
            drop(std::hint::black_box(Box::new([0_u8; 100])));
            Ok(())
        });
        assert!((boxed.unwrap().allocations - 1.0).abs() < 1e-9);
        let slices = measure(5, || Ok(())).unwrap();
        assert_eq!(slices.allocations, 0.0);
        assert_eq!(slices.nanos.len(), 5);
    }
}
