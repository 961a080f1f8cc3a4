/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Finds functions by name in the symbol tables of each file that the program maps as code.
 */
#include "symbols.h"

#include <assert.h>
#include <elf.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_USERS = 3 };
static struct mg_symbol_user user[MOST_USERS];
static unsigned users;

void mg_symbols_ask(struct mg_symbol_user asks)
{
    assert(users < MOST_USERS);
    user[users++] = asks;
}

/* Contents of a file, and the mapping of it. */
struct image {
    const uint8_t *data;
    size_t bytes;
    uint64_t start, end, offset;
};

static bool has(const struct image *i, uint64_t at, uint64_t bytes)
{
    return at <= i->bytes && bytes <= i->bytes - at;
}

/* Address of a symbol if it is in this mapping and is code, or 0. */
static uint64_t place(const struct image *i, const Elf64_Ehdr *e, uint64_t value)
{
    const Elf64_Phdr *p = (const void *)(i->data + e->e_phoff);
    for (unsigned n = 0; n < e->e_phnum; n++) {
        if (p[n].p_type != PT_LOAD || !(p[n].p_flags & PF_X) || value < p[n].p_vaddr ||
            value - p[n].p_vaddr >= p[n].p_filesz)
            continue;
        uint64_t at = value - p[n].p_vaddr + p[n].p_offset;
        if (at >= i->offset && at - i->offset < i->end - i->start)
            return i->start + (at - i->offset);
    }
    return 0;
}

static void tell_users(const char *name, const struct image *i, const Elf64_Ehdr *e,
                       const Elf64_Sym *s)
{
    for (unsigned n = 0; n < users; n++) {
        uint64_t vaddr = user[n].wants(name) ? place(i, e, s->st_value) : 0;
        if (vaddr)
            user[n].found(name, vaddr, s->st_size);
    }
}

static void read_symbols(const struct image *i, const Elf64_Ehdr *e, const Elf64_Shdr *table,
                         const Elf64_Shdr *text)
{
    if (!has(i, table->sh_offset, table->sh_size) || !has(i, text->sh_offset, text->sh_size) ||
        !text->sh_size || i->data[text->sh_offset + text->sh_size - 1])
        return;
    const Elf64_Sym *s = (const void *)(i->data + table->sh_offset);
    for (size_t n = 0; n < table->sh_size / sizeof *s; n++) {
        if (ELF64_ST_TYPE(s[n].st_info) != STT_FUNC || s[n].st_shndx == SHN_UNDEF ||
            s[n].st_name >= text->sh_size)
            continue;
        tell_users((const char *)i->data + text->sh_offset + s[n].st_name, i, e, &s[n]);
    }
}

static void read_image(const struct image *i)
{
    const Elf64_Ehdr *e = (const void *)i->data;
    if (i->bytes < sizeof *e || memcmp(e->e_ident, ELFMAG, SELFMAG) != 0 ||
        e->e_ident[EI_CLASS] != ELFCLASS64 || e->e_shentsize != sizeof(Elf64_Shdr) ||
        e->e_phentsize != sizeof(Elf64_Phdr) || e->e_shoff % 8 || e->e_phoff % 8 ||
        !has(i, e->e_phoff, (uint64_t)e->e_phnum * sizeof(Elf64_Phdr)) ||
        !has(i, e->e_shoff, (uint64_t)e->e_shnum * sizeof(Elf64_Shdr)))
        return;
    const Elf64_Shdr *s = (const void *)(i->data + e->e_shoff);
    static const uint32_t kinds[] = { SHT_SYMTAB, SHT_DYNSYM };
    for (unsigned k = 0; k < 2; k++)
        for (unsigned n = 0; n < e->e_shnum; n++)
            if (s[n].sh_type == kinds[k] && s[n].sh_link < e->e_shnum && s[n].sh_offset % 8 == 0)
                read_symbols(i, e, &s[n], &s[s[n].sh_link]);
}

void mg_symbols_map(uint64_t start, uint64_t end, uint64_t offset, const char *path)
{
    struct stat st;
    struct image i = { .start = start, .end = end, .offset = offset };
    if (!users)
        return;
    for (unsigned n = 0; n < users; n++)
        user[n].forget(start, end);
    int fd = path[0] == '/' ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) {
        void *data = mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data != MAP_FAILED) {
            i.data = data;
            i.bytes = st.st_size;
            read_image(&i);
            munmap(data, st.st_size);
        }
    }
    close(fd);
}
