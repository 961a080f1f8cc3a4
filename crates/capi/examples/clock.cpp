// Samples a thread with the clock while it computes, and prints how many samples had an
// address.
//
//   c++ clock.cpp $(pkg-config --cflags --libs memgauge) -pthread && ./a.out
#include <memgauge.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

static std::int64_t checked(std::int64_t code)
{
    if (code < 0)
        throw std::runtime_error(memgauge_error());
    return code;
}

int main()
try {
    memgauge_settings settings;
    checked(memgauge_settings_init(&settings));
    settings.period = 200000;
    memgauge_profiler *made = nullptr;
    checked(memgauge_profiler_new(&settings, &made));
    std::unique_ptr<memgauge_profiler, decltype(&memgauge_profiler_free)> profiler(
        made, memgauge_profiler_free);
    memgauge_reader *opened = nullptr;
    checked(memgauge_reader_new(profiler.get(), 0, MEMGAUGE_QUEUE, &opened));
    std::unique_ptr<memgauge_reader, decltype(&memgauge_reader_free)> reader(
        opened, memgauge_reader_free);

    std::atomic<std::uint32_t> tid{0};
    std::atomic<bool> over{false};
    std::thread worker([&] {
        std::vector<std::uint64_t> table(1 << 16);
        tid = static_cast<std::uint32_t>(syscall(SYS_gettid));
        for (std::uint64_t at = 1; !over; at = at * 6364136223846793005u + 1)
            table[at >> 48] += at;
    });
    while (tid == 0)
        std::this_thread::yield();
    std::vector<memgauge_sample> samples(256);
    long seen = 0, addressed = 0;
    try {
        checked(memgauge_add_thread(profiler.get(), tid));
        while (seen < 100 && checked(memgauge_reader_wait(reader.get(), 10000)) == 1) {
            auto n = checked(memgauge_reader_read(reader.get(), samples.data(), samples.size()));
            seen += n;
            for (auto i = 0; i < n; i++)
                addressed += samples[i].has_addr;
        }
    } catch (...) {
        over = true;
        worker.join();
        throw;
    }
    over = true;
    worker.join();
    std::printf("samples %ld addressed %ld\n", seen, addressed);
    return seen >= 100 && addressed > 0 ? 0 : 1;
} catch (const std::exception &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
}
