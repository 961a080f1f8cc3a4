//! A producer and a consumer at the ends of a ring buffer. Each also works on its own between
//! two elements, so neither end waits for the other all the time.

use ringbuf::HeapRb;
use ringbuf::traits::{Consumer, Producer, Split};

const ELEMENTS: u64 = 1_500_000;

#[inline(never)]
fn work(mut value: u64) -> u64 {
    for _ in 0..8 {
        value = value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7);
    }
    value
}

fn main() {
    let (mut producer, mut consumer) = HeapRb::<u64>::new(4096).split();
    let thread = std::thread::spawn(move || {
        for i in 0..ELEMENTS {
            let mut element = work(i);
            while let Err(back) = producer.try_push(element) {
                element = back;
                std::thread::yield_now();
            }
        }
    });
    let (mut sum, mut received) = (0, 0);
    while received < ELEMENTS {
        match consumer.try_pop() {
            Some(element) => {
                sum ^= work(element);
                received += 1;
            }
            None => std::thread::yield_now(),
        }
    }
    thread.join().expect("the producer ends");
    println!("{sum}");
}
