//! Writes OpenTelemetry profiles as the protobuf that a collector accepts at
//! `/v1development/profiles` (`ExportProfilesServiceRequest`, which has the same encoding as
//! `ProfilesData`).
//!
//! Each event is a profile: its values have one type. A sample is a row of the instruction table,
//! with inlined functions as lines of its location. If stacks were recorded, each event has a second
//! profile whose samples are call chains: chains come from samples while counts by code can be
//! exact. Viewers show the first profile first, so that is the one with chains, or else the event
//! that orders the report's tables.
//!
//! All profiles share the tables of one dictionary. The first element of each table is empty, and
//! index 0 means that a field is not set.

use std::collections::HashMap;
use std::hash::Hash;
use std::io::Write;

use memgauge_analyze::{CallNode, HotRow, Summary};
use memgauge_trace::GeneratedCode;
use prost::Message;

use super::super::places::{code_provenance, events, unit, with_rest};
use super::super::{Error, NOT_LISTED};
use super::{Any, AnyValue, Resource, Scope, resource, scope, signed, start_unix_ns};

/// The fields that are written, with their numbers in `profiles.proto` of opentelemetry-proto 1.9.0
/// to 1.11.0, package `opentelemetry.proto.profiles.v1development`.
#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(message, repeated, tag = "1")]
    resource_profiles: Vec<ResourceProfiles>,
    #[prost(message, optional, tag = "2")]
    dictionary: Option<Dictionary>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceProfiles {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_profiles: Vec<ScopeProfiles>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeProfiles {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    profiles: Vec<Profile>,
}

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, optional, tag = "1")]
    sample_type: Option<ValueType>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
    #[prost(fixed64, tag = "3")]
    time_unix_nano: u64,
    #[prost(uint64, tag = "4")]
    duration_nano: u64,
    #[prost(int32, repeated, tag = "11")]
    attribute_indices: Vec<i32>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int32, tag = "1")]
    type_strindex: i32,
    #[prost(int32, tag = "2")]
    unit_strindex: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(int32, tag = "1")]
    stack_index: i32,
    #[prost(int64, repeated, tag = "4")]
    values: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Dictionary {
    #[prost(message, repeated, tag = "1")]
    mapping_table: Vec<Mapping>,
    #[prost(message, repeated, tag = "2")]
    location_table: Vec<Location>,
    #[prost(message, repeated, tag = "3")]
    function_table: Vec<Function>,
    #[prost(message, repeated, tag = "4")]
    link_table: Vec<Link>,
    #[prost(string, repeated, tag = "5")]
    string_table: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    attribute_table: Vec<Attribute>,
    #[prost(message, repeated, tag = "7")]
    stack_table: Vec<Stack>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
struct Mapping {
    #[prost(uint64, tag = "2")]
    memory_limit: u64,
    #[prost(int32, tag = "4")]
    filename_strindex: i32,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
struct Location {
    #[prost(int32, tag = "1")]
    mapping_index: i32,
    #[prost(uint64, tag = "2")]
    address: u64,
    #[prost(message, repeated, tag = "3")]
    lines: Vec<Line>,
    #[prost(int32, repeated, tag = "4")]
    attribute_indices: Vec<i32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
struct Line {
    #[prost(int32, tag = "1")]
    function_index: i32,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
struct Function {
    #[prost(int32, tag = "1")]
    name_strindex: i32,
    #[prost(int32, tag = "3")]
    filename_strindex: i32,
}

/// A link to a span of a trace. Only the empty one is written.
#[derive(Clone, Copy, PartialEq, Message)]
struct Link {}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
struct Attribute {
    #[prost(int32, tag = "1")]
    key_strindex: i32,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
struct Stack {
    #[prost(int32, repeated, tag = "1")]
    location_indices: Vec<i32>,
}

/// A table of the dictionary, which holds each value once.
struct DictionaryTable<T> {
    rows: Vec<T>,
    indices: HashMap<T, i32>,
}

impl<T: Clone + Default + Eq + Hash> DictionaryTable<T> {
    fn new() -> DictionaryTable<T> {
        DictionaryTable {
            rows: vec![T::default()],
            indices: HashMap::from([(T::default(), 0)]),
        }
    }

    fn index(&mut self, row: T) -> i32 {
        if let Some(&known) = self.indices.get(&row) {
            return known;
        }
        let index = i32::try_from(self.rows.len()).expect("SANITY: memory ends before 2³¹ rows");
        self.rows.push(row.clone());
        self.indices.insert(row, index);
        index
    }
}

/// The tables while they are filled.
struct Tables {
    mappings: DictionaryTable<Mapping>,
    locations: DictionaryTable<Location>,
    functions: DictionaryTable<Function>,
    strings: DictionaryTable<String>,
    attributes: DictionaryTable<Attribute>,
    stacks: DictionaryTable<Stack>,
    /// End of the code of each module that has rows, as offset in its file.
    module_ends: HashMap<String, u64>,
}

pub(crate) fn write(summary: &Summary, out: &mut dyn Write) -> Result<(), Error> {
    let table = &summary.hot.instructions;
    let mut places = match (events(summary, table), summary.calls.is_empty()) {
        (Err(why), true) => return Err(why),
        // Call chains are sufficient for profiles.
        (places, _) => places.unwrap_or_default(),
    };
    // The event that orders the table comes first.
    places.sort_by_key(|event| *event != table.rank);
    let mut tables = Tables::new(summary);
    let mut profiles = Vec::new();
    for tree in &summary.calls {
        let samples = tables.chains(&tree.nodes);
        profiles.push(tables.profile(summary, &tree.event, "sampled, by callers", samples));
    }
    for event in &places {
        let counts = with_rest(table).map(|(row, counts)| (row, counts.get(event)));
        let samples = tables.places(counts.filter_map(|(row, count)| Some((row, *count?))));
        let provenance = code_provenance(summary, event);
        profiles.push(tables.profile(summary, event, provenance, samples));
    }
    let request = Request {
        resource_profiles: vec![ResourceProfiles {
            resource: Some(resource(summary)),
            scope_profiles: vec![ScopeProfiles {
                scope: Some(scope()),
                profiles,
            }],
        }],
        dictionary: Some(tables.dictionary()),
    };
    out.write_all(&request.encode_to_vec())?;
    Ok(())
}

impl Tables {
    fn new(summary: &Summary) -> Tables {
        let mut module_ends: HashMap<String, u64> = HashMap::new();
        for row in &summary.hot.instructions.rows {
            let end = module_ends.entry(row.module.clone()).or_default();
            *end = (*end).max(row.offset.map_or(0, |offset| offset.saturating_add(1)));
        }
        Tables {
            mappings: DictionaryTable::new(),
            locations: DictionaryTable::new(),
            functions: DictionaryTable::new(),
            strings: DictionaryTable::new(),
            attributes: DictionaryTable::new(),
            stacks: DictionaryTable::new(),
            module_ends,
        }
    }

    fn dictionary(self) -> Dictionary {
        Dictionary {
            mapping_table: self.mappings.rows,
            location_table: self.locations.rows,
            function_table: self.functions.rows,
            link_table: vec![Link {}],
            string_table: self.strings.rows,
            attribute_table: self.attributes.rows,
            stack_table: self.stacks.rows,
        }
    }

    fn profile(
        &mut self,
        summary: &Summary,
        event: &str,
        provenance: &str,
        samples: Vec<Sample>,
    ) -> Profile {
        let [type_strindex, unit_strindex] =
            [event, unit(summary, event)].map(|text| self.string(text));
        Profile {
            sample_type: Some(ValueType {
                type_strindex,
                unit_strindex,
            }),
            samples,
            time_unix_nano: start_unix_ns(summary),
            duration_nano: summary.run.duration_ns,
            attribute_indices: vec![self.attribute("memgauge.provenance", provenance)],
        }
    }

    /// Samples of an event by instruction. Rows with the same location are one sample.
    fn places<'a>(&mut self, rows: impl Iterator<Item = (Option<&'a HotRow>, u64)>) -> Vec<Sample> {
        let mut sums = StackSamples::default();
        for (row, count) in rows.filter(|&(_, count)| count > 0) {
            let location = self.location(row);
            sums.add(self.stack(vec![location]), count);
        }
        sums.samples
    }

    /// Samples of an event by call chain.
    fn chains(&mut self, nodes: &[CallNode]) -> Vec<Sample> {
        let mut sums = StackSamples::default();
        // For each node, its own location and those of its callers.
        let mut chains: Vec<Vec<i32>> = Vec::with_capacity(nodes.len());
        for node in nodes {
            let own = self.function_location(node);
            let outer = node.caller.and_then(|caller| chains.get(caller as usize));
            let chain = std::iter::once(own).chain(outer.into_iter().flatten().copied());
            let chain: Vec<i32> = chain.collect();
            if node.own_events > 0 {
                sums.add(self.stack(chain.clone()), node.own_events);
            }
            chains.push(chain);
        }
        sums.samples
    }

    fn string(&mut self, text: &str) -> i32 {
        self.strings.index(text.to_owned())
    }

    fn attribute(&mut self, key: &str, value: &str) -> i32 {
        let value = Some(Any::String(value.to_owned()));
        let key_strindex = self.string(key);
        self.attributes.index(Attribute {
            key_strindex,
            value: Some(AnyValue { value }),
        })
    }

    fn stack(&mut self, location_indices: Vec<i32>) -> i32 {
        self.stacks.index(Stack { location_indices })
    }

    /// A file as if it were mapped at address 0, since addresses are offsets in files.
    fn mapping(&mut self, module: &str) -> i32 {
        let filename_strindex = self.string(module);
        let memory_limit = self.module_ends.get(module).copied().unwrap_or(0);
        self.mappings.index(Mapping {
            memory_limit,
            filename_strindex,
        })
    }

    fn location(&mut self, row: Option<&HotRow>) -> i32 {
        let Some(row) = row else {
            let lines = vec![self.line(NOT_LISTED, "", None)];
            return self.locations.index(Location {
                lines,
                ..Location::default()
            });
        };
        let file = |file: &'_ Option<String>| file.clone().unwrap_or_default();
        let mut lines = vec![self.line(&row.function, &file(&row.file), row.line)];
        for caller in &row.inlined_into {
            lines.push(self.line(&caller.function, &file(&caller.file), caller.line));
        }
        let location = Location {
            mapping_index: self.mapping(&row.module),
            address: row.offset.unwrap_or(0),
            lines,
            attribute_indices: self.frame_type(&row.module),
        };
        self.locations.index(location)
    }

    /// Location of a function as a whole.
    fn function_location(&mut self, node: &CallNode) -> i32 {
        let location = Location {
            mapping_index: self.mapping(&node.module),
            address: 0,
            lines: vec![self.line(&node.function, "", None)],
            attribute_indices: self.frame_type(&node.module),
        };
        self.locations.index(location)
    }

    /// `profile.frame.type` of the semantic conventions.
    fn frame_type(&mut self, module: &str) -> Vec<i32> {
        let is_python = module == GeneratedCode::PYTHON;
        let python = is_python.then(|| self.attribute("profile.frame.type", "cpython"));
        python.into_iter().collect()
    }

    fn line(&mut self, function: &str, file: &str, line: Option<u32>) -> Line {
        let [name_strindex, filename_strindex] = [function, file].map(|text| self.string(text));
        Line {
            function_index: self.functions.index(Function {
                name_strindex,
                filename_strindex,
            }),
            line: line.unwrap_or(0).into(),
        }
    }
}

/// Samples of a profile, one for each stack.
#[derive(Default)]
struct StackSamples {
    samples: Vec<Sample>,
    /// Sum and index in `samples` by stack.
    sums: HashMap<i32, (u64, usize)>,
}

impl StackSamples {
    fn add(&mut self, stack_index: i32, count: u64) {
        let next = self.samples.len();
        let (sum, at) = self.sums.entry(stack_index).or_insert((0, next));
        *sum = sum.saturating_add(count);
        let values = vec![signed(*sum)];
        let sample = Sample {
            stack_index,
            values,
        };
        match self.samples.get_mut(*at) {
            Some(known) => *known = sample,
            None => self.samples.push(sample),
        }
    }
}
