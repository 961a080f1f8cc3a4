#![no_main]

use libfuzzer_sys::fuzz_target;
use memgauge_import::Error;
use memgauge_import::addresses::{AddressFormat, read};

// The first byte selects the format. No input makes a reader panic, and none has
// more references than bytes.
fuzz_target!(|input: &[u8]| {
    let Some((&first, rest)) = input.split_first() else {
        return;
    };
    let formats = ["raw", "text", "hex", "lackey", "csv:a", "parquet:a"];
    let format: Option<AddressFormat> = formats
        .get(usize::from(first) % (formats.len() + 1))
        .and_then(|name| name.parse().ok());
    let mut references = 0;
    let _ = read(rest, format.as_ref(), &mut |accesses| {
        references += accesses.addresses.len();
        Ok::<(), Error>(())
    });
    assert!(references <= rest.len());
});
