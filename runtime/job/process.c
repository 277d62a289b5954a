/* A process's state in /proc, and the text of ranks. */
#include "job.h"

#include <stdio.h>
#include <string.h>

bool msi_process_look(pid_t pid, char *state, pid_t *parent)
{
    char path[32], line[512];
    int owner = 0;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");

    if (file == NULL) {
        return false;
    }
    size_t n = fread(line, 1, sizeof(line) - 1, file);

    fclose(file);
    line[n] = '\0';
    const char *end = strrchr(line, ')'); /* "pid (name) state parent ...", any bytes in a name */
    bool found = end != NULL && sscanf(end + 1, " %c %d", state, &owner) == 2;

    *parent = owner;
    return found;
}

const char *msi_ranks_list(const int32_t *ranks, int32_t n, char *buffer, size_t nbytes)
{
    size_t at = (size_t)snprintf(buffer, nbytes, n == 1 ? "rank" : "ranks");

    for (int32_t i = 0; i < n; i++) {
        if (at + sizeof(", 127 and 127 more") > nbytes) {
            snprintf(buffer + at, nbytes - at, " and %d more", (int)(n - i));
            break;
        }
        at += (size_t)snprintf(buffer + at, nbytes - at, "%s%d", i > 0 ? ", " : " ", (int)ranks[i]);
    }
    return buffer;
}
