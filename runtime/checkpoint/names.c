#include "names.h"
#include "io.h"
#include "moonshard/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool msi_begins_with_nonce(const char *text)
{
    return strspn(text, "0123456789abcdef") >= MSI_NONCE_DIGITS;
}

char *msi_temporary_path(const char *place, const char *nonce)
{
    return msi_io_path("%s" MSI_TEMPORARY_MARK "%s", place, nonce);
}

bool msi_temporary_name_read(const char *entry, size_t *n_name, const char **nonce)
{
    const size_t n_mark = strlen(MSI_TEMPORARY_MARK);
    const char *mark = strrchr(entry, '.');

    if (mark == NULL || strncmp(mark, MSI_TEMPORARY_MARK, n_mark) != 0 ||
        strlen(mark + n_mark) != MSI_NONCE_DIGITS || !msi_begins_with_nonce(mark + n_mark)) {
        return false;
    }
    *n_name = (size_t)(mark - entry);
    *nonce = mark + n_mark;
    return true;
}

bool msi_is_temporary(const char *entry, const char *name)
{
    const char *nonce;
    size_t n;

    return msi_temporary_name_read(entry, &n, &nonce) &&
           (name == NULL || (strlen(name) == n && strncmp(entry, name, n) == 0));
}

void msi_shard_name(char *name, int32_t rank, int32_t world, int32_t part)
{
    char number[16] = "";

    if (part > 0) {
        snprintf(number, sizeof(number), ".%d", (int)part);
    }
    snprintf(name, MSI_SHARD_NAME, "rank-%05d-of-%05d%s.safetensors", (int)rank, (int)world,
             number);
}

bool msi_shard_name_read(const char *name, int32_t *rank, int32_t *world)
{
    char again[MSI_SHARD_NAME];
    int r, w, part = 0;

    if (sscanf(name, "rank-%9d-of-%9d.%9d", &r, &w, &part) < 2 || r < 0 || r >= w || part < 0) {
        return false;
    }
    msi_shard_name(again, r, w, part);
    *rank = r;
    *world = w;
    return strcmp(name, again) == 0;
}

const char *ms_checkpoint_step_name(int64_t step)
{
    static _Thread_local char name[32];

    snprintf(name, sizeof(name), "step-%08lld", (long long)step);
    return name;
}

int64_t msi_folder_step(const char *name)
{
    const int64_t step = strtoll(name + strcspn(name, "0123456789"), NULL, 10);

    return strcmp(name, ms_checkpoint_step_name(step)) == 0 ? step : -1;
}
