/* The manifest: which files a checkpoint has, their sizes and hashes, and in which of them each
 * element of each tensor lies. A checkpoint exists when its manifest does. */
#ifndef MSI_MANIFEST_H
#define MSI_MANIFEST_H

#include "json.h"
#include "moonshard/fsdp.h"
#include "paths.h"

enum { MSI_MANIFEST_VERSION = 1, MSI_MANIFEST_MAX = 1 << 30 };

typedef struct msi_manifest_file {
    char name[MSI_SHARD_NAME]; /* a plain name, checked */
    int64_t nbytes;
    uint64_t hash;
} msi_manifest_file;

/* Elements [start, start + numel) of a tensor, at byte `offset` of a file. */
typedef struct msi_manifest_piece {
    int32_t file;
    int64_t start, numel, offset;
} msi_manifest_piece;

typedef struct msi_manifest_tensor {
    char *key;
    ms_param_extent whole;
    int32_t n_pieces;
    msi_manifest_piece *pieces; /* ascending, without holes or overlaps, covering the whole */
} msi_manifest_tensor;

typedef struct msi_manifest {
    uint64_t hash; /* its own: no two checkpoints have the same */
    char *meta;    /* the object given to commit, as text */
    int64_t step;  /* meta's "step", or -1 */
    int32_t n_files, n_tensors;
    msi_manifest_file *files;
    msi_manifest_tensor *tensors;
    msi_manifest_tensor **by_key; /* in the order of their keys */
} msi_manifest;

enum { MSI_STEP_BITS = 53 }; /* so many a double holds, in which other programs read numbers */

/* Is it nothing, or an integer from 0 to 2^53? */
bool msi_is_step(const json_t *step);
/* Parse a manifest's text and check every field; `path` names it in errors. */
ms_status msi_manifest_parse(msi_manifest *m, const char *path, const char *text, size_t n);
void msi_manifest_dispose(msi_manifest *m);
/* NULL when there is none. */
const msi_manifest_tensor *msi_manifest_find(const msi_manifest *m, const char *key);

/* -- writing ----------------------------------------------------------------------------------- */

/* What one rank wrote: an object that travels to rank 0 as text. */
json_t *msi_report_new(void);
ms_status msi_report_file(json_t *report, const char *name, int64_t nbytes, uint64_t hash);
/* A tensor, and the piece of it in this rank's file number `file` (none when extent->numel is 0).
 */
ms_status msi_report_tensor(json_t *report, const char *key, const ms_param_extent *extent,
                            int32_t file, int64_t offset);
/* Something that every rank reports alike. MS_VALUE_ERROR when it is no UTF-8 text. */
ms_status msi_report_same(json_t *report, const char *what, const char *text);
/* A manifest that is to be written. */
typedef struct msi_manifest_draft {
    uint64_t hash;
    char *text; /* the hash in it */
} msi_manifest_draft;

/* Join the reports of a group's ranks into a manifest. MS_VALUE_ERROR when ranks reported different
 * things to be the same, added different tensors, or an element was added by none or by several.
 * The caller owns the struct, the runtime its contents. */
ms_status msi_manifest_build(msi_manifest_draft *draft, json_t *const *reports, const ms_comm *comm,
                             const char *nonce, json_t *meta);
void msi_manifest_draft_dispose(msi_manifest_draft *draft);
/* Is what was read at `path` what was meant? MS_FORMAT_ERROR when not. */
ms_status msi_manifest_compare(const msi_manifest *m, const char *path,
                               const msi_manifest_draft *draft);
/* Are shape, dtype and range of an extent sound? `what` names it in errors. */
ms_status msi_extent_check(const char *what, const ms_param_extent *extent, int64_t *whole_numel);

#endif
