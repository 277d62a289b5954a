/* The manifest: a checkpoint's files with sizes and hashes, and the position of each element of
 * each tensor in them. A checkpoint exists when its manifest does. */
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
    msi_manifest_piece *pieces; /* ascending, covering the whole without gaps or overlaps */
} msi_manifest_tensor;

typedef struct msi_manifest {
    uint64_t hash;     /* its own, unique */
    char *meta;        /* the JSON object given to commit */
    int64_t step;      /* meta's "step", or -1 */
    int64_t n_folders; /* of as many hosts, each with its own ranks' files; 1: all are here */
    int32_t n_files, n_tensors;
    msi_manifest_file *files;
    msi_manifest_tensor *tensors;
    msi_manifest_tensor **by_key; /* sorted by key */
} msi_manifest;

enum { MSI_STEP_BITS = 53 }; /* a double, as other JSON readers use, holds so many */

/* True for nothing, or an integer from 0 to 2^53. */
bool msi_is_step(const json_t *step);
/* Parse a manifest and check every field; `path` is for errors. */
ms_status msi_manifest_parse(msi_manifest *m, const char *path, const char *text, size_t n);
void msi_manifest_dispose(msi_manifest *m);
/* NULL if missing. */
const msi_manifest_tensor *msi_manifest_find(const msi_manifest *m, const char *key);

/* -- writing ----------------------------------------------------------------------------------- */

/* What one rank wrote: an object sent to rank 0 as text. */
json_t *msi_report_new(void);
ms_status msi_report_file(json_t *report, const char *name, int64_t nbytes, uint64_t hash);
/* Add a tensor, and its piece in this rank's file number `file` (none if extent->numel is 0). */
ms_status msi_report_tensor(json_t *report, const char *key, const ms_param_extent *extent,
                            int32_t file, int64_t offset);
/* Add a text that must be equal on all ranks. MS_VALUE_ERROR unless UTF-8. */
ms_status msi_report_same(json_t *report, const char *what, const char *text);
/* A manifest to be written. */
typedef struct msi_manifest_draft {
    uint64_t hash;
    char *text; /* with the hash */
} msi_manifest_draft;

/* Join the reports of a group's ranks into a manifest. MS_VALUE_ERROR if ranks differ in texts that
 * must be equal or in tensors, or an element is missing or repeated. The caller owns the struct,
 * the runtime its contents. */
ms_status msi_manifest_build(msi_manifest_draft *draft, json_t *const *reports, const ms_comm *comm,
                             const char *nonce, int32_t n_folders, json_t *meta);
void msi_manifest_draft_dispose(msi_manifest_draft *draft);
/* MS_FORMAT_ERROR if the manifest read at `path` differs from the draft. */
ms_status msi_manifest_compare(const msi_manifest *m, const char *path,
                               const msi_manifest_draft *draft);
/* Check shape, dtype and range of an extent. `what` is for errors. */
ms_status msi_extent_check(const char *what, const ms_param_extent *extent, int64_t *whole_numel);

#endif
