//! Functions of the user's own code that call hot functions of libraries, without recorded calls.
//!
//! A model counts the stores of each instruction, and a call on x86-64 is an instruction that stores
//! its return address. So the stores of a direct call are its executions, which together with the
//! machine code give the number of calls between two functions. This costs nothing while the
//! program runs, whereas recorded stacks (`-g`) take 7 to 27 % more processor time.
//!
//! The number of calls says little about the time of each one: a sort of a million records is one
//! call. So a caller is certain only if it is the only one. Calls through pointers are not found.
//! They count as calls of an unknown caller where the function was entered more often than called.

use std::collections::{BTreeMap, HashMap, HashSet};

use memgauge_trace::catalogue::{INSTRUCTIONS, STORES};
use serde::Serialize;

use crate::code::address_spaces::{CodeLocation, PathId, is_file};
use crate::code::hotspots::{HotTable, is_library_source, is_startup_code, user_place_names};
use crate::code::library_names::{is_library_code, plain_name};
use crate::code::sites::SiteTotals;
use crate::counts::EventSums;
use crate::resolve::{BranchTarget, CodeStep, ControlFlow, Resolve, Symbol};

/// Minimum share of the sort order for a library function to have its callers listed.
const MIN_SHARE: f64 = 0.01;
/// Maximum number of functions whose machine code is read, programs before shared libraries.
const MAX_FUNCTIONS: usize = 5000;
/// Maximum number of instructions outside of known functions for which one is searched, such as those
/// of a stripped program.
const MAX_UNKNOWN: usize = 10_000;
/// Maximum number of library functions between a hot one and the user's code.
const MAX_DEPTH: usize = 12;
/// Maximum number of functions that are visited for one hot function.
const MAX_VISITS: usize = 2000;

/// A hot function of a library and the user's functions whose calls lead to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LibraryFunction {
    /// Its name, as in the table of functions.
    pub function: String,
    /// Path of its file.
    pub module: String,
    /// The user's functions, those with most calls first. The rest of the calls come from unknown
    /// code.
    pub callers: Vec<LibraryCaller>,
}

/// A function that calls a library.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LibraryCaller {
    /// Its name, as in the table of functions.
    pub function: String,
    /// Path of its file.
    pub module: String,
    /// Share of the library function's calls, in 0..=1.
    pub share: f64,
}

/// Names the user's functions that call the hot library functions of a modelled run. Empty where
/// stores are not counted by instruction, or the code cannot be read.
pub(crate) fn library_functions(
    sites: &SiteTotals,
    symbols: &mut dyn Resolve,
    functions: &HotTable,
) -> Vec<LibraryFunction> {
    let rows = functions.rows.iter();
    let hot: Vec<_> = rows
        .filter(|row| row.share.is_some_and(|share| share >= MIN_SHARE))
        .filter(|row| is_library_code(&row.module, &row.function))
        .collect();
    if hot.is_empty() || sites.sampled.is_some() || sites.totals.get(STORES) == 0 {
        return Vec::new();
    }
    let graph = CallGraph::read(sites, symbols);
    let found = hot.into_iter().filter_map(|row| {
        let callers = graph.callers_by_name(&row.function, &row.module);
        let callers = callers.into_iter();
        let mut callers: Vec<LibraryCaller> = callers
            .map(|((function, module), share)| LibraryCaller {
                function,
                module,
                share,
            })
            .collect();
        callers.sort_by(|a, b| b.share.total_cmp(&a.share));
        (!callers.is_empty()).then(|| LibraryFunction {
            function: row.function.clone(),
            module: row.module.clone(),
            callers,
        })
    });
    found.collect()
}

/// A function and its file.
type FunctionName = (String, String);

/// An executed function.
struct Function {
    place: CodeLocation,
    name: FunctionName,
    is_own: bool,
    is_startup: bool,
    /// Number of times that it was entered, or 0 if unknown.
    entries: u64,
}

/// Calls of a function at one place.
struct Call {
    /// Index of the calling function.
    from: usize,
    /// The calling function, or one that was inlined into it.
    name: FunctionName,
    calls: u64,
}

/// Direct calls between the executed functions.
#[derive(Default)]
struct CallGraph {
    functions: Vec<Function>,
    by_target: HashMap<CodeLocation, Vec<Call>>,
    /// Calls of functions of other files, by plain name.
    by_import: HashMap<String, Vec<Call>>,
}

impl CallGraph {
    fn read(sites: &SiteTotals, symbols: &mut dyn Resolve) -> CallGraph {
        let mut graph = CallGraph::default();
        let mut by_path: BTreeMap<PathId, BTreeMap<u64, &EventSums>> = BTreeMap::new();
        for ((path, offset), tally, _) in &sites.rows {
            if is_file(sites.spaces.path(*path)) {
                by_path.entry(*path).or_default().insert(*offset, tally);
            }
        }
        let mut paths: Vec<PathId> = by_path.keys().copied().collect();
        paths.sort_by_key(|&path| is_library_code(sites.spaces.path(path), ""));
        for path in paths {
            let tallies = &by_path[&path];
            let mut covered_to = None;
            let mut unknown = 0;
            for &offset in tallies.keys() {
                if covered_to.is_some_and(|end| offset <= end) {
                    continue;
                }
                if graph.functions.len() == MAX_FUNCTIONS {
                    return graph;
                }
                let steps = symbols.control_flow(sites.spaces.file(path), offset);
                if let Some(steps) = steps.filter(|steps| !steps.is_empty()) {
                    covered_to = steps.last().map(|step| step.offset);
                    graph.add(sites, symbols, path, tallies, &steps);
                } else if unknown == MAX_UNKNOWN {
                    break;
                } else {
                    unknown += 1;
                }
            }
        }
        graph
    }

    /// Adds a function and its calls.
    fn add(
        &mut self,
        sites: &SiteTotals,
        symbols: &mut dyn Resolve,
        path: PathId,
        tallies: &BTreeMap<u64, &EventSums>,
        steps: &[CodeStep],
    ) {
        let start = (path, steps[0].offset);
        let module = sites.spaces.path(path).to_owned();
        let Some(symbol) = symbols.resolve(sites.spaces.file(path), start.1) else {
            return;
        };
        let (name, file) = outermost(symbol);
        let name = (name, module.clone());
        let is_startup = is_startup_code(&module, &name.0);
        let is_own = !is_startup
            && !name.0.ends_with("@plt")
            && !is_library_code(&module, &name.0)
            && !file.as_deref().is_some_and(is_library_source);
        let from = self.functions.len();
        let executed = Executed { tallies, steps };
        self.functions.push(Function {
            place: start,
            name,
            is_own,
            is_startup,
            entries: executed.entries(),
        });
        for (at, step) in steps.iter().enumerate() {
            let (target, calls) = match &step.flow {
                ControlFlow::Call(target) => (target, executed.stores(step.offset)),
                ControlFlow::TailCall(target) => (target, executed.branches(at)),
                ControlFlow::Next | ControlFlow::Branch => continue,
            };
            if calls == 0 {
                continue;
            }
            let [name, ..] = user_place_names(symbols, sites.spaces, (path, step.offset));
            let name = match is_library_code(&name.module, &name.function) {
                // A frame without a source file counts as the user's.
                true => self.functions[from].name.clone(),
                false => (name.function, name.module),
            };
            let call = Call { from, name, calls };
            let import = match target {
                BranchTarget::Import(name) => Some(name.clone()),
                BranchTarget::Offset(offset) => symbols
                    .resolve(sites.spaces.file(path), *offset)
                    .map(|symbol| symbol.name)
                    .filter(|name| name.ends_with("@plt")),
            };
            match (import, target) {
                (Some(import), _) => {
                    let calls = self.by_import.entry(plain_name(&import).to_owned());
                    calls.or_default().push(call);
                }
                (None, &BranchTarget::Offset(offset)) => {
                    self.by_target.entry((path, offset)).or_default().push(call);
                }
                (None, BranchTarget::Import(_)) => {}
            }
        }
    }

    /// Shares of a function's calls by the user's function that they come from.
    fn callers_by_name(&self, function: &str, module: &str) -> BTreeMap<FunctionName, f64> {
        let functions = self.functions.iter().enumerate();
        let named = functions
            .filter(|(_, known)| known.name.0 == function && known.name.1 == module)
            .map(|(index, _)| index);
        let mut weights: BTreeMap<FunctionName, f64> = BTreeMap::new();
        let mut all = 0;
        // A template may have several instances with the same name.
        for index in named {
            let mut walk = Walk {
                graph: self,
                path: Vec::new(),
                visits: 0,
            };
            let calls = walk.calls(index);
            all += calls;
            for (name, share) in walk.callers(index) {
                *weights.entry(name).or_default() += share * calls as f64;
            }
        }
        let shares = weights.into_iter();
        shares
            .map(|(name, weight)| (name, weight / all.max(1) as f64))
            .collect()
    }

    fn calls_of(&self, function: &Function) -> impl Iterator<Item = &Call> {
        let direct = self.by_target.get(&function.place);
        let is_shared = is_library_code(&function.name.1, "");
        let imported = is_shared.then(|| self.by_import.get(plain_name(&function.name.0)));
        direct.into_iter().chain(imported.flatten()).flatten()
    }
}

/// Name of the function that contains the code, instead of those that were inlined into it, and its
/// source file.
fn outermost(mut symbol: Symbol) -> (String, Option<String>) {
    match symbol.inlined_into.pop() {
        Some(caller) => (caller.function, caller.file),
        None => (symbol.name, symbol.file),
    }
}

/// Follows calls from a library to the user's code.
struct Walk<'a> {
    graph: &'a CallGraph,
    /// Functions on the way, so that recursion ends.
    path: Vec<usize>,
    visits: usize,
}

impl Walk<'_> {
    /// Number of calls of a function that are not recursive.
    fn calls(&self, index: usize) -> u64 {
        let function = &self.graph.functions[index];
        let (mut outer, mut recursive) = (0u64, 0u64);
        for call in self.graph.calls_of(function) {
            match call.from == index || self.path.contains(&call.from) {
                true => recursive += call.calls,
                false => outer += call.calls,
            }
        }
        outer.max(function.entries.saturating_sub(recursive))
    }

    fn callers(&mut self, index: usize) -> BTreeMap<FunctionName, f64> {
        let mut shares = BTreeMap::new();
        self.visits += 1;
        if self.path.len() >= MAX_DEPTH || self.visits > MAX_VISITS {
            return shares;
        }
        self.path.push(index);
        let function = &self.graph.functions[index];
        let all = self.calls(index);
        let mut seen = HashSet::new();
        for call in self.graph.calls_of(function) {
            let caller = &self.graph.functions[call.from];
            if self.path.contains(&call.from) || caller.is_startup {
                continue;
            }
            let share = call.calls as f64 / all.max(1) as f64;
            if caller.is_own {
                *shares.entry(call.name.clone()).or_default() += share;
                continue;
            }
            // One walk for all calls from the same function.
            if !seen.insert(call.from) {
                continue;
            }
            let calls = self.graph.calls_of(function);
            let calls: u64 = calls
                .filter(|other| other.from == call.from)
                .map(|other| other.calls)
                .sum();
            let share = calls as f64 / all.max(1) as f64;
            for (name, part) in self.callers(call.from) {
                *shares.entry(name).or_default() += share * part;
            }
        }
        self.path.pop();
        shares
    }
}

/// How often the instructions of a function were executed.
struct Executed<'a> {
    tallies: &'a BTreeMap<u64, &'a EventSums>,
    steps: &'a [CodeStep],
}

impl Executed<'_> {
    fn stores(&self, offset: u64) -> u64 {
        self.tallies
            .get(&offset)
            .map_or(0, |tally| tally.get(STORES))
    }

    fn instructions(&self, offset: u64) -> u64 {
        let tally = self.tallies.get(&offset);
        tally.map_or(0, |tally| tally.get(INSTRUCTIONS))
    }

    /// Number of times that the function was entered, or 0 if unknown. The instructions of a block
    /// are counted at its first one.
    fn entries(&self) -> u64 {
        let is_next = |step: &&CodeStep| step.flow == ControlFlow::Next;
        let length = 1 + self.steps.iter().take_while(is_next).count();
        self.instructions(self.steps[0].offset) / length.min(self.steps.len()) as u64
    }

    /// Executions of the branch at an index: the blocks that end there.
    fn branches(&self, at: usize) -> u64 {
        let before = &self.steps[..at];
        let is_branch = |step: &CodeStep| step.flow != ControlFlow::Next;
        let first = before
            .iter()
            .rposition(is_branch)
            .map_or(0, |index| index + 1);
        let blocks = (first..=at).map(|start| {
            let length = (at - start + 1) as u64;
            self.instructions(self.steps[start].offset) / length
        });
        blocks.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Analysis;
    use crate::code::address_spaces::tests::{code, spaces};
    use crate::code::hotspots::HotRow;
    use crate::code::sites::Sites;
    use crate::resolve::ModuleFile;
    use memgauge_trace::{Pid, SiteCount, VirtAddr};

    const PROGRAM: &str = "/bin/p";
    const LIBC: &str = "/lib/libc.so.6";
    const FIND: &str = "std::_Hashtable<int>::find(int const&)";
    const PROBE: &str = "std::_Hashtable<int>::_M_find_before_node(int)";
    const COPY: &str = "__memcpy_avx_unaligned_erms";

    /// Functions of 0x100 bytes with instructions of 0x10.
    struct Fake {
        names: Vec<(&'static str, &'static str)>,
        flows: Vec<(u64, ControlFlow)>,
    }

    impl Resolve for Fake {
        fn resolve(&mut self, file: &ModuleFile, offset: u64) -> Option<Symbol> {
            let (path, name) = self.names.get(offset as usize / 0x100)?;
            (file.path == *path).then(|| Symbol {
                name: (*name).to_owned(),
                ..Symbol::default()
            })
        }

        fn resolve_data(&mut self, _: &ModuleFile, _: u64) -> Option<String> {
            None
        }

        fn control_flow(&mut self, file: &ModuleFile, offset: u64) -> Option<Vec<CodeStep>> {
            self.resolve(file, offset)?;
            let start = offset & !0xff;
            let steps = (start..start + 0x100).step_by(0x10).map(|offset| {
                let known = self.flows.iter().find(|(at, _)| *at == offset);
                CodeStep {
                    offset,
                    flow: known.map_or(ControlFlow::Next, |(_, flow)| flow.clone()),
                }
            });
            Some(steps.collect())
        }
    }

    fn call(offset: u64) -> ControlFlow {
        ControlFlow::Call(BranchTarget::Offset(offset))
    }

    /// A library function, its calls, and the shares of its callers.
    type Found = (String, Vec<(String, f64)>);

    /// Callers of hot functions, with their calls. A count is that of stores at a call, or of
    /// instructions elsewhere.
    fn found(mut fake: Fake, counts: &[(u64, u64)]) -> Vec<Found> {
        let mapped = spaces(&[
            code(0, 0, 0x1000, PROGRAM),
            code(0, 0x1_0000, 0x1_1000, LIBC),
        ]);
        let names = fake.names.clone();
        let mut sites = Sites::new(&mapped);
        let rows: Vec<SiteCount> = counts
            .iter()
            .map(|&(offset, count)| {
                let is_call = fake
                    .flows
                    .iter()
                    .any(|(at, flow)| *at == offset && matches!(flow, ControlFlow::Call(_)));
                let is_libc = names[offset as usize / 0x100].0 == LIBC;
                SiteCount {
                    pid: Pid(1),
                    ip: VirtAddr(offset + if is_libc { 0x1_0000 } else { 0 }),
                    event: if is_call { STORES } else { INSTRUCTIONS },
                    count,
                    set_group: None,
                    code_ns: None,
                }
            })
            .collect();
        sites.observe(&rows);
        let hot = names.iter().map(|(module, name)| HotRow {
            function: (*name).to_owned(),
            module: (*module).to_owned(),
            share: Some(0.2),
            ..HotRow::default()
        });
        let table = HotTable {
            rows: hot.collect(),
            ..HotTable::default()
        };
        let all = library_functions(&sites.finish(), &mut fake, &table);
        let all = all.into_iter().map(|known| {
            let callers = known.callers.into_iter();
            let callers = callers.map(|caller| (caller.function, caller.share));
            (known.function, callers.collect())
        });
        all.collect()
    }

    #[test]
    fn calls_lead_through_the_library_to_the_users_function() {
        let fake = Fake {
            names: vec![
                (PROGRAM, "lookups"),
                (PROGRAM, "fill"),
                (PROGRAM, FIND),
                (PROGRAM, PROBE),
            ],
            flows: vec![
                (0x20, call(0x200)),
                (0x150, call(0x300)),
                (0x230, call(0x300)),
            ],
        };
        let counts = [(0x20, 900), (0x150, 100), (0x230, 900), (0x300, 16 * 1000)];
        let lookups = ("lookups".to_owned(), 0.9);
        assert_eq!(
            found(fake, &counts),
            [
                (FIND.to_owned(), vec![("lookups".to_owned(), 1.0)]),
                (PROBE.to_owned(), vec![lookups, ("fill".to_owned(), 0.1)]),
            ]
        );
    }

    #[test]
    fn recursion_and_calls_through_pointers_are_no_calls_of_the_user() {
        let fake = Fake {
            names: vec![
                (PROGRAM, "order"),
                (PROGRAM, "std::__introsort_loop<int*>(int*)"),
            ],
            flows: vec![
                (0x20, call(0x100)),
                (0x150, call(0x100)),
                (0x110, ControlFlow::Branch),
            ],
        };
        // It is entered 60 times, 50 times by itself and 5 times by the user's function.
        let counts = [(0x20, 5), (0x150, 50), (0x100, 2 * 60)];
        let callers = vec![("order".to_owned(), 0.5)];
        let sort = "std::__introsort_loop<int*>(int*)".to_owned();
        assert_eq!(found(fake, &counts), [(sort, callers)]);
    }

    #[test]
    fn functions_of_the_c_library_are_found_by_the_name_that_is_called() {
        let import = |name: &str| BranchTarget::Import(name.to_owned());
        let fake = Fake {
            names: vec![
                (PROGRAM, "shift"),
                (PROGRAM, "clear"),
                (PROGRAM, "memcpy@plt"),
                (LIBC, COPY),
                (LIBC, "__memset_avx2_unaligned_erms"),
            ],
            flows: vec![
                (0x20, call(0x200)),
                // The block that ends with the jump has three instructions.
                (0x120, ControlFlow::TailCall(import("memset"))),
            ],
        };
        let counts = [
            (0x20, 7),
            (0x100, 3 * 11),
            (0x300, 16 * 7),
            (0x400, 16 * 11),
        ];
        let only = |name: &str| vec![(name.to_owned(), 1.0)];
        assert_eq!(
            found(fake, &counts),
            [
                (COPY.to_owned(), only("shift")),
                ("__memset_avx2_unaligned_erms".to_owned(), only("clear")),
            ]
        );
    }
}
