//! The losses of a program that is sampled while it runs equal those of its recording.

use std::collections::BTreeMap;
use std::path::Path;

use memgauge_emulate::sampled::{SampledOptions, SampledProgram};
use memgauge_emulate::{Options, record};
use memgauge_host::sampled_run::{SampleSink, SampledRun, ThreadCounts, ThreadSampling};
use memgauge_machine::{Config, PmuConfig};
use memgauge_recording::{Recording, Selection};
use memgauge_testing::{Random, compiled};
use memgauge_trace::{CommandEnd, Loss, LossKind, Sample};

/// Each round loads from an unmapped page in the middle of a block. This load and the two stores
/// after it, to other lines, do not happen. Then a region ends that has not begun.
const FAULTS: &str = r#"
#include <memgauge_region.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
static sigjmp_buf back;
static void on_fault(int signal) { siglongjmp(back, signal); }
int main(int argc, char **argv)
{
    static char memory[4096] __attribute__((aligned(64)));
    int rounds = atoi(argv[1]), ends = atoi(argv[2]);
    signal(SIGSEGV, on_fault);
    for (volatile int i = 0; i < rounds; i++)
        if (!sigsetjmp(back, 1))
            __asm__ volatile("movb $1, (%0)\n\tmovb 64, %%al\n\tmovb $1, 1024(%0)\n\tmovb $1, 2048(%0)\n\t"
                             "jmp 1f\n1:"
                             : : "r"(memory) : "rax", "memory");
    for (int i = 0; i < ends; i++)
        memgauge_region_end("never");
    return 5;
}
"#;

/// Sums up the losses of a run.
#[derive(Default)]
struct Losses(BTreeMap<LossKind, u64>);

impl SampleSink for Losses {
    fn thread_started(&mut self, _: u64, _: u32, _: u32) -> ThreadSampling {
        ThreadSampling {
            period: 100,
            on: true,
        }
    }

    fn push_samples(&mut self, _: u64, _: &[Sample], _: &[&str]) {}

    fn thread_ended(&mut self, _: u64, _: &ThreadCounts) {}

    fn take_requests(&mut self) -> Vec<(u64, ThreadSampling)> {
        Vec::new()
    }

    fn requests_done(&mut self, _: &[(u64, ThreadCounts)]) {}

    fn not_sampled(&mut self, threads: u64, why: &str) {
        panic!("{threads} threads: {why}");
    }

    fn lost(&mut self, kind: LossKind, count: u64, _: &str) {
        *self.0.entry(kind).or_default() += count;
    }

    fn is_closed(&self) -> bool {
        false
    }
}

/// Losses of the recording of a program with the same samples.
fn recorded(sampled: &SampledOptions, output: &Path) -> BTreeMap<LossKind, u64> {
    let options = Options {
        command: sampled.command.clone(),
        output: output.to_owned(),
        discards_output: false,
        machine: sampled.machine.clone(),
        pmu: PmuConfig {
            samples: vec![sampled.event],
            delivery: sampled.delivery,
            ..PmuConfig::default()
        },
        traces: None,
        sets: None,
        what_if: Vec::new(),
        seed: None,
        stacks: false,
        data: None,
        counts_accesses: false,
        functions: Vec::new(),
        regions: Vec::new(),
    };
    let outcome = record(&options, &mut |_| ()).expect("the program can be recorded");
    assert_eq!(outcome.end, CommandEnd::Exited(5));
    let recording = Recording::open(output).expect("the recording is complete");
    let mut losses = BTreeMap::new();
    for rows in recording.rows::<Loss>(&Selection::all()) {
        for loss in rows.expect("the rows can be read") {
            *losses.entry(loss.kind).or_default() += loss.count;
        }
    }
    losses
}

#[test]
fn sampled_program_has_the_losses_of_its_recording() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../capi/include");
    let flags = ["-O1", "-I", include];
    let Some(program) = compiled(folder.path(), "faults.c", FAULTS, &flags) else {
        return;
    };
    let mut random = Random::of_test("losses");
    let (rounds, ends) = (1 + random.below(500), 1 + random.below(20));
    let command = [program, rounds.to_string(), ends.to_string()];
    let mut options = SampledOptions::of(&command, "l1d.miss").expect("the model has the event");
    options.machine = Config::preset("i5-6600k").expect("a preset");
    options.event.period = 100;
    let run = SampledProgram::start(&options).expect("the engine runs");
    let mut sampled = Losses::default();
    let end = Box::new(run).run(&mut sampled);
    assert_eq!(end.expect("the program ends"), CommandEnd::Exited(5));
    assert_eq!(sampled.0.get(&LossKind::BlockCut), Some(&(3 * rounds)));
    assert_eq!(sampled.0.get(&LossKind::RegionEnd), Some(&ends));
    assert_eq!(sampled.0, recorded(&options, &folder.path().join("run.mg")));
}
