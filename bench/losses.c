/* Mixtures of accesses in bursts, with computing between them, for bench/losses.

   losses KINDS KIB BURST TURNS: each burst of BURST KiB is shared by the KINDS, one
   letter each, then TURNS turns of computing follow; until KIB KiB have been gone
   through. s scan by words; S a load a line; w write; m copy; r random lines;
   g random groups of eight lines; c chase; p scan with computing after each line;
   t triad. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 88172645463325252ull;
static uint64_t sum = 1;

static uint64_t next_random(void) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

static void compute(uint64_t turns) {
  for (uint64_t i = 0; i < turns; i++)
    sum = sum * 6364136223846793005ull + 1442695040888963407ull;
}

static uint64_t word(const char *at) { return *(const uint64_t *)at; }

struct space {
  char *a, *b;
  uint32_t *next;
  uint64_t total, place;
};

static void part(char kind, struct space *m, uint64_t at, uint64_t bytes) {
  const char *a = m->a + at;
  uint64_t i;
  switch (kind) {
  case 's':
    for (i = 0; i + 8 <= bytes; i += 8) sum += word(a + i);
    break;
  case 'S':
    for (i = 0; i + 64 <= bytes; i += 64) sum += word(a + i);
    break;
  case 'w':
    for (i = 0; i + 8 <= bytes; i += 8) *(uint64_t *)(m->b + at + i) = sum;
    break;
  case 'm':
    memcpy(m->b + at, a, bytes);
    break;
  case 'r':
    for (i = 0; i < bytes / 64; i++) sum += word(m->a + next_random() % m->total / 64 * 64);
    break;
  case 'g':
    for (i = 0; i < bytes / 512; i++) {
      const char *group = m->a + next_random() % (m->total / 512) * 512;
      for (int line = 0; line < 8; line++) sum += word(group + 64 * line);
    }
    break;
  case 'c':
    for (i = 0; i < bytes / 64; i++) m->place = m->next[m->place * 16];
    break;
  case 'p':
    for (i = 0; i + 64 <= bytes; i += 64) {
      sum += word(a + i);
      compute(20);
    }
    break;
  case 't':
    for (i = 0; i + 8 <= bytes / 2; i += 8)
      *(uint64_t *)(m->b + at + i) = word(a + i) + 3 * word(m->a + m->total / 2 + at / 2 + i);
    break;
  }
}

int main(int count, char **arguments) {
  if (count != 5) {
    fprintf(stderr, "usage: %s KINDS KIB BURST TURNS\n", arguments[0]);
    return 2;
  }
  const char *kinds = arguments[1];
  uint64_t burst = strtoull(arguments[3], 0, 0) << 10, turns = strtoull(arguments[4], 0, 0);
  struct space m = {.total = strtoull(arguments[2], 0, 0) << 10};
  uint64_t each = burst / strlen(kinds), at = 0, lines = m.total / 64;
  m.a = malloc(m.total + 4096);
  m.b = malloc(m.total + 4096);
  m.next = malloc(lines * 64);
  if (!m.a || !m.b || !m.next) return 1;
  if (strchr(kinds, 'c'))
    for (uint64_t i = 0; i < lines; i++) m.next[i * 16] = (i * 40503u * 8 + 12345) % lines;
  for (uint64_t k = 0; k < m.total / burst; k++) {
    for (const char *kind = kinds; *kind; kind++) {
      part(*kind, &m, at, each);
      at += each;
      if (at + burst > m.total) at = 0;
    }
    compute(turns);
  }
  printf("%lu %lu\n", sum, m.place);
  return 0;
}
