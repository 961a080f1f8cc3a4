/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_FILES_H
#define MG_FILES_H

#include <stdint.h>

/* Call these directly before and after a system call of the program. */
void mg_files_before(int64_t num);
void mg_files_after(int64_t num, const uint64_t arg[6]);

#endif
