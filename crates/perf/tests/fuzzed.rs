//! Runs the bodies of the fuzz targets of live collection on random bytes and on mutants of valid
//! input, with a stable compiler. `fuzz/README.md` describes how to run them with a fuzzer.

#[path = "../../../fuzz/src/perf.rs"]
mod perf;

const ROUNDS: u64 = 20_000;

/// A small generator of bytes: a failing round is found again by its number.
struct Random(u64);

impl Random {
    fn new(round: u64) -> Random {
        Random(round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    fn mutate(&mut self, sound: &[u8]) -> Vec<u8> {
        let mut bytes = sound.to_vec();
        for _ in 0..=self.below(6) {
            let at = self.below(bytes.len());
            match self.below(4) {
                0 => bytes[at] = self.next() as u8,
                1 => bytes[at] ^= 1 << self.below(8),
                2 => bytes.truncate(at.max(1)),
                _ => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
            }
        }
        bytes
    }
}

/// An attribute of every field there is, and three records of random content.
fn ring(random: &mut Random) -> Vec<u8> {
    let mut attr = vec![0u8; 136];
    // The masks cover the fields of samples, the format of readings, and both sets of registers.
    for (at, mask) in [(24, (1 << 25) - 1), (32, 31), (80, 0xff), (96, 0xff)] {
        let word: u64 = random.next() & mask;
        attr[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    attr[42] = 4; // Trailers on all records.
    let mut bytes = attr;
    bytes.push(random.next() as u8);
    for _ in 0..3 {
        let kind = 1 + random.below(22) as u32;
        let body = random.below(40) * 8;
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(&[random.next() as u8, 0]);
        bytes.extend_from_slice(&(8 + body as u16).to_le_bytes());
        // Small numbers make sizes and counts that fit.
        bytes.extend((0..body).map(|_| (random.next() % 4) as u8));
    }
    bytes
}

#[test]
fn no_ring_makes_the_parser_panic() {
    let mut told_apart = 0;
    for round in 0..ROUNDS {
        let mut random = Random::new(round);
        let sound = ring(&mut random);
        told_apart += perf::records(&sound);
        perf::records(&random.mutate(&sound));
    }
    assert_eq!(told_apart, 3 * ROUNDS);
}

/// A stream with one event and samples of it.
fn stream() -> Vec<u8> {
    let mut attr = vec![0u8; 136];
    attr[4] = 136;
    attr[24..32].copy_from_slice(&0x1_000f_u64.to_le_bytes());
    let record = |kind: u32, body: &[u8]| {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(&(8 + body.len() as u16).to_le_bytes());
        bytes.extend_from_slice(body);
        bytes
    };
    let mut bytes = b"PERFILE2".to_vec();
    bytes.extend_from_slice(&16u64.to_le_bytes());
    bytes.extend(record(64, &[attr, vec![7, 0, 0, 0, 0, 0, 0, 0]].concat()));
    for i in 0..4 {
        bytes.extend(record(9, &[i; 40]));
    }
    bytes.extend(record(3, b"\x01\0\0\0\x01\0\0\0name\0\0\0\0"));
    bytes
}

#[test]
fn no_file_makes_the_reader_panic() {
    let sound = stream();
    assert!(perf::perf_data(&sound));
    for round in 0..ROUNDS {
        perf::perf_data(&Random::new(round).mutate(&sound));
    }
}

#[test]
fn no_packets_make_the_decoder_panic() {
    let mut operations = 0;
    for round in 0..ROUNDS {
        let mut random = Random::new(round);
        const HEADERS: [u8; 10] = [0x00, 0x01, 0x71, 0x52, 0x43, 0x49, 0x65, 0xb2, 0x99, 0x20];
        let mut trace = vec![random.next() as u8];
        for _ in 0..random.below(20) {
            trace.push(HEADERS[random.below(HEADERS.len())]);
            trace.extend((0..8).map(|_| random.next() as u8));
        }
        operations += perf::packets(&trace);
    }
    assert!(operations > ROUNDS / 2, "{operations}");
}
