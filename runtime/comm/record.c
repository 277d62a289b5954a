/* What ranks say before they move data: publishing, reading, and putting it into words. */
#include "control.h"

#include <stddef.h>
#include <stdio.h>

_Static_assert(sizeof(msi_fingerprint) == 40 + sizeof(msi_label) &&
                   sizeof(msi_label) > sizeof(int64_t[MS_MAX_DIMS]),
               "a fingerprint is whole words without padding");

/* -- records ----------------------------------------------------------------------------------- */

/* Words of a fingerprint that say something, as the first one tells; what stands behind
 * them counts for nothing. */
static int32_t words_said(const msi_fingerprint *fp)
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

static void record_write(msi_member *m, uint64_t seq, uint64_t hash, const msi_fingerprint *fp)
{
    msi_record *r = &m->ring[seq % MSI_RING];

    atomic_store_explicit(&r->seq, 0, memory_order_relaxed);
    atomic_store_explicit(&r->hash, hash, memory_order_release);
    msi_words_store(r->word, fp, words_said(fp));
    atomic_store_explicit(&r->seq, seq, memory_order_release);
    atomic_store_explicit(&m->schedule, hash, memory_order_release);
    atomic_store_explicit(&m->published, seq, memory_order_release);
}

bool msi_record_read(msi_member *m, uint64_t seq, msi_fingerprint *fp, uint64_t *hash)
{
    msi_record *r = &m->ring[seq % MSI_RING];

    if (seq == 0 || atomic_load_explicit(&r->seq, memory_order_acquire) != seq) {
        return false;
    }
    *hash = atomic_load_explicit(&r->hash, memory_order_acquire);
    if (fp != NULL) {
        *fp = (msi_fingerprint){.kind = MSI_COLL_NONE};
        msi_words_load(fp, r->word, 1);
        msi_words_load(fp, r->word, words_said(fp));
    }
    return atomic_load_explicit(&r->seq, memory_order_relaxed) == seq;
}

ms_status msi_comm_publish(ms_comm *c, const msi_fingerprint *fp, uint64_t *seq)
{
    const size_t nbytes = 8 * (size_t)words_said(fp);
    msi_fingerprint own;

    *seq = 0;
    memcpy(&own, fp, nbytes);
    own.noted = msi_noted(c, c->rank);
    if (MSI_UNLIKELY(c->gone != 0)) {
        return msi_gone_error(c);
    }
    c->seq++;
    c->hash = msi_mix64(c->hash ^ ms_hash_bytes(&own, (int64_t)nbytes));
    record_write(&c->members[c->rank], c->seq, c->hash, &own);
    if (MSI_UNLIKELY(msi_comm_broken(c))) {
        char operation[MSI_OPERATION_TEXT];

        return msi_comm_fail(c, "called",
                             msi_operation_text(c, c->seq, operation, sizeof(operation)));
    }
    *seq = c->seq;
    return MS_OK;
}

uint64_t msi_comm_said(const ms_comm *c)
{
    return c->hash;
}

bool msi_fingerprint_same_call(const msi_fingerprint *a, const msi_fingerprint *b)
{
    msi_fingerprint other = *b;

    other.noted = a->noted;
    return memcmp(a, &other, sizeof(other)) == 0;
}

/* -- in words ---------------------------------------------------------------------------------- */

enum { MSI_NAME_TEXT = MSI_LABEL_TEXT + MSI_MODEL_TEXT + 16 };

static const char *kind_name(uint32_t kind)
{
    static const char *const names[] = {"none",      "all_gather", "reduce_scatter", "all_reduce",
                                        "broadcast", "barrier",    "unshard",        "reduce",
                                        "reduce",    "segment",    "reset"};

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
    char data[MS_MAX_DIMS * 22 + 16], root[32] = "", name[MSI_NAME_TEXT], slot[64] = "";

    if (fp->kind == MSI_COLL_BARRIER || fp->kind == MSI_COLL_RESET) {
        snprintf(buffer, nbytes,
                 fp->kind == MSI_COLL_BARRIER ? "barrier()" : "reset(after an error)");
        return buffer;
    }
    data_text(fp, data, sizeof(data));
    if (fp->kind == MSI_COLL_BROADCAST) {
        snprintf(root, sizeof(root), ", root %d", (int)fp->root);
    } else if (fp->kind == MSI_COLL_ALL_REDUCE || fp->kind == MSI_COLL_REDUCE_SCATTER) {
        snprintf(root, sizeof(root), ", %s", reduce_name(fp->root));
    }
    name_text(fp, ", unit ", ", in ", name, sizeof(name));
    if (fp->slot >= 0 || fp->generation != 0) {
        snprintf(slot, sizeof(slot), ", slot %d, generation %llu", (int)fp->slot,
                 (unsigned long long)fp->generation);
    }
    snprintf(buffer, nbytes, "%s(%s%s%s%s)", kind_name(fp->kind), data, root, name, slot);
    return buffer;
}

const char *msi_operation_text(ms_comm *c, uint64_t seq, char *buffer, size_t nbytes)
{
    char name[MSI_NAME_TEXT];
    msi_fingerprint fp = {.kind = MSI_COLL_NONE};
    uint64_t hash;

    if (!msi_record_read(&c->members[c->rank], seq, &fp, &hash)) {
        snprintf(buffer, nbytes, "an operation (sequence %llu)", (unsigned long long)seq);
        return buffer;
    }
    name_text(&fp, " of unit ", " in ", name, sizeof(name));
    snprintf(buffer, nbytes, "%s%s (sequence %llu)", kind_name(fp.kind), name,
             (unsigned long long)seq);
    return buffer;
}

ms_status msi_comm_fail(ms_comm *c, const char *verb, const char *operation)
{
    int32_t subject, cause;
    ms_status kind;
    const char *text;

    if (!msi_job_aborted(c->job, &subject, &cause, &kind, &text)) {
        return MS_FAIL(MS_INTERNAL_ERROR, "a group failed without a reason");
    }
    bool at_once = cause == MSI_CAUSE_DIED || cause == MSI_CAUSE_LEFT;
    int line = (int)strcspn(text, "\n"); /* what follows is the other rank's traceback */

    return MS_FAIL(MS_COMM_ERROR, "%.*s%s this rank %s %s%s", line, text, at_once ? " while" : ";",
                   verb, operation, text + line);
}
