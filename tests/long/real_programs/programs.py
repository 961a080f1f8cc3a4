"""Libraries before and after a published change of their memory layout or access order."""

import dataclasses

LATENCY, STREAM, STRIDE = "latency_bound", "stream_bound", "stride_bound"
TLB, L1, CONFLICTS = "tlb_bound", "l1_bound", "cache_conflicts"
FALSE_SHARING, TRUE_SHARING = "false_sharing", "true_sharing"


@dataclasses.dataclass
class Program:
    name: str
    library: str
    before: str
    after: str
    # The change in words.
    change: str
    # Causes that are right as the first one.
    causes: list
    # Patterns of the function and the data that the change concerns.
    function: str
    data: str
    # Pattern of the next step that means the change.
    fix: str
    # Where the change was published.
    published: str
    language: str = "rust"
    is_threaded: bool = False


PROGRAMS = [
    Program(
        "matrix", "rusty-machine", "0.0.9", "0.1.8",
        "loops swapped: rows of the second matrix instead of columns",
        [STRIDE, LATENCY, CONFLICTS, STREAM], "multiply|mul", "main", "swap loops|in that order",
        "Mul for &Matrix in src/linalg/matrix.rs",
    ),
    Program(
        "transposition", "transpose", "0.2.0", "0.2.1",
        "larger matrices are divided recursively",
        [STRIDE, LATENCY, CONFLICTS, TLB], "turn|transpose", "main", "blocks|in that order|fewer pages",
        "RELEASES.md, 0.2.1: significantly improved the performance of the out-of-place transpose",
    ),
    Program(
        "kd_tree", "kiddo", "0.2.5", "2.1.2",
        "nodes in arrays with small indices instead of boxes; coordinates apart from items",
        [LATENCY, TLB], "search|nearest|squared_euclidean", "build|add|split|Kd", "next to each other",
        "CHANGELOG.md, 2.0.0: architectural changes",
    ),
    Program(
        "ring_buffer", "ringbuf", "0.2.4", "0.2.5",
        "head and tail padded to lines of their own",
        [FALSE_SHARING], "push|pop|main|closure", "", "lines of its own",
        "issue 7: false sharing?", is_threaded=True,
    ),
    Program(
        "ring_buffer_cached", "ringbuf", "0.3.3", "0.4.8",
        "each end keeps a copy of the other end's index and reads that index only if it seems to be reached",
        [TRUE_SHARING], "push|pop|main|closure", "", "Share less often",
        "issue 7, and README of 0.4: caching wrappers", is_threaded=True,
    ),
    Program(
        "map_shards", "dashmap", "5.5.3", "6.0.1",
        "shards padded to lines of their own",
        [FALSE_SHARING], "get_mut|main|closure", "", "lines of its own",
        "CachePadded shards in 6.0", is_threaded=True,
    ),
    Program(
        "ordered_map", "ordermap", "0.1.1", "0.1.2",
        "half of the hash is kept beside the index, so that fewer entries are read",
        [LATENCY, TLB], "look_up|find|get", "fill|with_capacity|main|insert", "next to each other",
        "README, 0.1.2: the 32/32 split improves cache utilization and lookup performance",
    ),
    Program(
        "xml_nodes", "roxmltree", "0.10.1", "0.11.0",
        "smaller nodes: 32-bit ranges, fewer links",
        [STREAM, STRIDE, LATENCY], "walk|next_sibling|children", "parse|push|append", "smaller",
        "CHANGELOG.md, 0.11.0: reduce Node memory usage",
    ),
    Program(
        "interned_strings", "string-interner", "0.9.0", "0.11.3",
        "strings in a few large buckets instead of an allocation each",
        [LATENCY, TLB], "main|resolve", "intern|main", "next to each other",
        "RELEASE_NOTES.md, 0.11: BucketBackend",
    ),
    Program(
        "text_patterns", "aho-corasick", "0.7.20", "1.0.5",
        "states in one array of 32-bit words instead of a vector per state",
        [LATENCY, TLB], "next|find|main|standard", "build|main|nfa|compile", "next to each other",
        "release notes of 1.0: the contiguous NFA",
    ),
    Program(
        "compression", "zstd-safe", "3.1.0", "4.1.1",
        "match finder with rows of a hash table instead of hash chains",
        [LATENCY, TLB, L1], "ZSTD_", "", "shorten the chain|next to each other",
        "zstd 1.5.0: row-based match finder for levels 5 to 12",
    ),
    Program(
        "b_tree", "github.com/google/btree", "v1.0.1", "v1.1.2",
        "integers in the nodes instead of pointers to boxed ones",
        [LATENCY, TLB], "lookUp|Get|get|find|Less|Search", "", "next to each other|shorten the chain",
        "v1.1.0: generic B-trees", language="go",
    ),
]
