"""Processes with known I/O, for the tests of accounting: actor.py DEED ARGUMENT...

Each says `ready` where others wait for it, and goes on at a line of input.
"""
import array, ctypes, mmap, os, resource, socket, struct, sys, tempfile, threading, time

MIB = 1 << 20


def ready():
    print("ready", flush=True)


def wait():
    sys.stdin.readline()


def aligned(size):
    buffer = mmap.mmap(-1, size)
    buffer.write(os.urandom(4096) * (size // 4096))
    return buffer


# ---------------------------------------------------------------------- disks
def read_direct(path):
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = aligned(MIB)
    while os.readv(file, [buffer]):
        pass


def read_buffered(path):
    with open(path, "rb", buffering=0) as file:
        while file.read(MIB):
            pass


def read_uring(path):
    """Reads through io_uring, a request of a MiB at a time; linux/io_uring.h has the layout."""
    libc = ctypes.CDLL(None, use_errno=True)
    setup, enter, read, wait_for_one = 425, 426, 22, 1
    facts = ctypes.create_string_buffer(120)
    ring = libc.syscall(setup, 8, facts)
    if ring < 0:
        print("none: " + os.strerror(ctypes.get_errno()), flush=True)
        return
    print("some", flush=True)
    _, sq_tail, sq_mask, _, _, _, sq_array = struct.unpack_from("7I", facts, 40)
    cq_head, _, cq_mask, _, _, cqes = struct.unpack_from("6I", facts, 80)
    queue = mmap.mmap(ring, 4096, offset=0)
    done = mmap.mmap(ring, 4096, offset=0x8000000)
    entries = mmap.mmap(ring, 4096, offset=0x10000000)
    word = lambda ring, at: struct.unpack_from("I", ring, at)[0]
    buffer = aligned(MIB)
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    file, at = os.open(path, os.O_RDONLY | os.O_DIRECT), 0
    while True:
        struct.pack_into("BBHiQQIIQ", entries, 0, read, 0, 0, file, at, address, MIB, 0, 7)
        tail = word(queue, sq_tail)
        struct.pack_into("I", queue, sq_array + 4 * (tail & word(queue, sq_mask)), 0)
        struct.pack_into("I", queue, sq_tail, tail + 1)
        if libc.syscall(enter, ring, 1, 1, wait_for_one, None, 0) < 0:
            raise SystemExit(os.strerror(ctypes.get_errno()))
        head = word(done, cq_head)
        _, got = struct.unpack_from("Qi", done, cqes + 16 * (head & word(done, cq_mask)))
        struct.pack_into("I", done, cq_head, head + 1)
        if got <= 0:
            break
        at += got


def read_mapped(path):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        sum(view[i] for i in range(0, len(view), 4096))


def write_direct(path, size):
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    buffer = aligned(MIB)
    for _ in range(int(size) // MIB):
        os.writev(file, [buffer])


def write_threads(path, *sizes):
    """Threads that write a file each; says their ids."""
    ids = []

    def one(number, size):
        ids.append(f"{number}:{threading.get_native_id()}")
        write_direct(f"{path}{number}", size)

    threads = [threading.Thread(target=one, args=each) for each in enumerate(sizes)]
    for thread in threads:
        thread.start()
        thread.join()
    print(*ids, flush=True)


def write(path, start, size, fsync=""):
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    block = b"x" * MIB
    for at in range(int(start), int(start) + int(size), MIB):
        os.pwrite(file, block, at)
    if fsync:
        os.fsync(file)


def write_small(path, count, size):
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    for _ in range(int(count)):
        os.write(file, b"y" * int(size))
    os.fsync(file)


def write_mapped(path):
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        for at in range(0, len(view), 4096):
            view[at] = 90


def write_pages(path, first, step, count):
    file = os.open(path, os.O_WRONLY)
    for page in range(int(first), int(first) + int(step) * int(count), int(step)):
        os.pwrite(file, b"z" * 4096, page * 4096)


def write_unlink(path, size):
    write(path, 0, size)
    os.unlink(path)


def sync(path):
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)


# -------------------------------------------------------------------- network
def inet(kind, address):
    return socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)


def udp_socket(address, port, room=64 * MIB):
    s = inet(socket.SOCK_DGRAM, address)
    s.setsockopt(socket.SOL_SOCKET, 33, room)  # SO_RCVBUFFORCE
    s.bind((address, int(port)))
    return s


def udp_receive(address, port, count):
    s = udp_socket(address, port)
    ready()
    for i in range(int(count)):
        if i % 10 == 0:
            s.recv(2000, socket.MSG_PEEK)
        s.recv(2000)
    s.close()


def udp_overflow(address, port):
    s = udp_socket(address, port, 16384)
    ready()
    wait()
    s.settimeout(0.2)
    try:
        while True:
            s.recv(2000)
    except TimeoutError:
        pass


def udp_readers(address, port, mine, childs):
    """A parent takes its datagrams, then a child takes its own, from one socket."""
    s = udp_socket(address, port)
    ready()
    wait()
    for _ in range(int(mine)):
        s.recv(2000)
    child = os.fork()
    if child == 0:
        for _ in range(int(childs)):
            s.recv(2000)
        os._exit(0)
    os.waitpid(child, 0)
    print(child, flush=True)
    wait()


def udp_send(address, port, count, size):
    s = inet(socket.SOCK_DGRAM, address)
    for _ in range(int(count)):
        s.sendto(b"u" * int(size), (address, int(port)))


def udp_senders(address, port, count, size, childs, childs_size):
    s = inet(socket.SOCK_DGRAM, address)
    for _ in range(int(count)):
        s.sendto(b"u" * int(size), (address, int(port)))
    child = os.fork()
    if child == 0:
        for _ in range(int(childs)):
            s.sendto(b"v" * int(childs_size), (address, int(port)))
        os._exit(0)
    os.waitpid(child, 0)
    print(child, flush=True)


def listen(address, port):
    s = inet(socket.SOCK_STREAM, address)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((address, int(port)))
    s.listen(5)
    return s


def take(s, size):
    left = int(size)
    while left:
        got = s.recv(min(left, MIB))
        if not got:
            raise SystemExit("the stream ended early")
        left -= len(got)


def take_slowly(s, size):
    """The first MiB to memory that is read from a disk: meanwhile packets wait for the socket."""
    with tempfile.NamedTemporaryFile() as file:
        os.write(file.fileno(), bytes(MIB))
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), MIB, flags=mmap.MAP_PRIVATE) as room:
            room.madvise(mmap.MADV_RANDOM)
            got = s.recv_into(room, MIB)
    take(s, int(size) - got)


def drain(s):
    while s.recv(MIB):
        pass


def tcp_receive(address, port, size):
    s = listen(address, port)
    ready()
    connection, _ = s.accept()
    take(connection, size)
    connection.sendall(b"k")
    drain(connection)


def many_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))


def tcp_receive_many(address, port, count, size):
    """Connections that are all open before the first is read; one is written at a time, as
    a device drops what comes too fast for it."""
    many_files()
    s = listen(address, port)
    s.listen(4096)
    ready()
    connections = [s.accept()[0] for _ in range(int(count))]
    for connection in connections:
        take(connection, size)
        connection.sendall(b"k")
    for connection in connections:
        drain(connection)


def tcp_send_many(address, port, count, size):
    many_files()
    connections = [inet(socket.SOCK_STREAM, address) for _ in range(int(count))]
    for connection in connections:
        connection.connect((address, int(port)))
    for connection in connections:
        connection.sendall(b"m" * int(size))
        connection.recv(1)
    for connection in connections:
        connection.close()


def tcp_drain(address, port):
    s = listen(address, port)
    ready()
    connection, _ = s.accept()
    drain(connection)


def tcp_send_only(address, port, size):
    """Ends before anything is read; a client's port is given back before its socket ends."""
    s = inet(socket.SOCK_STREAM, address)
    s.connect((address, int(port)))
    s.sendall(b"o" * int(size))
    s.close()


def tcp_refuse(address, port, size):
    """Closes a connection before what has come is read, which resets it."""
    s = listen(address, port)
    ready()
    connection, _ = s.accept()
    connection.recv(1)
    time.sleep(0.2)
    connection.sendall(b"r" * int(size))
    connection.close()


def tcp_refused(address, port, size):
    s = inet(socket.SOCK_STREAM, address)
    s.connect((address, int(port)))
    s.sendall(b"f" * int(size))
    time.sleep(0.4)


def tcp_splice(address, port, size):
    """What arrives goes on into a pipe without being copied."""
    s = listen(address, port)
    ready()
    connection, _ = s.accept()
    into, out_of = os.pipe()
    left = int(size)
    while left:
        got = os.splice(connection.fileno(), out_of, min(left, 65536))
        left -= got
        while got:
            got -= len(os.read(into, got))
    connection.sendall(b"k")
    drain(connection)


def tcp_accept_before(address, port, size):
    """The connection stands before the accounting begins."""
    s = listen(address, port)
    ready()
    connection, _ = s.accept()
    ready()
    take(connection, size)
    connection.sendall(b"k")
    drain(connection)


def connected(address, port):
    s = inet(socket.SOCK_STREAM, address)
    s.connect((address, int(port)))
    return s


def tcp_send(address, port, *sizes):
    """Sends the sizes; before each but the first it waits for a line."""
    send_sizes(connected(address, port), sizes)


def tcp_send_evenly(address, port, size):
    """40 MB a second."""
    s = connected(address, port)
    s.setsockopt(socket.SOL_SOCKET, 47, 40_000_000)  # SO_MAX_PACING_RATE
    send_sizes(s, [size])


def send_sizes(s, sizes):
    for i, size in enumerate(sizes):
        if i:
            ready()
            wait()
        block = b"t" * MIB
        left = int(size)
        while left:
            left -= s.send(block[: min(left, MIB)])
    s.recv(1)
    s.close()


def tcp_sendfile(address, port, path):
    s = inet(socket.SOCK_STREAM, address)
    s.connect((address, int(port)))
    with open(path, "rb") as file:
        s.sendfile(file)
    s.recv(1)
    s.close()


def tcp_writers(address, port, mine, childs):
    s = inet(socket.SOCK_STREAM, address)
    s.connect((address, int(port)))
    s.sendall(b"a" * int(mine))
    child = os.fork()
    if child == 0:
        s.sendall(b"b" * int(childs))
        os._exit(0)
    os.waitpid(child, 0)
    print(child, flush=True)
    s.recv(1)
    s.close()


def tcp_readers(address, port, *sizes):
    """A connection accepted here is read by one child after the other."""
    s = listen(address, port)
    ready()
    connection, _ = s.accept()
    for size in sizes:
        child = os.fork()
        if child == 0:
            take_slowly(connection, size)
            os._exit(0)
        os.waitpid(child, 0)
        print(child, flush=True)
    connection.sendall(b"k")
    drain(connection)


def tcp_passed(address, port, size):
    """The child that reads gets the connection over a UNIX socket."""
    s = listen(address, port)
    ours, its = socket.socketpair(socket.AF_UNIX)
    child = os.fork()
    if child == 0:
        _, ancillary, _, _ = its.recvmsg(1, socket.CMSG_SPACE(4))
        handle = array.array("i")
        handle.frombytes(ancillary[0][2][:4])
        connection = socket.socket(fileno=handle[0])
        take(connection, size)
        connection.sendall(b"k")
        drain(connection)
        os._exit(0)
    ready()
    connection, _ = s.accept()
    handles = struct.pack("i", connection.fileno())
    ours.sendmsg([b"h"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handles)])
    connection.close()
    os.waitpid(child, 0)
    print(child, flush=True)


def web_server(address, port):
    """Two workers answer requests, a connection each, on a listener they inherit."""
    s = listen(address, port)
    workers = []
    for _ in range(2):
        worker = os.fork()
        if worker == 0:
            while True:
                connection, _ = s.accept()
                take(connection, 100)
                connection.sendall(b"r" * 600)
                connection.close()
        workers.append(worker)
    print(*workers, flush=True)
    wait()
    for worker in workers:
        os.kill(worker, 9)


def web_client(address, port, count):
    for _ in range(int(count)):
        s = inet(socket.SOCK_STREAM, address)
        s.connect((address, int(port)))
        s.sendall(b"q" * 100)
        drain(s)
        s.close()


def burst(folder, count):
    """Short children, each of which writes 8 KiB to a file of its own and ends."""
    for number in range(int(count)):
        child = os.fork()
        if child == 0:
            file = os.open(f"{folder}/{number}", os.O_WRONLY | os.O_CREAT)
            os.write(file, bytes(8192))
            os._exit(0)
        os.waitpid(child, 0)


def burst_twice(folder, count):
    """Short children, each of which writes 16 KiB to the disk, 8 KiB to the cache, and ends."""
    for number in range(int(count)):
        child = os.fork()
        if child == 0:
            file = os.open(f"{folder}/{number}", os.O_WRONLY | os.O_CREAT)
            os.write(file, bytes(16384))
            os.fdatasync(file)
            os.write(file, bytes(8192))
            os._exit(0)
        os.waitpid(child, 0)


def ping(address, count, size):
    """Echo requests through a socket that needs no rights, each answered before the next."""
    ipv4 = ":" not in address
    with open("/proc/sys/net/ipv4/ping_group_range", "w") as allowed:
        allowed.write("0 2147483647")
    family, protocol = (socket.AF_INET, 1) if ipv4 else (socket.AF_INET6, 58)
    s = socket.socket(family, socket.SOCK_DGRAM, protocol)
    s.connect((address, 0))
    for number in range(int(count)):
        s.send(struct.pack("!BBHHH", 8 if ipv4 else 128, 0, 0, 0, number) + bytes(int(size)))
        s.recv(65536)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
