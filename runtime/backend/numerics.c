/* Everything besides the inputs that decides the bits of results, in one line. */
#include "device.h"
#include "moonshard/tensor.h"

#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

enum { BUILD_TEXT = 2 * 20 + 1 };

/* The linker's id (NT_GNU_BUILD_ID) of this object: it changes with every byte of code. See
 * "--build-id" of ld(1). */
typedef struct build {
    uintptr_t address; /* in the object searched */
    char text[BUILD_TEXT];
} build;

static bool contains(const struct dl_phdr_info *object, uintptr_t address)
{
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        const uintptr_t begin = object->dlpi_addr + part->p_vaddr;

        if (part->p_type == PT_LOAD && address >= begin && address - begin < part->p_memsz) {
            return true;
        }
    }
    return false;
}

static size_t padded(size_t n)
{
    return (n + 3) / 4 * 4;
}

/* Find the id among the notes in `n` bytes at `at`. */
static bool read_notes(const char *at, size_t n, build *b)
{
    ElfW(Nhdr) note;

    while (n >= sizeof(note)) {
        memcpy(&note, at, sizeof(note));
        const size_t size = sizeof(note) + padded(note.n_namesz) + padded(note.n_descsz);
        const unsigned char *id = (const unsigned char *)at + sizeof(note) + padded(note.n_namesz);

        if (size > n) {
            return false;
        }
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == sizeof(ELF_NOTE_GNU) &&
            memcmp(at + sizeof(note), ELF_NOTE_GNU, sizeof(ELF_NOTE_GNU)) == 0) {
            for (size_t i = 0; i < note.n_descsz && 2 * i + 2 < BUILD_TEXT; i++) {
                snprintf(b->text + 2 * i, 3, "%02x", id[i]);
            }
            return true;
        }
        at += size;
        n -= size;
    }
    return false;
}

static int look_at_object(struct dl_phdr_info *object, size_t size, void *user)
{
    build *b = user;

    (void)size;
    if (!contains(object, b->address)) {
        return 0;
    }
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];

        if (part->p_type == PT_NOTE &&
            read_notes((const char *)(object->dlpi_addr + part->p_vaddr), part->p_memsz, b)) {
            break;
        }
    }
    return 1; /* object found: stop */
}

const char *ms_numerics(void)
{
    static _Thread_local char line[320];
    build b = {.address = (uintptr_t)&look_at_object, .text = "unknown"};
    ms_context *ctx = msi_context();

    if (ctx == NULL) {
        return "unknown: out of memory";
    }
    dl_iterate_phdr(look_at_object, &b);
    if (ctx->device != NULL && ctx->device->ops->library != NULL) {
        snprintf(line, sizeof(line), "%s %s, build %s", ctx->device->ops->kind,
                 ctx->device->ops->library(ctx->device), b.text);
        return line;
    }
    snprintf(line, sizeof(line), "%s, %s, f32 %s, bf16 %s, f16 %s, build %s", msi_kernels()->isa,
             msi_gemm_library(ctx), msi_gemm_name(ctx, MS_DTYPE_F32),
             msi_gemm_name(ctx, MS_DTYPE_BF16), msi_gemm_name(ctx, MS_DTYPE_F16), b.text);
    return line;
}
