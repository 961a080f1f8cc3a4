// The page's data: what `crates/report/src/page.rs` writes. Only what is read here is
// named; docs/metrics.md describes the summary in full. A test gives these types to data of
// recordings of every source (`crates/cli/tests/page/data_types.rs`).

export interface Data {
  page_version: number;
  memgauge: string;
  title: string;
  overview: Statement[];
  sampling_notes: string[];
  what_if_cautions: string[];
  summary: Summary | null;
  curves: MissCurve[];
  memory?: RunningMemory | null;
  fleet?: Fleet | null;
  served: Served | null;
}

export interface Served {
  token: string;
  is_growing: boolean;
  /** The recording's place in the dataset that is served. */
  in_dataset?: { recording: string; service: string; dataset: string } | null;
}

/** A dataset of many recordings (docs/fleet.md). */
export interface Fleet {
  dataset: string;
  facts: FleetFacts;
  services: { name: string; recordings: number }[];
  service: string | null;
  metric: string;
  provenances: string[];
  metrics: string[];
  histories: FleetHistory[];
  other_services: number;
  top: FleetTop | null;
  outliers: { comparisons: number; not_compared: number; rows: FleetOutlier[] };
  recordings: FleetRecording[];
  other_recordings: number;
}

export interface FleetFacts {
  recordings: number;
  hosts: number;
  services: number;
  first_day: string;
  last_day: string;
  with_losses: number;
  machines: string[];
}

export type Ends = [number, number] | null;

export interface FleetHistory {
  service: string;
  recordings: number;
  without_metric: number;
  versions: FleetVersion[];
  older_versions: number;
}

export interface FleetVersion {
  commit: string | null;
  recordings: number;
  first_unix_s: number;
  last_unix_s: number;
  mean: number;
  interval: Ends;
  change: { difference: number; relative: number | null; interval: Ends } | null;
  points: FleetPoint[];
}

export interface FleetPoint {
  first_unix_s: number;
  last_unix_s: number;
  unix_s: number;
  recordings: number;
  mean: number;
  interval: Ends;
}

export interface FleetTop {
  metric: string;
  provenances: string[];
  facts: FleetFacts;
  without_metric: number;
  rows: FleetFunction[];
  other_rows: number;
}

export interface FleetFunction {
  name: string | null;
  module: string | null;
  value: number;
  share: number | null;
  recordings: number;
  mean: number;
  interval: Ends;
}

export interface FleetOutlier {
  service: string;
  host: string;
  metric: string;
  recordings: number;
  peer_recordings: number;
  mean: number;
  peer_mean: number;
  relative: number | null;
  interval: [number, number];
}

export interface FleetRecording {
  recording: string;
  service: string;
  host: string;
  commit: string | null;
  started_unix_s: number;
  duration_ns: number;
  value: number | null;
  kinds_of_losses: number;
  path: string;
}

/** Memory of running processes: the JSON of `mrc -p` (docs/mrc.md). */
export interface RunningMemory {
  title: string;
  source: string;
  epochs: number;
  resident_bytes: number;
  swapped_bytes: number;
  limit_bytes: number | null;
  unused_bytes: number | null;
  unused_for_s: number | null;
  working_sets: { window_s: number; bytes: Interval }[];
  points: { bytes: number; faults_per_s: Interval; censored: number }[];
  sizes: { faults_per_s: number; state: string; bytes: { value: number; low?: number; high?: number } | null }[];
  regions: MemoryRegion[] | null;
  heat_map: PageMap | null;
  processes: {
    pid: number;
    command: string;
    resident_bytes: number;
    working_set_bytes: number | null;
    regions: MemoryRegion[] | null;
    heat_map: PageMap | null;
  }[];
  cost: { elapsed_s: number; own_cpu_s: number };
  notes: string[];
}

export interface Interval {
  value: number;
  low: number;
  high: number;
}

export interface MemoryRegion {
  name: string;
  resident_bytes: number;
  /** For each column of the heat map, the bytes not used from its start to the end of the run. */
  unused: { for_s: number; bytes: number }[];
}

export interface PageMap {
  columns: { start_s: number; end_s: number }[];
  rows: { name: string; start: number; end: number; resident_bytes: number; used: number[] }[];
}

export interface Statement {
  kind: "cause" | "caution" | "fact";
  text: string;
  rule: string;
  next: string;
}

export type Counts = Record<string, number>;

export interface Summary {
  recording: {
    recorder: string;
    command: string[];
    started_unix_s: number;
    clock: string;
    complete: boolean;
    end: unknown;
    source: { name: string; settings: Record<string, string> };
    host: { cpu?: string; kernel?: string; memory_bytes?: number };
    machine: Machine | null;
  };
  provenance: { counts: string[]; regions: string };
  sets?: { one_in: number; estimates: Record<string, { value: number; low: number; high: number }> };
  run: { duration_ns: number; wall_s: number | null; instructions: number | null };
  totals: Counts;
  time?: { on: string; cycles: number; share: number }[];
  io?: Io;
  levels: {
    name: string;
    lookups: number | null;
    misses: number | null;
    miss_ratio: number | null;
    mpki: number | null;
  }[];
  dram: {
    read_bytes: number | null;
    write_bytes: number | null;
    mean_read_bytes_per_s: number | null;
    mean_write_bytes_per_s: number | null;
    peak: { start_ns: number; length_ns: number; per_s: number } | null;
  };
  counting: {
    totals: { name: string; value: number; unit: string | null; share_counted: number }[];
    derived: { name: string; value: number; unit: string; formula: string }[];
    unsupported: { name: string; why: string }[];
    notes: string[];
  } | null;
  sampling: {
    events: {
      event: string;
      samples: number;
      with_address: number;
      stood_for: number;
      lost: number | null;
      throttled: number | null;
      every_event: boolean;
    }[];
    sources: { source: string; samples: number; latency_cycles: number }[];
  } | null;
  hot: { functions: HotTable; lines: HotTable; instructions: HotTable };
  calls?: CallTree[];
  regions: RegionTable[];
  data?: DataTable;
  heap?: HeapUse;
  types?: TypeTable;
  sharing?: SharedLines;
  what_if?: WhatIf[];
  python?: PythonTable;
  code_regions?: CodeRegionRow[];
  timeline?: Timeline;
  sources?: Excerpt[];
  listings?: CodeListing[];
  threads: ThreadRow[];
  processes: ProcessRow[];
  losses: { kind: string; meaning: string; detail: string; count: number }[];
  problems: string[];
  import: { problems?: string[] } | null;
  own_cost: {
    wall_s: number;
    cpu_s: number;
    peak_memory_bytes: number;
    program_cpu_s: number;
    recording_bytes: number;
  };
  events: EventDef[];
}

export interface EventDef {
  name: string;
  unit: string;
  provenance: string;
  description: string;
}

export interface Machine {
  name: string;
  frequency_hz: number;
  l1d: { size_bytes: number; ways: number };
  l2: { size_bytes: number; ways: number };
  llc: { size_bytes: number; ways: number };
  dtlb: { entries: number };
  stlb: { entries: number };
  dram_bytes_per_s: number;
}

/** Its caches. In a machine of two levels the second is a stand-in, smaller than the first. */
export function caches(machine: Machine): { name: string; bytes: number }[] {
  const all = [
    { name: "L1D", bytes: machine.l1d.size_bytes },
    { name: "L2", bytes: machine.l2.size_bytes },
    { name: "LLC", bytes: machine.llc.size_bytes },
  ];
  return all.filter((cache) => cache.name !== "L2" || cache.bytes >= machine.l1d.size_bytes);
}

export interface CallTree {
  event: string;
  samples: number;
  events: number;
  nodes: CallNode[];
  /** Of each node, without what it calls: bins with samples, samples, events. */
  timed?: { bin_ns: number; own: [number, number, number][][] };
}

export interface CallNode {
  function: string;
  module: string;
  /** Index of the node that calls it; smaller than its own. */
  caller: number | null;
  samples: number;
  events: number;
  own_events: number;
}

export interface HotTable {
  rank: string;
  total: number;
  samples: number | null;
  rows: HotRow[];
  /** Rows from the top that are complete, whichever number the table is sorted by. */
  first_by_each?: number;
  others: { rows: number; value: number; share: number | null; counts: Counts };
}

export interface HotRow {
  function: string;
  inlined_into: { function: string }[];
  module: string;
  file: string | null;
  line: number | null;
  offset: number | null;
  counts: Counts;
  value: number;
  value_low: number | null;
  value_high: number | null;
  share: number | null;
  share_low: number | null;
  share_high: number | null;
}

/** Data by the cycles that were spent waiting for it. */
export interface DataTable {
  totals: Counts;
  rows: DataPlace[];
  other_rows: number;
  other_counts: Counts;
}

export interface DataPlace {
  name: string;
  kind: "allocated" | "mapped";
  counts: Counts;
  share: number | null;
  allocation?: AllocationSite;
}

export interface AllocationSite {
  name: string;
  calls: { function: string; module: string; file: string | null; line: number | null }[];
  named_by: number;
  paths: number;
  allocations: number;
  bytes: number;
  frees: number;
  at_peak_bytes: number;
  live_bytes: number;
  /** Bytes of whole cache lines that no access reached. Absent if the source does not see accesses. */
  untouched_bytes?: number;
  mean_lifetime_ns: number | null;
  temporary: number;
  errors?: HeapErrors;
}

/** Half the width of the 95 % confidence intervals of estimates from sampled allocations. */
export interface HeapErrors {
  allocations: number;
  bytes: number;
  at_peak_bytes: number;
  live_bytes: number;
}

export interface HeapUse {
  allocations: number;
  bytes: number;
  at_peak_bytes: number;
  live_bytes: number;
  untouched_bytes?: number;
  temporary: number;
  allocations_per_s: number | null;
  over_time?: HeapOverTime;
  histograms?: { sizes: HeapClass[]; lifetimes: HeapClass[]; unfreed: number };
  errors?: HeapErrors;
  sites: AllocationSite[];
  other_sites: number;
  other_at_peak_bytes: number;
}

/** Allocated bytes over time: of all sites the maximum in each bin, of each those at its end. */
export interface HeapOverTime {
  bin_ns: number;
  duration_ns: number;
  peak_ns: number;
  in_use: number[];
  /** Resident memory. Absent if it was not read. */
  resident?: number[];
  sites: { name: string; bytes: number[] }[];
  other_bytes: number[];
}

/** Allocations with sizes in bytes, or lifetimes in nanoseconds, in a range. */
export interface HeapClass {
  min: number;
  max: number;
  allocations: number;
}

/** The same run on another machine, or with another layout of a type. */
export interface WhatIf {
  name: string;
  change: string;
  changes: "program" | "machine";
  machine: string;
  busy_ns: number;
  relative: number;
  time: { on: string; cycles: number; share: number }[];
  totals: Counts;
  moved_accesses?: number;
  misses_of_others?: number;
}

/** Costs by type and member. */
export interface TypeTable {
  totals: Counts;
  rows: TypeRow[];
  other_rows: number;
  other_counts: Counts;
  untyped: { reason: string; counts: Counts; share: number | null }[];
}

export interface TypeRow {
  name: string;
  bytes: number;
  counts: Counts;
  share: number | null;
  members: MemberRow[];
  holes: { offset: number; bytes: number }[];
}

export interface MemberRow {
  name: string;
  type_name: string;
  offset: number;
  bytes: number;
  count: number;
  counts: Counts;
  share: number | null;
  miss_share: number | null;
}

/** Misses of lines that threads share. */
export interface SharingCounts {
  hitm: number;
  true_sharing: number;
  false_sharing: number;
  invalidating: number;
  stall_cycles: number;
  /** Samples that the numbers are estimated from; 0 if all accesses were seen. */
  samples: number;
  hitm_samples: number;
  remote_hitm: number;
}

export interface SharedLines extends SharingCounts {
  latency_share?: number;
  lines: SharedLine[];
  other_lines: number;
  other_counts: SharingCounts;
}

export interface SharedLine extends SharingCounts {
  name: string;
  kind: "allocated" | "mapped";
  pid: number;
  address: number;
  threads: number;
  accesses: SharedAccess[];
  other_accesses: number;
}

export interface SharedAccess extends SharingCounts {
  function: string | null;
  module: string;
  file: string | null;
  line: number | null;
  data: string;
  /** Element and member of a variable. Absent if unknown. */
  member?: string;
  threads: number;
  tid: number | null;
  loaded: { first: number; last: number }[];
  stored: { first: number; last: number }[];
}

export interface RegionTable {
  event: string;
  samples: number;
  samples_without_address: number;
  address_gap?: {
    samples: number;
    with_address: number;
    function: { name: string; module: string; share: number; samples: number; with_address: number } | null;
  };
  events: number;
  rows: {
    name: string;
    pid: number;
    bytes: number | null;
    samples: number;
    events: number;
    share: number | null;
    share_low: number | null;
    share_high: number | null;
  }[];
  /** Rows from the top that are complete, whether sorted by events, samples or size. */
  first_by_each?: number;
  other_rows: number;
  other_events: number;
}

export interface ThreadRow {
  pid: number;
  tid: number;
  program: string;
  start_ns: number | null;
  end_ns: number | null;
  run_ns: number;
  idle_ns?: number;
  counts: Counts;
  samples: number;
}

export interface ProcessRow {
  pid: number;
  program: string;
  threads: number;
  run_ns: number;
  idle_ns?: number;
  counts: Counts;
  samples: number;
}

export interface Timeline {
  start_ns: number;
  bin_ns: number;
  duration_ns: number;
  curves: { event: string; values: number[] }[];
  samples: TimedSamples[];
  heat: Heat | null;
  code_regions?: TimedRegion[];
}

export interface PythonTable {
  rank: string;
  share: number | null;
  lines: PythonRow[];
  other_lines: number;
  functions: PythonRow[];
}

export interface PythonRow {
  function: string;
  file: string;
  line?: number;
  share: number | null;
  stalled_cycles: number;
  counts: Counts;
}

export interface CodeRegionRow {
  name: string;
  entries: number;
  threads: number;
  time_ns: number;
  counts: Counts;
}

export interface TimedRegion {
  name: string;
  spans: TimedSpan[];
}

/** Start, duration, time inside, entries, process, thread. */
export type TimedSpan = [number, number, number, number, number, number];

export interface TimedSamples {
  event: string;
  bin_ns: number;
  bins: number;
  all: TimedRow;
  functions: TimedRow[];
  lines: TimedRow[];
  regions: TimedRow[];
  threads: TimedRow[];
}

export interface TimedRow {
  name: string;
  of: string;
  samples: number;
  events: number;
  bins: [number, number, number][];
}

export interface Heat {
  samples: number;
  bin_ns: number;
  columns: number;
  functions: [string, string][];
  regions: string[];
  stretches: Stretch[];
  other_stretches: number;
}

export interface Stretch {
  pid: number;
  start: string;
  row_bytes: number;
  rows: number;
  samples: number;
  cells: [number, number, number, number, number][];
}

export interface Excerpt {
  file: string;
  first_line: number;
  lines: string[];
  is_newer: boolean;
}

/** Machine code of a function. */
export interface CodeListing {
  function: string;
  module: string;
  instructions: { offset: number; address: number; text: string; file?: string; line?: number; value: number; counts: Counts }[];
  omitted: number;
  /** Why there is none. */
  missing?: string;
}

export interface Moved {
  bytes: number;
  operations: number;
}

export interface Io {
  duration_ns: number;
  filtered: boolean;
  lines: { pid: number; command: string; user: string; device: string; in: Moved; out: Moved }[];
  devices: {
    name: string;
    kind: string;
    pci: string;
    is_virtual: boolean;
    counted: { in: Moved; out: Moved };
    attributed: { in: Moved; out: Moved };
    unattributed_in_bytes: number;
    unattributed_out_bytes: number;
  }[];
  missing: string[];
  over_time?: {
    bin_ns: number;
    duration_ns: number;
    devices: IoCurve[];
    lines: IoCurve[];
  };
}

export interface IoCurve {
  index: number;
  in_bytes: number[];
  out_bytes: number[];
}

export interface MissCurve {
  title: string;
  note: string | null;
  provenance: string;
  sample_rate: number | null;
  block_bytes: number;
  references: number;
  compulsory: number;
  points: {
    bytes: number;
    misses: number | null;
    miss_ratio: number | null;
    mpki: number | null;
    half_band_95: number | null;
  }[];
  knees: { bytes: number; benefit: number }[];
  bytes_for_90_percent: number | null;
  marks?: { name: string; bytes: number }[];
  /** Of a cache trace: the unit of the sizes, which are in the fields named `bytes`. */
  capacity_unit?: "bytes" | "objects";
  /** Of a cache trace: one curve per eviction policy, the first also in `points`. */
  policies?: { policy: string; name: string; points: { bytes: number; miss_ratio: number | null }[] }[];
  /** How much memory the other policies need, in sentences. */
  advice?: string[];
}

/** Whether each event of this name is a sample, so that sums of samples are counts. */
export function hasEvery(run: Summary | null, event: string): boolean {
  return run?.sampling?.events.some((e) => e.event === event && e.every_event) ?? false;
}

/** How counts of a run came to be: of a modelled machine, all or some of its cache sets. */
export function modelled(run: Summary): string {
  return run.sets !== undefined && run.sets.one_in > 1 ? "estimated" : "modelled";
}
