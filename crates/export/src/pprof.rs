//! Writes pprof's `profile.proto`, gzipped: one sample per row of the instruction table, with the
//! counts of all events and its inlined functions as lines. If stacks were recorded, each call
//! chain is a sample as well, with sample types of its own: chains come from samples while counts
//! by code can be exact, and one common type would count each event twice.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use memgauge_analyze::{CallNode, HotRow, Summary};
use prost::Message;

use super::places::{code_provenance, events, unit, values, with_rest};
use super::{Error, NOT_LISTED};

/// The fields that are written, with their numbers in google/pprof's `profile.proto`.
#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(int64, repeated, tag = "13")]
    comment: Vec<i64>,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
    #[prost(bool, tag = "8")]
    has_filenames: bool,
    #[prost(bool, tag = "9")]
    has_line_numbers: bool,
    #[prost(bool, tag = "10")]
    has_inline_frames: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// Builds a profile. IDs start at 1, strings at 0 with the empty string.
#[derive(Default)]
struct ProfileBuilder {
    profile: Profile,
    strings: HashMap<String, i64>,
    functions: HashMap<(String, String), u64>,
    mappings: HashMap<String, u64>,
}

pub(crate) fn write(summary: &Summary, out: &mut dyn Write) -> Result<(), Error> {
    let mut builder = ProfileBuilder::default();
    builder.string("");
    let places = events(summary, &summary.hot.instructions);
    let places = match summary.calls.is_empty() {
        true => places?,
        // Call chains are sufficient for a profile.
        false => places.unwrap_or_default(),
    };
    // pprof takes the first mapping for the program itself.
    if let Some(module) = own_module(summary) {
        builder.mapping(module);
    }
    builder.types(summary, &places);
    builder.places(summary, &places);
    builder.calls(summary, places.len());
    builder.profile.time_nanos = signed(summary.recording.started_unix_ns);
    builder.profile.duration_nanos = signed(summary.run.duration_ns);
    let mut packed = GzEncoder::new(out, Compression::default());
    packed.write_all(&builder.profile.encode_to_vec())?;
    packed.finish()?;
    Ok(())
}

/// Returns the file of the first program. Processes have the name with which it was started.
fn own_module(summary: &Summary) -> Option<&str> {
    let name = |path: &str| Path::new(path).file_name().map(OsStr::to_owned);
    let program = name(&summary.processes.first()?.program)?;
    let mut modules = summary.hot.instructions.rows.iter().map(|row| &row.module);
    let own = modules.find(|module| name(module).as_ref() == Some(&program))?;
    Some(own)
}

/// Name of the sample type for an event's call chains.
fn chain_sample_type(event: &str) -> String {
    format!("{event}.calls")
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl ProfileBuilder {
    /// Adds the sample types: one per event, and one per call tree.
    fn types(&mut self, summary: &Summary, events: &[String]) {
        for event in events {
            let provenance = code_provenance(summary, event);
            self.sample_type(event, unit(summary, event), provenance);
        }
        for tree in &summary.calls {
            let provenance = "sampled, by callers";
            self.sample_type(
                &chain_sample_type(&tree.event),
                unit(summary, &tree.event),
                provenance,
            );
        }
    }

    fn sample_type(&mut self, name: &str, unit: &str, provenance: &str) {
        let [kind, unit] = [name, unit].map(|text| self.string(text));
        self.profile.sample_type.push(ValueType { kind, unit });
        let comment = self.string(&format!("{name}: {provenance}"));
        self.profile.comment.push(comment);
    }

    fn places(&mut self, summary: &Summary, events: &[String]) {
        let table = &summary.hot.instructions;
        // Use the event that orders the tables, if there is one.
        let ranks = [table.rank.as_str(), "dram.read_bytes", "llc.miss"];
        let known = ranks.iter().find_map(|&rank| self.strings.get(rank));
        self.profile.default_sample_type = known.copied().unwrap_or(0);
        for (row, counts) in with_rest(table) {
            let location = self.location(row);
            let value = values(counts, events).into_iter().map(signed);
            self.profile.sample.push(Sample {
                location_id: vec![location],
                value: value.chain(summary.calls.iter().map(|_| 0)).collect(),
            });
        }
    }

    /// Adds the call chains. They become the default type, since the user asked for stacks.
    fn calls(&mut self, summary: &Summary, first_type: usize) {
        if let Some(tree) = summary.calls.first() {
            self.profile.default_sample_type = self.string(&chain_sample_type(&tree.event));
        }
        let types = self.profile.sample_type.len();
        let mut locations = HashMap::new();
        for (number, tree) in summary.calls.iter().enumerate() {
            // For each node, its own location and those of its callers.
            let mut chains: Vec<Vec<u64>> = Vec::with_capacity(tree.nodes.len());
            for node in &tree.nodes {
                let key = (node.function.as_str(), node.module.as_str());
                let own = *locations
                    .entry(key)
                    .or_insert_with(|| self.function_location(node));
                let outer = node.caller.and_then(|caller| chains.get(caller as usize));
                let chain: Vec<u64> = [own]
                    .into_iter()
                    .chain(outer.into_iter().flatten().copied())
                    .collect();
                if node.own_events > 0 {
                    let mut value = vec![0; types];
                    value[first_type + number] = signed(node.own_events);
                    self.profile.sample.push(Sample {
                        location_id: chain.clone(),
                        value,
                    });
                }
                chains.push(chain);
            }
        }
    }

    /// Returns a location for a function as a whole.
    fn function_location(&mut self, node: &CallNode) -> u64 {
        let line = vec![self.line(&node.function, "", None)];
        let mapping_id = self.mapping(&node.module);
        let id = self.profile.location.len() as u64 + 1;
        self.profile.location.push(Location {
            id,
            mapping_id,
            address: 0,
            line,
        });
        id
    }

    fn string(&mut self, text: &str) -> i64 {
        if let Some(&known) = self.strings.get(text) {
            return known;
        }
        let id = self.profile.string_table.len() as i64;
        self.profile.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), id);
        id
    }

    fn function(&mut self, name: &str, file: &str) -> u64 {
        let key = (name.to_owned(), file.to_owned());
        if let Some(&known) = self.functions.get(&key) {
            return known;
        }
        let (text, filename) = (self.string(name), self.string(file));
        let id = self.profile.function.len() as u64 + 1;
        self.profile.function.push(Function {
            id,
            name: text,
            system_name: text,
            filename,
        });
        self.functions.insert(key, id);
        id
    }

    fn mapping(&mut self, module: &str) -> u64 {
        if let Some(&known) = self.mappings.get(module) {
            return known;
        }
        let id = self.profile.mapping.len() as u64 + 1;
        let filename = self.string(module);
        // All names are resolved, so pprof must not look for the file.
        self.profile.mapping.push(Mapping {
            id,
            filename,
            has_functions: true,
            has_filenames: true,
            has_line_numbers: true,
            has_inline_frames: true,
        });
        self.mappings.insert(module.to_owned(), id);
        id
    }

    fn location(&mut self, row: Option<&HotRow>) -> u64 {
        let line = row.and_then(|row| row.line);
        let (name, file) = match row {
            Some(row) => (row.function.as_str(), row.file.as_deref().unwrap_or("")),
            None => (NOT_LISTED, ""),
        };
        let mut lines = vec![self.line(name, file, line)];
        for caller in row.iter().flat_map(|row| &row.inlined_into) {
            let file = caller.file.as_deref().unwrap_or("");
            lines.push(self.line(&caller.function, file, caller.line));
        }
        let mapping_id = self.mapping(row.map_or(NOT_LISTED, |row| &row.module));
        let id = self.profile.location.len() as u64 + 1;
        self.profile.location.push(Location {
            id,
            mapping_id,
            address: row.and_then(|row| row.offset).unwrap_or(0),
            line: lines,
        });
        id
    }

    fn line(&mut self, function: &str, file: &str, line: Option<u32>) -> Line {
        Line {
            function_id: self.function(function, file),
            line: line.unwrap_or(0).into(),
        }
    }
}
