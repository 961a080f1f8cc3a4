use super::*;

fn packets(mut bytes: &[u8]) -> Vec<Packet> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (packet, n) = packet(bytes).expect("a packet");
        all.push(packet);
        bytes = &bytes[n..];
    }
    all
}

fn text(bytes: &[u8]) -> String {
    let words: Vec<String> = packets(bytes).iter().map(Packet::to_string).collect();
    words.join("; ")
}

fn address(index: u8, payload: u64) -> Vec<u8> {
    let mut bytes = vec![0xb0 | index];
    bytes.extend_from_slice(&payload.to_le_bytes());
    bytes
}

/// A load of 0x7000 by the instruction at 0x401000, 40 cycles, at this time.
fn load(ticks: u64) -> Vec<u8> {
    let mut bytes = address(0, 1 << 63 | 0x40_1000);
    bytes.extend([0x49, 0x00, 0x52, 0x1e, 0x03, 0x98, 40, 0]);
    bytes.extend(address(2, 0x7000));
    bytes.push(0x71);
    bytes.extend_from_slice(&ticks.to_le_bytes());
    bytes
}

fn operations(decoder: &mut Decoder, piece: &[u8]) -> Vec<SampledOperation> {
    let mut all = Vec::new();
    decoder.feed(piece, |operation| all.push(*operation));
    all
}

#[test]
fn a_record_has_all_that_its_packets_say() {
    let seen = operations(&mut Decoder::default(), &load(99));
    let expected = SampledOperation {
        ip: 0x40_1000,
        addr: Some(0x7000),
        kind: AccessKind::Load,
        latency_cycles: 40,
        events: 0x31e,
        timestamp: Some(99),
        ..SampledOperation::default()
    };
    assert_eq!(seen, [expected]);
    assert_eq!(seen[0].level(), DataSource::Dram);
    assert_eq!(seen[0].words(), "load, L1 miss, L3 access, L3 miss");
}

#[test]
fn a_trace_cut_anywhere_gives_the_same_records() {
    let mut bytes = load(1);
    bytes.extend([0, 0]);
    bytes.extend(load(2));
    let whole = operations(&mut Decoder::default(), &bytes);
    assert_eq!(whole.len(), 2);
    for at in 0..=bytes.len() {
        let mut decoder = Decoder::default();
        let mut seen = operations(&mut decoder, &bytes[..at]);
        seen.extend(operations(&mut decoder, &bytes[at..]));
        decoder.finish();
        assert_eq!((seen, decoder.unreadable_bytes), (whole.clone(), 0), "{at}");
    }
}

#[test]
fn bytes_that_are_no_packets_are_counted_and_passed_over() {
    let mut bytes = vec![0xff; 3];
    bytes.extend(load(7));
    let mut decoder = Decoder::default();
    let seen = operations(&mut decoder, &bytes);
    assert_eq!((seen.len(), decoder.unreadable_bytes), (1, 3));
}

#[test]
fn a_record_without_time_ends_at_its_end_packet() {
    let mut bytes = address(0, 0x1000);
    bytes.extend([0x01, 0x01]);
    let seen = operations(&mut Decoder::default(), &bytes);
    assert_eq!(seen.len(), 1, "the second end packet has no record");
    assert_eq!(seen[0].timestamp, None);
}

#[test]
fn extended_headers_have_five_bits_of_index() {
    assert_eq!(text(&[0x21, 0x99, 7, 0]), "LAT 7 9");
    assert_eq!(text(&[0x20, 0x04, 0x00]), "PAD; PAD");
}

#[test]
fn any_bytes_end() {
    let mut state = 1u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    for n in 0..400 {
        let bytes: Vec<u8> = (0..n).map(|_| random()).collect();
        let mut decoder = Decoder::default();
        operations(&mut decoder, &bytes);
        assert!(decoder.rest.len() < MAX_PACKET_BYTES, "{bytes:x?}");
        assert!(decoder.unreadable_bytes <= n);
    }
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let byte = |word: &str| (word.len() == 2).then(|| u8::from_str_radix(word, 16).ok())?;
    text.split_whitespace().map(byte).collect()
}

/// Bytes and their meaning, of a line of the file: `bytes = meaning`, or
/// `bytes (meaning) | bytes (meaning)` in a remark.
fn cases(line: &str) -> Vec<(Vec<u8>, String)> {
    if let Some((bytes, meaning)) = line.split_once(" = ") {
        return hex(bytes)
            .map(|bytes| (bytes, meaning.to_owned()))
            .into_iter()
            .collect();
    }
    let line = line.strip_prefix("# second record:").unwrap_or(line);
    let case = |part: &str| {
        let (bytes, meaning) = part.split_once('(')?;
        Some((hex(bytes)?, meaning.trim().trim_end_matches(')').to_owned()))
    };
    line.split('|').filter_map(case).collect()
}

// Packets from real processors, with the decoding of other tools beside them.
#[test]
fn dumps_of_real_processors_decode_as_others_decode_them() {
    let Some(folder) = std::env::var_os("MEMGAUGE_PERFDATA") else {
        return memgauge_testing::skipped(
            memgauge_testing::Need::Perfdata,
            "MEMGAUGE_PERFDATA names no folder with text/spe-packets.txt",
        );
    };
    let path = std::path::Path::new(&folder).join("text/spe-packets.txt");
    let file = std::fs::read_to_string(&path).expect("the dumps");
    let mut compared = 0;
    for (bytes, meaning) in file.lines().flat_map(cases) {
        let seen = text(&bytes);
        // Remarks name some parts only.
        let same = seen == meaning || {
            let mut words = meaning.split_whitespace();
            words.all(|word| seen.split([' ', ';']).any(|w| w == word))
        };
        // `PC el2` and the like, and `B COND` in parentheses.
        assert!(same, "{bytes:02x?}: {seen}, not {meaning}");
        compared += 1;
    }
    assert!(compared >= 18, "{compared} compared");
}
