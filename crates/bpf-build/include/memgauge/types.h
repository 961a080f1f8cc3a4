/* Integer types of the kernel, and the attribute of its structures.
 *
 * A BPF program declares the kernel's structures with the fields that it uses. The loader finds
 * fields by name in the running kernel's description of its types (BTF), so their order and size in
 * a declaration mean nothing. A generated header of all types was rejected: 3 MB that hide what is
 * relied on.
 */
#ifndef MEMGAUGE_TYPES_H
#define MEMGAUGE_TYPES_H

/* libbpf's headers use these. */
typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;
typedef __s64 s64;
#define NULL ((void *)0)

#define KERNEL_TYPE __attribute__((preserve_access_index))

#endif
