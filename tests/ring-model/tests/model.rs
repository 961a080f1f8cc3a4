//! All orders of steps of one writer and its readers, by loom.

use loom::model::Builder;
use loom::thread;
use ring_model::ring::{DeliveryAccount, SampleRing};

fn sample(number: u64) -> [u64; 2] {
    [number + 1, (number + 1) * 10]
}

/// A sample that is not torn; its number.
fn number(sample: &[u64; 2]) -> u64 {
    assert_eq!(sample[1], sample[0] * 10, "torn");
    sample[0] - 1
}

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    // More switches than that take hours.
    builder.preemption_bound = Some(2);
    builder.check(model);
}

fn all_are_accounted_for(ring: &SampleRing<2>, queue: usize, delivered: u64, published: u64) {
    let account = ring.account(queue);
    assert_eq!(account.delivered, delivered);
    let DeliveryAccount {
        overwritten,
        waiting,
        ..
    } = account;
    assert_eq!(delivered + overwritten + waiting, published);
}

#[test]
fn a_reader_sees_no_torn_sample_and_none_twice_while_it_is_overwritten() {
    check(|| {
        let (ring, mut writer) = SampleRing::<2>::new(2, false);
        ring.open(1);
        let written = thread::spawn(move || {
            for at in 0..4 {
                writer.write(&[sample(at)]);
            }
        });
        let (mut into, mut seen) = ([[0; 2]; 2], Vec::new());
        for _ in 0..2 {
            let n = ring.read(1, &mut into);
            seen.extend(into[..n].iter().map(number));
        }
        written.join().expect("it ends");
        let n = ring.read(1, &mut into);
        seen.extend(into[..n].iter().map(number));
        assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
        assert_eq!(seen.last(), Some(&3));
        all_are_accounted_for(&ring, 1, seen.len() as u64, 4);
    });
}

#[test]
fn readers_of_one_queue_get_each_sample_once() {
    check(|| {
        let (ring, mut writer) = SampleRing::<2>::new(2, false);
        ring.open(0);
        writer.write(&[sample(0)]);
        let other = {
            let ring = ring.clone();
            thread::spawn(move || {
                let mut into = [[0; 2]; 1];
                let n = ring.read(0, &mut into);
                into[..n].iter().map(number).collect::<Vec<_>>()
            })
        };
        let written = thread::spawn(move || {
            writer.write(&[sample(1)]);
            writer.write(&[sample(2)]);
        });
        let mut into = [[0; 2]; 2];
        let n = ring.read(0, &mut into);
        let mut seen: Vec<u64> = into[..n].iter().map(number).collect();
        seen.extend(other.join().expect("it ends"));
        written.join().expect("it ends");
        let n = ring.read(0, &mut into);
        seen.extend(into[..n].iter().map(number));
        seen.sort_unstable();
        assert!(seen.is_sorted_by(|a, b| a < b), "one came twice: {seen:?}");
        all_are_accounted_for(&ring, 0, seen.len() as u64, 3);
    });
}

#[test]
fn a_ring_that_refuses_overwrites_nothing_that_is_unread() {
    check(|| {
        let (ring, mut writer) = SampleRing::<2>::new(2, true);
        ring.open(1);
        let written = thread::spawn(move || {
            let accepted: usize = (0..4).map(|at| writer.write(&[sample(at)])).sum();
            accepted as u64
        });
        let (mut into, mut seen) = ([[0; 2]; 2], Vec::new());
        for _ in 0..2 {
            let n = ring.read(1, &mut into);
            seen.extend(into[..n].iter().map(number));
        }
        let accepted = written.join().expect("it ends");
        let n = ring.read(1, &mut into);
        seen.extend(into[..n].iter().map(number));
        assert_eq!(ring.refused() + accepted, 4);
        assert_eq!(seen.len() as u64, accepted);
        assert_eq!(ring.account(1).overwritten, 0);
        all_are_accounted_for(&ring, 1, accepted, accepted);
    });
}

#[test]
fn a_reader_that_comes_later_loses_count_of_nothing() {
    check(|| {
        let (ring, mut writer) = SampleRing::<2>::new(2, false);
        let written = thread::spawn(move || {
            for at in 0..3 {
                writer.write(&[sample(at)]);
            }
        });
        ring.open(3);
        let mut into = [[0; 2]; 2];
        let n = ring.read(3, &mut into);
        into[..n].iter().for_each(|s| assert!(number(s) < 3));
        written.join().expect("it ends");
        all_are_accounted_for(&ring, 3, n as u64, 3);
    });
}

#[test]
fn what_any_reader_got_is_delivered_once() {
    check(|| {
        let (ring, mut writer) = SampleRing::<2>::new(2, false);
        ring.open(1);
        ring.open(2);
        let written = thread::spawn(move || {
            for at in 0..3 {
                writer.write(&[sample(at)]);
            }
        });
        let (mut into, mut seen) = ([[0; 2]; 2], Vec::new());
        for queue in [1, 2] {
            let n = ring.read(queue, &mut into);
            seen.extend(into[..n].iter().map(number));
        }
        written.join().expect("it ends");
        for queue in [2, 1] {
            let n = ring.read(queue, &mut into);
            seen.extend(into[..n].iter().map(number));
        }
        seen.sort_unstable();
        seen.dedup();
        let DeliveryAccount {
            delivered,
            overwritten,
            waiting,
        } = ring.account_of_all();
        assert_eq!((delivered + overwritten, waiting), (3, 0));
        assert!(delivered <= seen.len() as u64, "{delivered} of {seen:?}");
        assert_eq!(seen.last(), Some(&2));
    });
}
