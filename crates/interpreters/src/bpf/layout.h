/* Layouts that the program and memgauge share, in the machine's byte order. `layout.rs` reads and
 * writes them by these offsets.
 */
#ifndef MEMGAUGE_INTERPRETERS_LAYOUT_H
#define MEMGAUGE_INTERPRETERS_LAYOUT_H

/* PID namespace of memgauge. */
struct settings {
	u64 namespace_device; /* 0: the first namespace, whose IDs the kernel uses itself */
	u64 namespace_inode;
};

/* An offset that this version of CPython does not have. */
#define NO_OFFSET 0xffffu

/* An interpreter in a process, with the offsets in bytes of the fields of its structures. */
struct interpreter {
	u64 runtime;  /* address of `_PyRuntime` */
	u64 exe_file; /* identifies the executed program; 0: not known yet */
	u16 first_interpreter;  /* in `_PyRuntime` */
	u16 next_interpreter;   /* in an interpreter state */
	u16 first_thread;
	u16 next_thread;        /* in a thread state */
	u16 thread_id;
	u16 current_frame;
	u16 frame_in_cframe;    /* `current_frame` points to a structure with the frame here */
	u16 caller;             /* in a frame */
	u16 code;
	u16 instruction;
	u16 owner;
	u16 is_entry;
	u16 file_name;          /* in a code object */
	u16 name;               /* its hash identifies the code, too */
	u16 shown_name;
	u16 line_table;
	u16 first_line;
	u16 instructions;       /* NO_OFFSET: `instruction` is an index of 32 bits */
	u16 ascii_text;         /* in a text of ASCII, its characters */
	u16 other_text;         /* in any other text */
	u16 minor_version;
	u16 unused[3];
};

#define MAX_FRAMES 128
#define MAX_TEXT_BYTES 256
#define MAX_TABLE_BYTES 16384

enum { RECORD_FRAMES = 1, RECORD_CODE = 2 };

struct frame {
	u64 code;
	u64 identity; /* changes if another code object gets the same address */
	s32 offset;   /* of the instruction: in bytes, or an index */
	u32 flags;
};

/* C code called the interpreter to run this frame. */
#define FRAME_IS_ENTRY 1u

/* Frames of the sample that follows, innermost first. */
struct frames {
	u32 kind;
	u32 count;
	u32 is_cut; /* there are more frames, or one could not be read */
	u32 unused;
	struct frame frames[MAX_FRAMES];
};

struct text {
	u64 address;    /* of its characters */
	u32 characters;
	u16 width;      /* bytes of a character; 0 if the text could not be read */
	u16 has_bytes;  /* false: too long, or not in memory */
	u8 bytes[MAX_TEXT_BYTES];
};

/* A code object, before the first frame that executes it. */
struct code {
	u32 kind;
	u32 first_line;
	u64 address;
	u64 identity;
	u32 minor_version;
	u32 unused;
	struct text file_name;
	struct text name;
	u64 table_address;
	u32 table_bytes;  /* of the line table in the process */
	u32 has_table;    /* it follows, up to MAX_TABLE_BYTES */
	u8 table[MAX_TABLE_BYTES];
};

_Static_assert(sizeof(struct settings) == 16, "layout.rs: SETTINGS_BYTES");
_Static_assert(sizeof(struct interpreter) == 64, "layout.rs: INTERPRETER_BYTES");
_Static_assert(sizeof(struct frame) == 24, "layout.rs: FRAME_BYTES");
_Static_assert(__builtin_offsetof(struct frames, frames) == 16, "layout.rs: FRAMES_HEADER_BYTES");
_Static_assert(sizeof(struct text) == 16 + MAX_TEXT_BYTES, "layout.rs: TEXT_BYTES");
_Static_assert(__builtin_offsetof(struct code, file_name) == 32, "layout.rs: CODE_HEADER_BYTES");
_Static_assert(__builtin_offsetof(struct code, table_address) == 32 + 2 * (16 + MAX_TEXT_BYTES),
	       "layout.rs: CODE_HEADER_BYTES");

#endif
