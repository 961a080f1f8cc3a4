//! Compiles the BPF program of `src/bpf`.

fn main() {
    memgauge_bpf_build::compile("account");
}
