//! Samples a second through the ring: one writer and one reader, then three more.
//!
//! `make bench-online`

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ring::Ring;

mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

// It shows a part of it.
#[allow(dead_code)]
#[path = "../../../crates/online/src/ring.rs"]
mod ring;

const WORDS: usize = 10;
const FOR: Duration = Duration::from_millis(500);

/// Samples that one writer wrote and each reader read, a second each.
fn run(readers: usize, at_once: usize) -> (f64, Vec<f64>) {
    let (ring, mut writer) = Ring::<WORDS>::new(4096, false);
    let over = Arc::new(AtomicBool::new(false));
    let all: Vec<_> = (1..=readers)
        .map(|queue| {
            let (ring, over) = (Arc::clone(&ring), Arc::clone(&over));
            ring.open(queue);
            std::thread::spawn(move || {
                let (mut into, mut read, mut sum) = (vec![[0u64; WORDS]; 1024], 0u64, 0u64);
                while !over.load(Ordering::Relaxed) {
                    let n = ring.read(queue, &mut into);
                    sum = into[..n].iter().fold(sum, |sum, s| sum.wrapping_add(s[0]));
                    read += n as u64;
                }
                std::hint::black_box(sum);
                read
            })
        })
        .collect();
    let (began, mut written) = (Instant::now(), 0u64);
    let batch = vec![[7u64; WORDS]; at_once];
    while began.elapsed() < FOR {
        for _ in 0..64 {
            writer.write(&batch);
        }
        written += 64 * at_once as u64;
    }
    let seconds = began.elapsed().as_secs_f64();
    over.store(true, Ordering::Relaxed);
    let read = all.into_iter().map(|r| r.join().expect("it reads") as f64 / seconds);
    (written as f64 / seconds, read.collect())
}

fn main() {
    println!("samples of {} bytes, millions a second, median of 9", WORDS * 8);
    for at_once in [1, 64] {
        for readers in [0, 1, 4] {
            let mut rounds: Vec<_> = (0..9).map(|_| run(readers, at_once)).collect();
            rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (written, read) = &rounds[rounds.len() / 2];
            let read: Vec<String> = read.iter().map(|r| format!("{:.0}", r / 1e6)).collect();
            println!(
                "{at_once:3} at once, {readers} readers: written {:.0}, read {}",
                written / 1e6,
                read.join(" ")
            );
        }
    }
}
