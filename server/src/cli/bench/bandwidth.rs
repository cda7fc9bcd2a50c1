//! How fast this machine's memory can be read: what a decode step is measured against.

use std::{hint::black_box, thread, time::Instant};

/// Per thread; far beyond any cache.
const VALUES: usize = 1 << 25;
const ROUNDS: usize = 6;

/// Bytes per second that `threads` threads read together, each a buffer of 256 MiB of its own; the best of six rounds.
pub fn read_bytes_per_s(threads: usize) -> f64 {
    let barrier = std::sync::Barrier::new(threads.max(1));
    let best = thread::scope(|scope| {
        let readers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(|| reader(&barrier))).collect();
        let rounds: Vec<[f64; ROUNDS]> = readers.into_iter().map(|r| r.join().expect("a reader only adds")).collect();
        // A round ends when its slowest thread does.
        let slowest = |round: usize| rounds.iter().map(|r| r[round]).fold(0.0, f64::max);
        (0..ROUNDS).map(slowest).fold(f64::INFINITY, f64::min)
    });
    (threads.max(1) * VALUES * 8) as f64 / best.max(1e-9)
}

/// Seconds of each round.
fn reader(barrier: &std::sync::Barrier) -> [f64; ROUNDS] {
    // Written with a value: pages of zeros that were never written all share one page of memory.
    let buffer = vec![1u64; VALUES];
    std::array::from_fn(|_| {
        barrier.wait();
        let start = Instant::now();
        black_box(sum(black_box(&buffer)));
        start.elapsed().as_secs_f64()
    })
}

/// Independent sums, so that no addition waits for another.
fn sum(values: &[u64]) -> u64 {
    let mut sums = [0u64; 32];
    for chunk in values.chunks_exact(32) {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*value);
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_reads_every_value() {
        let mut values = vec![1u64; 64];
        assert_eq!(sum(&values), 64);
        for i in 0..64 {
            values[i] += 5;
            assert_eq!(sum(&values), 69);
            values[i] -= 5;
        }
    }
}
