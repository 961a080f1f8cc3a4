#!/bin/bash
# Installs what is missing on Debian 12 and 13 for one purpose, and checks the Rust toolchain:
#
#   ./setup.sh build    packages to build memgauge
#   ./setup.sh demo     also the programs that the demo records (the default)
#   ./setup.sh test     also the tools that tests and benchmarks compare with; packages of pip and npm
#                       go to target/test-packages
#   ./setup.sh dist     packages to build memgauge's own and to try them in clean root file systems
#
# A second run is instant and needs no network.
set -eu
cd "$(dirname "$0")"
PATH="$PATH:$HOME/.cargo/bin"

BUILD="gcc make libc6-dev clang libelf-dev zlib1g-dev pkg-config esbuild
    ninja-build libglib2.0-dev python3 python3-venv patch xz-utils"
DEMO="sqlite3"
DIST="debootstrap busybox-static"
TEST="g++ binutils util-linux valgrind xz-utils python3 procps iproute2 e2fsprogs tmux libpfm4 dwz"
# Tests skip without these packages, and say so. They are installed only if no installed package changes.
WELCOME="mdadm linux-perf chromium nodejs node-typescript musl-tools"
# Node.js of other packagers brings its own.
command -v npm >/dev/null || WELCOME="$WELCOME npm"

PURPOSE=${1:-demo}
case "$PURPOSE" in
    build) PACKAGES=$BUILD PROGRAMS="gcc make clang ninja" WELCOME="" ;;
    demo) PACKAGES="$BUILD $DEMO" PROGRAMS="gcc make clang ninja sqlite3" WELCOME="" ;;
    test) PACKAGES="$BUILD $DEMO $TEST"
        PROGRAMS="gcc make clang ninja sqlite3 valgrind xz python3 ps" ;;
    dist) PACKAGES="$BUILD $DIST" PROGRAMS="gcc make clang ninja debootstrap busybox" WELCOME="" ;;
    *) echo "setup: \`$PURPOSE\` is not one of build, demo, test and dist" >&2; exit 2 ;;
esac

say() { echo "setup: $*" >&2; }
fail() { say "$*"; exit 1; }

missing() {
    local package
    for package; do
        dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
            printf '%s ' "$package"
    done
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@" || sudo "$@"; fi
}

# Another apt may hold the lock, and a mirror may be unreachable for a moment.
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
    local packages
    # shellcheck disable=SC2086 # a list of words
    packages=$(missing $PACKAGES)
    [ -n "$packages" ] || return 0
    say "installing $packages"
    [ "$(id -u)" = 0 ] || command -v sudo >/dev/null ||
        fail "failed to install packages: run as root: apt-get install $packages"
    # shellcheck disable=SC2086 # a list of words
    { apt update && apt install --no-install-recommends $packages; } >&2 ||
        fail "failed to install packages: try apt-get install $packages"
}

# Whether the installation would upgrade or remove an installed package.
changes_others() {
    ! apt-get -s install --no-install-recommends "$1" 2>/dev/null |
        grep -q '^0 upgraded, .* 0 to remove'
}

install_welcome() {
    local package
    # shellcheck disable=SC2086 # a list of words
    for package in $(missing $WELCOME); do
        if changes_others "$package"; then
            say "left out: $package, which would change other packages; tests that need it are skipped"
        else
            apt install --no-install-recommends "$package" >&2 || say "left out: $package"
        fi
    done
}

check_programs() {
    local program
    for program in $PROGRAMS; do
        command -v "$program" >/dev/null || say "no \`$program\` here: install what provides it"
    done
}

check_rust() {
    local wanted found
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    command -v cargo >/dev/null ||
        fail "failed to find \`cargo\`: install Rust $wanted or later from https://rustup.rs" \
            "(Debian's package cargo-web is enough to build, but not to test)"
    found=$(cargo --version | cut -d ' ' -f 2)
    [ "$(printf '%s\n' "$wanted" "${found%%-*}" | sort -V | head -n 1)" = "$wanted" ] ||
        fail "Rust $found is too old: $wanted or later is needed (rustup update)"
}

check_component() {
    cargo "$1" --version >/dev/null 2>&1 && return
    command -v rustup >/dev/null || fail "failed to find \`cargo $1\`: install $2"
    rustup component add "$2" || fail "failed to install $2: try rustup component add $2"
}

if command -v dpkg-query >/dev/null; then
    install_packages
    install_welcome
else
    check_programs
fi
check_rust
if [ "$PURPOSE" = test ]; then
    check_component fmt rustfmt
    check_component clippy clippy
    # Tests that need what could not be installed are skipped and say so.
    tests/packages/install "$(realpath -m "${CARGO_TARGET_DIR:-target}")/test-packages" || true
fi
