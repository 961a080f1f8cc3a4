#!/bin/bash
# Installs what building, testing and the demo need on Debian 12, and checks the
# Rust toolchain. Installs only what is missing: a second run is instant and
# needs no network.
set -eu
cd "$(dirname "$0")"
PATH="$PATH:$HOME/.cargo/bin"

# Build: gcc make libc6-dev libzydis-dev, and for the BPF programs clang libelf-dev
# zlib1g-dev pkg-config. Run: qemu-user. Tests, demo and
# benchmarks: the rest.
PACKAGES="gcc make libc6-dev libzydis-dev clang libelf-dev zlib1g-dev pkg-config qemu-user valgrind xz-utils sqlite3 python3 procps iproute2 e2fsprogs mdadm tmux libpfm4"
# What stands for a package where there is no dpkg to ask.
PROGRAMS="gcc make clang qemu-x86_64 valgrind xz sqlite3 python3 ps"

say() { echo "setup: $*" >&2; }
fail() { say "$*"; exit 1; }

missing_packages() {
    local package
    for package in $PACKAGES; do
        dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
            printf '%s ' "$package"
    done
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@" || sudo "$@"; fi
}

# Another apt may hold the lock, and a mirror may be away for a moment.
apt() {
    local try
    for try in 1 2 3 4 5; do
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y \
            -o DPkg::Lock::Timeout=120 -o Acquire::Retries=3 "$@" && return
        say "apt-get $1 failed (attempt $try of 5)"
        sleep $((try * 5))
    done
    return 1
}

install_packages() {
    local missing
    missing=$(missing_packages)
    [ -n "$missing" ] || return 0
    say "installing $missing"
    [ "$(id -u)" = 0 ] || command -v sudo >/dev/null ||
        fail "failed to install packages: run as root: apt-get install $missing"
    # shellcheck disable=SC2086 # a list of words
    { apt update && apt install --no-install-recommends $missing; } >&2 ||
        fail "failed to install packages: try apt-get install $missing"
}

check_programs() {
    local program
    for program in $PROGRAMS; do
        command -v "$program" >/dev/null || say "no \`$program\` here: install what provides it"
    done
    [ -e /usr/include/Zydis/Zydis.h ] || say "no Zydis.h here: install the Zydis development files"
}

check_rust() {
    local wanted found
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    command -v cargo >/dev/null ||
        fail "failed to find \`cargo\`: install Rust $wanted or later from https://rustup.rs"
    found=$(cargo --version | cut -d ' ' -f 2)
    [ "$(printf '%s\n' "$wanted" "${found%%-*}" | sort -V | head -n 1)" = "$wanted" ] ||
        fail "Rust $found is too old: $wanted or later is needed (rustup update)"
}

check_component() {
    cargo "$1" --version >/dev/null 2>&1 && return
    command -v rustup >/dev/null || fail "failed to find \`cargo $1\`: install $2"
    rustup component add "$2" || fail "failed to install $2: try rustup component add $2"
}

if command -v dpkg-query >/dev/null; then install_packages; else check_programs; fi
check_rust
check_component fmt rustfmt
check_component clippy clippy
