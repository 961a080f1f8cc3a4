use super::*;
use crate::abi::{Attr, sample};

/// Xorshift64 (Marsaglia 2003), so that every run creates the same samples.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Writes a sample field by field in the order of `perf_event_open(2)`, independently of
/// [`Layout::sample`]. The value of each field is its bit.
fn written(attr: &Attr) -> Vec<u8> {
    let mut words: Vec<u64> = Vec::new();
    let has = |bit| attr.sample_type & bit != 0;
    let field = |words: &mut Vec<u64>, bit: u64| words.extend(has(bit).then_some(bit));
    field(&mut words, sample::IDENTIFIER);
    field(&mut words, sample::IP);
    words.extend(has(sample::TID).then_some(7 | 8 << 32));
    for bit in [
        sample::TIME,
        sample::ADDR,
        sample::ID,
        sample::STREAM_ID,
        sample::CPU,
        sample::PERIOD,
    ] {
        field(&mut words, bit);
    }
    if has(sample::READ) {
        // Two counters with ids.
        words.extend([2, 100, 50, 11, 1, 22, 2]);
    }
    if has(sample::CALLCHAIN) {
        words.extend([2, 0xa, 0xb]);
    }
    let mut bytes: Vec<u8> = words.drain(..).flat_map(u64::to_le_bytes).collect();
    if has(sample::RAW) {
        bytes.extend(4u32.to_le_bytes());
        bytes.extend(*b"raw!");
    }
    if has(sample::BRANCH_STACK) {
        words.extend([1, 0x1, 0x2, 0x3]);
    }
    if has(sample::REGS_USER) {
        words.extend([2, 0xa0, 0xa3]);
    }
    if has(sample::STACK_USER) {
        words.extend([16, 1, 2, 8]);
    }
    for bit in [sample::WEIGHT, sample::DATA_SRC, sample::TRANSACTION] {
        field(&mut words, bit);
    }
    if has(sample::REGS_INTR) {
        words.push(0);
    }
    for bit in [
        sample::PHYS_ADDR,
        sample::CGROUP,
        sample::DATA_PAGE_SIZE,
        sample::CODE_PAGE_SIZE,
    ] {
        field(&mut words, bit);
    }
    bytes.extend(words.into_iter().flat_map(u64::to_le_bytes));
    bytes
}

/// Everything but WEIGHT_STRUCT, which takes WEIGHT's place, and AUX.
const FIELDS: u64 = sample::KNOWN & !(sample::AUX | sample::WEIGHT_STRUCT);

fn attribute(sample_type: u64) -> Attr {
    let mut attr = Attr::new(0, 0);
    attr.sample_type = sample_type;
    attr.read_format = read::GROUP | read::ID | read::TIME_ENABLED | read::TIME_RUNNING;
    attr.sample_regs_user = 1 | 1 << 3;
    attr
}

#[test]
fn every_combination_of_fields_is_read_as_it_was_written() {
    let mut dice = Dice(0x1234_5678_9abc_def1);
    let random = (0..5000).map(|_| dice.next() & FIELDS);
    let single = (0..25).map(|bit| (1 << bit) & FIELDS);
    for sample_type in random.chain(single).chain([FIELDS]) {
        let attr = attribute(sample_type);
        let bytes = written(&attr);
        let s = Layout::new(&attr).sample(&bytes).unwrap();
        let expect = |bit: u64, value: u64| if sample_type & bit != 0 { value } else { 0 };
        let same = |bit| expect(bit, bit);
        assert_eq!(
            (s.ip, s.time_ns, s.addr),
            (same(sample::IP), same(sample::TIME), same(sample::ADDR))
        );
        assert_eq!(
            (u64::from(s.pid), u64::from(s.tid)),
            (expect(sample::TID, 7), expect(sample::TID, 8))
        );
        assert_eq!(
            (u64::from(s.cpu), s.period),
            (same(sample::CPU), same(sample::PERIOD))
        );
        assert_eq!(
            (s.weight, s.data_src, s.phys),
            (
                same(sample::WEIGHT),
                same(sample::DATA_SRC),
                same(sample::PHYS_ADDR)
            )
        );
        assert_eq!(s.data_page_bytes, same(sample::DATA_PAGE_SIZE));
        assert_eq!(s.callchain.len() as u64, expect(sample::CALLCHAIN, 2));
        assert_eq!(s.branches, expect(sample::BRANCH_STACK, 1));
        assert_eq!(
            (s.raw.len() as u64, s.stack.len() as u64),
            (expect(sample::RAW, 4), expect(sample::STACK_USER, 8))
        );
        let register = |number| s.user_regs.and_then(|r| r.get(number)).unwrap_or(0);
        assert_eq!(
            (register(0), register(3)),
            (
                expect(sample::REGS_USER, 0xa0),
                expect(sample::REGS_USER, 0xa3)
            )
        );
        assert_eq!(register(1), 0, "not recorded");
        let value = |i| {
            s.reading
                .and_then(|r| Some((r.id(i)?, r.value(i)?)))
                .unwrap_or_default()
        };
        if sample_type & sample::READ != 0 {
            assert_eq!((value(0), value(1)), ((1, 11), (2, 22)));
        }
        assert!(
            Layout::new(&attr)
                .sample(&bytes[..bytes.len().saturating_sub(1)])
                .is_none()
                || bytes.is_empty()
        );
    }
}

#[test]
fn the_id_stands_where_the_layout_says() {
    let mut dice = Dice(77);
    for _ in 0..500 {
        let attr = attribute(dice.next() & FIELDS | sample::ID);
        let layout = Layout::new(&attr);
        let bytes = written(&attr);
        let at = layout.id_offset().unwrap();
        let id = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert!(id == sample::ID || id == sample::IDENTIFIER);
    }
}

#[test]
fn a_counter_read_alone_has_its_value_before_its_times() {
    let words: Vec<u8> = [42u64, 100, 50, 9]
        .into_iter()
        .flat_map(u64::to_le_bytes)
        .collect();
    let format = read::TIME_ENABLED | read::TIME_RUNNING | read::ID;
    let reading = Reading::parse_from(&mut FieldParser(&words), format).unwrap();
    let seen = (
        reading.value(0),
        reading.id(0),
        reading.enabled_ns,
        reading.running_ns,
    );
    assert_eq!(seen, (Some(42), Some(9), 100, 50));
    assert_eq!((reading.len(), reading.value(1)), (1, None));
}

#[test]
fn no_bytes_make_the_parser_panic() {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for round in 0..20_000u32 {
        let mut attr = attribute(dice.next() & sample::KNOWN);
        attr.read_format = dice.next() & 31;
        attr.branch_sample_type = dice.next();
        attr.sample_regs_user = dice.next();
        attr.flags = dice.next();
        let bytes: Vec<u8> = (0..dice.next() % 40)
            .flat_map(|_| (dice.next() >> (dice.next() % 64)).to_le_bytes())
            .collect();
        let header = Header {
            kind: round % 24,
            misc: dice.next() as u16,
            size: 0,
        };
        if let Some((Record::Sample(s), _)) = Layout::new(&attr).record(header, &bytes) {
            assert!(s.callchain.len() * 8 + s.raw.len() + s.stack.len() <= bytes.len());
        }
    }
}
