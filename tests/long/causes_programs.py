"""Programs with one known cause each, for `causes`.

A function of PROGRAMS takes a random generator and a machine, and returns a Program. Amounts of work are
chosen so that the cause takes most of the modelled time on every machine: filling the data, for instance,
costs a few cycles per line, and a random access that misses costs a hundred or more.
"""

import dataclasses


@dataclasses.dataclass
class Machine:
    l2: int
    llc: int
    # Pages that both TLB levels hold.
    pages: int
    # Threads that together exceed the memory bandwidth.
    threads: int


MACHINES = {
    "i5-6600k": Machine(l2=256 << 10, llc=6 << 20, pages=1536, threads=5),
    "zen4": Machine(l2=1 << 20, llc=32 << 20, pages=3072, threads=40),
    "skylake-sp": Machine(l2=1 << 20, llc=28160 << 10, pages=1536, threads=20),
}

LATENCY, STREAM, STRIDE = "latency_bound", "stream_bound", "stride_bound"
BANDWIDTH, TLB, L1 = "bandwidth_bound", "tlb_bound", "l1_bound"
FALSE_SHARING, TRUE_SHARING = "false_sharing", "true_sharing"
IDLE, TINY, PHASES = "idle", "tiny", "phases"
CONFLICTS = "cache_conflicts"
FAULTS, SPLITS, FILES = "unmodelled_faults", "split_accesses", "file_waits"


@dataclasses.dataclass
class Program:
    name: str
    language: str
    source: str
    # Causes that are right as the first one; the first of them is the program's class.
    expected: list
    # Patterns that the sentences of the first cause must contain.
    function: str = ""
    data: str = ""
    flags: list = dataclasses.field(default_factory=list)


PROGRAMS = {}


def program(language, *expected, function="", data="", flags=()):
    """Registers a function that returns the source of the program of its name."""

    def register(source):
        def make(rng, machine):
            return Program(source.__name__, language, source(rng, machine), list(expected), function, data, list(flags))

        PROGRAMS[source.__name__] = make
        return source

    return register


C = """
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#define NOINLINE __attribute__((noinline))
static uint64_t state = %dull;
static inline uint64_t draw(void) { state ^= state << 13; state ^= state >> 7; state ^= state << 17; return state; }
volatile uint64_t sink;
"""


def c(rng, body):
    return C % rng.randrange(1, 1 << 60) + body


def beyond_llc(rng, machine):
    """Bytes of data that the last-level cache does not hold."""
    return int(machine.llc * rng.uniform(1.6, 2.5))


def beyond_l2(rng, machine):
    """Bytes of data that the last-level cache holds and the second level does not."""
    return int(min(machine.l2 * rng.uniform(5, 8), machine.llc * 0.7))


# Latency: loads that no pattern predicts.


@program("c", LATENCY, function="gather", data="main")
def random_gather(rng, machine):
    n = beyond_llc(rng, machine) // 8
    return c(rng, f"""
NOINLINE void gather(uint64_t *table, uint64_t n, uint64_t m) {{ uint64_t sum = 0; while (m--) sum += table[draw() % n]; sink = sum; }}
int main(void) {{ uint64_t n = {n}, *table = malloc(8 * n); for (uint64_t i = 0; i < n; i++) table[i] = i;
    gather(table, n, {rng.randrange(500, 700)}000); }}""")


@program("c", LATENCY, function="gather", data="table")
def random_gather_global(rng, machine):
    n = beyond_llc(rng, machine) // 4
    return c(rng, f"""
uint32_t table[{n}];
NOINLINE void gather(uint64_t m) {{ uint64_t sum = 0; while (m--) sum += table[draw() % {n}]; sink = sum; }}
int main(void) {{ gather({rng.randrange(500, 700)}000); }}""")


@program("c", LATENCY, TLB, function="gather", data="main")
def random_gather_in_llc(rng, machine):
    n = beyond_l2(rng, machine) // 8
    return c(rng, f"""
NOINLINE void gather(uint64_t *table, uint64_t n, uint64_t m) {{ uint64_t sum = 0; while (m--) sum += table[draw() % n]; sink = sum; }}
int main(void) {{ uint64_t n = {n}, *table = malloc(8 * n); for (uint64_t i = 0; i < n; i++) table[i] = i;
    gather(table, n, {rng.randrange(1500, 2000)}000); }}""")


LIST = """
struct node { struct node *next; uint64_t value; char padding[%d]; };
NOINLINE void walk(struct node *node, uint64_t steps) { uint64_t sum = 0; while (steps--) { sum += node->value; node = node->next; } sink = sum; }
int main(void) { uint64_t n = %d; struct node *nodes = malloc(n * sizeof *nodes); uint32_t *order = malloc(4 * n);
    for (uint64_t i = 0; i < n; i++) order[i] = i;
    for (uint64_t i = n - 1; i > 0; i--) { uint64_t j = draw() %% i; uint32_t t = order[i]; order[i] = order[j]; order[j] = t; }
    for (uint64_t i = 0; i < n; i++) { nodes[order[i]].next = &nodes[order[(i + 1) %% n]]; nodes[order[i]].value = i; }
    walk(nodes, %d); }"""


@program("c", LATENCY, function="walk", data="main")
def linked_list(rng, machine):
    padding = rng.choice([48, 112])
    n = beyond_llc(rng, machine) // (padding + 16)
    return c(rng, LIST % (padding, n, 8 * n))


@program("c", LATENCY, TLB, function="walk", data="main")
def linked_list_in_llc(rng, machine):
    n = beyond_l2(rng, machine) // 64
    return c(rng, LIST % (48, n, 40 * n))


@program("c", LATENCY, function="find", data="insert|main")
def hash_chains(rng, machine):
    n = beyond_llc(rng, machine) // 64
    return c(rng, f"""
struct entry {{ struct entry *next; uint64_t key, value; }};
static struct entry **buckets; static uint64_t mask;
NOINLINE void insert(uint64_t key) {{ struct entry *e = malloc(sizeof *e); e->key = key; e->value = ~key;
    struct entry **b = &buckets[key * 0x9e3779b97f4a7c15 >> 20 & mask]; e->next = *b; *b = e; }}
NOINLINE uint64_t find(uint64_t key) {{ for (struct entry *e = buckets[key * 0x9e3779b97f4a7c15 >> 20 & mask]; e; e = e->next) if (e->key == key) return e->value; return 0; }}
int main(void) {{ uint64_t n = {n}, size = 1; while (size < n) size *= 2; mask = size - 1; buckets = calloc(size, 8);
    for (uint64_t i = 0; i < n; i++) insert(i); uint64_t sum = 0;
    for (uint64_t i = 0; i < 3 * n; i++) sum += find(draw() % n); sink = sum; }}""")


@program("c", LATENCY, function="search", data="main")
def binary_search(rng, machine):
    n = beyond_llc(rng, machine) * 2 // 8
    return c(rng, f"""
NOINLINE uint64_t search(uint64_t *sorted, uint64_t n, uint64_t key) {{ uint64_t low = 0, high = n;
    while (low < high) {{ uint64_t mid = (low + high) / 2; if (sorted[mid] < key) low = mid + 1; else high = mid; }} return low; }}
int main(void) {{ uint64_t n = {n}, *sorted = malloc(8 * n); for (uint64_t i = 0; i < n; i++) sorted[i] = 3 * i;
    uint64_t sum = 0; for (int i = 0; i < {rng.randrange(150, 200)}000; i++) sum += search(sorted, n, draw() % (3 * n)); sink = sum; }}""")


@program("c", LATENCY, function="find", data="insert|main")
def binary_tree(rng, machine):
    n = beyond_llc(rng, machine) // 48
    return c(rng, f"""
struct node {{ struct node *child[2]; uint64_t key; }};
static struct node *root;
NOINLINE void insert(uint64_t key) {{ struct node **at = &root; while (*at) at = &(*at)->child[key > (*at)->key];
    *at = calloc(1, sizeof **at); (*at)->key = key; }}
NOINLINE uint64_t find(uint64_t key) {{ struct node *at = root; while (at && at->key != key) at = at->child[key > at->key]; return at != 0; }}
int main(void) {{ uint64_t n = {n // 4}, first = state; for (uint64_t i = 0; i < n; i++) insert(draw());
    uint64_t found = 0; for (int round = 0; round < 4; round++) {{ state = first; for (uint64_t i = 0; i < n; i++) found += find(draw()); }} sink = found; }}""")


@program("c++", LATENCY, function="look_up|find|hash", data="insert|emplace|main|fill|reserve|rehash")
def unordered_map(rng, machine):
    n = beyond_llc(rng, machine) // 48
    return f"""
#include <cstdint>
#include <unordered_map>
volatile uint64_t sink;
__attribute__((noinline)) void fill(std::unordered_map<uint64_t, uint64_t> &map, uint64_t n) {{ for (uint64_t i = 0; i < n; i++) map.emplace(i * 0x9e3779b97f4a7c15, i); }}
__attribute__((noinline)) void look_up(std::unordered_map<uint64_t, uint64_t> &map, uint64_t n, uint64_t m) {{
    uint64_t x = {rng.randrange(1, 1 << 60)}, sum = 0; while (m--) {{ x ^= x << 13; x ^= x >> 7; x ^= x << 17; sum += map.find(x % n * 0x9e3779b97f4a7c15)->second; }} sink = sum; }}
int main() {{ std::unordered_map<uint64_t, uint64_t> map; fill(map, {n}); look_up(map, {n}, {2 * n}); }}"""


@program("c++", LATENCY, function="look_up|find|lower_bound|_M_", data="fill|insert|main|emplace")
def ordered_map(rng, machine):
    n = beyond_llc(rng, machine) // 160
    return f"""
#include <cstdint>
#include <map>
volatile uint64_t sink;
__attribute__((noinline)) void fill(std::map<uint64_t, uint64_t> &map, uint64_t n) {{ for (uint64_t i = 0; i < n; i++) map.emplace(i * 0x9e3779b97f4a7c15, i); }}
__attribute__((noinline)) void look_up(std::map<uint64_t, uint64_t> &map, uint64_t n, uint64_t m) {{
    uint64_t x = {rng.randrange(1, 1 << 60)}, sum = 0; while (m--) {{ x ^= x << 13; x ^= x >> 7; x ^= x << 17; sum += map.find(x % n * 0x9e3779b97f4a7c15)->second; }} sink = sum; }}
int main() {{ std::map<uint64_t, uint64_t> map; fill(map, {n}); look_up(map, {n}, {2 * n}); }}"""


@program("c++", LATENCY, function="total", data="main|push_back|fill")
def sorted_list(rng, machine):
    n = beyond_llc(rng, machine) // 64
    return f"""
#include <cstdint>
#include <list>
volatile uint64_t sink;
__attribute__((noinline)) void fill(std::list<uint64_t> &list, uint64_t n) {{ uint64_t x = {rng.randrange(1, 1 << 60)}; while (n--) {{ x ^= x << 13; x ^= x >> 7; x ^= x << 17; list.push_back(x); }} list.sort(); }}
__attribute__((noinline)) void total(std::list<uint64_t> &list) {{ uint64_t sum = 0; for (uint64_t value : list) sum += value; sink = sum; }}
int main() {{ std::list<uint64_t> list; fill(list, {n}); for (int i = 0; i < 20; i++) total(list); }}"""


@program("rust", LATENCY, TLB, function="total", data="main|shuffled")
def rust_shuffled_boxes(rng, machine):
    n = beyond_llc(rng, machine) // 64
    return f"""
#[inline(never)]
fn shuffled(n: usize) -> Vec<Box<[u64; 6]>> {{
    let mut boxes: Vec<Box<[u64; 6]>> = (0..n).map(|i| Box::new([i as u64; 6])).collect();
    let mut x = {rng.randrange(1, 1 << 60)}u64;
    for i in (1..n).rev() {{ x ^= x << 13; x ^= x >> 7; x ^= x << 17; boxes.swap(i, x as usize % i); }}
    boxes
}}
#[inline(never)]
fn total(boxes: &[Box<[u64; 6]>]) -> u64 {{ boxes.iter().map(|b| b[3]).sum() }}
fn main() {{ let boxes = shuffled({n}); let mut sum = 0; for _ in 0..6 {{ sum += total(&boxes); }} println!("{{sum}}"); }}"""


@program("rust", LATENCY, function="look_up|get|find|hash", data="main|fill|insert")
def rust_hash_map(rng, machine):
    n = beyond_llc(rng, machine) // 24
    return f"""
use std::collections::HashMap;
#[inline(never)]
fn look_up(map: &HashMap<u64, u64>, n: u64, m: u64) -> u64 {{
    let (mut x, mut sum) = ({rng.randrange(1, 1 << 60)}u64, 0u64);
    for _ in 0..m {{ x ^= x << 13; x ^= x >> 7; x ^= x << 17; sum = sum.wrapping_add(map[&(x % n)]); }}
    sum
}}
fn main() {{ let mut map = HashMap::with_capacity({n}); for i in 0..{n}u64 {{ map.insert(i, !i); }} println!("{{}}", look_up(&map, {n}, {3 * n // 2})); }}"""


@program("go", LATENCY, TLB, function="lookUp|mapaccess|getWithKey|runtime|swiss")
def go_map(rng, machine):
    n = beyond_llc(rng, machine) // 24
    return f"""package main
import "fmt"
//go:noinline
func lookUp(m map[uint64]uint64, n uint64, k int) uint64 {{
	x, sum := uint64({rng.randrange(1, 1 << 60)}), uint64(0)
	for i := 0; i < k; i++ {{ x ^= x << 13; x ^= x >> 7; x ^= x << 17; sum += m[x%n] }}
	return sum
}}
func main() {{
	m := make(map[uint64]uint64, {n})
	for i := uint64(0); i < {n}; i++ {{ m[i] = i }}
	fmt.Println(lookUp(m, {n}, {3 * n // 2}))
}}"""


@program("python", LATENCY, TLB)
def python_random_dict(rng, machine):
    n = beyond_llc(rng, machine) // 90
    return f"""import random
random.seed({rng.randrange(1 << 30)})
table = {{key: key + 0.5 for key in range({n})}}
keys = list(table)
random.shuffle(keys)
total = 0.0
for _ in range(3):
    for key in keys:
        total += table[key]
print(total)"""


@program("c", LATENCY, function="multiply", data="main")
def sparse_matrix(rng, machine):
    n = beyond_llc(rng, machine) // 8
    return c(rng, f"""
NOINLINE void multiply(double *out, double *x, uint32_t *column, double *value, uint64_t rows, int each) {{
    for (uint64_t r = 0; r < rows; r++) {{ double sum = 0; for (int k = 0; k < each; k++) sum += value[r * each + k] * x[column[r * each + k]]; out[r] = sum; }} }}
int main(void) {{ uint64_t n = {n}, rows = {rng.randrange(60, 90)}000; int each = 12; double *x = malloc(8 * n), *out = malloc(8 * rows), *value = malloc(8 * rows * each);
    uint32_t *column = malloc(4 * rows * each); for (uint64_t i = 0; i < n; i++) x[i] = i;
    for (uint64_t i = 0; i < rows * each; i++) {{ value[i] = i; column[i] = draw() % n; }} multiply(out, x, column, value, rows, each); sink = out[7]; }}""")


@program("c", LATENCY, function="count", data="counts")
def random_increments(rng, machine):
    n = beyond_llc(rng, machine) // 4
    return c(rng, f"""
uint32_t counts[{n}];
NOINLINE void count(uint64_t m) {{ while (m--) counts[draw() % {n}]++; }}
int main(void) {{ count({rng.randrange(600, 800)}000); }}""")


# Streams: loads in order that use each line.


@program("c", STREAM, function="total", data="main")
def sum_in_order(rng, machine):
    n = beyond_llc(rng, machine) // 8
    return c(rng, f"""
NOINLINE void total(uint64_t *values, uint64_t n) {{ uint64_t sum = 0; for (uint64_t i = 0; i < n; i++) sum += values[i]; sink = sum; }}
int main(void) {{ uint64_t n = {n}, *values = malloc(8 * n); for (uint64_t i = 0; i < n; i++) values[i] = i; for (int r = 0; r < 4; r++) total(values, n); }}""", )


@program("c", STREAM, function="dot", data="main")
def dot_product(rng, machine):
    n = beyond_llc(rng, machine) // 8
    return c(rng, f"""
NOINLINE void dot(double *a, double *b, uint64_t n) {{ double sum = 0; for (uint64_t i = 0; i < n; i++) sum += a[i] * b[i]; sink = sum; }}
int main(void) {{ uint64_t n = {n}; double *a = malloc(8 * n), *b = malloc(8 * n); for (uint64_t i = 0; i < n; i++) a[i] = b[i] = i; for (int r = 0; r < 4; r++) dot(a, b, n); }}""")


@program("c++", STREAM, function="largest", data="main|vector|allocate")
def vector_maximum(rng, machine):
    n = beyond_llc(rng, machine) // 8
    return f"""
#include <cstdint>
#include <vector>
volatile uint64_t sink;
__attribute__((noinline)) void largest(const std::vector<uint64_t> &values) {{ uint64_t most = 0; for (uint64_t v : values) if (v > most) most = v; sink = most; }}
int main() {{ std::vector<uint64_t> values({n}, {rng.randrange(1000)}); for (int r = 0; r < 5; r++) largest(values); }}"""


@program("rust", STREAM, function="total", data="main")
def rust_sum(rng, machine):
    n = beyond_llc(rng, machine) // 8
    return f"""
#[inline(never)]
fn total(values: &[u64]) -> u64 {{ values.iter().fold(0, |sum, v| sum ^ v) }}
fn main() {{ let values: Vec<u64> = (0..{n}u64).collect(); let mut all = 0; for _ in 0..6 {{ all ^= total(std::hint::black_box(&values)); }} println!("{{all}}"); }}"""


@program("go", STREAM, function="total")
def go_sum(rng, machine):
    n = beyond_llc(rng, machine) // 8
    return f"""package main
import "fmt"
//go:noinline
func total(values []uint64) uint64 {{
	sum := uint64(0)
	for _, v := range values {{ sum += v }}
	return sum
}}
func main() {{
	values := make([]uint64, {n})
	for i := range values {{ values[i] = uint64(i) }}
	sum := uint64(0)
	for r := 0; r < 6; r++ {{ sum += total(values) }}
	fmt.Println(sum)
}}"""


# Strides: loads in order that use a part of each line.


@program("c", STRIDE, function="mass", data="main")
def one_field_of_structures(rng, machine):
    pad = rng.choice([56, 120])
    n = beyond_llc(rng, machine) // (pad + 8)
    return c(rng, f"""
struct particle {{ double mass; char other[{pad}]; }};
NOINLINE void mass(struct particle *all, uint64_t n) {{ double sum = 0; for (uint64_t i = 0; i < n; i++) sum += all[i].mass; sink = sum; }}
int main(void) {{ uint64_t n = {n}; struct particle *all = calloc(n, sizeof *all); for (uint64_t i = 0; i < n; i++) all[i].mass = i; for (int r = 0; r < 8; r++) mass(all, n); }}""")


@program("rust", STRIDE, function="mass", data="main")
def rust_one_field(rng, machine):
    n = beyond_llc(rng, machine) // 64
    return f"""
#[derive(Clone)]
#[repr(C)]
struct Particle {{ mass: f64, other: [f64; 7] }}
#[inline(never)]
fn mass(all: &[Particle]) -> f64 {{ all.iter().map(|p| p.mass).sum() }}
fn main() {{ let all = vec![Particle {{ mass: {rng.random()}, other: [1.0; 7] }}; {n}]; let mut sum = 0.0; for _ in 0..8 {{ sum += mass(std::hint::black_box(&all)); }} println!("{{sum}} {{}}", all[1].other[3]); }}"""


@program("c", STRIDE, function="every", data="main")
def every_other_line(rng, machine):
    step = rng.choice([16, 24, 32])
    n = beyond_llc(rng, machine) // 8
    return c(rng, f"""
NOINLINE void every(uint64_t *values, uint64_t n) {{ uint64_t sum = 0; for (uint64_t i = 0; i < n; i += {step}) sum += values[i]; sink = sum; }}
int main(void) {{ uint64_t n = {n}, *values = calloc(n, 8); for (uint64_t i = 0; i < n; i += 8) values[i] = i; for (int r = 0; r < 12; r++) every(values, n); }}""")


# A matrix read by columns: each access is in another page, so it may be seen as latency or translation.
@program("c", LATENCY, TLB, STRIDE, CONFLICTS, function="columns", data="main")
def matrix_by_columns(rng, machine):
    n = int((beyond_llc(rng, machine) / 8) ** 0.5) // 8 * 8 + 8
    return c(rng, f"""
NOINLINE void columns(double *m, uint64_t n) {{ double sum = 0; for (uint64_t j = 0; j < n; j++) for (uint64_t i = 0; i < n; i++) sum += m[i * n + j]; sink = sum; }}
int main(void) {{ uint64_t n = {n}; double *m = malloc(8 * n * n); for (uint64_t i = 0; i < n * n; i++) m[i] = i; columns(m, n); }}""")


# Few cache sets: lines a power of two apart.


COLUMNS = """
enum {{ ROWS = {rows}, PITCH = {pitch} }};
NOINLINE void columns(char *m) {{ uint64_t sum = 0; for (int j = 0; j < {columns}; j++) for (int i = 0; i < ROWS; i++) sum += *(uint64_t *)(m + (uint64_t)i * PITCH + j * 8 % 512); sink = sum; }}
int main(void) {{ char *m = aligned_alloc(4096, (uint64_t)ROWS * (4096 + 64) / 4096 * 4096 + 4096); memset(m, 1, (uint64_t)ROWS * PITCH); columns(m); }}"""


@program("c", CONFLICTS, function="columns", data="main")
def rows_of_a_page(rng, machine):
    return c(rng, COLUMNS.format(rows=rng.randrange(100, 400), pitch=rng.choice([1024, 2048, 4096]), columns=rng.randrange(10, 14) * 1000))


# The same with a line more per row: the lines of a column fit the first two levels.
@program("c", L1, LATENCY, TLB, STRIDE, STREAM)
def rows_of_a_page_and_a_line(rng, machine):
    return c(rng, COLUMNS.format(rows=rng.randrange(100, 400), pitch=rng.choice([1024, 2048, 4096]) + 64, columns=rng.randrange(10, 14) * 1000))


@program("c", CONFLICTS, TLB, function="walk", data="main")
def nodes_at_the_start_of_pages(rng, machine):
    n = rng.randrange(100, 600)
    return c(rng, f"""
struct node {{ struct node *next; uint64_t value; }};
NOINLINE void walk(struct node *node, uint64_t steps) {{ uint64_t sum = 0; while (steps--) {{ sum += node->value; node = node->next; }} sink = sum; }}
int main(void) {{ uint64_t n = {n}; char *pages = aligned_alloc(4096, n * 4096); for (uint64_t i = 0; i < n; i++) {{ struct node *at = (struct node *)(pages + i * 4096); at->next = (struct node *)(pages + (i + 1) % n * 4096); at->value = i; }}
    walk((struct node *)pages, 2000000); }}""")


# Bandwidth: threads that together want more than memory delivers.


def streaming_threads(rng, machine, work):
    n = int(machine.llc * 1.2) // 8 // machine.threads * 8 + 4096
    return c(rng, f"""
enum {{ THREADS = {machine.threads} }};
static uint64_t n = {n};
{work}
static void *run(void *at) {{ work(at); return 0; }}
int main(void) {{ pthread_t threads[THREADS]; char *all = aligned_alloc(4096, THREADS * n * 8 / 4096 * 4096 + 4096); memset(all, 1, THREADS * n * 8);
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, run, all + i * n * 8); for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0); }}""")


@program("c", BANDWIDTH, flags=["-O3"])
def threads_that_read(rng, machine):
    return streaming_threads(rng, machine, "NOINLINE void work(uint64_t *v) { for (int r = 0; r < 30; r++) { uint64_t s = 0; for (uint64_t i = 0; i < n; i += 8) s += v[i]; sink = s; } }")


@program("c", BANDWIDTH, flags=["-O3"])
def threads_that_update(rng, machine):
    return streaming_threads(rng, machine, "NOINLINE void work(uint64_t *v) { for (int r = 0; r < 20; r++) for (uint64_t i = 0; i < n; i += 8) v[i] += r; }")


# Stores: the finding is about writing.


@program("c", STREAM, STRIDE, LATENCY, BANDWIDTH, function="It writes more than memory takes.*clear|bandwidth")
def clear_again_and_again(rng, machine):
    n = beyond_llc(rng, machine)
    return c(rng, f"""
NOINLINE void clear(char *p, uint64_t n, int value) {{ memset(p, value, n); }}
int main(void) {{ uint64_t n = {n}; char *p = malloc(n); for (int r = 0; r < 10; r++) {{ clear(p, n, r); sink += p[draw() % n]; }} }}""")


@program("c", STREAM, STRIDE, LATENCY, BANDWIDTH, function="It writes more than memory takes.*fill")
def fill_large_array(rng, machine):
    n = beyond_llc(rng, machine) // 8
    return c(rng, f"""
NOINLINE void fill(uint64_t *p, uint64_t n, uint64_t v) {{ for (uint64_t i = 0; i < n; i += 8) p[i] = v; }}
int main(void) {{ uint64_t n = {n}, *p = malloc(8 * n); for (int r = 0; r < 10; r++) fill(p, n, r); sink = p[9]; }}""")


@program("c", STREAM, STRIDE, LATENCY, BANDWIDTH, function="It writes more than memory takes.*scatter")
def scatter(rng, machine):
    n = beyond_llc(rng, machine) // 64
    return c(rng, f"""
struct line {{ uint64_t words[8]; }};
NOINLINE void scatter(struct line *all, uint64_t n, uint64_t m) {{ while (m--) all[draw() % n].words[0] = m; }}
int main(void) {{ uint64_t n = {n}; struct line *all = aligned_alloc(64, 64 * n); scatter(all, n, {rng.randrange(900, 1200)}000); sink = all[3].words[0]; }}""")


# Translation: one line of each of many pages. The lines fit a cache and the pages no TLB.


@program("c", TLB, function="touch", data="main")
def one_line_per_page(rng, machine):
    # Spread over all sets, so that the second level holds them.
    pages = int(min(machine.pages * rng.uniform(2.1, 3), machine.l2 / 64 * 0.8))
    return c(rng, f"""
NOINLINE void touch(char *all, uint32_t *order, uint64_t n) {{ uint64_t sum = 0; for (uint64_t i = 0; i < n; i++) {{ uint64_t p = order[i]; sum += *(uint64_t *)(all + (p << 12 | (p / 32 * 64 & 4032))); }} sink = sum; }}
int main(void) {{ uint64_t n = {pages}; char *all = aligned_alloc(4096, n << 12); uint32_t *order = malloc(4 * n);
    for (uint64_t i = 0; i < n; i++) {{ order[i] = i; all[i << 12] = 1; }}
    for (uint64_t i = n - 1; i > 0; i--) {{ uint64_t j = draw() % i; uint32_t t = order[i]; order[i] = order[j]; order[j] = t; }}
    for (int r = 0; r < 120; r++) touch(all, order, n); }}""")


# First level: everything is near.


@program("c", L1)
def small_matrix(rng, machine):
    n = rng.randrange(20, 32)
    return c(rng, f"""
static double a[{n}][{n}], b[{n}][{n}], out[{n}][{n}];
NOINLINE void multiply(void) {{ for (int i = 0; i < {n}; i++) for (int j = 0; j < {n}; j++) {{ double s = 0; for (int k = 0; k < {n}; k++) s += a[i][k] * b[k][j]; out[i][j] = s; }} }}
int main(void) {{ for (int r = 0; r < 600; r++) {{ a[0][0] = r; multiply(); sink = out[0][1]; }} }}""")


@program("c", L1)
def sieve_in_l1(rng, machine):
    return c(rng, f"""
static char composite[{rng.randrange(8, 16)}000];
NOINLINE void sieve(void) {{ memset(composite, 0, sizeof composite); for (unsigned i = 2; i * i < sizeof composite; i++) if (!composite[i]) for (unsigned j = i * i; j < sizeof composite; j += i) composite[j] = 1; }}
int main(void) {{ for (int r = 0; r < 300; r++) sieve(); sink = composite[9]; }}""")


@program("c++", L1)
def sort_small(rng, machine):
    return f"""
#include <algorithm>
#include <cstdint>
#include <vector>
volatile uint64_t sink;
int main() {{ std::vector<uint32_t> v({rng.randrange(500, 1500)}); uint64_t x = 88172645463325252; for (int r = 0; r < 400; r++) {{ for (auto &e : v) {{ x ^= x << 13; x ^= x >> 7; x ^= x << 17; e = x; }} std::sort(v.begin(), v.end()); sink = v[3]; }} }}"""


@program("rust", L1)
def rust_strings(rng, machine):
    return f"""fn main() {{ let mut n = 0usize; for i in 0..{rng.randrange(100, 150)}_000u64 {{ let text = format!("{{i:x}}-{{}}", i * 7); n += text.len(); }} println!("{{n}}"); }}"""


@program("python", L1)
def python_loop(rng, machine):
    return f"""total = 0
for i in range({rng.randrange(300, 400)}000):
    total = (total * 31 + i) % 1000003
print(total)"""


@program("python", L1)
def python_strings(rng, machine):
    return f"""words = []
for i in range({rng.randrange(20, 30)}000):
    words = words[-50:] + [f"{{i:05d}}".upper().lower()]
print("".join(words)[:20])"""


@program("go", L1)
def go_fibonacci(rng, machine):
    return f"""package main
import "fmt"
//go:noinline
func fib(n int) int {{
	if n < 2 {{ return n }}
	return fib(n-1) + fib(n-2)
}}
func main() {{ fmt.Println(fib({rng.randrange(27, 30)})) }}"""


# Sharing between threads.


def threads(rng, body, count):
    return c(rng, f"""
enum {{ THREADS = {count} }};
{body}
int main(void) {{ pthread_t threads[THREADS]; for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, worker, (void *)i); for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0); }}""")


@program("c", FALSE_SHARING, function="worker", data="counters")
def packed_counters(rng, machine):
    return threads(rng, f"""
struct {{ volatile uint64_t hits; }} counters[THREADS];
void *worker(void *i) {{ for (int n = 0; n < {rng.randrange(200, 300)}000; n++) counters[(long)i].hits++; return 0; }}""", rng.randrange(2, 6))


@program("c", L1, function="")
def padded_counters(rng, machine):
    return threads(rng, f"""
struct {{ volatile uint64_t hits; char padding[56]; }} counters[THREADS] __attribute__((aligned(64)));
void *worker(void *i) {{ for (int n = 0; n < {rng.randrange(500, 600)}000; n++) counters[(long)i].hits++; return 0; }}""", rng.randrange(2, 6))


@program("c", FALSE_SHARING, function="reader|writer|worker", data="shared")
def flag_beside_data(rng, machine):
    return threads(rng, f"""
struct {{ volatile uint64_t written; volatile uint64_t read[7]; }} shared __attribute__((aligned(64)));
void *worker(void *i) {{ uint64_t sum = 0; for (int n = 0; n < {rng.randrange(500, 700)}000; n++) {{ if (i) sum += shared.read[(long)i]; else shared.written++; }} sink = sum; return 0; }}""", 2)


@program("c", TRUE_SHARING, function="worker", data="hits")
def shared_atomic(rng, machine):
    return threads(rng, f"""
uint64_t hits __attribute__((aligned(64)));
void *worker(void *i) {{ for (int n = 0; n < {rng.randrange(600, 800)}000; n++) __atomic_fetch_add(&hits, 1, __ATOMIC_RELAXED); return 0; }}""", rng.randrange(2, 5))


@program("c", TRUE_SHARING, FALSE_SHARING, IDLE, function="")
def contended_lock(rng, machine):
    return threads(rng, f"""
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; uint64_t total;
void *worker(void *i) {{ for (int n = 0; n < {rng.randrange(100, 150)}000; n++) {{ pthread_mutex_lock(&lock); total++; pthread_mutex_unlock(&lock); }} return 0; }}""", rng.randrange(2, 4))


@program("rust", TRUE_SHARING, function="main|fetch_add|atomic|closure|worker", data="")
def rust_shared_atomic(rng, machine):
    return f"""
use std::sync::atomic::{{AtomicU64, Ordering}};
static HITS: AtomicU64 = AtomicU64::new(0);
#[inline(never)]
fn worker() {{ for _ in 0..{rng.randrange(800, 1000)}_000 {{ HITS.fetch_add(1, Ordering::Relaxed); }} }}
fn main() {{ let all: Vec<_> = (0..{rng.randrange(2, 5)}).map(|_| std::thread::spawn(worker)).collect(); for t in all {{ t.join().unwrap(); }} println!("{{}}", HITS.load(Ordering::Relaxed)); }}"""


@program("rust", FALSE_SHARING, function="worker|closure|main", data="")
def rust_packed_atomics(rng, machine):
    count = rng.randrange(2, 6)
    return f"""
use std::sync::atomic::{{AtomicU64, Ordering}};
static HITS: [AtomicU64; {count}] = [const {{ AtomicU64::new(0) }}; {count}];
#[inline(never)]
fn worker(i: usize) {{ for _ in 0..{rng.randrange(800, 1000)}_000 {{ HITS[i].fetch_add(1, Ordering::Relaxed); }} }}
fn main() {{ let all: Vec<_> = (0..{count}).map(|i| std::thread::spawn(move || worker(i))).collect(); for t in all {{ t.join().unwrap(); }} println!("{{}}", HITS[0].load(Ordering::Relaxed)); }}"""


# Waiting.


@program("c", IDLE)
def sleeps(rng, machine):
    return c(rng, f"""
int main(void) {{ for (int i = 0; i < 20; i++) {{ for (int k = 0; k < 20000; k++) sink += draw(); struct timespec t = {{ 0, {rng.randrange(5, 20)}000000 }}; nanosleep(&t, 0); }} }}""")


@program("python", IDLE)
def python_sleeps(rng, machine):
    return f"""import time
for i in range(10):
    time.sleep({rng.uniform(0.05, 0.1)})
print("done")"""


@program("c", IDLE)
def waits_for_child(rng, machine):
    return c(rng, f"""
#include <sys/wait.h>
int main(void) {{ for (int i = 0; i < 3; i++) {{ if (!fork()) {{ usleep({rng.randrange(60, 120)}000); _exit(0); }} wait(0); }} }}""")


@program("go", IDLE)
def go_sleeps(rng, machine):
    return f"""package main
import ("fmt"; "time")
func main() {{ for i := 0; i < 8; i++ {{ time.Sleep({rng.randrange(60, 90)} * time.Millisecond) }}; fmt.Println("done") }}"""


@program("c", IDLE)
def slow_pipe(rng, machine):
    return c(rng, f"""
#include <sys/wait.h>
int main(void) {{ int ends[2]; if (pipe(ends)) return 1; if (!fork()) {{ for (int i = 0; i < 12; i++) {{ usleep({rng.randrange(20, 60)}000); if (write(ends[1], &i, sizeof i) < 0) return 1; }} _exit(0); }}
    close(ends[1]); int value; while (read(ends[0], &value, sizeof value) > 0) sink += value; wait(0); }}""")


@program("python", IDLE)
def python_socket(rng, machine):
    return f"""import socket, threading, time
one, other = socket.socketpair()
def answer():
    for i in range(10):
        time.sleep({rng.uniform(0.04, 0.08)})
        other.send(b"x" * {rng.randrange(100, 900)})
    other.close()
threading.Thread(target=answer).start()
received = 0
while data := one.recv(4096):
    received += len(data)
print(received)"""


# The kernel's work, which the model does not time: page faults, files.


@program("c", FAULTS)
def first_touch(rng, machine):
    size = rng.randrange(4, 9) << 20
    return c(rng, f"""
#include <sys/mman.h>
NOINLINE void touch(char *p, uint64_t n) {{ for (uint64_t i = 0; i < n; i += 4096) p[i] = 1; }}
int main(void) {{ for (int r = 0; r < {rng.randrange(60, 90)}; r++) {{ char *p = mmap(0, {size}, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); touch(p, {size}); munmap(p, {size}); }} }}""")


@program("c", FAULTS, STREAM, STRIDE, TLB, LATENCY, function="scan")
def mapped_file(rng, machine):
    size = beyond_llc(rng, machine) // 4096 * 4096
    return c(rng, f"""
#include <fcntl.h>
#include <sys/mman.h>
NOINLINE void scan(char *p, uint64_t n) {{ uint64_t sum = 0; for (uint64_t i = 0; i < n; i += 64) sum += p[i]; sink = sum; }}
int main(void) {{ FILE *f = tmpfile(); if (ftruncate(fileno(f), {size})) return 1;
    for (int r = 0; r < 6; r++) {{ char *p = mmap(0, {size}, PROT_READ, MAP_PRIVATE, fileno(f), 0); scan(p, {size}); munmap(p, {size}); }} }}""")


# Waits for files beside the program itself, which are on a disk unless the results are in memory.


@program("c", FILES)
def synced_log(rng, machine):
    return c(rng, f"""
#include <fcntl.h>
int main(int argc, char **argv) {{ char name[4096]; snprintf(name, sizeof name, "%s.log", argv[0]);
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    for (int i = 0; i < {rng.randrange(400, 900)}; i++) {{ if (write(fd, name, {rng.randrange(50, 200)}) < 0 || fdatasync(fd)) return 1; }}
    return unlink(name); }}""")


@program("c", FILES)
def cold_reads(rng, machine):
    pages = rng.randrange(8000, 16000)
    return c(rng, f"""
#include <fcntl.h>
static char page[4096];
int main(int argc, char **argv) {{ char name[4096]; snprintf(name, sizeof name, "%s.data", argv[0]);
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (int i = 0; i < {pages}; i++) if (write(fd, page, sizeof page) < 0) return 1;
    if (fsync(fd)) return 1;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    for (int i = 0; i < {rng.randrange(1000, 2000)}; i++) if (pread(fd, page, sizeof page, draw() % {pages} * sizeof page) < 0) return 1;
    return unlink(name); }}""")


@program("python", FILES)
def python_syncs(rng, machine):
    return f"""import os, sys
with open(sys.argv[0] + ".log", "wb") as file:
    for i in range({rng.randrange(400, 800)}):
        file.write(b"%d\\n" % i)
        file.flush()
        os.fsync(file.fileno())
os.unlink(file.name)"""


# Accesses that cross cache lines, which the model counts and does not time.


@program("c", SPLITS)
def misaligned_integers(rng, machine):
    return c(rng, f"""
static char area[{rng.randrange(12, 24)}008] __attribute__((aligned(64)));
NOINLINE void add(char *p, uint64_t n) {{ for (uint64_t i = 0; i < n; i++) ++*(volatile uint64_t *)(p + 64 * (i % {rng.randrange(100, 180)}) + {rng.randrange(57, 64)}); }}
int main(void) {{ add(area, {rng.randrange(1, 3)}000000); sink = area[64]; }}""")


@program("c", SPLITS, flags=["-O3", "-mavx2"])
def misaligned_vectors(rng, machine):
    return c(rng, f"""
static char area[{rng.randrange(8, 12) * 2048 + 64}] __attribute__((aligned(64)));
NOINLINE void scale(char *p, uint64_t n) {{ float *v = (float *)p; for (uint64_t i = 0; i < n; i++) v[i] = v[i] * 0.5f + 1.0f; }}
int main(void) {{ for (int r = 0; r < {rng.randrange(3, 6)}000; r++) scale(area + {4 * rng.randrange(1, 8)}, 3000); sink = area[9]; }}""")


# Runs that are too short to judge.


@program("c", TINY)
def hello(rng, machine):
    return c(rng, 'int main(void) { puts("hello"); }')


@program("c++", TINY)
def hello_cpp(rng, machine):
    return '#include <iostream>\nint main() { std::cout << "hello\\n"; }'


@program("rust", TINY)
def hello_rust(rng, machine):
    return 'fn main() { println!("hello"); }'


@program("c", TINY)
def small_copy(rng, machine):
    return c(rng, f"int main(void) {{ char *a = malloc(100000), *b = malloc(100000); for (int i = 0; i < {rng.randrange(3, 9)}; i++) memcpy(a, b, 100000); sink = a[7]; }}")


# Phases: short bursts of traffic between long computations.


@program("c", PHASES, L1)
def bursts(rng, machine):
    n = int(machine.llc * 1.3)
    return c(rng, f"""
NOINLINE void burst(char *p, uint64_t n) {{ uint64_t sum = 0; for (uint64_t i = 0; i < n; i += 64) sum += *(uint64_t *)(p + i); sink = sum; }}
NOINLINE void compute(void) {{ uint64_t sum = 0; for (int i = 0; i < {int(machine.llc * 2.5) // 1000000 * rng.randrange(8, 12) // 10 + 8}000000; i++) sum = (sum ^ i) * 31; sink = sum; }}
int main(void) {{ char *p = calloc({n}, 1); memset(p, 1, {n}); for (int r = 0; r < 3; r++) {{ compute(); burst(p, {n}); }} compute(); }}""")


# Mixtures: two causes with a stated ratio of their time; the larger one comes first.


@program("c", LATENCY, function="gather", data="main")
def mostly_gather_some_streams(rng, machine):
    n = beyond_llc(rng, machine) // 8
    return c(rng, f"""
NOINLINE void gather(uint64_t *v, uint64_t n, uint64_t m) {{ uint64_t sum = 0; while (m--) sum += v[draw() % n]; sink = sum; }}
NOINLINE void total(uint64_t *v, uint64_t n) {{ uint64_t sum = 0; for (uint64_t i = 0; i < n; i++) sum += v[i]; sink = sum; }}
int main(void) {{ uint64_t n = {n}, *v = malloc(8 * n); for (uint64_t i = 0; i < n; i++) v[i] = i; total(v, n); gather(v, n, n / 8); }}""")


@program("c", STREAM, function="total", data="main")
def mostly_streams_some_gather(rng, machine):
    n = beyond_llc(rng, machine) // 8
    return c(rng, f"""
NOINLINE void gather(uint64_t *v, uint64_t n, uint64_t m) {{ uint64_t sum = 0; while (m--) sum += v[draw() % n]; sink = sum; }}
NOINLINE void total(uint64_t *v, uint64_t n) {{ uint64_t sum = 0; for (uint64_t i = 0; i < n; i++) sum += v[i]; sink = sum; }}
int main(void) {{ uint64_t n = {n}, *v = malloc(8 * n); for (uint64_t i = 0; i < n; i++) v[i] = i; for (int r = 0; r < 6; r++) total(v, n); gather(v, n, n / 400); }}""")


@program("c", LATENCY, TLB, function="chase", data="main")
def fill_then_read_randomly(rng, machine):
    n = beyond_llc(rng, machine) // 8
    return c(rng, f"""
NOINLINE void fill(uint64_t *v, uint64_t n) {{ for (uint64_t i = 0; i < n; i++) v[i] = i; }}
NOINLINE void chase(uint64_t *v, uint64_t n, uint64_t m) {{ uint64_t at = 0; while (m--) at = (v[at] * 0x9e3779b97f4a7c15 + m) % n; sink = at; }}
int main(void) {{ uint64_t n = {n}, *v = malloc(8 * n); for (int r = 0; r < 2; r++) fill(v, n); chase(v, n, {rng.randrange(300, 400)}000); }}""")
