//! Call stacks: the chains of calls that led to sampled events.
//!
//! A recording stores each call once with its caller, as a tree by address. This module turns it
//! into a tree by function, with the code of all processes merged. Functions that the compiler
//! inlined are nodes of their own. A call's address is that of the calling instruction, not the
//! return address.
//!
//! Memory: 24 bytes for each frame, and 60 bytes for each location that has samples under the same
//! calls.

mod times;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use memgauge_recording::stacks::MAX_FRAMES;
use memgauge_trace::{EventId, Frame, FrameId, GeneratedCode, Pid, Sample, catalogue};
use serde::{Deserialize, Serialize};

pub use times::TimedCalls;
use times::{StackTimes, timed};

use crate::Analysis;
use crate::code::address_spaces::{AddressSpaces, CodeLocation, When, is_file};
use crate::code::hotspots::{Name, place_names};
use crate::counts::{EventNames, ratio};
use crate::resolve::{Resolve, file_name};

/// Maximum number of nodes in a tree: the functions with the most events of their own, and their
/// callers. All other nodes are summed in an "others" node of their caller.
const MAX_NODES: usize = 10_000;
/// Maximum number of functions that are listed below all "others" nodes, those with the most events
/// first. Their own events are known, but not the calls that led to them.
const MAX_LISTED_OTHERS: usize = 5_000;
/// Name of the node that sums the further functions that a function calls.
const OTHERS: &str = "(others)";
/// Number of outermost and innermost calls to keep of a deeper chain. [`OMITTED_CALLS`] replaces the
/// calls between them.
const OUTERMOST: u32 = 960;
const INNERMOST: u32 = 64;
/// Name of the node that replaces the middle of a chain that is too deep.
const OMITTED_CALLS: &str = "(calls left out)";

/// The calls of a recording.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    spaces: &'a AddressSpaces,
    /// Caller and location, indexed by frame ID.
    calls: Vec<(Option<FrameId>, CodeLocation)>,
    /// Mapping of each call whose address may be data, by frame ID. In a program without frame
    /// pointers, data on the stack can look like a return address. Empty if the calls were traced,
    /// not read from the stack.
    uncertain_mapping: HashMap<usize, (Pid, u64)>,
    are_traced: bool,
}

impl<'a> Frames<'a> {
    /// Starts without calls. `spaces` resolves their addresses.
    pub fn new(spaces: &'a AddressSpaces) -> Self {
        Frames {
            spaces,
            calls: Vec::new(),
            uncertain_mapping: HashMap::new(),
            are_traced: false,
        }
    }

    /// With `are_traced`, the calls were traced as they happened, so all of them are valid.
    pub(crate) fn traced(self, are_traced: bool) -> Self {
        Frames { are_traced, ..self }
    }

    /// The mappings that resolve addresses.
    pub(crate) fn spaces(&self) -> &'a AddressSpaces {
        self.spaces
    }

    /// True if there are no calls.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Caller and location of a call. The location is unknown if it may not be code and no sample
    /// ran in its mapping.
    pub(crate) fn call(
        &self,
        id: FrameId,
        executed: &HashSet<(Pid, u64)>,
    ) -> Option<(Option<FrameId>, CodeLocation)> {
        let &(caller, place) = self.calls.get(id.0 as usize)?;
        let mapping = self.uncertain_mapping.get(&(id.0 as usize));
        let place = match mapping.is_none_or(|mapping| executed.contains(mapping)) {
            true => place,
            false => self.spaces.unknown(),
        };
        Some((caller, place))
    }

    /// True if [`call`](Self::call) needs to know in which mappings samples ran.
    pub(crate) fn needs_executed_mappings(&self) -> bool {
        !self.uncertain_mapping.is_empty()
    }
}

impl<'a> Analysis for Frames<'a> {
    type Row = Frame;
    type Output = Frames<'a>;

    fn observe(&mut self, batch: &[Frame]) {
        for frame in batch {
            // IDs rise by one. If a part is missing, its calls have no caller.
            if frame.id.0 >= MAX_FRAMES {
                continue;
            }
            let number = frame.id.0 as usize;
            let gap = number.saturating_sub(self.calls.len());
            if gap > 0 {
                let nowhere = (None, self.spaces.code_at(frame.pid, 0, When::Latest));
                self.calls.extend(std::iter::repeat_n(nowhere, gap));
            }
            if number == self.calls.len() {
                let place = self
                    .spaces
                    .code_at(frame.pid, frame.ip.0, When::At(frame.time_ns));
                let caller = frame.caller.filter(|caller| caller.0 < frame.id.0);
                if !self.are_traced
                    && let Some(start) = self.spaces.uncertain_mapping(frame.pid, frame.ip.0)
                {
                    self.uncertain_mapping.insert(number, (frame.pid, start));
                }
                // The kernel does not call code of programs, so this "caller" is data on the stack.
                let outer = caller.and_then(|caller| self.calls.get_mut(caller.0 as usize));
                if let Some(outer) = outer.filter(|outer| self.spaces.is_of_kernel(outer.1))
                    && !self.spaces.is_of_kernel(place)
                {
                    outer.1 = self.spaces.unknown();
                }
                self.calls.push((caller, place));
            }
        }
    }

    fn merge(&mut self, other: Self) {
        let known = self.calls.len().min(other.calls.len());
        self.calls.extend_from_slice(&other.calls[known..]);
        let uncertain_mapping = other.uncertain_mapping.into_iter();
        self.uncertain_mapping
            .extend(uncertain_mapping.filter(|&(number, _)| number >= known));
    }

    fn finish(self) -> Frames<'a> {
        self
    }
}

/// Event, calls and location of samples.
type StackKey = (EventId, Option<FrameId>, CodeLocation);

/// Sums samples by event, calls and location. Merge only analyses that use the same
/// [`AddressSpaces`].
#[derive(Clone, Debug)]
pub struct SampledStacks<'a> {
    spaces: &'a AddressSpaces,
    sums: StackSums,
    /// The samples over time, if requested.
    times: Option<StackTimes>,
}

/// Sums of samples by event, calls and location.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct StackSums {
    /// Number of samples, and of events that they represent.
    samples: HashMap<StackKey, (u64, u64)>,
    /// Mappings in which samples ran although nothing else identifies them as code.
    executed: HashSet<(Pid, u64)>,
}

impl StackSums {
    pub(crate) fn merge(&mut self, other: StackSums) {
        for (key, (samples, events)) in other.samples {
            let sums = self.samples.entry(key).or_default();
            sums.0 += samples;
            sums.1 = sums.1.saturating_add(events);
        }
        self.executed.extend(other.executed);
    }
}

impl<'a> SampledStacks<'a> {
    /// Starts without samples. `spaces` resolves their addresses.
    pub fn new(spaces: &'a AddressSpaces) -> Self {
        SampledStacks::with_sums(spaces, StackSums::default())
    }

    /// Starts with the sums of other samples. `spaces` must be equal to those of the sums.
    pub(crate) fn with_sums(spaces: &'a AddressSpaces, sums: StackSums) -> Self {
        SampledStacks {
            spaces,
            sums,
            times: None,
        }
    }

    /// The sums without the address spaces.
    pub(crate) fn into_sums(self) -> StackSums {
        self.sums
    }

    /// Also keeps samples over time.
    pub fn timed(self) -> Self {
        SampledStacks {
            times: Some(StackTimes::new()),
            ..self
        }
    }
}

impl<'a> Analysis for SampledStacks<'a> {
    type Row = Sample;
    type Output = SampledStacks<'a>;

    fn observe(&mut self, batch: &[Sample]) {
        for sample in batch {
            let place = self.spaces.code_of(sample);
            let mapping = self.spaces.uncertain_mapping(sample.pid, sample.ip.0);
            self.sums
                .executed
                .extend(mapping.map(|start| (sample.pid, start)));
            let key = (sample.event, sample.caller, place);
            let sums = self.sums.samples.entry(key).or_default();
            sums.0 += 1;
            sums.1 = sums.1.saturating_add(sample.period);
            if let Some(times) = &mut self.times {
                times.add(key, sample.time_ns, (1, sample.period));
            }
        }
    }

    fn merge(&mut self, other: Self) {
        self.sums.merge(other.sums);
        self.times = match (self.times.take(), other.times) {
            (Some(mut times), Some(others)) => {
                times.merge(others);
                Some(times)
            }
            (times, others) => times.or(others),
        };
    }

    fn finish(self) -> SampledStacks<'a> {
        self
    }
}

/// A function reached by one chain of calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CallNode {
    /// Function, or the module if it has no symbols. `(others)` sums the further functions that the
    /// caller calls.
    pub function: String,
    /// Path of the file that contains the code.
    pub module: String,
    /// Index of the calling node, which is smaller than this node's.
    pub caller: Option<u32>,
    /// Samples in the function and in what it calls.
    pub samples: u64,
    /// Events that the samples represent.
    pub events: u64,
    /// Events in the function itself.
    pub own_events: u64,
}

/// The chains of calls that led to an event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CallTree {
    /// Name of the event.
    pub event: String,
    /// Number of samples.
    pub samples: u64,
    /// Events that the samples represent.
    pub events: u64,
    /// Callers before callees, by falling number of events.
    pub nodes: Vec<CallNode>,
    /// Nodes over time, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timed: Option<TimedCalls>,
}

/// The call paths that reach a function.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CalledFrom<'a> {
    /// The function.
    pub function: &'a str,
    /// Events in the function as a share of all events.
    pub share: Option<f64>,
    /// Its callers, innermost first, with their shares of all events. By falling share.
    pub paths: Vec<(Option<f64>, Vec<&'a str>)>,
}

/// A function with all that it calls.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InclusiveRow<'a> {
    /// The function.
    pub function: &'a str,
    /// Path of the file that contains it. Several files may have a function of the same name.
    pub module: &'a str,
    /// Events in the function and in what it calls, as a share of all events.
    pub share: Option<f64>,
    /// Events in the function itself, as a share of all events.
    pub own_share: Option<f64>,
}

/// One function calls another, with the events that this led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallEdge<'a> {
    /// The node of the caller; nodes of the same function and module are the same function.
    pub caller: &'a CallNode,
    /// The node of the function that it calls.
    pub callee: &'a CallNode,
}

impl CallTree {
    /// Calls from one node to another, with events that can be summed. A call is left out if the
    /// same caller already called the same function further out, since the outer call's events
    /// include it.
    pub fn edges(&self) -> Vec<CallEdge<'_>> {
        let node = |at: Option<u32>| at.and_then(|at| self.nodes.get(at as usize));
        let is_same =
            |a: &CallNode, b: &CallNode| (&a.function, &a.module) == (&b.function, &b.module);
        let mut edges = Vec::new();
        for callee in &self.nodes {
            let Some(caller) = node(callee.caller) else {
                continue;
            };
            let mut inner = caller;
            let mut is_outermost = true;
            while let Some(outer) = node(inner.caller) {
                if is_same(outer, caller) && is_same(inner, callee) {
                    is_outermost = false;
                    break;
                }
                inner = outer;
            }
            if is_outermost {
                edges.push(CallEdge { caller, callee });
            }
        }
        edges
    }

    /// Names of the callers, from the direct caller outwards.
    pub fn callers(&self, node: &CallNode) -> Vec<&str> {
        let mut names = Vec::new();
        let mut at = node.caller;
        while let Some(caller) = at.and_then(|at| self.nodes.get(at as usize)) {
            names.push(caller.function.as_str());
            at = caller.caller;
        }
        names
    }

    /// The functions with the most events in them and in what they call, in falling order. A
    /// recursive function counts once. Among equals, the outermost comes first.
    pub fn inclusive(&self, functions: usize) -> Vec<InclusiveRow<'_>> {
        // Events with and without callees, and the function's first node.
        let mut sums: HashMap<(&str, &str), (u64, u64, u32)> = HashMap::new();
        // The current node and its callers, which precede it.
        let mut path: Vec<(u32, (&str, &str))> = Vec::new();
        for (number, node) in (0..).zip(&self.nodes) {
            while path.last().is_some_and(|&(at, _)| node.caller != Some(at)) {
                path.pop();
            }
            let name = (node.function.as_str(), node.module.as_str());
            let sum = sums.entry(name).or_insert((0, 0, number));
            sum.1 += node.own_events;
            if path.iter().all(|&(_, other)| other != name) {
                sum.0 += node.events;
            }
            path.push((number, name));
        }
        let mut all: Vec<_> = sums.into_iter().collect();
        all.retain(|((function, _), _)| ![OTHERS, OMITTED_CALLS].contains(function));
        all.sort_by_key(|&(_, (events, _, first))| (Reverse(events), first));
        let share = |events| ratio(events, self.events);
        let all = all.into_iter().take(functions);
        let row = |((function, module), (events, own, _))| InclusiveRow {
            function,
            module,
            share: share(events),
            own_share: share(own),
        };
        all.map(row).collect()
    }

    /// Share of the events on paths that are summed as others. `None` without such paths.
    pub fn share_of_others(&self) -> Option<f64> {
        let others = self.nodes.iter().filter(|node| node.function == OTHERS);
        let events = others.map(|node| node.events).sum();
        ratio(events, self.events).filter(|_| events > 0)
    }

    /// The functions with the most events of their own, and their callers.
    pub fn hottest(&self, functions: usize) -> Vec<CalledFrom<'_>> {
        let mut all: HashMap<(&str, &str), (u64, Vec<&CallNode>)> = HashMap::new();
        for node in self.nodes.iter().filter(|node| node.own_events > 0) {
            if node.function == OTHERS {
                continue;
            }
            let key = (node.function.as_str(), node.module.as_str());
            let sums = all.entry(key).or_default();
            sums.0 += node.own_events;
            sums.1.push(node);
        }
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_by_key(|&(name, (events, _))| (Reverse(events), name));
        let share = |events| ratio(events, self.events);
        let mut hottest = Vec::new();
        for ((function, _), (events, mut nodes)) in all.into_iter().take(functions) {
            // A node of others stands for many paths, each with fewer events than the listed ones.
            let is_of_others = |node: &CallNode| {
                let caller = node.caller.and_then(|at| self.nodes.get(at as usize));
                caller.is_some_and(|caller| caller.function == OTHERS)
            };
            nodes.sort_by_key(|node| (is_of_others(node), Reverse(node.own_events)));
            let path = |node: &CallNode| (share(node.own_events), self.callers(node));
            hottest.push(CalledFrom {
                function,
                share: share(events),
                paths: nodes.into_iter().map(path).collect(),
            });
        }
        hottest
    }
}

/// Call trees of all events, by falling number of samples.
pub(crate) fn call_trees(
    frames: &Frames,
    sampled: &SampledStacks,
    symbols: &mut dyn Resolve,
    names: &EventNames,
) -> Vec<CallTree> {
    // Trees list their functions in the order in which these were first seen. So the order of events
    // must not change from run to run.
    let mut by_event: BTreeMap<EventId, Vec<_>> = BTreeMap::new();
    for (&(event, caller, place), &sums) in &sampled.sums.samples {
        by_event
            .entry(event)
            .or_default()
            .push((caller, place, sums));
    }
    let mut builder = TreeBuilder {
        frames,
        executed: &sampled.sums.executed,
        times: sampled.times.as_ref(),
        functions: Functions::new(frames.spaces, symbols),
    };
    let trees = by_event.into_iter().map(|(event, mut stacks)| {
        // Sort, so that equal recordings have equal trees.
        stacks.sort_unstable();
        builder.tree(event, names.name(event), &stacks)
    });
    let mut trees: Vec<CallTree> = trees.collect();
    // Callers of the code that takes time come before those of any other event.
    let is_time = |tree: &CallTree| Some(tree.event.as_str()) == catalogue::name(catalogue::CYCLES);
    trees.sort_by_cached_key(|tree| (!is_time(tree), Reverse(tree.samples), tree.event.clone()));
    trees
}

/// Numbers the functions at code locations.
struct Functions<'a> {
    spaces: &'a AddressSpaces,
    symbols: &'a mut dyn Resolve,
    /// Function and module by number.
    names: Vec<(String, String)>,
    numbers: HashMap<(String, String), u32>,
    /// Functions at a location, outermost of the inlined ones first.
    places: HashMap<CodeLocation, Vec<u32>>,
}

impl<'a> Functions<'a> {
    fn new(spaces: &'a AddressSpaces, symbols: &'a mut dyn Resolve) -> Self {
        Functions {
            spaces,
            symbols,
            names: Vec::new(),
            numbers: HashMap::new(),
            places: HashMap::new(),
        }
    }

    fn number(&mut self, name: (String, String)) -> u32 {
        if let Some(&number) = self.numbers.get(&name) {
            return number;
        }
        let number = self.names.len() as u32;
        self.names.push(name.clone());
        self.numbers.insert(name, number);
        number
    }

    fn at(&mut self, place: CodeLocation) -> &[u32] {
        if !self.places.contains_key(&place) {
            let [mut name, line, _] = place_names(self.symbols, self.spaces, place);
            if name.module == GeneratedCode::PYTHON {
                name.function = python_name(&name.function, &line);
            }
            let outer = name.inlined_into.iter().rev().map(|c| c.function.clone());
            let all: Vec<String> = outer.chain([name.function]).collect();
            let number = |function| self.number((function, name.module.clone()));
            let numbers = all.into_iter().map(number).collect();
            self.places.insert(place, numbers);
        }
        self.places.get(&place).map_or(&[], Vec::as_slice)
    }

    /// True if only the module of a function is known.
    fn is_nameless(&self, number: u32) -> bool {
        let (function, module) = &self.names[number as usize];
        function == module && !is_file(module)
    }
}

/// `work (script.py:12)`, as profilers of Python name a frame.
fn python_name(function: &str, line: &Name) -> String {
    let file = line.file.as_deref().map_or("?", file_name);
    match line.line {
        Some(line) => format!("{function} ({file}:{line})"),
        None => format!("{function} ({file})"),
    }
}

/// A tree under construction: nodes by caller and function.
#[derive(Default)]
struct CallTreeBuilder {
    numbers: HashMap<(Option<u32>, u32), u32>,
    nodes: Vec<CallTreeNode>,
}

#[derive(Clone, Copy, Default)]
struct CallTreeNode {
    caller: Option<u32>,
    function: u32,
    samples: u64,
    events: u64,
    own_events: u64,
}

impl CallTreeBuilder {
    fn node(&mut self, caller: Option<u32>, function: u32) -> u32 {
        let next = self.nodes.len() as u32;
        let number = *self.numbers.entry((caller, function)).or_insert(next);
        if number == next {
            self.nodes.push(CallTreeNode {
                caller,
                function,
                ..CallTreeNode::default()
            });
        }
        number
    }

    /// Selects the nodes to keep.
    fn select_nodes(&self) -> Vec<bool> {
        let mut order: Vec<u32> = (0..self.nodes.len() as u32).collect();
        order.sort_by_key(|&at| {
            let node = &self.nodes[at as usize];
            (Reverse((node.own_events, node.events)), at)
        });
        let mut is_kept = vec![false; self.nodes.len()];
        let mut left = MAX_NODES;
        for at in order {
            let outwards = std::iter::successors(Some(at), |&at| self.nodes[at as usize].caller);
            let path: Vec<u32> = outwards.take_while(|&at| !is_kept[at as usize]).collect();
            if path.len() > left {
                break;
            }
            left -= path.len();
            path.into_iter().for_each(|at| is_kept[at as usize] = true);
        }
        is_kept
    }

    /// Samples of each node without its callees. Call it after [`sum_up`](Self::sum_up).
    fn own_samples(&self) -> Vec<u64> {
        let mut own: Vec<u64> = self.nodes.iter().map(|node| node.samples).collect();
        for node in &self.nodes {
            if let Some(caller) = node.caller {
                own[caller as usize] -= node.samples;
            }
        }
        own
    }

    /// Adds the sums of its callees to every node.
    fn sum_up(&mut self) {
        for at in (0..self.nodes.len()).rev() {
            let CallTreeNode {
                caller,
                samples,
                events,
                ..
            } = self.nodes[at];
            if let Some(caller) = caller.map(|c| &mut self.nodes[c as usize]) {
                caller.samples += samples;
                caller.events = caller.events.saturating_add(events);
            }
        }
    }
}

/// A call that was already added to the tree.
#[derive(Clone, Copy, Default)]
struct AddedCall {
    /// Number of calls down to it.
    depth: u32,
    /// Node of the function, or of the last of the outermost calls above it.
    outer: Option<u32>,
}

struct TreeBuilder<'a> {
    frames: &'a Frames<'a>,
    executed: &'a HashSet<(Pid, u64)>,
    times: Option<&'a StackTimes>,
    functions: Functions<'a>,
}

impl TreeBuilder<'_> {
    fn tree(
        &mut self,
        id: EventId,
        event: String,
        stacks: &[(Option<FrameId>, CodeLocation, (u64, u64))],
    ) -> CallTree {
        let mut tree = CallTreeBuilder::default();
        let mut times: BTreeMap<(u32, u32), (u64, u64)> = BTreeMap::new();
        let mut known = HashMap::new();
        for &(caller, place, (samples, events)) in stacks {
            let outer = self.add_call(&mut tree, &mut known, caller);
            if let Some(at) = self.add_functions(&mut tree, outer, place) {
                let node = &mut tree.nodes[at as usize];
                node.samples += samples;
                node.events = node.events.saturating_add(events);
                node.own_events = node.own_events.saturating_add(events);
                let timed = self.times.and_then(|times| times.of(&(id, caller, place)));
                for (&bin, &(samples, events)) in timed.into_iter().flatten() {
                    let cell = times.entry((at, bin)).or_default();
                    cell.0 += samples;
                    cell.1 = cell.1.saturating_add(events);
                }
            }
        }
        tree.sum_up();
        let tops = tree.nodes.iter().filter(|node| node.caller.is_none());
        let (samples, events) = tops.fold((0, 0_u64), |(samples, events), node| {
            (samples + node.samples, events.saturating_add(node.events))
        });
        let (nodes, kept_nodes) = self.kept_nodes(&tree);
        let timed = self
            .times
            .map(|of| timed(of.bin_ns(), nodes.len(), &kept_nodes, times));
        CallTree {
            event,
            samples,
            events,
            nodes,
            timed,
        }
    }

    /// Adds a call and its callers to the tree. Returns the call's node.
    fn add_call(
        &mut self,
        tree: &mut CallTreeBuilder,
        known: &mut HashMap<FrameId, AddedCall>,
        call: Option<FrameId>,
    ) -> Option<u32> {
        let mut path = Vec::new();
        let mut at = call;
        let mut last = AddedCall::default();
        while let Some(frame) = at {
            if let Some(&there) = known.get(&frame) {
                last = there;
                break;
            }
            let (caller, place) = self.frames.call(frame, self.executed)?;
            path.push((frame, place));
            at = caller;
        }
        for (frame, place) in path.into_iter().rev() {
            last.depth += 1;
            if last.depth <= OUTERMOST {
                last.outer = self.add_functions(tree, last.outer, place);
            }
            known.insert(frame, last);
        }
        let inner = last.depth.saturating_sub(OUTERMOST);
        let mut node = last.outer;
        if inner > INNERMOST {
            let omitted = (OMITTED_CALLS.to_owned(), String::new());
            node = Some(tree.node(node, self.functions.number(omitted)));
        }
        for place in self.innermost(call, inner.min(INNERMOST)) {
            node = self.add_functions(tree, node, place);
        }
        node
    }

    /// Locations of the innermost `calls` calls, outermost first.
    fn innermost(&self, call: Option<FrameId>, calls: u32) -> Vec<CodeLocation> {
        let mut at = call;
        let callers = std::iter::from_fn(|| {
            let (caller, place) = self.frames.call(at?, self.executed)?;
            at = caller;
            Some(place)
        });
        let mut places: Vec<CodeLocation> = callers.take(calls as usize).collect();
        places.reverse();
        places
    }

    /// Adds the functions at a location to the tree below `caller`. Consecutive functions of which
    /// only the module is known share a node.
    fn add_functions(
        &mut self,
        tree: &mut CallTreeBuilder,
        caller: Option<u32>,
        place: CodeLocation,
    ) -> Option<u32> {
        let mut at = caller;
        let functions = self.functions.at(place).to_vec();
        for function in functions {
            let same = at.filter(|&at| tree.nodes[at as usize].function == function);
            at = match same.filter(|_| self.functions.is_nameless(function)) {
                Some(at) => Some(at),
                None => Some(tree.node(at, function)),
            };
        }
        at
    }

    /// The kept nodes in the order of calls, with sums of the others, and for each node of the tree
    /// the kept node that contains it.
    fn kept_nodes(&self, tree: &CallTreeBuilder) -> (Vec<CallNode>, Vec<u32>) {
        let is_kept = tree.select_nodes();
        let mut called: HashMap<Option<u32>, Vec<u32>> = HashMap::new();
        for (at, node) in tree.nodes.iter().enumerate() {
            called.entry(node.caller).or_default().push(at as u32);
        }
        for list in called.values_mut() {
            list.sort_by_key(|&at| {
                let node = &tree.nodes[at as usize];
                (
                    Reverse(node.events),
                    &self.functions.names[node.function as usize],
                )
            });
        }
        let mut kept_nodes = Vec::new();
        let mut is_in = vec![None; tree.nodes.len()];
        let mut waiting = vec![(None, None)];
        while let Some((number, caller)) = waiting.pop() {
            if let Some(number) = number {
                is_in[number as usize] = Some(kept_nodes.len() as u32);
                kept_nodes.push(self.named(&tree.nodes[number as usize], caller));
            }
            let own = number.map(|_| kept_nodes.len() as u32 - 1);
            let Some(list) = called.get(&number) else {
                continue;
            };
            let (large, small): (Vec<u32>, Vec<u32>) =
                list.iter().partition(|&&at| is_kept[at as usize]);
            for &at in &small {
                is_in[at as usize] = Some(kept_nodes.len() as u32);
            }
            let small: Vec<&CallTreeNode> =
                small.iter().map(|&at| &tree.nodes[at as usize]).collect();
            if !small.is_empty() {
                kept_nodes.push(others(&small, own));
            }
            // Pushed in reverse, since the last one is visited first.
            waiting.extend(large.into_iter().rev().map(|at| (Some(at), own)));
        }
        // Callees of a summed node are part of the same sum. Callers come first.
        for at in 0..tree.nodes.len() {
            let caller = tree.nodes[at]
                .caller
                .and_then(|caller| is_in[caller as usize]);
            is_in[at] = is_in[at].or(caller);
        }
        let mut is_in: Vec<u32> = is_in.into_iter().map(Option::unwrap_or_default).collect();
        self.split_others(tree, &mut kept_nodes, &mut is_in);
        (kept_nodes, is_in)
    }

    /// Adds nodes for single functions below the "others" nodes.
    fn split_others(
        &self,
        tree: &CallTreeBuilder,
        kept_nodes: &mut Vec<CallNode>,
        is_in: &mut [u32],
    ) {
        let own_samples = tree.own_samples();
        let mut summed: BTreeMap<(u32, u32), (u64, u64)> = BTreeMap::new();
        let others = |at: usize, kept_nodes: &[CallNode]| {
            let node = &kept_nodes[at];
            node.function == OTHERS && node.module.is_empty()
        };
        for (at, node) in tree.nodes.iter().enumerate() {
            if node.own_events > 0 && others(is_in[at] as usize, kept_nodes) {
                let sum = summed.entry((is_in[at], node.function)).or_default();
                sum.0 += own_samples[at];
                sum.1 = sum.1.saturating_add(node.own_events);
            }
        }
        let mut largest: Vec<_> = summed.into_iter().collect();
        largest.sort_by_key(|&(key, (_, events))| (Reverse(events), key));
        largest.truncate(MAX_LISTED_OTHERS);
        let mut numbers: HashMap<(u32, u32), u32> = HashMap::new();
        for ((within, function), (samples, events)) in largest {
            numbers.insert((within, function), kept_nodes.len() as u32);
            kept_nodes[within as usize].own_events -= events;
            let (function, module) = self.functions.names[function as usize].clone();
            kept_nodes.push(CallNode {
                function,
                module,
                caller: Some(within),
                samples,
                events,
                own_events: events,
            });
        }
        for (at, node) in tree.nodes.iter().enumerate() {
            if let Some(&number) = numbers.get(&(is_in[at], node.function)) {
                is_in[at] = number;
            }
        }
    }

    fn named(&self, node: &CallTreeNode, caller: Option<u32>) -> CallNode {
        let (function, module) = &self.functions.names[node.function as usize];
        CallNode {
            function: function.clone(),
            module: module.clone(),
            caller,
            samples: node.samples,
            events: node.events,
            own_events: node.own_events,
        }
    }
}

fn others(nodes: &[&CallTreeNode], caller: Option<u32>) -> CallNode {
    let events = nodes.iter().map(|node| node.events).sum();
    CallNode {
        function: OTHERS.to_owned(),
        caller,
        samples: nodes.iter().map(|node| node.samples).sum(),
        events,
        own_events: events,
        ..CallNode::default()
    }
}

#[cfg(test)]
mod tests;
