//! Changes of a machine in words.

use memgauge_analyze::WhatIf;

/// `-11.2 %`
pub(crate) fn difference(relative: f64) -> String {
    format!("{:+.1} %", relative * 100.0)
}

/// The change in words.
pub(crate) fn change(row: &WhatIf) -> String {
    match row.name.split_once('=') {
        None if row.name == "huge-pages" => "all memory in pages of 2 MiB".to_owned(),
        None => "next-line and stride prefetchers".to_owned(),
        Some(("machine", machine)) => format!("machine {machine}"),
        Some((cache, times)) => {
            let times = match times.trim_end_matches('x') {
                "2" => "twice".to_owned(),
                n => format!("{n} times"),
            };
            format!("{} {times} as large", cache.to_uppercase())
        }
    }
}
