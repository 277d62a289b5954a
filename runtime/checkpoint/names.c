#include "names.h"
#include "moonshard/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool msi_folder_is_leftover(const char *name)
{
    const char *mark = strrchr(name, '.');

    return mark != NULL && strncmp(mark, ".tmp-", 5) == 0 && strlen(mark + 5) == 16 &&
           strspn(mark + 5, "0123456789abcdef") == 16;
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
