//! Lists of addresses, as programs and tools write them.
//!
//! | Format | |
//! |---|---|
//! | `raw` | 64-bit words, little endian |
//! | `text` | a line each: decimal, or hexadecimal behind `0x` |
//! | `hex` | a line each: hexadecimal, with or without `0x` |
//! | `lackey` | what `valgrind --tool=lackey --trace-mem=yes` prints: ` L`, ` S` and ` M` lines; instruction fetches (`I`) are left out |
//! | `csv:COLUMN` | a column of a table with a heading, as `text` |
//! | `parquet:COLUMN` | a column of whole numbers of a Parquet file, not from standard input |
//!
//! Files compressed by gzip and zstd are unpacked on the way; others are refused.
//! Empty lines and lines that begin with `#` are nothing; lines that are no
//! address are counted and the first is named.

use std::io::{BufRead, BufReader, Read};
use std::str::FromStr;

use anyhow::Context as _;

/// How addresses are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Raw,
    Text,
    Hex,
    Lackey,
    Csv(String),
    Parquet(String),
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "raw" => Ok(Format::Raw),
            "text" => Ok(Format::Text),
            "hex" => Ok(Format::Hex),
            "lackey" => Ok(Format::Lackey),
            _ => match text.split_once(':') {
                Some(("csv", column)) if !column.is_empty() => Ok(Format::Csv(column.to_owned())),
                Some(("parquet", column)) if !column.is_empty() => {
                    Ok(Format::Parquet(column.to_owned()))
                }
                _ => {
                    Err("expected raw, text, hex, lackey, csv:COLUMN or parquet:COLUMN".to_owned())
                }
            },
        }
    }
}

/// References in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Accesses {
    /// First byte of each.
    pub(crate) addresses: Vec<u64>,
    /// Bytes, for those of more than one byte: which, and how many.
    pub(crate) sizes: Vec<(usize, u32)>,
}

impl Accesses {
    pub(crate) fn push(&mut self, address: u64, bytes: u32) {
        if bytes > 1 {
            self.sizes.push((self.addresses.len(), bytes));
        }
        self.addresses.push(address);
    }

    /// Adds further accesses; those of more than one byte are listed apart.
    pub(crate) fn append(&mut self, addresses: &[u64], sizes: &[(usize, u32)]) {
        let before = self.addresses.len();
        let moved = sizes.iter().map(|&(at, bytes)| (before + at, bytes));
        self.sizes.extend(moved);
        self.addresses.extend_from_slice(addresses);
    }

    pub(crate) fn clear(&mut self) {
        self.addresses.clear();
        self.sizes.clear();
    }
}

/// The lines, rows and bytes of an input that could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnreadableInput {
    /// Lines that are no address.
    pub(crate) lines: u64,
    /// The first of them, by number and content.
    pub(crate) first: Option<(u64, String)>,
    /// Bytes after the last whole word.
    pub(crate) bytes: usize,
    /// Rows of a Parquet file without an address.
    pub(crate) gaps: u64,
}

/// References passed on at a time.
const BATCH: usize = 1 << 16;
/// Longest line looked at; what is beyond is another.
const LONGEST_LINE: u64 = 1 << 12;
/// Bytes from which a format is guessed.
const GUESSED_FROM: usize = 1 << 12;

/// Reads all references; `take` gets them in batches.
///
/// # Errors
/// Errors of the reader or of `take`, or a table without the column.
pub(crate) fn read(
    input: impl Read,
    format: Option<&Format>,
    take: &mut dyn FnMut(&Accesses) -> anyhow::Result<()>,
) -> anyhow::Result<UnreadableInput> {
    let mut input = buffered(input);
    match Packing::of(input.fill_buf()?) {
        None => read_plain(input, format, take),
        Some(Packing::Gzip) => {
            let plain = flate2::bufread::MultiGzDecoder::new(input);
            read_plain(buffered(plain), format, take).context("it is compressed by gzip")
        }
        Some(Packing::Zstd) => {
            let plain = zstd::stream::read::Decoder::with_buffer(input)?;
            read_plain(buffered(plain), format, take).context("it is compressed by zstd")
        }
        Some(Packing::Other(name, tool)) => anyhow::bail!(
            "it is compressed by {name}: unpack it, as in `{tool} FILE | memgauge mrc -`"
        ),
    }
}

fn buffered<R: Read>(input: R) -> BufReader<R> {
    BufReader::with_capacity(1 << 19, input)
}

/// How a list is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    Gzip,
    Zstd,
    /// One that is not read: its name, and what unpacks it.
    Other(&'static str, &'static str),
}

impl Packing {
    /// By the bytes that such files begin with.
    fn of(start: &[u8]) -> Option<Packing> {
        let all: [(&[u8], Packing); 5] = [
            (b"\x1f\x8b\x08", Packing::Gzip),
            (b"\x28\xb5\x2f\xfd", Packing::Zstd),
            (b"\xfd7zXZ\0", Packing::Other("xz", "xz -dc")),
            (b"BZh91AY", Packing::Other("bzip2", "bzip2 -dc")),
            (b"\x04\x22\x4d\x18", Packing::Other("lz4", "lz4 -dc")),
        ];
        let found = all.iter().find(|(magic, _)| start.starts_with(magic));
        found.map(|(_, packing)| *packing)
    }
}

fn read_plain(
    mut input: impl BufRead,
    format: Option<&Format>,
    take: &mut dyn FnMut(&Accesses) -> anyhow::Result<()>,
) -> anyhow::Result<UnreadableInput> {
    let start = input.fill_buf()?;
    if start.starts_with(b"PAR1") {
        anyhow::bail!(
            "failed to read Parquet: name the column of addresses, as in --format \
             parquet:COLUMN, and a file, not a pipe"
        );
    }
    if format.is_none() && (start.starts_with(b"\x7fELF") || start.starts_with(b"#!")) {
        anyhow::bail!(
            "it is a program: `memgauge mrc -- PROGRAM` runs it, and `--format` says how it is read as \
             a list"
        );
    }
    let guessed = guess(start);
    if format.is_none() && guessed == Format::Text {
        return read_guessed_text(input, take);
    }
    match format.unwrap_or(&guessed) {
        Format::Raw => read_raw(input, take),
        Format::Csv(column) => read_csv(input, column, take),
        Format::Text => read_lines(input, |line| number(line).map(|n| (n, 1)).into(), take),
        Format::Hex => read_lines(input, |line| hex(line).map(|n| (n, 1)).into(), take),
        Format::Lackey => read_lines(input, lackey, take),
        Format::Parquet(_) => anyhow::bail!(
            "failed to read Parquet: the input is a pipe or not \
        a Parquet file: name a Parquet file"
        ),
    }
}

/// As `text`, unless most lines turn out to be something else: a curve of the few would
/// look like one of all.
fn read_guessed_text(
    input: impl BufRead,
    take: &mut dyn FnMut(&Accesses) -> anyhow::Result<()>,
) -> anyhow::Result<UnreadableInput> {
    let mut addresses = 0;
    let junk = read_lines(
        input,
        |line| number(line).map(|n| (n, 1)).into(),
        &mut |accesses| {
            addresses += accesses.addresses.len() as u64;
            take(accesses)
        },
    )?;
    // A list without any address is told by who reads it.
    let is_wrong = (1..junk.lines).contains(&addresses);
    let Some((line, text)) = junk.first.as_ref().filter(|_| is_wrong) else {
        return Ok(junk);
    };
    anyhow::bail!(
        "failed to guess the format: {} of {} lines are no decimal address, the first is line {line}, \
         `{text}`: name the format, as in --format hex",
        junk.lines,
        junk.lines + addresses
    )
}

fn guess(start: &[u8]) -> Format {
    let start = &start[..start.len().min(GUESSED_FROM)];
    let is_text = |b: &u8| matches!(b, b'\t' | b'\n' | b'\r' | b' '..=b'~') || *b >= 0x80;
    if !start.iter().all(is_text)
        || std::str::from_utf8(start).is_err_and(|e| e.error_len().is_some())
    {
        return Format::Raw;
    }
    let text = String::from_utf8_lossy(start);
    let of_lackey = |line: &str| matches!(lackey(line), Line::Access(..));
    if text.lines().any(of_lackey) {
        return Format::Lackey;
    }
    // The last line may be cut off. Lines with and without `0x` are text as they are.
    let whole = text.rsplit_once('\n').map_or(&*text, |(whole, _)| whole);
    let lines = whole.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut others = lines.filter(|line| number(line).is_none()).peekable();
    match others.peek().is_some() && others.all(|line| hex(line).is_some()) {
        true => Format::Hex,
        false => Format::Text,
    }
}

fn read_raw(
    mut input: impl Read,
    take: &mut dyn FnMut(&Accesses) -> anyhow::Result<()>,
) -> anyhow::Result<UnreadableInput> {
    let mut bytes = vec![0; 8 * BATCH];
    let mut accesses = Accesses::default();
    let mut held = 0;
    loop {
        let got = match input.read(&mut bytes[held..]) {
            Ok(0) => break,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            got => got?,
        };
        held += got;
        let (words, rest) = bytes[..held].as_chunks::<8>();
        accesses
            .addresses
            .extend(words.iter().map(|w| u64::from_le_bytes(*w)));
        let (whole, left) = (8 * words.len(), rest.len());
        bytes.copy_within(whole..whole + left, 0);
        held = left;
        take(&accesses)?;
        accesses.clear();
    }
    Ok(UnreadableInput {
        bytes: held,
        ..UnreadableInput::default()
    })
}

/// One line, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Access(u64, u32),
    Nothing,
    UnreadableInput,
}

impl From<Option<(u64, u32)>> for Line {
    fn from(access: Option<(u64, u32)>) -> Line {
        access.map_or(Line::UnreadableInput, |(address, bytes)| {
            Line::Access(address, bytes)
        })
    }
}

fn read_lines(
    mut input: impl BufRead,
    parse: impl Fn(&str) -> Line,
    take: &mut dyn FnMut(&Accesses) -> anyhow::Result<()>,
) -> anyhow::Result<UnreadableInput> {
    let mut accesses = Accesses::default();
    let mut junk = UnreadableInput::default();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if input
            .by_ref()
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut line)?
            == 0
        {
            break;
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        match parse(text) {
            Line::Access(address, bytes) => accesses.push(address, bytes),
            Line::Nothing => {}
            Line::UnreadableInput => {
                junk.lines += 1;
                junk.first.get_or_insert_with(|| (number, shown(text)));
            }
        }
        if accesses.addresses.len() == BATCH {
            take(&accesses)?;
            accesses.clear();
        }
    }
    take(&accesses)?;
    Ok(junk)
}

/// The beginning of a line, fit to be shown.
fn shown(line: &str) -> String {
    line.chars().filter(|c| !c.is_control()).take(40).collect()
}

fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => digits_of(digits, 16),
        None => digits_of(text, 10),
    }
}

fn hex(text: &str) -> Option<u64> {
    let text = text.trim();
    digits_of(
        text.strip_prefix("0x")
            .or_else(|| text.strip_prefix("0X"))
            .unwrap_or(text),
        16,
    )
}

/// `from_str_radix` would take a sign.
fn digits_of(text: &str, radix: u32) -> Option<u64> {
    let unsigned = text.starts_with(|c: char| c.is_digit(radix));
    unsigned
        .then(|| u64::from_str_radix(text, radix).ok())
        .flatten()
}

fn lackey(line: &str) -> Line {
    let Some((kind, rest)) = line.split_at_checked(3) else {
        return Line::UnreadableInput;
    };
    if line.starts_with("==") {
        return Line::Nothing;
    }
    let Some((address, bytes)) = rest.split_once(',') else {
        return Line::UnreadableInput;
    };
    match (kind, digits_of(address, 16), bytes.parse::<u32>()) {
        ("I  ", Some(_), Ok(_)) => Line::Nothing,
        (" L " | " S " | " M ", Some(address), Ok(bytes @ 1..=4096)) => {
            Line::Access(address, bytes)
        }
        _ => Line::UnreadableInput,
    }
}

/// Reads the heading, then numbers from its column.
fn read_csv(
    input: impl Read,
    column: &str,
    take: &mut dyn FnMut(&Accesses) -> anyhow::Result<()>,
) -> anyhow::Result<UnreadableInput> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .comment(Some(b'#'))
        .from_reader(input);
    let mut accesses = Accesses::default();
    let mut junk = UnreadableInput::default();
    let mut record = csv::ByteRecord::new();
    let mut at = None;
    while reader.read_byte_record(&mut record)? {
        let Some(at) = at else {
            at = Some(place(&record, column)?);
            continue;
        };
        let field = record.get(at).and_then(|f| std::str::from_utf8(f).ok());
        match field.and_then(number) {
            Some(address) => accesses.push(address, 1),
            None if record.iter().all(|f| f.trim_ascii().is_empty()) && record.len() == 1 => {}
            None => {
                junk.lines += 1;
                let line = record.position().map_or(0, csv::Position::line);
                junk.first
                    .get_or_insert_with(|| (line, shown(&joined(&record))));
            }
        }
        if accesses.addresses.len() == BATCH {
            take(&accesses)?;
            accesses.clear();
        }
    }
    take(&accesses)?;
    Ok(junk)
}

/// Where the heading has a column.
fn place(heading: &csv::ByteRecord, column: &str) -> anyhow::Result<usize> {
    let found = heading
        .iter()
        .position(|f| f.trim_ascii() == column.as_bytes());
    found.ok_or_else(|| {
        anyhow::anyhow!(
            "failed to find column `{column}`: the heading is `{}`",
            shown(&joined(heading))
        )
    })
}

fn joined(record: &csv::ByteRecord) -> String {
    let fields: Vec<_> = record.iter().map(String::from_utf8_lossy).collect();
    fields.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(input: &[u8], format: Option<&str>) -> (Accesses, UnreadableInput) {
        let format = format.map(|f| f.parse().unwrap());
        let mut all = Accesses::default();
        let junk = read(input, format.as_ref(), &mut |batch| {
            let before = all.addresses.len();
            all.addresses.extend(&batch.addresses);
            all.sizes
                .extend(batch.sizes.iter().map(|&(at, n)| (at + before, n)));
            Ok(())
        });
        (all, junk.unwrap())
    }

    #[test]
    fn raw_words_are_recognised_and_a_cut_one_is_counted() {
        let mut bytes: Vec<u8> = [0u64, 0x7f00_0000_1000, u64::MAX]
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect();
        bytes.extend([1, 2, 3]);
        let (all, junk) = parse(&bytes, None);
        assert_eq!(all.addresses, [0, 0x7f00_0000_1000, u64::MAX]);
        assert_eq!(junk.bytes, 3);
    }

    #[test]
    fn a_program_is_no_list_unless_its_format_is_named() {
        for start in [&b"\x7fELF\x02\x01\x01\0"[..], b"#!/bin/sh\n12\n"] {
            let error = read(start, None, &mut |_| Ok(())).unwrap_err().to_string();
            assert!(error.contains("`memgauge mrc -- PROGRAM`"), "{error}");
        }
        assert_eq!(
            parse(b"\x7fELF\x02\x01\x01\0", Some("raw"))
                .0
                .addresses
                .len(),
            1
        );
        assert_eq!(parse(b"#!/bin/sh\n12\n", Some("text")).0.addresses, [12]);
    }

    #[test]
    fn text_is_decimal_or_hexadecimal_and_junk_is_named() {
        let (all, junk) = parse(
            b"# list\n10\n0x10\r\n\nnonsense\n18446744073709551615\n-1\n+5\n0x\n",
            Some("text"),
        );
        assert_eq!(all.addresses, [10, 16, u64::MAX]);
        assert_eq!(junk.lines, 4);
        assert_eq!(junk.first, Some((5, "nonsense".to_owned())));
        assert_eq!(parse(b"ff\n0x10\n", Some("hex")).0.addresses, [255, 16]);
    }

    #[test]
    fn lists_of_hexadecimal_lines_are_recognised_or_refused() {
        let list = |addresses: &[u64]| -> Vec<u8> {
            let lines = addresses.iter().map(|address| format!("{address:x}\n"));
            lines.collect::<String>().into_bytes()
        };
        let addresses = [0, 0x40, 0x80, 0xc0, 0x100];
        let (all, junk) = parse(&list(&addresses), None);
        assert_eq!((all.addresses.as_slice(), junk.lines), (&addresses[..], 0));
        // Decimal lines with one that is nothing stay decimal.
        let (all, junk) = parse(b"10\n20\nabc no number\n30\n", None);
        assert_eq!((all.addresses, junk.lines), (vec![10, 20, 30], 1));
        // Letters come after what is guessed from.
        let mut late = list(&[0x40; 2000]);
        late.extend(list(&[0xc0; 3000]));
        let error = read(&late[..], None, &mut |_| Ok(()))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("3000 of 5000 lines") && error.contains("--format hex"),
            "{error}"
        );
        assert_eq!(parse(&late, Some("text")).1.lines, 3000);
    }

    #[test]
    fn lackey_output_gives_loads_and_stores_with_their_sizes() {
        let text =
            b"==1== Lackey\nI  04001000,3\n L 1ffeffff,8\n S 04025310,4\n M 0421c7cc,1\n L bad\n";
        let (all, junk) = parse(text, None);
        assert_eq!(all.addresses, [0x1ffe_ffff, 0x0402_5310, 0x0421_c7cc]);
        assert_eq!(all.sizes, [(0, 8), (1, 4)]);
        assert_eq!(junk.lines, 1);
    }

    #[test]
    fn a_column_of_a_table_is_read_and_a_missing_one_is_named() {
        let (all, junk) = parse(b"time,\"addr\",x\n1,0x40,2\n2,128,3\n3\n", Some("csv:addr"));
        assert_eq!(all.addresses, [64, 128]);
        assert_eq!(junk.lines, 1);
        assert_eq!(junk.first, Some((4, "3".to_owned())));
        let format = Format::Csv("address".to_owned());
        let error = read(&b"a,b\n1,2\n"[..], Some(&format), &mut |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("`address`"), "{error}");
    }

    #[test]
    fn a_comma_in_quotes_does_not_begin_another_column() {
        let table = b"# made by hand\r\nname,\"at, hex\",n\r\n\"a,b\",0x40,1\r\n\r\n  \r\nc,\" 0x80\",2\r\n";
        let (all, junk) = parse(table, Some("csv:at, hex"));
        assert_eq!(all.addresses, [0x40, 0x80]);
        assert_eq!(junk, UnreadableInput::default());
    }

    #[test]
    fn lists_in_gzip_and_zstd_are_unpacked_and_others_are_named() {
        use std::io::Write as _;
        let words: Vec<u8> = (0..50_000u64)
            .flat_map(|n| (n * 64).to_le_bytes())
            .collect();
        let text: Vec<u8> = (0..500)
            .flat_map(|n| format!("{n}\n").into_bytes())
            .collect();
        for list in [&words, &text] {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), Default::default());
            gzip.write_all(list).unwrap();
            let gzip = gzip.finish().unwrap();
            let zstd = zstd::encode_all(&list[..], 1).unwrap();
            let expected = parse(list, None);
            // Two members or frames, one after the other, are one list.
            for packed in [gzip, zstd] {
                assert_eq!(parse(&packed, None), expected);
                let twice = parse(&packed.repeat(2), None).0;
                assert_eq!(twice.addresses.len(), 2 * expected.0.addresses.len());
                let cut = &packed[..packed.len() / 2];
                let error = read(cut, None, &mut |_| Ok(())).unwrap_err();
                assert!(format!("{error:#}").contains("compressed by"), "{error:#}");
            }
        }
        for (start, tool) in [
            (&b"\xfd7zXZ\0..."[..], "xz -dc"),
            (b"BZh91AY&SY", "bzip2 -dc"),
        ] {
            let error = read(start, None, &mut |_| Ok(())).unwrap_err();
            assert!(error.to_string().contains(tool), "{error}");
        }
    }

    /// Numbers that look random (splitmix64).
    fn noise(seed: u64) -> impl Iterator<Item = u64> {
        (1u64..).map(move |n| {
            let z = seed.wrapping_add(n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z ^ z >> 31
        })
    }

    #[test]
    fn no_bytes_make_the_readers_panic() {
        let pieces: [&[u8]; 12] = [
            b" L ",
            b"I  ",
            b"0x",
            b"1",
            b"f",
            b",",
            b"\n",
            b"\xff",
            b"==",
            b"\xc3",
            b"a,b",
            b"999999999999999999999",
        ];
        for seed in 0..4000 {
            let picks: Vec<u64> = noise(seed).take(40).collect();
            let bytes: Vec<u8> = picks
                .iter()
                .flat_map(|n| pieces[*n as usize % 12].to_vec())
                .collect();
            for format in [
                None,
                Some("raw"),
                Some("text"),
                Some("hex"),
                Some("lackey"),
                Some("csv:a"),
                Some("parquet:a"),
            ] {
                let format = format.map(|f| f.parse().unwrap());
                let _ = read(&bytes[..], format.as_ref(), &mut |_| Ok(()));
            }
        }
    }
}
