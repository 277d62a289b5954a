/* Fingerprints, and their texts. */
#include "group.h"

#include <stddef.h>
#include <stdio.h>

_Static_assert(sizeof(msi_fingerprint) == 40 + sizeof(msi_label) &&
                   sizeof(msi_label) > sizeof(int64_t[MS_MAX_DIMS]),
               "a fingerprint is whole words without padding");

int32_t msi_fingerprint_words(const msi_fingerprint *fp)
{
    const int32_t begin = offsetof(msi_fingerprint, name) / 8;

    switch (fp->kind) {
    case MSI_COLL_BARRIER:
    case MSI_COLL_SEGMENT:
    case MSI_COLL_RESET:
        return begin;
    default:
        return fp->ndim >= 0 ? begin + fp->ndim : (int32_t)sizeof(*fp) / 8;
    }
}

bool msi_fingerprint_same_call(const msi_fingerprint *a, const msi_fingerprint *b)
{
    msi_fingerprint other = *b;

    other.noted = a->noted;
    return memcmp(a, &other, sizeof(other)) == 0;
}

/* -- texts ------------------------------------------------------------------------------------- */

enum { MSI_NAME_TEXT = MSI_LABEL_TEXT + MSI_MODEL_TEXT + 16 };

const char *msi_coll_name(uint32_t kind)
{
    static const char *const names[] = {"none",      "all_gather", "reduce_scatter", "all_reduce",
                                        "broadcast", "barrier",    "unshard",        "reduce",
                                        "reduce",    "segment",    "reset",          "scatter",
                                        "gather",    "reduce",     "all_to_all"};

    return kind < MSI_COLL_KINDS ? names[kind] : "unknown";
}

static const char *reduce_name(int32_t reduce)
{
    static const char *const names[] = {"sum", "avg", "max", "min"};

    return reduce >= 0 && reduce < MSI_COUNT(names) ? names[reduce] : "unknown";
}

static bool is_of_unit(uint32_t kind)
{
    return kind == MSI_COLL_UNSHARD || kind == MSI_COLL_REDUCE_UNIT || kind == MSI_COLL_REDUCE_FULL;
}

const char *msi_model_text(int32_t model, char *buffer, size_t nbytes)
{
    snprintf(buffer, nbytes, model > 1 ? " of model %d" : "", (int)model);
    return buffer;
}

/* ", unit 'h.0'", ", in state_dict of unit 'h.0' of model 2", "" */
static void name_text(const msi_fingerprint *fp, const char *before_unit, const char *before_call,
                      char *buffer, size_t nbytes)
{
    char model[MSI_MODEL_TEXT];
    bool of_unit = is_of_unit(fp->kind);

    buffer[0] = '\0';
    if (fp->ndim < 0 && fp->name.text[0] != '\0') {
        snprintf(buffer, nbytes, of_unit ? "%s'%s'%s" : "%s%s%s",
                 of_unit ? before_unit : before_call, fp->name.text,
                 msi_model_text(fp->model, model, sizeof(model)));
    }
}

/* "f32 (2, 3)", "bf16, 64 elements", "16 bytes" */
static void data_text(const msi_fingerprint *fp, char *buffer, size_t nbytes)
{
    if (fp->ndim >= 0) {
        snprintf(buffer, nbytes, "%s %s", ms_dtype_name(fp->dtype),
                 msi_shape_text(fp->ndim, fp->shape));
    } else if (fp->dtype >= 0) {
        snprintf(buffer, nbytes, "%s, %lld elements", ms_dtype_name(fp->dtype),
                 (long long)fp->count);
    } else {
        snprintf(buffer, nbytes, "%lld bytes", (long long)fp->count);
    }
}

const char *msi_fingerprint_text(const msi_fingerprint *fp, char *buffer, size_t nbytes)
{
    char data[MS_MAX_DIMS * 22 + 16], root[32] = "", name[MSI_NAME_TEXT], tail[64] = "";

    if (fp->kind == MSI_COLL_BARRIER || fp->kind == MSI_COLL_RESET) {
        snprintf(buffer, nbytes,
                 fp->kind == MSI_COLL_BARRIER ? "barrier()" : "reset(after an error)");
        return buffer;
    }
    data_text(fp, data, sizeof(data));
    if (fp->kind == MSI_COLL_BROADCAST || fp->kind == MSI_COLL_SCATTER ||
        fp->kind == MSI_COLL_GATHER) {
        snprintf(root, sizeof(root), ", root %d", (int)fp->root);
    } else if (fp->kind == MSI_COLL_REDUCE) {
        snprintf(root, sizeof(root), ", root %d, %s", (int)fp->root / 4, reduce_name(fp->root % 4));
    } else if (fp->kind == MSI_COLL_ALL_REDUCE || fp->kind == MSI_COLL_REDUCE_SCATTER) {
        snprintf(root, sizeof(root), ", %s", reduce_name(fp->root));
    }
    name_text(fp, ", unit ", ", in ", name, sizeof(name));
    if (fp->ndim >= 0 && fp->forward != 0) {
        snprintf(tail, sizeof(tail), ", backward of sequence %llu",
                 (unsigned long long)fp->forward);
    } else if (fp->slot >= 0 || fp->generation != 0) {
        snprintf(tail, sizeof(tail), ", slot %d, generation %llu", (int)fp->slot,
                 (unsigned long long)fp->generation);
    }
    snprintf(buffer, nbytes, "%s(%s%s%s%s%s)", msi_coll_name(fp->kind), data, root, name, tail,
             fp->slot == MSI_SLOT_DEVICES ? ", between devices" : "");
    return buffer;
}

const char *msi_fingerprint_name(const msi_fingerprint *fp, char *buffer, size_t nbytes)
{
    char name[MSI_NAME_TEXT];

    name_text(fp, " of unit ", " in ", name, sizeof(name));
    snprintf(buffer, nbytes, "%s%s", msi_coll_name(fp->kind), name);
    return buffer;
}
