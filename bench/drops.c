/* Threads that read memory line by line and are all held up now and then, for bench/figures.

   drops THREADS MIB MICROSECONDS: each thread reads MIB MiB of its own; after every 4 MiB
   all meet, and the first sleeps so long before they go on. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PIECE = 4 << 20, LINE = 64 };

static pthread_barrier_t meeting;
static size_t bytes;
static unsigned pause_us;

static void *reader(void *first) {
  const volatile uint64_t *words =
      mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (words == MAP_FAILED) exit(1);
  uint64_t sum = 0;
  for (size_t at = 0; at < bytes; at += LINE) {
    if (at % PIECE == 0) {
      pthread_barrier_wait(&meeting);
      if (first != NULL) usleep(pause_us);
      pthread_barrier_wait(&meeting);
    }
    sum += words[at / sizeof *words];
  }
  return (void *)(uintptr_t)sum;
}

int main(int count, char **words) {
  if (count != 4) return 2;
  int threads = atoi(words[1]);
  bytes = (size_t)atoi(words[2]) << 20;
  pause_us = (unsigned)atoi(words[3]);
  if (threads < 1 || threads > 64 || pthread_barrier_init(&meeting, NULL, (unsigned)threads)) return 2;
  pthread_t all[64];
  for (int i = 0; i < threads; i++)
    if (pthread_create(&all[i], NULL, reader, i == 0 ? &meeting : NULL)) return 1;
  for (int i = 0; i < threads; i++) pthread_join(all[i], NULL);
  return 0;
}
