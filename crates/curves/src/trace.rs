//! Curves of cache traces, and of eviction policies.
//!
//! A trace is held in memory as dense ids ([`RequestTrace`]), because each policy and capacity
//! reads it again. Lists of addresses and the references of a program are simulated in the same way
//! if a policy is named.

use std::fs::File;
use std::io::BufRead;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, bail};
use memgauge_console::terminal;
use memgauge_emulate::{StreamOptions, Streamed, stream};
use memgauge_import::addresses::AddressFormat;
use memgauge_import::cache_trace::{self, RequestOperation, TraceFormat, TraceRecord};
use memgauge_import::compression;
use memgauge_mrc::{
    CacheRequest, Estimated, Miniature, Misses, Policy, RequestKind, RequestTrace, simulate,
};
use memgauge_recording::is_recording;
use memgauge_report::mrc::{CapacityUnit, PolicyCurve, PolicyPoint, PolicyView};

use super::args::{Axis, Mrc, PartKind, WarmUp, Writes};
use super::{feed, memory, name, usage};

/// Default block size of block traces.
pub(super) const TRACE_BLOCK: u64 = 4096;
/// Maximum number of tenants with curves of their own. Others share one.
const MAX_TENANTS: usize = 64;
/// Maximum number of blocks of a request.
const MAX_BLOCKS: u64 = 1 << 24;
/// Number of requests between two checks of memory use.
const CHECK_EVERY: u64 = 1 << 20;
/// Smallest default capacity relative to the size of all objects.
const SMALLEST_SHARE: u64 = 1024;

/// Returns the format of an input: the named one, or the one that its first bytes show.
fn format_of(input: &Path, args: &Mrc) -> anyhow::Result<Option<TraceFormat>> {
    match &args.making.format {
        Some(AddressFormat::Trace(format)) => return Ok(Some(with_options(format, args))),
        Some(_) => return Ok(None),
        None => {}
    }
    if input == Path::new("-") || !input.is_file() || is_recording(input) {
        return Ok(None);
    }
    // The reader of the input reports errors.
    let Ok(file) = File::open(input) else {
        return Ok(None);
    };
    let Ok(mut unpacked) = compression::decompress(file) else {
        return Ok(None);
    };
    let start = unpacked.content.fill_buf().unwrap_or_default();
    let named = || is_named_oracle_general(input) && std::str::from_utf8(start).is_err();
    let by_name = || named().then_some(TraceFormat::OracleGeneral);
    Ok(cache_trace::detect(start).or_else(by_name))
}

/// Returns true if a file has a name like libCacheSim's traces: `w01.oracleGeneral.bin.zst`.
fn is_named_oracle_general(input: &Path) -> bool {
    let name = input.file_name().unwrap_or_default().to_string_lossy();
    name.to_lowercase().contains(".oraclegeneral")
}

fn with_options(format: &TraceFormat, args: &Mrc) -> TraceFormat {
    match format {
        TraceFormat::Table(table) => {
            let mut table = table.clone();
            table.delimiter = args.trace.delimiter.or(table.delimiter);
            table.has_header = args.trace.header.or(table.has_header);
            TraceFormat::Table(table)
        }
        other => other.clone(),
    }
}

/// Returns the default block size for curves of the inputs.
pub(super) fn default_block(args: &Mrc) -> anyhow::Result<u64> {
    let first = args.inputs.first().map(|input| format_of(input, args));
    let format = first.transpose()?.flatten();
    let is_of_blocks = format.is_some_and(|format| format.is_of_blocks());
    Ok(if is_of_blocks { TRACE_BLOCK } else { 64 })
}

/// Returns true if caches are simulated: for traces of objects, or if an option needs it. The curve
/// of blocks under LRU comes from stack distances.
pub(super) fn is_simulated(args: &Mrc) -> anyhow::Result<bool> {
    if args.trace.ask_for_simulation() || args.by == Some(PartKind::Tenant) {
        return Ok(true);
    }
    let Some(first) = args.inputs.first() else {
        return Ok(false);
    };
    let format = format_of(first, args)?;
    Ok(format.is_some_and(|format| !format.is_of_blocks()))
}

/// Refuses options that simulations do not support.
fn check(args: &Mrc) -> anyhow::Result<()> {
    let making = &args.making;
    let refused = [
        (args.phases.is_some(), "--phases"),
        (args.against.is_some(), "--against"),
        (args.y != Axis::Ratio, "--y"),
        (args.no_compulsory, "--no-compulsory"),
        (args.full, "--full"),
        (args.instructions.is_some(), "--instructions"),
        (making.sample_size.is_some(), "--sample-size: use --sample"),
        (making.sample_only, "--sample-only"),
        (making.block.len() > 1, "several block sizes"),
        (args.per_thread, "--per-thread"),
        (!args.functions.is_empty(), "--function"),
        (
            args.by.is_some_and(|by| by != PartKind::Tenant),
            "--by other than tenant",
        ),
    ];
    match refused.iter().find(|(is_given, _)| *is_given) {
        Some((_, what)) => Err(usage(format!("failed to simulate caches with {what}"))),
        None => Ok(()),
    }
}

/// Requests in memory, all or a sample.
enum RequestStore {
    All(Box<RequestTrace>),
    Sampled(Box<Miniature>),
}

impl RequestStore {
    fn new(args: &Mrc) -> RequestStore {
        match args.making.sample {
            Some(rate) => RequestStore::Sampled(Box::new(Miniature::new(rate, args.making.salt))),
            None => RequestStore::All(Box::default()),
        }
    }

    fn push(&mut self, request: CacheRequest) -> anyhow::Result<()> {
        match self {
            RequestStore::All(requests) => requests.push(request),
            RequestStore::Sampled(sample) => sample.push(request),
        }
        .context("failed to keep the trace in memory; use --sample 0.01")
    }

    fn memory_bytes(&self) -> usize {
        match self {
            RequestStore::All(requests) => requests.memory_bytes(),
            RequestStore::Sampled(sample) => sample.memory_bytes(),
        }
    }

    fn warm_up(&mut self, records: u64) {
        match self {
            RequestStore::All(requests) => requests.warm_up(records),
            RequestStore::Sampled(sample) => sample.warm_up(records),
        }
    }

    fn objects(&self) -> u64 {
        match self {
            RequestStore::All(requests) => requests.objects().into(),
            RequestStore::Sampled(sample) => sample.objects(),
        }
    }

    fn footprint(&self) -> u64 {
        match self {
            RequestStore::All(requests) => requests.footprint(),
            RequestStore::Sampled(sample) => sample.footprint(),
        }
    }

    fn has_sizes(&self) -> bool {
        match self {
            RequestStore::All(requests) => requests.has_sizes(),
            RequestStore::Sampled(sample) => sample.has_sizes(),
        }
    }

    fn has_expiry(&self) -> bool {
        match self {
            RequestStore::All(requests) => requests.has_expiry(),
            RequestStore::Sampled(sample) => sample.has_expiry(),
        }
    }
}

/// Misses of a cache of one capacity.
enum CapacityMisses {
    Counted(Misses),
    Estimated(Option<Estimated>),
}

/// Requests that are simulated together: those of all inputs, or of one tenant. Each input has a
/// cache of its own.
struct RequestGroup {
    /// Name of the tenant.
    tenant: Option<String>,
    stores: Vec<RequestStore>,
}

/// Conversion of the requests of an input.
struct RequestCollector<'a> {
    args: &'a Mrc,
    /// Block size in bytes, if requests are byte ranges.
    block: Option<u64>,
    whole: RequestStore,
    tenants: Vec<RequestStore>,
    /// Records of the trace, used or not.
    records: u64,
    /// Requests in `whole`.
    requests: u64,
    too_long: u64,
    limit: usize,
}

impl<'a> RequestCollector<'a> {
    fn new(args: &'a Mrc, block: Option<u64>) -> RequestCollector<'a> {
        RequestCollector {
            args,
            block,
            whole: RequestStore::new(args),
            tenants: Vec::new(),
            records: 0,
            requests: 0,
            too_long: 0,
            limit: memory::limit(&args.making),
        }
    }

    fn push(&mut self, record: &TraceRecord) -> anyhow::Result<()> {
        let position = self.args.trace.warmup.map(|_| self.records);
        self.records += 1;
        let writes = self.args.trace.writes.unwrap_or_default();
        let kind = match (record.operation, writes) {
            (RequestOperation::Read, _) | (RequestOperation::Write, Writes::Allocate) => {
                RequestKind::Reference
            }
            (RequestOperation::Write, Writes::Around) => RequestKind::WithoutInsertion,
            (RequestOperation::Write, Writes::Ignore) => return Ok(()),
            (RequestOperation::Write, Writes::Invalidate) | (RequestOperation::Delete, _) => {
                RequestKind::Removal
            }
        };
        let ttl_us = record
            .ttl_s
            .or(self.args.trace.ttl)
            .map(|s| s.saturating_mul(1_000_000));
        let request = CacheRequest {
            key: record.key,
            size: match self.args.trace.ignore_sizes {
                true => 1,
                false => record.bytes,
            },
            kind,
            time_us: record.time_us,
            expires_us: ttl_us.map(|ttl| record.time_us.saturating_add(ttl)),
            position,
        };
        let Some(block) = self.block else {
            return self.push_request(request, record.tenant);
        };
        let first = record.key / block;
        let last = record.key.saturating_add(record.bytes.max(1) - 1) / block;
        if last - first >= MAX_BLOCKS {
            self.too_long += 1;
            return Ok(());
        }
        (first..=last).try_for_each(|key| {
            let of_block = CacheRequest {
                key,
                size: 1,
                ..request
            };
            self.push_request(of_block, record.tenant)
        })
    }

    /// Takes references to memory. Sizes are those of references that touch several blocks.
    fn push_addresses(&mut self, addresses: &[u64], sizes: &[(usize, u32)]) -> anyhow::Result<()> {
        let mut sizes = sizes.iter().peekable();
        addresses.iter().enumerate().try_for_each(|(at, &key)| {
            let bytes = sizes
                .next_if(|&&(of, _)| of == at)
                .map_or(1, |&(_, bytes)| bytes);
            self.push(&TraceRecord {
                key,
                bytes: bytes.into(),
                operation: RequestOperation::Read,
                time_us: 0,
                ttl_s: None,
                tenant: 0,
            })
        })
    }

    fn push_request(&mut self, request: CacheRequest, tenant: u32) -> anyhow::Result<()> {
        self.whole.push(request)?;
        if self.args.by == Some(PartKind::Tenant) {
            let at = (tenant as usize).min(MAX_TENANTS);
            while self.tenants.len() <= at {
                self.tenants.push(RequestStore::new(self.args));
            }
            self.tenants[at].push(request)?;
        }
        self.requests += 1;
        if self.requests.is_multiple_of(CHECK_EVERY) {
            self.check_memory()?;
        }
        Ok(())
    }

    /// Excludes the warm-up from the counts. It ends at the same record for all tenants.
    fn warm_up(&mut self) -> anyhow::Result<()> {
        let records = match self.args.trace.warmup {
            None => return Ok(()),
            Some(WarmUp::Share(share)) => (self.records as f64 * share) as u64,
            Some(WarmUp::Requests(n)) => n,
        };
        if records >= self.records {
            bail!(
                "failed to simulate caches: the trace has {} requests, and --warmup leaves none of \
                 them to count",
                self.records
            );
        }
        let stores = self.tenants.iter_mut().chain([&mut self.whole]);
        stores.for_each(|store| store.warm_up(records));
        Ok(())
    }

    fn check_memory(&self) -> anyhow::Result<()> {
        let stores = self.tenants.iter().chain([&self.whole]);
        let taken: usize = stores.map(RequestStore::memory_bytes).sum();
        if taken > self.limit {
            bail!(
                "failed to keep the trace in memory: {} requests take {} MiB and the limit is {} \
                 MiB: use --sample 0.01, which keeps a hundredth of the objects",
                self.requests,
                taken >> 20,
                self.limit >> 20
            );
        }
        Ok(())
    }
}

/// The requests of an input and notes about them.
struct Loaded {
    whole: RequestStore,
    tenants: Vec<(String, RequestStore)>,
    notes: Vec<String>,
    block: Option<u64>,
    /// True if each reference is a sample that stands for several.
    is_of_samples: bool,
    is_damaged: bool,
}

fn load(input: &Path, args: &Mrc) -> anyhow::Result<Loaded> {
    let failed = || format!("failed to read `{}`", name(input));
    let Some(format) = format_of(input, args)? else {
        return load_addresses(input, args);
    };
    let block = format.is_of_blocks().then(|| args.making.block[0]);
    let mut collector = RequestCollector::new(args, block);
    let read = |content: &mut dyn BufRead, collector: &mut RequestCollector<'_>| {
        cache_trace::read(content, &format, &mut |record| collector.push(record))
    };
    let summary = match input == Path::new("-") {
        true => {
            let mut unpacked = compression::decompress(std::io::stdin().lock())?;
            read(&mut unpacked.content, &mut collector)
        }
        false => {
            let file = File::open(input).with_context(failed)?;
            let mut unpacked = compression::decompress(file).with_context(failed)?;
            read(&mut unpacked.content, &mut collector)
        }
    }
    .with_context(failed)?;
    let mut notes = summary.notes(&format);
    if summary.operations[1] + summary.operations[2] > 0 {
        let [reads, writes, deletions] = summary.operations;
        notes.push(format!(
            "{reads} reads, {writes} writes, {deletions} deletions"
        ));
    }
    if collector.too_long > 0 {
        notes.push(format!(
            "skipped: {} requests of more than 2^24 blocks",
            collector.too_long
        ));
    }
    if collector.requests == 0 {
        let why = match notes.is_empty() {
            true => "it is empty".to_owned(),
            false => notes.join("; "),
        };
        bail!(
            "failed to read `{}`: it has no requests: {why}",
            name(input)
        );
    }
    collector.warm_up()?;
    let mut tenant_names = summary.tenants.into_iter();
    let tenants = collector
        .tenants
        .into_iter()
        .enumerate()
        .map(|(at, store)| {
            let name = match at {
                MAX_TENANTS => "[others]".to_owned(),
                _ => tenant_names.next().unwrap_or_else(|| "[all]".to_owned()),
            };
            (name, store)
        });
    Ok(Loaded {
        tenants: tenants.collect(),
        whole: collector.whole,
        notes,
        block,
        is_of_samples: false,
        is_damaged: false,
    })
}

/// Refuses options about what only cache traces contain.
fn check_addresses(args: &Mrc, what: &str) -> anyhow::Result<()> {
    let trace = &args.trace;
    match trace.writes.is_some() || trace.ttl.is_some() || args.by == Some(PartKind::Tenant) {
        false => Ok(()),
        true => Err(usage(format!(
            "failed to simulate writes, expiry or tenants: {what}"
        ))),
    }
}

/// Returns the blocks of a list of addresses, or of a recording.
fn load_addresses(input: &Path, args: &Mrc) -> anyhow::Result<Loaded> {
    check_addresses(
        args,
        "a list of addresses has none: name a cache trace, with --format if it is not recognised",
    )?;
    let block = args.making.block[0];
    let mut collector = RequestCollector::new(args, Some(block));
    let read = feed::references_of(
        input,
        args.making.format.as_ref(),
        &mut |addresses, sizes| collector.push_addresses(addresses, sizes),
    )?;
    collector.warm_up()?;
    Ok(Loaded {
        whole: collector.whole,
        tenants: Vec::new(),
        notes: read.note.into_iter().collect(),
        block: Some(block),
        is_of_samples: read.weight != 1.0,
        is_damaged: read.is_damaged,
    })
}

/// Runs the command under the emulator. Returns the blocks that it refers to.
fn load_command(args: &Mrc) -> anyhow::Result<(Loaded, Streamed)> {
    check_addresses(args, "a program has none: name a cache trace")?;
    let block = args.making.block[0];
    let mut collector = RequestCollector::new(args, Some(block));
    let wanted = StreamOptions {
        granule: block,
        parts: None,
        ips: false,
        functions: Vec::new(),
        seed: args.seed,
    };
    terminal::catch_interrupts()?;
    let run = stream(&args.command, wanted, &mut |batch| {
        collector.push_addresses(batch.addresses, batch.crossing)
    })?;
    if collector.requests == 0 {
        bail!("failed to simulate caches: the program refers to no memory");
    }
    collector.warm_up()?;
    let loaded = Loaded {
        whole: collector.whole,
        tenants: Vec::new(),
        notes: feed::lost(&run).into_iter().collect(),
        block: Some(block),
        is_of_samples: false,
        is_damaged: false,
    };
    Ok((loaded, run))
}

/// Result of simulating caches over all inputs.
pub(super) struct Simulated {
    pub(super) views: Vec<PolicyView>,
    /// True if a part of an input could not be read.
    pub(super) is_damaged: bool,
    /// The run of the command.
    pub(super) run: Option<Streamed>,
}

/// Simulates caches over all inputs, or over the references of the command.
pub(super) fn views(args: &Mrc) -> anyhow::Result<Simulated> {
    check(args)?;
    let (mut is_damaged, mut is_of_samples, mut run) = (false, false, None);
    let mut groups = vec![RequestGroup {
        tenant: None,
        stores: Vec::new(),
    }];
    let (mut notes, mut blocks) = (Vec::new(), Vec::new());
    let mut inputs = Vec::new();
    if args.inputs.is_empty() {
        let (loaded, ran) = load_command(args)?;
        run = Some(ran);
        inputs.push((args.command.join(" "), loaded));
    }
    for input in &args.inputs {
        inputs.push((name(input), load(input, args)?));
    }
    let names: Vec<String> = inputs.iter().map(|(name, _)| name.clone()).collect();
    for (name, loaded) in inputs {
        is_damaged |= loaded.is_damaged;
        is_of_samples |= loaded.is_of_samples;
        let about = |note| match names.len() {
            1 => note,
            _ => format!("{name}: {note}"),
        };
        notes.extend(loaded.notes.into_iter().map(about));
        blocks.push(loaded.block);
        groups[0].stores.push(loaded.whole);
        for (tenant, store) in loaded.tenants {
            let known = groups
                .iter()
                .position(|g| g.tenant.as_ref() == Some(&tenant));
            let at = known.unwrap_or_else(|| {
                groups.push(RequestGroup {
                    tenant: Some(tenant),
                    stores: Vec::new(),
                });
                groups.len() - 1
            });
            groups[at].stores.push(store);
        }
    }
    if blocks.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err(usage(
            "failed to add curves up: some inputs have blocks and others objects",
        ));
    }
    let block = blocks.first().copied().flatten();
    let mut made = Vec::new();
    for group in groups {
        // A tenant that another one pushed beyond the limit has no requests.
        if group.stores.iter().any(|store| store.objects() > 0) {
            // The notes are about whole inputs.
            let notes: &[String] = match group.tenant {
                None => &notes,
                Some(_) => &[],
            };
            let of_group = view(args, &group, block, notes)?;
            let tenant = group.tenant.as_ref();
            let tenant = tenant.map_or(String::new(), |tenant| format!(", tenant {tenant}"));
            made.push(PolicyView {
                title: names.join(" + ") + &tenant,
                is_of_samples,
                ..of_group
            });
        }
    }
    Ok(Simulated {
        views: made,
        is_damaged,
        run,
    })
}

fn view(
    args: &Mrc,
    group: &RequestGroup,
    block: Option<u64>,
    notes: &[String],
) -> anyhow::Result<PolicyView> {
    let has_sizes = group.stores.iter().any(RequestStore::has_sizes);
    let unit = match block.is_some() || has_sizes {
        true => CapacityUnit::Bytes,
        false => CapacityUnit::Objects,
    };
    // Blocks are simulated as objects of size 1.
    let scale = block.unwrap_or(1);
    let footprint = group
        .stores
        .iter()
        .map(RequestStore::footprint)
        .max()
        .unwrap_or(0);
    let capacities = match args.sizes.is_empty() {
        true => default_capacities(footprint),
        false => {
            let mut chosen: Vec<u64> = args.sizes.iter().map(|size| size / scale).collect();
            chosen.sort_unstable();
            chosen.dedup();
            if chosen[0] == 0 {
                let why =
                    format!("failed to simulate a cache of less than a block of {scale} bytes");
                return Err(usage(why));
            }
            chosen
        }
    };
    let policies = match args.trace.policies.is_empty() {
        true => &[Policy::Lru][..],
        false => &args.trace.policies,
    };
    let outcomes = simulate_all(args, group, policies, &capacities);
    let mut notes = notes.to_vec();
    if policies.contains(&Policy::Belady) {
        let has_expiry = group.stores.iter().any(RequestStore::has_expiry);
        if has_sizes || has_expiry {
            notes.push(
                "with sizes or expiry, Belady's policy is a reference and no proven bound"
                    .to_owned(),
            );
        }
    }
    let mut references = 0;
    let curves = policies.iter().zip(&outcomes).map(|(&policy, outcomes)| {
        let points = (0..capacities.len()).map(|at| {
            let at_capacity = outcomes.iter().map(|of_store| &of_store[at]);
            let (point, counted) = combine(at_capacity, &group.stores);
            references = counted;
            point
        });
        PolicyCurve {
            policy,
            points: points.collect(),
        }
    });
    let curves: Vec<PolicyCurve> = curves.collect();
    let total = |of: fn(&RequestStore) -> u64| -> u64 { group.stores.iter().map(of).sum() };
    Ok(PolicyView {
        title: String::new(),
        notes,
        unit,
        references,
        objects: total(RequestStore::objects),
        footprint: total(RequestStore::footprint).saturating_mul(scale),
        block_bytes: block,
        has_sizes,
        sample_rate: args.making.sample,
        is_of_samples: false,
        capacities: capacities.iter().map(|c| c.saturating_mul(scale)).collect(),
        has_chosen_capacities: !args.sizes.is_empty(),
        curves,
    })
}

/// Returns powers of two and the midpoints between them, from a thousandth of the footprint to all
/// of it.
fn default_capacities(footprint: u64) -> Vec<u64> {
    let mut capacities = Vec::new();
    let mut power = (footprint / SMALLEST_SHARE).max(1).next_power_of_two();
    while capacities.last().is_none_or(|&last| last < footprint) {
        capacities.push(power);
        let middle = power.saturating_add(power / 2);
        if middle > power && power < footprint {
            capacities.push(middle);
        }
        power = power.saturating_mul(2);
        if power == u64::MAX {
            break;
        }
    }
    capacities
}

/// Returns the outcomes by policy, store and capacity. Jobs are distributed over `--threads`.
fn simulate_all(
    args: &Mrc,
    group: &RequestGroup,
    policies: &[Policy],
    capacities: &[u64],
) -> Vec<Vec<Vec<CapacityMisses>>> {
    let jobs: Vec<(Policy, &RequestStore)> = policies
        .iter()
        .flat_map(|&policy| group.stores.iter().map(move |store| (policy, store)))
        .collect();
    let seed = args.making.salt;
    let run = |&(policy, store): &(Policy, &RequestStore)| -> Vec<CapacityMisses> {
        match store {
            RequestStore::All(requests) => simulate(requests, policy, capacities, seed)
                .into_iter()
                .map(CapacityMisses::Counted)
                .collect(),
            RequestStore::Sampled(sample) => sample
                .simulate(policy, capacities, seed)
                .into_iter()
                .map(CapacityMisses::Estimated)
                .collect(),
        }
    };
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            match jobs.get(at) {
                Some(job) => done.push((at, run(job))),
                None => return done,
            }
        }
    };
    let mut done: Vec<(usize, Vec<CapacityMisses>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.making.threads)
            .map(|_| scope.spawn(worker))
            .collect();
        let joined = threads.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        joined.flatten().collect()
    });
    done.sort_by_key(|(at, _)| *at);
    let mut outcomes = done.into_iter().map(|(_, outcomes)| outcomes);
    policies
        .iter()
        .map(|_| outcomes.by_ref().take(group.stores.len()).collect())
        .collect()
}

/// Sums the misses of caches, one per store. Also returns the number of counted references.
fn combine<'a>(
    outcomes: impl Iterator<Item = &'a CapacityMisses>,
    stores: &[RequestStore],
) -> (Option<PolicyPoint>, u64) {
    let mut counted = Misses::default();
    let mut estimates = Vec::new();
    for (outcome, store) in outcomes.zip(stores) {
        match (outcome, store) {
            (CapacityMisses::Counted(misses), _) => counted.add(misses),
            (CapacityMisses::Estimated(estimate), RequestStore::Sampled(sample)) => {
                estimates.push((*estimate, sample.requests()));
            }
            (CapacityMisses::Estimated(_), RequestStore::All(_)) => {}
        }
    }
    if estimates.is_empty() {
        let point = counted.miss_ratio().map(|miss_ratio| PolicyPoint {
            misses: Some(counted.misses),
            miss_ratio,
            byte_miss_ratio: counted.byte_miss_ratio().unwrap_or(miss_ratio),
            half_band_95: None,
            byte_half_band_95: None,
        });
        return (point, counted.references);
    }
    let references: u64 = estimates.iter().map(|(_, requests)| requests).sum();
    let known: Option<Vec<(Estimated, f64)>> = estimates
        .iter()
        .map(|&(estimate, requests)| Some((estimate?, requests as f64 / references as f64)))
        .collect();
    let point = known.map(|known| {
        let mean = |of: fn(&Estimated) -> f64| known.iter().map(|(e, share)| share * of(e)).sum();
        let band = |of: fn(&Estimated) -> f64| -> f64 {
            let squares: f64 = known.iter().map(|(e, share)| (share * of(e)).powi(2)).sum();
            squares.sqrt()
        };
        PolicyPoint {
            misses: None,
            miss_ratio: mean(|e| e.miss_ratio),
            byte_miss_ratio: mean(|e| e.byte_miss_ratio),
            half_band_95: Some(band(|e| e.half_band_95)),
            byte_half_band_95: Some(band(|e| e.byte_half_band_95)),
        }
    });
    (point, references)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_capacities_rise_from_a_thousandth_to_all() {
        for footprint in [0, 1, 2, 3, 10, 1000, 1 << 20, 12_345_678_901, u64::MAX] {
            let capacities = default_capacities(footprint);
            assert!(capacities.is_sorted_by(|a, b| a < b), "{capacities:?}");
            assert!(capacities.len() <= 30 && capacities[0] >= 1);
            let last = *capacities.last().unwrap();
            assert!(last >= footprint || last >= 1 << 63, "{last} {footprint}");
        }
    }
}
