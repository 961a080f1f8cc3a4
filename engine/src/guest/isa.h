/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MG_ISA_H
#define MG_ISA_H

/* The instruction set of the emulated program, and its system calls. Another one is a folder beside
 * x86 with these headers, and with the decoder that decode.h declares. */
#include "x86/calls.h"
#include "x86/isa.h"

#endif
