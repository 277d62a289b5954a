/* Finding and opening plug-ins. Stateless: dlopen() counts references, so threads need no lock, and
 * each context keeps its result. */
#include "library.h"

#include "backend.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char here[] = "in the object that holds the runtime";

static _Thread_local char why[512];

/* File size required by the program headers; 0: none, which dlopen() reports. */
static int64_t bytes_to_map(int fd)
{
    Elf64_Ehdr head;
    int64_t end = 0;

    if (pread(fd, &head, sizeof(head), 0) != sizeof(head) ||
        memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_phentsize != sizeof(Elf64_Phdr)) {
        return 0;
    }
    for (int32_t i = 0; i < head.e_phnum; i++) {
        Elf64_Phdr part;
        const int64_t at = (int64_t)head.e_phoff + i * (int64_t)sizeof(part);

        if (pread(fd, &part, sizeof(part), at) != sizeof(part)) {
            return 0;
        }
        const int64_t part_end = (int64_t)(part.p_offset + part.p_filesz);

        end = part.p_type == PT_LOAD && part_end > end ? part_end : end;
    }
    return end;
}

/* dlopen() maps missing pages of a truncated file, whose first use ends the process. */
static ms_status check_whole(const char *path, const char *what)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat file;

    if (fd < 0) {
        return MS_OK; /* dlopen() reports it */
    }
    const int64_t needed = bytes_to_map(fd), there = fstat(fd, &file) == 0 ? file.st_size : needed;

    close(fd);
    return there >= needed ? MS_OK
                           : MS_FAIL(MS_DEVICE_ERROR,
                                     "cannot open %s: %s was cut short, to %lld bytes of at least "
                                     "%lld",
                                     what, path, (long long)there, (long long)needed);
}

/* dlopen(); NULL, not an error, if this file or one it needs is missing. dlerror()'s text uses
 * strerror(), in any language. */
static ms_status open_file(const char *path, const char *what, void **library)
{
    *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (*library != NULL) {
        return MS_OK;
    }
    const char *text = dlerror();

    snprintf(why, sizeof(why), "%s", text != NULL ? text : "out of memory");
    if (strstr(why, strerror(ENOENT)) != NULL) {
        return MS_OK;
    }
    bool memory = strstr(why, strerror(ENOMEM)) != NULL || strstr(why, "out of memory") != NULL;

    return MS_FAIL(memory ? MS_OUT_OF_MEMORY : MS_DEVICE_ERROR, "cannot open %s: %s", what, why);
}

/* `*there`: the folder has the file, so that no other one is looked for if it does not open. */
static ms_status open_in(const char *folder, size_t folder_len, const char *file, const char *what,
                         void **library, bool *there)
{
    char path[PATH_MAX];

    if (snprintf(path, sizeof(path), "%.*s/%s", (int)folder_len, folder, file) >=
        (int)sizeof(path)) {
        snprintf(why, sizeof(why), "the path of %s would be too long", file);
        return MS_OK;
    }
    *there = access(path, F_OK) == 0;
    MS_TRY(check_whole(path, what));
    return open_file(path, what, library);
}

static ms_status open_library(const char *file, const char *what, void **library)
{
    const char *folder = msi_switch_text("MS_PLUGIN_DIR", NULL);
    bool there = false;
    Dl_info self;

    *library = NULL;
    if (folder != NULL) {
        MS_TRY(open_in(folder, strlen(folder), file, what, library, &there));
        if (*library == NULL && !there) {
            msi_switch_warn("MS_PLUGIN_DIR is '%s': %s; it is ignored", folder, why);
        }
    }
    if (*library == NULL && !there && dladdr(here, &self) != 0 && self.dli_fname != NULL) {
        const char *slash = strrchr(self.dli_fname, '/');

        if (slash != NULL) {
            MS_TRY(open_in(self.dli_fname, (size_t)(slash - self.dli_fname), file, what, library,
                           &there));
        }
    }
    return *library != NULL || there ? MS_OK : open_file(file, what, library);
}

ms_status msi_library_open(ms_context *ctx, const msi_library *which, void **symbol,
                           const char **reason)
{
    char opening[160];
    void *library;

    *symbol = NULL;
    *reason = why;
    snprintf(opening, sizeof(opening), "opening %s", which->what);
    MS_TRY(msi_alloc_probe(ctx, which->nbytes, opening));
    MS_TRY(open_library(which->file, which->what, &library));
    if (library != NULL) {
        *symbol = dlsym(library, which->symbol);
        if (*symbol == NULL) {
            snprintf(why, sizeof(why), "%s does not export %s", which->file, which->symbol);
        }
    }
    return MS_OK;
}
