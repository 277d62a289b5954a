/* What the checkpoint tests share: tensors of arbitrary bits, one small checkpoint, folders. */
#ifndef CKPT_TEST_H
#define CKPT_TEST_H

#include "bytes.h"

#include "io.h"
#include "tensor.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FEW_BYTES = 4096 };

/* A 1-D tensor of `numel` elements [start, ...) of a stream of bits. Every pattern occurs (NaNs,
 * denormals), so round trips are compared as bytes. */
static inline ms_tensor *bits_tensor(int32_t dtype, uint64_t seed, int64_t start, int64_t numel)
{
    int64_t width = ms_dtype_size(dtype);
    ms_tensor *t;

    static _Thread_local uint8_t few[FEW_BYTES]; /* where allocations fail, this does not */
    uint8_t *bytes = numel * width <= FEW_BYTES ? few : malloc((size_t)(numel * width));

    assert_non_null(bytes);
    assert_ok(ms_tensor_empty(&t, dtype, 1, &numel));
    for (int64_t i = 0; i < numel * width; i++) {
        bytes[i] = (uint8_t)msi_mix64(seed * 1000003u + (uint64_t)(start * width + i));
        if (dtype == MS_DTYPE_BOOL) {
            bytes[i] &= 1;
        }
    }
    write_bytes(t, bytes);
    if (bytes != few) {
        free(bytes);
    }
    return t;
}

static inline ms_param_extent extent_of(int32_t dtype, int64_t numel)
{
    return (ms_param_extent){.numel = numel, .ndim = 1, .shape = {numel}, .dtype = dtype};
}

/* Write checkpoint `name`, whose contents follow from `seed`. */
static inline ms_status save_small(const char *root, const char *name, uint64_t seed)
{
    char meta[64];
    ms_checkpoint_writer *w;
    ms_comm *self;

    MS_TRY(ms_comm_self(&self));
    MS_TRY(ms_checkpoint_begin(&w, self, root, name));
    ms_tensor *a = bits_tensor(MS_DTYPE_F32, seed, 0, 33);
    ms_tensor *b = bits_tensor(MS_DTYPE_I64, seed + 1, 0, 3);
    ms_param_extent of_a = extent_of(MS_DTYPE_F32, 33), of_b = extent_of(MS_DTYPE_I64, 3);

    assert_ok(ms_checkpoint_add(w, "model/a", &of_a, a));
    assert_ok(ms_checkpoint_add(w, "model/b", &of_b, b));
    ms_tensor_free(a);
    ms_tensor_free(b);
    snprintf(meta, sizeof(meta), "{\"step\": %d, \"seed\": %d}", (int)seed * 10, (int)seed);
    return ms_checkpoint_commit(w, meta);
}

/* Read everything and compare with what save_small() wrote. A failure comes back; contents other
 * than those of `seed` end the test. */
static inline ms_status read_small(ms_checkpoint *c, uint64_t seed)
{
    ms_status status;
    char meta[64];

    for (int i = 0; i < 2; i++) {
        int32_t dtype = i == 0 ? MS_DTYPE_F32 : MS_DTYPE_I64;
        int64_t numel = i == 0 ? 33 : 3;
        ms_tensor *expected = bits_tensor(dtype, seed + (uint64_t)i, 0, numel);
        ms_tensor *seen = bits_tensor(dtype, 999, 0, numel);
        ms_param_extent extent = extent_of(dtype, numel);

        status = ms_checkpoint_read(c, i == 0 ? "model/a" : "model/b", &extent, seen);
        if (status == MS_OK && !same_bytes(expected, seen)) {
            fail_msg("%s: tensor %d has other contents than were saved", ms_checkpoint_path(c), i);
        }
        ms_tensor_free(expected);
        ms_tensor_free(seen);
        if (status != MS_OK) {
            break;
        }
    }
    if (status == MS_OK) {
        snprintf(meta, sizeof(meta), "{\"step\":%d,\"seed\":%d}", (int)seed * 10, (int)seed);
        assert_string_equal(meta, ms_checkpoint_meta(c));
    }
    return status;
}

/* read_small() of what is at `path`. */
static inline ms_status load_small(const char *path, uint64_t seed)
{
    ms_checkpoint *c;

    MS_TRY(ms_checkpoint_open(&c, path));
    const ms_status status = read_small(c, seed);

    ms_checkpoint_close(c);
    return status;
}

/* Which seed is in checkpoint `path`: the meta data say it, read_small() then checks the rest. */
static inline int seed_in(const char *path)
{
    ms_checkpoint *c;
    int seed = -1;

    assert_ok(ms_checkpoint_open(&c, path));
    assert_int_equal(1, sscanf(ms_checkpoint_meta(c), "{\"step\":%*d,\"seed\":%d", &seed));
    assert_ok(read_small(c, (uint64_t)seed));
    ms_checkpoint_close(c);
    return seed;
}

/* Did the child die by SIGKILL? Else it must have left with 0. */
static inline bool was_killed(pid_t child)
{
    int status;

    assert_int_equal(child, waitpid(child, &status, 0));
    if (WIFSIGNALED(status)) {
        assert_int_equal(SIGKILL, WTERMSIG(status));
        return true;
    }
    assert_int_equal(0, WEXITSTATUS(status));
    return false;
}

/* Entries of a folder, without "." and "..", whose names contain `part`; -1 when there is none. */
static inline int count_entries(const char *path, const char *part)
{
    DIR *dir = opendir(path);
    int n = 0;

    if (dir == NULL) {
        return -1;
    }
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
             strstr(e->d_name, part) != NULL;
    }
    closedir(dir);
    return n;
}

/* A path in this process's temporary folder, in memory of its own (temp_path's is reused). */
static inline const char *path_of(const char *name)
{
    static char paths[8][256];
    static int turn;
    char *path = paths[turn++ % 8];

    snprintf(path, sizeof(paths[0]), "%s", temp_path(name));
    return path;
}

/* Path of a file of a checkpoint. Valid for the next 63 calls. */
static inline const char *inside(const char *folder, const char *name)
{
    static char paths[64][400];
    static int turn;
    char path[400];

    assert_true(snprintf(path, sizeof(path), "%s/%s", folder, name) < (int)sizeof(path));
    return memcpy(paths[turn++ % 64], path, sizeof(path)); /* `folder` may be one of them */
}

/* Contents of a small file; the caller frees. */
static inline char *slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *text;

    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    text = malloc(*n + 1);
    assert_int_equal(*n, fread(text, 1, *n, f));
    text[*n] = '\0';
    fclose(f);
    return text;
}

/* Overwrite in place: some file systems sync a file that is truncated first. */
static inline void spill(const char *path, const void *bytes, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT, 0666);

    assert_true(fd >= 0);
    assert_int_equal(n, pwrite(fd, bytes, n, 0));
    assert_int_equal(0, ftruncate(fd, (off_t)n));
    assert_int_equal(0, close(fd));
}

#endif
