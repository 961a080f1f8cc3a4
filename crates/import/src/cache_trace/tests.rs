//! Readers against writers that follow the public descriptions of the formats.

use super::*;

fn read_all(bytes: &[u8], format: &TraceFormat) -> (Vec<TraceRecord>, TraceSummary) {
    try_read(bytes, format).expect("the trace is readable")
}

fn try_read(bytes: &[u8], format: &TraceFormat) -> Result<(Vec<TraceRecord>, TraceSummary), Error> {
    let mut records = Vec::new();
    let mut input = bytes;
    let summary = read(&mut input, format, &mut |record: &TraceRecord| {
        records.push(*record);
        Ok::<(), Error>(())
    })?;
    Ok((records, summary))
}

fn keys(records: &[TraceRecord]) -> Vec<u64> {
    records.iter().map(|record| record.key).collect()
}

/// One record of `oracleGeneral`.
fn oracle(time: u32, key: u64, bytes: u32, next: i64) -> Vec<u8> {
    [
        &time.to_le_bytes()[..],
        &key.to_le_bytes(),
        &bytes.to_le_bytes(),
        &next.to_le_bytes(),
    ]
    .concat()
}

fn lcs_header(version: u64) -> Vec<u8> {
    let mut header = vec![0; 8192];
    let magic = 0x1234_5678_9abc_def0u64.to_le_bytes();
    header[..8].copy_from_slice(&magic);
    header[8..16].copy_from_slice(&version.to_le_bytes());
    header[8184..].copy_from_slice(&magic);
    header
}

fn vscsi_1(command: u16, block: u64, bytes: u32, time_us: u64) -> Vec<u8> {
    [
        &7u32.to_le_bytes()[..],
        &bytes.to_le_bytes(),
        &1u32.to_le_bytes(),
        &command.to_le_bytes(),
        &0x0100u16.to_le_bytes(),
        &block.to_le_bytes(),
        &time_us.to_le_bytes(),
    ]
    .concat()
}

fn vscsi_2(command: u16, block: u64, bytes: u32, time_us: u64) -> Vec<u8> {
    [
        &command.to_le_bytes()[..],
        &0x0200u16.to_le_bytes(),
        &7u32.to_le_bytes(),
        &bytes.to_le_bytes(),
        &1u32.to_le_bytes(),
        &block.to_le_bytes(),
        &time_us.to_le_bytes(),
        &0u64.to_le_bytes(),
    ]
    .concat()
}

#[test]
fn oracle_general_is_recognised_and_read() {
    // Requests count from 1 in the field of the next request.
    let trace = [
        oracle(5, 42, 512, 3),
        oracle(5, 7, 100, -1),
        oracle(6, 42, 512, 9000),
        oracle(6, 8, 0, i64::MAX),
        oracle(7, 9, 1, -1),
    ]
    .concat();
    assert_eq!(detect(&trace), Some(TraceFormat::OracleGeneral));
    let (records, summary) = read_all(&trace, &TraceFormat::OracleGeneral);
    assert_eq!(keys(&records), [42, 7, 42, 9]);
    assert_eq!(records[2].time_us, 6_000_000);
    assert_eq!((records[0].bytes, summary.empty), (512, 1));
    // Where the next request of the object should be, there is another object.
    let other = [
        oracle(5, 42, 512, 2),
        oracle(5, 7, 100, -1),
        oracle(6, 41, 512, 9000),
        oracle(6, 8, 0, -1),
    ];
    assert_eq!(detect(&other.concat()), None);
}

/// Loops and scans that are longer than the part used for detection.
#[test]
fn a_trace_that_begins_with_a_long_scan_is_recognised() {
    for (objects, bytes) in [(170, 4096), (5000, 700), (100_000, 1 << 20)] {
        let scan = (0..170u32).flat_map(|n| {
            oracle(
                n / 50,
                1 << 40 | u64::from(n * 7919),
                bytes,
                objects + i64::from(n),
            )
        });
        let scan: Vec<u8> = scan.collect();
        assert_eq!(
            detect(&scan),
            Some(TraceFormat::OracleGeneral),
            "{objects} {bytes}"
        );
    }
    // The next requests of two objects cannot be the same.
    let same = (0..170u32).flat_map(|n| oracle(0, u64::from(n), 4096, 5000));
    assert_eq!(detect(&same.collect::<Vec<u8>>()), None);
}

/// Three arrays that a loop reads, in mappings of any place.
#[test]
fn lists_of_addresses_of_several_arrays_are_no_traces() {
    let bases = [
        0x40_4000u64,
        0x2_4000_0000,
        0x5555_5555_8000,
        0x7fff_f7a0_0000,
    ];
    for first in bases {
        for second in bases {
            for third in bases {
                let turn = |n: u64| [first + 8 * n, second + 8 * n, third + 8 * n];
                let addresses = (0..170).flat_map(turn).flat_map(u64::to_le_bytes);
                let found = detect(&addresses.collect::<Vec<u8>>());
                assert_eq!(found, None, "{first:x} {second:x} {third:x}");
            }
        }
    }
}

#[test]
fn lists_of_addresses_are_no_traces() {
    for (start, step) in [
        (0u64, 8),
        (0x40_0000, 64),
        (0x1_4000_0000, 16),
        (0x7f00_0000_0000, 4096),
    ] {
        for length in [1, 5, 30, 10_000] {
            let addresses = (0..length).flat_map(|n| (start + n * step).to_le_bytes());
            assert_eq!(
                detect(&addresses.collect::<Vec<u8>>()),
                None,
                "{start:x} {length}"
            );
        }
    }
}

#[test]
fn the_example_in_the_documentation_is_read_as_it_says() {
    let bytes = [
        0x6a, 0xf7, 0x55, 0x00, 0x09, 0x1a, 0x8f, 0x02, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xff, 0xff,
        0xff, 0xff, 0xff, 0xff, 0xff,
    ];
    let (records, _) = read_all(&bytes, &TraceFormat::OracleGeneral);
    assert_eq!(
        (records[0].time_us, records[0].key, records[0].bytes),
        (5_633_898_000_000, 42_932_745, 512)
    );
}

#[test]
fn every_version_of_lcs_has_its_own_record_size() {
    let sizes = [24, 28, 36, 40, 44, 52, 68, 100];
    for (version, record_bytes) in (1u64..).zip(sizes) {
        let record = |key: u64, bytes: u64, operation: u8| {
            let mut record = 9u32.to_le_bytes().to_vec();
            record.extend(key.to_le_bytes());
            match version {
                1 | 2 => record.extend((bytes as u32).to_le_bytes()),
                _ => record.extend(bytes.to_le_bytes()),
            }
            if version > 1 {
                record.extend((u32::from(operation) | 77 << 8).to_le_bytes());
            }
            if version > 2 {
                record.extend(300u32.to_le_bytes());
            }
            record.extend((-1i64).to_le_bytes());
            record.resize(record_bytes, 0xee);
            record
        };
        let trace = [
            lcs_header(version),
            record(1, 10, 1),
            record(2, 20, 3),
            record(3, 30, 9),
        ]
        .concat();
        assert_eq!(detect(&trace), Some(TraceFormat::Lcs));
        let (records, summary) = read_all(&trace, &TraceFormat::Lcs);
        assert_eq!(keys(&records), [1, 2, 3], "version {version}");
        assert_eq!(records[1].bytes, 20);
        if version > 1 {
            use RequestOperation::{Delete, Read, Write};
            let operations: Vec<RequestOperation> = records.iter().map(|r| r.operation).collect();
            assert_eq!(operations, [Read, Write, Delete]);
            assert_eq!(summary.tenants, ["77"]);
        }
        let ttl = (version > 2).then_some(300);
        assert_eq!(records[0].ttl_s, ttl);
    }
}

#[test]
fn damaged_headers_of_lcs_are_refused() {
    let mut header = lcs_header(1);
    header[8191] = 0;
    for (bytes, what) in [
        (&header[..], "damaged"),
        (&lcs_header(9)[..], "version 9"),
        (&lcs_header(0)[..], "version 0"),
        (&lcs_header(1)[..500], "damaged"),
    ] {
        let error = try_read(bytes, &TraceFormat::Lcs).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn both_versions_of_vscsi_are_recognised_and_read() {
    let commands = [
        (0x28, 100, 4096, 1_000),
        (0x2a, 200, 512, 2_000),
        (0x88, 100, 1024, 3_000),
    ];
    let write = |make: fn(u16, u64, u32, u64) -> Vec<u8>| -> Vec<u8> {
        let records = commands.iter().map(|&(c, b, n, t)| make(c, b, n, t));
        records.collect::<Vec<_>>().concat()
    };
    for trace in [write(vscsi_1), write(vscsi_2)] {
        assert_eq!(detect(&trace), Some(TraceFormat::Vscsi));
        let (records, summary) = read_all(&trace, &TraceFormat::Vscsi);
        assert_eq!(keys(&records), [51_200, 102_400, 51_200]);
        assert_eq!(summary.operations, [2, 1, 0]);
        assert_eq!((records[2].time_us, records[2].bytes), (3_000, 1024));
    }
    let error = try_read(&[7; 400], &TraceFormat::Vscsi)
        .unwrap_err()
        .to_string();
    assert!(error.contains("neither version"), "{error}");
}

#[test]
fn truncated_traces_keep_their_whole_records() {
    let trace: Vec<u8> = (0..5).flat_map(|n| oracle(n, n.into(), 10, -1)).collect();
    for cut in 0..trace.len() {
        let (records, summary) = read_all(&trace[..cut], &TraceFormat::OracleGeneral);
        assert_eq!(records.len(), cut / 24);
        assert_eq!(summary.cut_bytes, cut % 24);
    }
    let (_, summary) = read_all(&trace[..100], &TraceFormat::OracleGeneral);
    let notes = summary.notes(&TraceFormat::OracleGeneral);
    assert_eq!(
        notes,
        ["truncated: 4 bytes after the last whole record were skipped"]
    );
}

#[test]
fn time_that_goes_back_is_told_and_replaced() {
    let trace = [
        oracle(9, 1, 10, -1),
        oracle(7, 2, 10, -1),
        oracle(8, 3, 10, -1),
    ]
    .concat();
    let (records, summary) = read_all(&trace, &TraceFormat::OracleGeneral);
    assert!(records.iter().all(|record| record.time_us == 9_000_000));
    assert_eq!((summary.backwards, summary.first_backwards), (2, Some(2)));
    assert!(summary.notes(&TraceFormat::OracleGeneral)[0].contains("first at record 2"));
}

#[test]
fn presets_read_tables_as_published() {
    let twitter = "0,q:q:1:8WTw,17,249,1,get,0\n3,yDqF:vS:G,26,27,18,add,86400\n\
                   4,q:q:1:8WTw,17,9,1,delete,0\n5,x,1,1,1,flush,0\n";
    assert_eq!(detect(twitter.as_bytes()), Some(TraceFormat::Twitter));
    let (records, summary) = read_all(twitter.as_bytes(), &TraceFormat::Twitter);
    assert_eq!(records[0].key, records[2].key);
    assert_eq!((records[0].bytes, records[1].bytes), (266, 53));
    assert_eq!(
        (records[1].ttl_s, records[1].time_us),
        (Some(86400), 3_000_000)
    );
    assert_eq!(summary.operations, [1, 1, 1]);
    assert_eq!(summary.tenants, ["1", "18"]);
    let (line, why) = summary.first_skipped.unwrap();
    assert_eq!((line, summary.skipped), (4, 1));
    assert!(why.starts_with("unknown operation"), "{why}");

    let meta = "op_time,key,key_size,op,op_count,size,cache_hits,ttl,usecase,sub_usecase\n\
                604038471,82131353f9ddc8c6,48,GET,3,87,1,0,366387042,3003229276\n\
                604038473,828769c1e1ce3a29,67,SET,1,65,0,7200,2777918327,655456894\n";
    assert_eq!(detect(meta.as_bytes()), Some(TraceFormat::Meta));
    let (records, summary) = read_all(meta.as_bytes(), &TraceFormat::Meta);
    assert_eq!(
        (records.len(), records[0], records[0].bytes),
        (4, records[2], 135)
    );
    assert_eq!(
        (records[3].ttl_s, records[3].operation),
        (Some(7200), RequestOperation::Write)
    );
    assert_eq!(summary.tenants, ["366387042", "2777918327"]);
    let old = "key,op,size,op_count,key_size\n1a,GET,0,2,10\n";
    assert_eq!(read_all(old.as_bytes(), &TraceFormat::Meta).0.len(), 2);
    let error = try_read(b"key,op\n1,GET\n", &TraceFormat::Meta).unwrap_err();
    assert!(error.to_string().contains("`key_size`"), "{error}");

    let store = "1219008 REST.PUT.OBJECT 8d4fcda3d675bac9 1056\n\
                 1221974 REST.HEAD.OBJECT 39d177fb735ac5df 528\n\
                 1232437 REST.GET.OBJECT 8d4fcda3d675bac9 1056 0 1055\n\
                 1232777 REST.DELETE.OBJECT 8d4fcda3d675bac9\n";
    assert_eq!(detect(store.as_bytes()), Some(TraceFormat::IbmCos));
    let (records, summary) = read_all(store.as_bytes(), &TraceFormat::IbmCos);
    assert_eq!((records.len(), summary.operations), (3, [1, 1, 1]));
    assert_eq!(records[1].time_us, 1_232_437_000);

    let images = "relative_unix\thashed_path_query\timage_type\tresponse_size\ttime_firstbyte\n\
                  0\t833946053\tjpeg\t9665\t1.85E-4\n";
    let text = "0\t-4725206137\t57701\t1.46E-4\n";
    for (table, bytes) in [(images, 9665), (text, 57_701)] {
        let (records, _) = read_all(table.as_bytes(), &TraceFormat::Wikipedia);
        assert_eq!((records.len(), records[0].bytes), (1, bytes));
    }
    assert_eq!(detect(images.as_bytes()), Some(TraceFormat::Wikipedia));
}

#[test]
fn disks_of_msr_traces_do_not_share_addresses() {
    let table = "128166372003061629,hm,1,Read,4096,8192,100\n\
                 128166372003061639,hm,0,Write,4096,512,100\n\
                 128166372003061649,hm,1,Read,4096,512,100\n\
                 128166372003061649,hm,1,Read,99999999999999999,512,100\n";
    assert_eq!(detect(table.as_bytes()), Some(TraceFormat::Msr));
    let (records, summary) = read_all(table.as_bytes(), &TraceFormat::Msr);
    assert_eq!(keys(&records), [4096, 4096 | 1 << 48, 4096]);
    assert_eq!(records[1].time_us - records[0].time_us, 1);
    assert_eq!(summary.tenants, ["hm.1", "hm.0"]);
    assert_eq!(summary.skipped, 1);
}

#[test]
fn columns_are_chosen_with_and_without_a_heading_and_with_any_delimiter() {
    let headed = "when;who;what;how;n\n1.5;a;x y;read;10\n2;b;x y;write;20\n";
    let format = "csv:time=when,key=what,size=n,op=how,tenant=who"
        .parse()
        .unwrap();
    let (records, summary) = read_all(headed.as_bytes(), &format);
    assert_eq!(records[0].key, records[1].key);
    assert_eq!((records[0].time_us, records[1].bytes), (1_500_000, 20));
    assert_eq!(
        (summary.tenants, summary.text_keys),
        (vec!["a".into(), "b".into()], 2)
    );
    for (delimiter, name) in [('\t', "tab"), (' ', "space"), ('|', "bar"), (',', "comma")] {
        let headless = format!("7{delimiter}100{delimiter}30\n8{delimiter}200{delimiter}40\n");
        let format = "csv:id=2,size=3,time=1".parse().unwrap();
        let (records, _) = read_all(headless.as_bytes(), &format);
        assert_eq!(keys(&records), [100, 200], "{name}");
    }
    // A heading over columns that are numbered is recognised by a size that is no number.
    let format = "csv:id=1,size=2".parse().unwrap();
    assert_eq!(keys(&read_all(b"id,size\n5,6\n", &format).0), [5]);
    // With IDs only, a heading cannot be distinguished from a key, so the user may have to decide.
    let mut table: TableLayout = "id=1".parse().unwrap();
    assert_eq!(
        read_all(b"id\n5\n", &TraceFormat::Table(table.clone()))
            .0
            .len(),
        2
    );
    table.has_header = Some(true);
    assert_eq!(read_all(b"id\n5\n", &TraceFormat::Table(table)).0.len(), 1);
}

#[test]
fn keys_are_numbers_or_hashed_text_and_mixtures_are_told() {
    let format: TraceFormat = "csv:id=1".parse().unwrap();
    let (records, summary) = read_all(b"7\n007\n0x7\n-1\nseven\n", &format);
    assert_eq!(keys(&records)[..4], [7, 7, 7, u64::MAX]);
    assert_eq!((summary.number_keys, summary.text_keys), (4, 1));
    assert!(summary.notes(&format)[0].contains("keys are mixed: 4 are numbers, 1 are text"));
    let format = "csv:key=1".parse().unwrap();
    let (records, _) = read_all(b"7\n007\n", &format);
    assert_ne!(records[0].key, records[1].key);
}

#[test]
fn sizes_that_are_no_numbers_or_huge_are_told_by_line() {
    let format: TraceFormat = "csv:id=1,size=2".parse().unwrap();
    let table = b"1,9223372036854775808\n2,-5\n3,0\n4\n5,99999999999999999999\n6,6\n";
    let (records, summary) = read_all(table, &format);
    assert_eq!(keys(&records), [1, 6]);
    assert_eq!(
        (records[0].bytes, summary.empty, summary.skipped),
        (1 << 63, 1, 3)
    );
    assert_eq!(summary.first_skipped.unwrap().0, 2);
}

#[test]
fn a_bad_number_in_the_first_row_is_no_heading() {
    let format: TraceFormat = "csv:id=1,size=2,time=3".parse().unwrap();
    for (row, skipped) in [
        ("1,-5,0", 1),
        ("1,99999999999999999999,0", 1),
        ("1,7,-3", 1),
    ] {
        let (records, summary) = read_all(format!("{row}\n2,6,0\n").as_bytes(), &format);
        assert_eq!(
            (keys(&records), summary.skipped),
            (vec![2], skipped),
            "{row}"
        );
    }
    assert_eq!(read_all(b"id,size,at\n2,6,0\n", &format).1.skipped, 0);
}

#[test]
fn unknown_columns_and_roles_are_named() {
    for (format, what) in [
        ("csv:size=1", "`id` or `key`"),
        ("csv:id=0", "counted from 1"),
        ("csv:id=1,colour=2", "`colour`"),
        ("csv:id=1,key=2", "two columns"),
        ("csv:id=1,2", "ROLE=COLUMN"),
    ] {
        let error = format.parse::<TraceFormat>().unwrap_err();
        assert!(error.contains(what), "{format}: {error}");
    }
    for (format, what) in [("csv:id=9", "has 2 columns"), ("csv:id=name", "`name`")] {
        let error = try_read(b"1,2\n", &format.parse().unwrap()).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
}

#[test]
fn empty_inputs_have_no_records() {
    for format in TraceFormat::NAMED {
        if format != TraceFormat::Lcs {
            let (records, summary) = read_all(b"", &format);
            assert_eq!(
                (records.len(), summary),
                (0, TraceSummary::default()),
                "{format}"
            );
        }
        assert_eq!(format.to_string().parse(), Ok(format));
    }
    assert_eq!(detect(b""), None);
}

#[test]
fn no_bytes_make_the_readers_panic() {
    let mut state = 1u64;
    let mut noise = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state >> 33
    };
    let pieces: [&[u8]; 10] = [
        b"1",
        b",",
        b"\n",
        b"GET",
        b"\t",
        b"key,op,size,op_count,key_size",
        b"\xff",
        b"-",
        b"\"",
        b"REST.GET.OBJECT ",
    ];
    let table = "csv:id=1,size=2,op=3".parse().unwrap();
    let formats: Vec<TraceFormat> = TraceFormat::NAMED.into_iter().chain([table]).collect();
    for round in 0..3000 {
        let text: Vec<u8> = (0..30)
            .flat_map(|_| pieces[noise() as usize % 10].to_vec())
            .collect();
        let binary: Vec<u8> = (0..round % 300).map(|_| noise() as u8).collect();
        for bytes in [text, binary] {
            let _ = detect(&bytes);
            for format in &formats {
                let _ = try_read(&bytes, format);
            }
        }
    }
}
