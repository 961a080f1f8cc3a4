//! Programs see the caches of the modelled machine, so that libraries tune themselves to it.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use harness::{Recorded, needs, write_machine};

/// Prints sizes and ways of L1D, L2 and LLC, a line for each way to ask: the C library, AMD's
/// leaves, and Intel's leaf.
const ASKS: &str = r#"
#include <cpuid.h>
#include <stdio.h>
#include <unistd.h>
static void leaf(unsigned number, const int subleaves[3]) {
    for (int i = 0; i < 3; i++) {
        unsigned a, b, c, d;
        __cpuid_count(number, subleaves[i], a, b, c, d);
        unsigned ways = (b >> 22) + 1, line = (b & 0xfff) + 1, level = a >> 5 & 7;
        printf("%s%u:%u/%u", i ? " " : "", level, ways * line * (c + 1), ways);
    }
    printf("\n");
}
int main(void) {
    unsigned a, b, c, d;
    printf("1:%ld/%ld 2:%ld/%ld 3:%ld\n", sysconf(_SC_LEVEL1_DCACHE_SIZE),
           sysconf(_SC_LEVEL1_DCACHE_ASSOC), sysconf(_SC_LEVEL2_CACHE_SIZE),
           sysconf(_SC_LEVEL2_CACHE_ASSOC), sysconf(_SC_LEVEL3_CACHE_SIZE));
    leaf(0x8000001d, (int[]){ 0, 2, 3 });
    leaf(4, (int[]){ 0, 1, 2 });
    __cpuid(0x80000005, a, b, c, d);
    printf("%u/%u ", (c >> 24) << 10, c >> 16 & 255);
    __cpuid(0x80000006, a, b, c, d);
    printf("%u %u\n", (c >> 16) << 10, (d >> 18) << 19);
}
"#;

#[test]
fn programs_see_the_caches_of_the_modelled_machine() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [source, program, small] =
        ["asks.c", "asks", "small.json"].map(|name| folder.path().join(name));
    std::fs::write(&source, ASKS).expect("the source can be written");
    let mut gcc = std::process::Command::new("gcc");
    let gcc = gcc.arg("-o").arg(&program).arg(&source);
    assert!(gcc.status().expect("gcc runs").success());
    write_machine(&small, [(16, 4), (128, 8), (512, 16)]);
    let seen = |machine: &str| {
        let program = program.to_str().expect("temporary paths are text");
        let recorded = Recorded::new(&["--machine", machine], &[program]);
        assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
        String::from_utf8_lossy(&recorded.output.stdout).into_owned()
    };
    let lines = |caches: [(u32, u32); 3]| {
        let [(l1d, l1d_ways), (l2, l2_ways), (llc, llc_ways)] = caches;
        let leaf = format!("1:{l1d}/{l1d_ways} 2:{l2}/{l2_ways} 3:{llc}/{llc_ways}\n");
        let library = format!("1:{l1d}/{l1d_ways} 2:{l2}/{l2_ways} 3:{llc}\n");
        format!("{library}{leaf}{leaf}{l1d}/{l1d_ways} {l2} {llc}\n")
    };
    let zen5 = [(48 << 10, 12), (1 << 20, 16), (32 << 20, 16)];
    assert_eq!(seen("zen5"), lines(zen5));
    let caches = [(16 << 10, 4), (128 << 10, 8), (512 << 10, 16)];
    let small = small.to_str().expect("temporary paths are text");
    assert_eq!(seen(small), lines(caches));
}
