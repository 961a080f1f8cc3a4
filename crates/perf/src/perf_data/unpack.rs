//! Unpacks compressed records. All of them contain one zstd stream, and an unpacked record may
//! begin in one and end in another.

use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

use super::WalkEnd;
use crate::record::{HEADER_BYTES, Header};

/// Number of bytes unpacked at a time. This limits the memory, whatever a record unpacks to.
const STEP_BYTES: usize = 1 << 18;

#[derive(Default)]
pub(super) struct Unpacker {
    decoder: Option<Decoder<'static>>,
    /// The beginning of a record that ends in a later compressed record, less than 64 KiB.
    rest: Vec<u8>,
}

type Each<'a, E> = &'a mut dyn FnMut(Header, &[u8]) -> Result<(), E>;

impl Unpacker {
    pub(super) fn unpack<E>(&mut self, packed: &[u8], each: Each<'_, E>) -> Result<(), WalkEnd<E>> {
        let damaged = |e: std::io::Error| WalkEnd::<E>::Damaged(format!("compressed records: {e}"));
        let mut decoder = match self.decoder.take() {
            Some(decoder) => decoder,
            None => Decoder::new().map_err(damaged)?,
        };
        let mut input = InBuffer::around(packed);
        let mut bytes = vec![0u8; STEP_BYTES];
        loop {
            let mut output = OutBuffer::around(bytes.as_mut_slice());
            let before = input.pos();
            decoder.run(&mut input, &mut output).map_err(damaged)?;
            let n = output.pos();
            if n == 0 && input.pos() == before && before < packed.len() {
                return Err(WalkEnd::Damaged(
                    "compressed records do not unpack".to_owned(),
                ));
            }
            self.rest.extend_from_slice(&bytes[..n]);
            self.records(each)?;
            if input.pos() == packed.len() && n < STEP_BYTES {
                break;
            }
        }
        self.decoder = Some(decoder);
        Ok(())
    }

    fn records<E>(&mut self, each: Each<'_, E>) -> Result<(), WalkEnd<E>> {
        let mut at = 0;
        while let Some(header) = Header::parse(&self.rest[at..]) {
            let size = usize::from(header.size);
            if size < HEADER_BYTES {
                return Err(WalkEnd::Damaged(
                    "a compressed record has no size".to_owned(),
                ));
            }
            let Some(record) = self.rest.get(at..at + size) else {
                break;
            };
            each(header, &record[HEADER_BYTES..])?;
            at += size;
        }
        self.rest.drain(..at);
        Ok(())
    }
}
