//! Computes bandwidth from the tables of a recording.

use std::borrow::Cow;
use std::collections::BTreeMap;

use memgauge_recording::{Recording, Result, Row, Selection};
use memgauge_trace::{
    AccessKind, EventId, LINE_BYTES, OverflowBlock, Pid, Provenance, Sample, SeriesRow, Thread,
    Tid, Unit, catalogue,
};

use super::functions::functions;
use super::hidden::{self, Finder, LoadSamples, Mechanism, WindowCounters, WindowOverflows};
use super::{
    Bandwidth, BandwidthSettings, Bursts, Correction, Grid, Irregular, LossCurve, LossModel,
    MAX_WINDOWS, PLAIN_NS, Reference, ThreadPart, WindowStats, bursts, common_drops, mean_error,
    regression, window_stats,
};
use crate::Resolve;

/// Window widths for statistics.
const WIDTHS_NS: [u64; 4] = [10_000, 100_000, 1_000_000, 10_000_000];
/// Maximum number of windows of a thread's curve.
const THREAD_WINDOWS: u64 = MAX_WINDOWS / 100;
/// Maximum number of threads with a curve. Other threads have totals only.
const THREAD_CURVES: usize = 16;
/// Events are not spread over a gap longer than this and than [`PAUSE_GAPS`] usual gaps.
const PAUSE_NS: u64 = 10_000_000;
const PAUSE_GAPS: f64 = 50.0;
/// Maximum number of windows of counters.
const COUNTED_WINDOWS: u64 = MAX_WINDOWS / 100;
/// Maximum number of samples that are used to distinguish loads from stores.
const MAX_SAMPLES: usize = 1 << 22;
/// Maximum number of listed drops.
const MAX_DROPS: usize = 20;

/// Extent of a trace, known without unpacking it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceExtent {
    /// Start time.
    pub start_ns: u64,
    /// End, exclusive.
    pub end_ns: u64,
    /// Overflows by event and period.
    pub overflows: BTreeMap<(u16, u64), u64>,
    /// Messages about parts that could not be read.
    pub problems: Vec<String>,
}

/// Determines the extent of a recording's overflows.
pub fn extent(recording: &Recording) -> Result<TraceExtent> {
    let mut problems = recording.problems();
    let mut found = TraceExtent {
        start_ns: u64::MAX,
        ..TraceExtent::default()
    };
    let columns = ["time_ns", "last_ns", "event", "period", "count"];
    let selection = Selection::all().columns(&columns);
    each(
        recording,
        &selection,
        &mut problems,
        |rows: &[OverflowBlock]| {
            for block in rows {
                found.start_ns = found.start_ns.min(block.time_ns);
                found.end_ns = found.end_ns.max(block.last_ns.saturating_add(1));
                let key = (block.event.0, block.period);
                *found.overflows.entry(key).or_default() += u64::from(block.count);
            }
        },
    )?;
    each(
        recording,
        &Selection::all(),
        &mut problems,
        |rows: &[Thread]| {
            for thread in rows {
                found.start_ns = found.start_ns.min(thread.start_ns);
                found.end_ns = found.end_ns.max(thread.end_ns.unwrap_or(0));
            }
        },
    )?;
    found.start_ns = found.start_ns.min(found.end_ns);
    found.problems = problems;
    Ok(found)
}

/// Passes every batch to `f`. Damaged parts become messages.
fn each<R: Row>(
    recording: &Recording,
    selection: &Selection,
    problems: &mut Vec<String>,
    observe: impl FnMut(&[R]),
) -> Result<()> {
    recording.for_each_intact_batch(selection, problems, observe)
}

/// Bandwidth of the event with the most overflows.
pub fn read(
    recording: &Recording,
    extent: &TraceExtent,
    settings: &BandwidthSettings,
    correction: &Correction,
    symbols: &mut dyn Resolve,
) -> Result<Bandwidth> {
    let mut reading = BandwidthReading::new(recording, extent, settings);
    let mut counters = reading.counters(recording, correction);
    reading.series(recording, counters.as_mut().map(|(_, counters)| counters))?;
    reading.correct(correction);
    match counters.filter(|(_, counters)| counters.are_recorded()) {
        Some((mechanism, counters)) => reading.find_hidden(recording, mechanism, counters)?,
        None => {
            let loads = reading.share_of_loads(recording)?;
            reading.curve = std::mem::take(&mut reading.curve).mixed(loads);
        }
    }
    reading.overflows(recording)?;
    reading.weigh();
    reading.threads(recording)?;
    let mut result = reading.finish(recording, settings);
    functions(recording, &mut result, symbols, settings.rows)?;
    Ok(result)
}

/// Sums of a thread's overflows.
struct ThreadOverflows {
    pid: Pid,
    last_ns: u64,
    /// Recent mean gap in nanoseconds, 0 before the first.
    usual_ns: f64,
    overflows: u64,
    bytes: f64,
    curve: Option<Grid>,
    overflows_of_window: WindowOverflows,
}

impl ThreadOverflows {
    fn new(pid: Pid, last_ns: u64, curve: Option<Grid>) -> ThreadOverflows {
        ThreadOverflows {
            pid,
            last_ns,
            usual_ns: 0.0,
            overflows: 0,
            bytes: 0.0,
            curve,
            overflows_of_window: WindowOverflows::default(),
        }
    }

    /// Time in which the events of an overflow happened: since the previous one, without pauses.
    fn span(&mut self, time_ns: u64, irregular: &mut Irregular) -> u64 {
        let gap = time_ns.saturating_sub(self.last_ns);
        self.last_ns = time_ns;
        let usual = self.usual_ns * PAUSE_GAPS;
        if gap > PAUSE_NS && usual > 0.0 && gap as f64 > usual {
            irregular.pauses += 1;
            irregular.pauses_ns += gap;
            return self.usual_ns as u64;
        }
        self.usual_ns += (gap as f64 - self.usual_ns) / 16.0;
        gap
    }
}

struct BandwidthReading {
    event: EventId,
    period: u64,
    bytes_per_event: f64,
    start_ns: u64,
    base: Grid,
    raw: Grid,
    reference: Grid,
    written: u64,
    prefetched: u64,
    instructions: u64,
    has_series: bool,
    is_modelled: bool,
    /// True if the curve includes the counts after the last overflow.
    counted: bool,
    reference_event: EventId,
    /// Interval at which the reference was read, in windows of its grid.
    reference_windows: u64,
    reference_whole: f64,
    overflows_whole: u64,
    name: Option<String>,
    from_reference: bool,
    curve: LossCurve,
    /// Reference counters for the estimate of hidden events.
    finder: Option<Finder>,
    lost: (f64, f64),
    overflows: u64,
    resolution_ns: u64,
    streams: BTreeMap<u32, ThreadOverflows>,
    threads: Vec<ThreadPart>,
    irregular: Irregular,
    problems: Vec<String>,
}

/// Common divisor of all window widths, within the memory limit.
fn base_width(settings: &BandwidthSettings, length_ns: u64) -> u64 {
    let (mut a, mut b) = (settings.bin_ns.max(1), WIDTHS_NS[0]);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    match length_ns / a < MAX_WINDOWS / 2 {
        true => a,
        false => settings.bin_ns.max(1),
    }
}

/// Window width for comparing curves: [`PLAIN_NS`] if it is a multiple of `base_ns`. A long
/// recording with wide windows uses wider ones; otherwise a reference of days would take more
/// memory than its curve.
fn plain_width(base_ns: u64) -> u64 {
    (PLAIN_NS / base_ns).max(1) * base_ns
}

impl BandwidthReading {
    fn new(
        recording: &Recording,
        extent: &TraceExtent,
        settings: &BandwidthSettings,
    ) -> BandwidthReading {
        let most = extent.overflows.iter().max_by_key(|(_, count)| **count);
        let ((event, period), overflows_whole) = most.map_or(((0, 1), 0), |(k, n)| (*k, *n));
        let event = EventId(event);
        let definitions = &recording.manifest().events;
        let in_bytes = |e: &&memgauge_trace::EventDef| e.id == event && e.unit == Unit::Bytes;
        let recorded = recording.manifest().source.settings.bytes_per_event;
        let bytes_per_event = match definitions.iter().any(|e| in_bytes(&e)) {
            true => 1,
            false => recorded.unwrap_or(LINE_BYTES),
        };
        let from_ns = settings.from_ns.max(extent.start_ns);
        let to_ns = settings
            .to_ns
            .unwrap_or(u64::MAX)
            .min(extent.end_ns)
            .max(from_ns);
        let width = base_width(settings, to_ns - from_ns);
        let base = Grid::new(from_ns, to_ns, width);
        BandwidthReading {
            event,
            period,
            bytes_per_event: bytes_per_event as f64,
            start_ns: extent.start_ns,
            raw: Grid::new(from_ns, to_ns, settings.bin_ns),
            reference: Grid::new(from_ns, to_ns, plain_width(width)),
            base,
            written: 0,
            prefetched: 0,
            instructions: 0,
            has_series: false,
            is_modelled: definitions
                .iter()
                .any(|e| e.id == event && e.provenance == Provenance::Modelled),
            counted: false,
            reference_event: catalogue::DRAM_READ_BYTES,
            reference_windows: 1,
            reference_whole: 0.0,
            overflows_whole,
            name: None,
            from_reference: false,
            curve: LossCurve::default(),
            finder: None,
            lost: (0.0, 0.0),
            overflows: 0,
            resolution_ns: 1,
            streams: BTreeMap::new(),
            threads: Vec::new(),
            irregular: Irregular::default(),
            problems: recording.problems(),
        }
    }

    /// Sums the counts of the other counters.
    fn series(
        &mut self,
        recording: &Recording,
        mut counters: Option<&mut WindowCounters>,
    ) -> Result<()> {
        let mut problems = std::mem::take(&mut self.problems);
        let (from, to) = (self.base.from_ns, self.end_ns());
        // Only written if the controllers do not count it themselves.
        let monitored = named(recording, "mbm.total_bytes");
        let mut intervals: BTreeMap<u64, f64> = BTreeMap::new();
        each(
            recording,
            &Selection::all(),
            &mut problems,
            |rows: &[SeriesRow]| {
                for row in rows {
                    self.has_series = true;
                    if Some(row.event) == monitored {
                        self.reference_event = row.event;
                    }
                    if let Some(counters) = &mut counters {
                        counters.observe(row);
                    }
                    let start = row.time_ns.saturating_sub(row.interval_ns);
                    if row.event == self.reference_event {
                        let interval = row.interval_ns.div_ceil(self.reference.width_ns);
                        *intervals.entry(interval).or_insert(0.0) += row.value as f64;
                        self.reference
                            .add_over(start, row.time_ns, row.value as f64);
                        self.reference_whole += row.value as f64;
                    }
                    if row.time_ns <= from || row.time_ns > to {
                        continue;
                    }
                    match row.event {
                        catalogue::DRAM_WRITE_BYTES => self.written += row.value,
                        catalogue::PREFETCHES => self.prefetched += row.value * LINE_BYTES,
                        catalogue::INSTRUCTIONS => self.instructions += row.value,
                        _ => {}
                    }
                }
            },
        )?;
        self.reference_windows = usual(&intervals);
        self.problems = problems;
        Ok(())
    }

    fn end_ns(&self) -> u64 {
        self.base.from_ns + self.base.values.len() as u64 * self.base.width_ns
    }

    fn correct(&mut self, correction: &Correction) {
        let model = match correction {
            Correction::None => return,
            Correction::Model(name, model) => {
                self.name = Some(name.clone());
                model.clone()
            }
            Correction::Reference => {
                let records = self.overflows_whole as f64;
                let events = self.reference_whole / self.bytes_per_event;
                if records < 1.0 || events <= 0.0 {
                    return;
                }
                self.name = Some("memory's own counter".to_owned());
                self.from_reference = true;
                LossModel::constant((events / records - self.period as f64).max(0.0))
            }
        };
        self.curve = model.at(self.period);
    }

    /// Share of loads among the event's samples. 1 if unknown.
    fn share_of_loads(&mut self, recording: &Recording) -> Result<f64> {
        let selection = Selection::all().columns(&["event", "kind"]);
        let (mut loads, mut stores) = (0u64, 0u64);
        let mut problems = std::mem::take(&mut self.problems);
        each(recording, &selection, &mut problems, |rows: &[Sample]| {
            for sample in rows.iter().filter(|s| s.event == self.event) {
                match sample.kind {
                    AccessKind::Unknown => {}
                    AccessKind::Store => stores += 1,
                    AccessKind::Load | AccessKind::Modify => loads += 1,
                }
            }
        })?;
        self.problems = problems;
        Ok(match loads + stores {
            0 => 1.0,
            all => loads as f64 / all as f64,
        })
    }

    fn overflows(&mut self, recording: &Recording) -> Result<()> {
        self.each_block(recording, BandwidthReading::block)
    }

    /// Unpacks every block of the event and period.
    fn each_block(
        &mut self,
        recording: &Recording,
        mut observe: impl FnMut(&mut BandwidthReading, &OverflowBlock, &[u64]),
    ) -> Result<()> {
        let mut problems = std::mem::take(&mut self.problems);
        let mut unreadable = 0;
        let mut times = Vec::new();
        each(
            recording,
            &Selection::all(),
            &mut problems,
            |rows: &[OverflowBlock]| {
                let key = (self.event, self.period);
                let wanted = |b: &&OverflowBlock| (b.event, b.period) == key;
                for block in rows.iter().filter(wanted) {
                    times.clear();
                    match block.unpack(&mut times) {
                        true => observe(self, block, &times),
                        false => unreadable += 1,
                    }
                }
            },
        )?;
        self.irregular.unreadable = unreadable;
        self.problems = problems;
        Ok(())
    }

    fn block(&mut self, block: &OverflowBlock, times: &[u64]) {
        let (from_ns, end_ns) = (self.base.from_ns, self.end_ns());
        let curves = self.streams.len() < THREAD_CURVES;
        self.resolution_ns = self.resolution_ns.max(block.resolution_ns);
        let stream = self.streams.entry(block.tid.0).or_insert_with(|| {
            let width = PLAIN_NS.max((end_ns - from_ns).div_ceil(THREAD_WINDOWS));
            let curve = curves.then(|| Grid::new(from_ns, end_ns, width));
            ThreadOverflows::new(block.pid, self.start_ns.min(block.time_ns), curve)
        });
        self.irregular.clock_back += u64::from(block.time_ns < stream.last_ns);
        for &time in times {
            let span = stream.span(time, &mut self.irregular);
            let within = (from_ns..end_ns).contains(&time);
            let (lost, error) = match &mut self.finder {
                Some(finder) => {
                    if within {
                        finder.take(block.tid.0, &mut stream.overflows_of_window, time, span);
                    }
                    (0.0, 0.0)
                }
                None => self.curve.lost(span as f64 / self.period as f64),
            };
            let bytes = (self.period as f64 + lost) * self.bytes_per_event;
            self.base.add_over(time - span, time, bytes);
            if let Some(curve) = &mut stream.curve {
                curve.add_over(time - span, time, bytes);
            }
            if within {
                let raw = self.period as f64 * self.bytes_per_event;
                self.raw.add_at(time, raw);
                stream.bytes += bytes;
                stream.overflows += 1;
                self.overflows += 1;
                self.lost.0 += lost;
                self.lost.1 += error;
            }
        }
    }

    /// Counters to collect if the correction models how records hide events.
    fn counters(
        &self,
        recording: &Recording,
        correction: &Correction,
    ) -> Option<(Mechanism, WindowCounters)> {
        let Correction::Model(_, model) = correction else {
            return None;
        };
        let mechanism = model.mechanism(self.period)?;
        let events = &recording.manifest().events;
        let has = |id| events.iter().any(|event| event.id == id);
        if !has(catalogue::STALL_REGULAR) || !has(catalogue::STALL_IRREGULAR) {
            return None;
        }
        let hertz = recording.manifest().machine.as_ref()?.frequency_hz;
        let width = self.base.width_ns;
        let length = self.end_ns() - self.base.from_ns;
        // Counter windows must be multiples of the curve's windows.
        let least = PLAIN_NS.max(length.div_ceil(COUNTED_WINDOWS)).max(width);
        let range = (self.base.from_ns, self.end_ns());
        let mut counters = WindowCounters::new(self.event, range, least.next_multiple_of(width));
        counters.clock(hertz);
        Some((mechanism, counters))
    }

    /// Prepares the estimate of hidden events. Samples show which gaps end in loads.
    fn find_hidden(
        &mut self,
        recording: &Recording,
        mechanism: Mechanism,
        counters: WindowCounters,
    ) -> Result<()> {
        let mut finder = Finder::new(mechanism, counters, self.period);
        let mut kinds = LoadSamples::new(self.samples(recording)?);
        let mut last: BTreeMap<Tid, (u64, usize)> = BTreeMap::new();
        self.each_block(recording, |_, block, times| {
            let (before, class) = last
                .entry(block.tid)
                .or_insert((times.first().copied().unwrap_or(0), 0));
            for &time in times {
                kinds.until(block.tid, time, *class);
                *class = hidden::class(finder.own_ns(time.saturating_sub(*before)));
                *before = time;
            }
        })?;
        for (tid, (_, class)) in last {
            kinds.until(tid, u64::MAX, class);
        }
        finder.loads = kinds.shares();
        if let Some(name) = &mut self.name {
            name.push_str(" and reference counters");
        }
        self.finder = Some(finder);
        Ok(())
    }

    /// Times of the event's samples by thread, and whether each was a load.
    fn samples(&mut self, recording: &Recording) -> Result<BTreeMap<Tid, Vec<(u64, bool)>>> {
        let selection = Selection::all().columns(&["time_ns", "tid", "event", "kind"]);
        let mut problems = std::mem::take(&mut self.problems);
        let mut samples: BTreeMap<Tid, Vec<(u64, bool)>> = BTreeMap::new();
        let mut left = MAX_SAMPLES;
        each(recording, &selection, &mut problems, |rows: &[Sample]| {
            let told = |s: &&Sample| s.event == self.event && s.kind != AccessKind::Unknown;
            for sample in rows.iter().filter(told).take(left) {
                let load = sample.kind != AccessKind::Store;
                samples
                    .entry(sample.tid)
                    .or_default()
                    .push((sample.time_ns, load));
            }
            left = left.saturating_sub(rows.len());
        })?;
        self.problems = problems;
        Ok(samples)
    }

    /// Scales the curve in each counter window to the counted and hidden events. Within a window,
    /// the overflows give the shape.
    fn weigh(&mut self) {
        let Some(mut finder) = self.finder.take() else {
            return;
        };
        for (tid, stream) in &mut self.streams {
            finder.finish_window(*tid, &mut stream.overflows_of_window);
            stream.bytes = 0.0;
        }
        let windows = self.end_ns().div_ceil(finder.counters.width_ns);
        let mut whole = vec![0.0; windows as usize];
        for (tid, window, events) in finder.events() {
            let bytes = events * self.bytes_per_event;
            if let Some(sum) = whole.get_mut(window) {
                *sum += bytes;
            }
            if let Some(stream) = self.streams.get_mut(&tid) {
                stream.bytes += bytes;
            }
        }
        let times = (finder.counters.width_ns / self.base.width_ns) as usize;
        for (values, bytes) in self.base.values.chunks_mut(times).zip(whole) {
            let sum: f64 = values.iter().sum();
            let even = bytes / values.len() as f64;
            for value in values {
                *value = if sum > 0.0 {
                    *value * bytes / sum
                } else {
                    even
                };
            }
        }
        for stream in self.streams.values_mut() {
            let shown = stream.curve.as_ref().map_or(0.0, Grid::total);
            if let Some(curve) = stream.curve.as_mut().filter(|_| shown > 0.0) {
                let more = stream.bytes / shown;
                curve.values.iter_mut().for_each(|v| *v *= more);
            }
        }
        let events = self.base.total() / self.bytes_per_event;
        self.lost.1 = finder.half_width();
        self.lost.0 = events - self.overflows as f64 * self.period as f64;
        self.counted = true;
    }

    fn threads(&mut self, recording: &Recording) -> Result<()> {
        let mut problems = std::mem::take(&mut self.problems);
        let mut programs: BTreeMap<Tid, String> = BTreeMap::new();
        each(
            recording,
            &Selection::all(),
            &mut problems,
            |rows: &[Thread]| {
                programs.extend(rows.iter().map(|t| (t.tid, t.program.clone())));
            },
        )?;
        self.problems = problems;
        let parts = self.streams.iter().map(|(tid, stream)| ThreadPart {
            pid: stream.pid.0,
            tid: *tid,
            program: programs.get(&Tid(*tid)).cloned().unwrap_or_default(),
            overflows: stream.overflows,
            bytes: stream.bytes,
            highest: stream
                .curve
                .as_ref()
                .map_or(0.0, |c| c.rates().fold(0.0, f64::max)),
        });
        self.threads = parts.filter(|t| t.overflows > 0).collect();
        self.threads.sort_by(|a, b| b.bytes.total_cmp(&a.bytes));
        Ok(())
    }

    fn finish(mut self, recording: &Recording, settings: &BandwidthSettings) -> Bandwidth {
        let (windows, bursts, mut reference) = self.shape(recording);
        let curves: Vec<&Grid> = self
            .streams
            .values()
            .filter_map(|s| s.curve.as_ref())
            .collect();
        let mut drops = common_drops(&curves);
        drops.truncate(MAX_DROPS);
        let (rest, mut rest_error) = self.rest(recording, settings);
        if self.counted {
            // Counters continue after the last overflow, so the sum includes those counts.
            self.lost.0 -= rest / self.bytes_per_event;
            rest_error = 0.0;
        }
        let records = self.overflows.max(1) as f64;
        let lost = (self.lost.0 / records, self.lost.1 / records);
        let raw_bytes = self.overflows as f64 * self.period as f64 * self.bytes_per_event;
        let more_threads = self.threads.len().saturating_sub(settings.rows);
        self.threads.truncate(settings.rows);
        let bytes = raw_bytes + self.lost.0 * self.bytes_per_event + rest;
        let error_bytes = self.lost.1 * self.bytes_per_event + rest_error;
        if let Some(reference) = &mut reference {
            let apart = reference.bytes - bytes;
            // Tolerate the size of a line, since bytes are sums of rounded shares.
            let is_outside = apart.abs() > error_bytes + self.bytes_per_event;
            reference.contradicts =
                self.name.is_some() && !self.from_reference && is_outside && self.is_same_traffic();
        }
        Bandwidth {
            event: event_name(recording, self.event),
            bytes_per_event: self.bytes_per_event as u64,
            period: self.period,
            resolution_ns: self.resolution_ns,
            correction: self.name.clone(),
            from_ns: self.base.from_ns,
            to_ns: self.end_ns(),
            overflows: self.overflows,
            raw_bytes,
            from_reference: self.from_reference,
            bytes,
            error_bytes,
            lost,
            bin_ns: settings.bin_ns,
            quantum: self.period as f64 * self.bytes_per_event * 1e9 / settings.bin_ns as f64,
            windows,
            bursts,
            more_threads: more_threads as u64,
            drops_width_ns: curves.first().map_or(0, |c| c.width_ns),
            drops,
            reference,
            written_bytes: self.has_series.then_some(self.written),
            prefetched_bytes: self.has_series.then_some(self.prefetched),
            instructions: self.has_series.then_some(self.instructions),
            overhead: overhead(recording),
            irregular: self.irregular,
            curve: Some(match (settings.bin_ns / self.base.width_ns) as usize {
                0 | 1 => self.base,
                times => self.base.coarser(times).into_owned(),
            }),
            raw_curve: Some(self.raw),
            threads: self.threads,
            problems: self.problems,
            ..Bandwidth::default()
        }
    }

    /// True if the memory counter counts exactly the traffic of the event: in the modelled machine
    /// without prefetchers. The counter of a real machine includes other programs' traffic.
    fn is_same_traffic(&self) -> bool {
        let events = [catalogue::LLC_MISS, catalogue::DRAM_READ_BYTES];
        self.is_modelled && events.contains(&self.event) && self.prefetched == 0
    }

    /// Statistics of windows, bursts, and the agreement with the memory counter.
    fn shape(&self, recording: &Recording) -> (Vec<WindowStats>, Bursts, Option<Reference>) {
        let width = self.base.width_ns;
        // In windows as long as the run, the only window is incomplete and would show too low a
        // rate.
        let run_ns = self.base.values.len() as u64 * width;
        let widths = WIDTHS_NS
            .iter()
            .filter(|w| w.is_multiple_of(width) && (**w == width || (width..run_ns).contains(*w)));
        let mut room = Vec::new();
        let mut stats = |w| window_stats(&self.base.coarser((w / width) as usize), &mut room);
        let windows = widths.map(|w| stats(*w)).collect();
        let plain = self.plain();
        let bursts = bursts(&plain, &mut room);
        drop(room);
        (windows, bursts, self.compare(&plain, recording))
    }

    /// Bytes after the last overflow of each thread, and their error: from the counters' final
    /// values, or else half a period for each thread.
    fn rest(&self, recording: &Recording, settings: &BandwidthSettings) -> (f64, f64) {
        let told = recording.manifest().delivery;
        let whole = settings.from_ns == 0 && settings.to_ns.is_none();
        match told.filter(|_| whole) {
            Some(delivery) => (delivery.rest as f64 * self.bytes_per_event, 0.0),
            None => {
                let half = self.period as f64 / 2.0 * self.bytes_per_event;
                let tails = self.threads.len() as f64 * half;
                (tails, tails)
            }
        }
    }

    /// The corrected curve in windows of [`plain_width`].
    fn plain(&self) -> Cow<'_, Grid> {
        let width_ns = self.base.width_ns;
        self.base
            .coarser((plain_width(width_ns) / width_ns) as usize)
    }

    fn compare(&self, plain: &Grid, recording: &Recording) -> Option<Reference> {
        // Without a reference, skip the comparison.
        let there = self.reference_whole > 0.0 && self.reference.total() > 0.0;
        if !there {
            return None;
        }
        // No finer than the reference was read.
        let times = self.reference_windows as usize;
        let (curve, truth) = (plain.coarser(times), self.reference.coarser(times));
        let pairs = || {
            curve
                .values
                .iter()
                .copied()
                .zip(truth.values.iter().copied())
        };
        // The curve from overflows of this period without any loss.
        let quantised = truth.quantised(self.period as f64 * self.bytes_per_event);
        Some(Reference {
            event: event_name(recording, self.reference_event),
            bytes: truth.total(),
            // Only known together with the total.
            contradicts: false,
            regression: regression(pairs()),
            width_ns: truth.width_ns,
            windows: pairs().filter(|&(a, b)| a > 0.0 || b > 0.0).count() as u64,
            mean_error: mean_error(&curve, &truth),
            quantised_error: mean_error(&quantised, &truth),
        })
    }
}

/// The interval that contains nine in ten of the amounts, or a shorter one. Longer ones are sleeps
/// of a thread.
fn usual(intervals: &BTreeMap<u64, f64>) -> u64 {
    let whole: f64 = intervals.values().sum();
    let mut sum = 0.0;
    let reached = |(_, amount): &(&u64, &f64)| {
        sum += **amount;
        sum >= 0.9 * whole
    };
    let usual = intervals.iter().find(reached).map_or(1, |i| *i.0);
    usual.clamp(1, 10_000)
}

fn named(recording: &Recording, name: &str) -> Option<EventId> {
    let definitions = &recording.manifest().events;
    definitions.iter().find(|e| e.name == name).map(|e| e.id)
}

fn event_name(recording: &Recording, event: EventId) -> String {
    let definitions = &recording.manifest().events;
    let defined = definitions.iter().find(|e| e.id == event);
    defined.map_or_else(|| format!("event {}", event.0), |e| e.name.clone())
}

/// Share of the modelled time spent in records.
fn overhead(recording: &Recording) -> Option<f64> {
    let manifest = recording.manifest();
    let cycles = manifest.delivery?.cycles? as f64;
    let own = *manifest.totals.get("cycles")? as f64;
    Some(cycles / own.max(1.0))
}

/// Instructions in the windows of a curve, summed over threads, as a measure of work.
pub fn work(recording: &Recording, curve: &Grid) -> Result<Grid> {
    let mut work = curve.emptied();
    let mut problems = Vec::new();
    each(
        recording,
        &Selection::all(),
        &mut problems,
        |rows: &[SeriesRow]| {
            let told = rows.iter().filter(|r| r.event == catalogue::INSTRUCTIONS);
            for row in told {
                let start = row.time_ns.saturating_sub(row.interval_ns);
                work.add_over(start, row.time_ns, row.value as f64);
            }
        },
    )?;
    Ok(work)
}
