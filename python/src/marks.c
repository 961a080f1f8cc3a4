/* Marks of regions of interest as functions, for Rust. */
#include <memgauge_region.h>

void memgauge_python_begin(const char *name) { memgauge_region_begin(name); }
void memgauge_python_end(const char *name) { memgauge_region_end(name); }
void memgauge_python_value(const char *name, uint64_t value) { memgauge_value(name, value); }
