#!/usr/bin/env python3
"""Follows a program and its child processes, and prints the number of samples per process.

    follow.py LIBMEMGAUGE COMMAND…
"""

import collections
import ctypes
import subprocess
import sys


class Settings(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("event", ctypes.c_char_p), ("period", ctypes.c_uint64),
                ("buffer", ctypes.c_uint64), ("kernel", ctypes.c_int), ("physical", ctypes.c_int),
                ("when_full", ctypes.c_int), ("latency_ms", ctypes.c_int), ("regions", ctypes.c_int),
                ("phases", ctypes.c_int), ("overhead", ctypes.c_double)]


class Sample(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in
                ("time_ns", "ip", "addr", "phys", "period", "stands_for", "data_src")]
    _fields_ += [(name, ctypes.c_uint32) for name in ("pid", "tid", "cpu", "latency_cycles")]
    _fields_ += [("size_bytes", ctypes.c_uint16)]
    _fields_ += [(name, ctypes.c_uint8) for name in
                 ("kind", "source", "derivation", "has_addr", "has_phys", "in_kernel")]
    _fields_ += [("region", ctypes.c_uint32), ("reserved", ctypes.c_uint32)]


def main():
    lib = ctypes.CDLL(sys.argv[1])
    lib.memgauge_error.restype = ctypes.c_char_p
    for name in ("memgauge_add_process", "memgauge_reader_read", "memgauge_clean"):
        getattr(lib, name).restype = ctypes.c_int64

    def checked(code):
        if code < 0:
            sys.exit(f"{sys.argv[0]}: {lib.memgauge_error().decode()}")
        return code

    settings = Settings()
    checked(lib.memgauge_settings_init(ctypes.byref(settings)))
    settings.event, settings.period, settings.kernel = b"page-faults", 1, 1
    profiler, reader = ctypes.c_void_p(), ctypes.c_void_p()
    checked(lib.memgauge_profiler_new(ctypes.byref(settings), ctypes.byref(profiler)))
    checked(lib.memgauge_reader_new(profiler, 0, 0, ctypes.byref(reader)))

    # It waits until it is followed.
    command = subprocess.Popen(["sh", "-c", 'read line; exec "$@"', "sh", *sys.argv[2:]], stdin=subprocess.PIPE)
    checked(lib.memgauge_add_process(profiler, command.pid))
    command.stdin.close()

    samples, seen = (Sample * 256)(), collections.Counter()
    ended = False
    while True:
        waits = checked(lib.memgauge_reader_wait(reader, 100))
        n = checked(lib.memgauge_reader_read(reader, samples, 256)) if waits else 0
        seen.update(sample.pid for sample in samples[:n])
        if ended and n == 0:
            break
        ended = command.poll() is not None
    for pid, n in seen.most_common():
        print(pid, n, flush=True)
    lib.memgauge_reader_free(reader)
    lib.memgauge_profiler_free(profiler)
    sys.exit(command.returncode)


main()
