//! CRC-32 as gzip and Ethernet compute it (polynomial 0xEDB88320, reflected),
//! eight bytes a step, so that any language's standard library can check a
//! part.

const POLYNOMIAL: u32 = 0xEDB8_8320;
const LANES: usize = 8;

static TABLES: [[u32; 256]; LANES] = tables();

const fn tables() -> [[u32; 256]; LANES] {
    let mut tables = [[0u32; 256]; LANES];
    let mut byte = 0;
    while byte < 256 {
        tables[0][byte] = shifted(byte as u32);
        byte += 1;
    }
    let mut lane = 1;
    while lane < LANES {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[lane - 1][byte];
            tables[lane][byte] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        lane += 1;
    }
    tables
}

const fn shifted(byte: u32) -> u32 {
    let mut value = byte;
    let mut bit = 0;
    while bit < 8 {
        value = if value & 1 == 1 {
            (value >> 1) ^ POLYNOMIAL
        } else {
            value >> 1
        };
        bit += 1;
    }
    value
}

/// A checksum in progress.
#[derive(Clone)]
pub(super) struct Crc32(u32);

impl Crc32 {
    pub(super) fn new() -> Self {
        Crc32(!0)
    }

    /// The checksum of `bytes` alone.
    pub(super) fn of(bytes: &[u8]) -> u32 {
        let mut crc = Crc32::new();
        crc.update(bytes);
        crc.value()
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        let (chunks, rest) = bytes.as_chunks::<LANES>();
        for chunk in chunks {
            self.0 = step(self.0, *chunk);
        }
        for &byte in rest {
            self.0 = (self.0 >> 8) ^ TABLES[0][usize::from(self.0 as u8 ^ byte)];
        }
    }

    pub(super) fn value(&self) -> u32 {
        !self.0
    }
}

#[inline]
fn step(crc: u32, chunk: [u8; LANES]) -> u32 {
    let word = u64::from_le_bytes(chunk) ^ u64::from(crc);
    word.to_le_bytes()
        .iter()
        .zip(TABLES.iter().rev())
        .fold(0, |sum, (&byte, table)| sum ^ table[usize::from(byte)])
}

#[cfg(test)]
mod tests {
    use super::Crc32;

    /// The catalogue's check value for this CRC: the nine ASCII digits.
    #[test]
    fn the_check_value_of_the_catalogue_comes_out() {
        assert_eq!(Crc32::of(b"123456789"), 0xCBF4_3926);
    }

    #[test]
    fn pieces_of_any_length_sum_like_the_whole() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 31) as u8).collect();
        for cut in 0..40 {
            let mut crc = Crc32::new();
            crc.update(&bytes[..cut]);
            crc.update(&bytes[cut..]);
            assert_eq!(crc.value(), Crc32::of(&bytes));
        }
    }
}
