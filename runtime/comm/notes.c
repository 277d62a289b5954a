/* Notes: values that must be equal on all ranks. See note.h. */
#include "group.h"

#include <stdio.h>

_Static_assert(sizeof(msi_note) == 2 * sizeof(msi_label) + 8 * (MSI_NOTE_NUMBERS + 1),
               "a note is whole words without padding");

/* -- writing ----------------------------------------------------------------------------------- */

static msi_note_record *record_of(const ms_comm *c, int32_t member, uint64_t n)
{
    return &c->notes[(uint64_t)member * MSI_NOTES + n % MSI_NOTES];
}

void msi_comm_note(ms_comm *c, const msi_note *note)
{
    if (c->n_members == 1 || c->dist->gone != MSI_GONE_NOT) {
        return;
    }
    msi_note_record *r = record_of(c, c->own, ++c->n_notes);
    uint64_t noted = msi_mix64(msi_noted(c, c->own) ^ ms_hash_bytes(note, sizeof(*note)));

    atomic_store_explicit(&r->n, 0, memory_order_relaxed);
    atomic_store_explicit(&r->hash, noted, memory_order_release);
    msi_words_store(r->word, note, MSI_COUNT(r->word));
    atomic_store_explicit(&r->n, c->n_notes, memory_order_release);
    atomic_store_explicit(&c->members[c->own].noted, noted, memory_order_release);
    msi_comm_put(c, MSI_MIRROR_RECORD, r, sizeof(*r));
    msi_comm_put(c, MSI_MIRROR_WORDS, (const void *)&c->members[c->own].noted, 8);
}

ms_status ms_comm_same(ms_comm *c, const char *label, const char *text, const double *numbers,
                       int32_t n_numbers)
{
    msi_note note = {.n_numbers = n_numbers};

    if (n_numbers > MSI_NOTE_NUMBERS) {
        return MS_FAIL(MS_VALUE_ERROR, "ms_comm_same: 'n_numbers' is %d, expected at most %d",
                       (int)n_numbers, MSI_NOTE_NUMBERS);
    }
    msi_label_set(&note.label, label);
    if (n_numbers == 0) {
        msi_label_set(&note.text, text);
    } else {
        msi_label_words(&note.text, text);
        memcpy(note.number, numbers, sizeof(*numbers) * (size_t)n_numbers);
    }
    msi_comm_note(c, &note);
    return MS_OK;
}

/* -- reading ----------------------------------------------------------------------------------- */

static bool note_read(const ms_comm *c, int32_t member, uint64_t n, msi_note *note, uint64_t *hash)
{
    msi_note_record *r = record_of(c, member, n);

    if (atomic_load_explicit(&r->n, memory_order_acquire) != n) {
        return false;
    }
    *hash = atomic_load_explicit(&r->hash, memory_order_acquire);
    msi_words_load(note, r->word, MSI_COUNT(r->word));
    return atomic_load_explicit(&r->n, memory_order_relaxed) == n;
}

/* Number of the member's note with hash `noted`; 0: before the first. False if overwritten. */
static bool find(const ms_comm *c, int32_t member, uint64_t noted, uint64_t *n)
{
    *n = 0;
    for (int32_t i = 0; i < MSI_NOTES && noted != 0; i++) {
        msi_note_record *r = record_of(c, member, (uint64_t)i);
        uint64_t at = atomic_load_explicit(&r->n, memory_order_acquire);

        if (at != 0 && atomic_load_explicit(&r->hash, memory_order_acquire) == noted &&
            atomic_load_explicit(&r->n, memory_order_relaxed) == at) {
            *n = at;
            return true;
        }
    }
    return noted == 0;
}

/* -- texts ------------------------------------------------------------------------------------- */

enum { MSI_SUBJECT_TEXT = MSI_LABEL_TEXT + MSI_MODEL_TEXT };

/* Name of the note's number `index`; the index, if names were truncated. @return true for a hash */
static bool number_name(const msi_note *note, int64_t index, char *name, size_t nbytes)
{
    const char *at = note->text.text;

    for (int64_t left = index; left > 0 && *at != '\0'; at++) {
        left -= *at == ' ';
    }
    size_t length = strcspn(at, " ");
    bool hashed = length > 0 && at[length - 1] == '#';

    if (length == 0) {
        snprintf(name, nbytes, "number %d", (int)index + 1);
    } else {
        snprintf(name, nbytes, "%.*s", (int)(length - hashed), at);
    }
    return hashed;
}

/* "step of SGD", "step of SGD of model 2" */
static const char *subject_text(const msi_note *note, char *buffer, size_t nbytes)
{
    char model[MSI_MODEL_TEXT];

    snprintf(buffer, nbytes, "%s%s", note->label.text,
             msi_model_text(note->model, model, sizeof(model)));
    return buffer;
}

/* Two numbers with enough digits to differ. */
static void numbers_text(double a, double b, char *ta, char *tb, size_t nbytes)
{
    for (int digits = 6; digits <= 17; digits += 11) {
        snprintf(ta, nbytes, "%.*g", digits, a);
        snprintf(tb, nbytes, "%.*g", digits, b);
        if (strcmp(ta, tb) != 0) {
            return;
        }
    }
}

/* How notes na of rank a and nb of rank b, on one subject, differ. */
static void values_text(const msi_note *na, int32_t a, const msi_note *nb, int32_t b, char *buffer,
                        size_t nbytes)
{
    char label[MSI_SUBJECT_TEXT], name[MSI_LABEL_TEXT], ta[32], tb[32];
    int64_t i = 0;

    subject_text(na, label, sizeof(label));
    if (na->n_numbers == 0) {
        const bool cut = strcmp(na->text.text, nb->text.text) == 0;

        snprintf(buffer, nbytes, "%s is %s on rank %d and %s on rank %d%s", label, na->text.text,
                 (int)a, nb->text.text, (int)b, cut ? ", which differ where they are cut" : "");
        return;
    }
    while (i + 1 < na->n_numbers &&
           memcmp(&na->number[i], &nb->number[i], sizeof(na->number[i])) == 0) {
        i++;
    }
    if (number_name(na, i, name, sizeof(name))) {
        snprintf(buffer, nbytes, "%s of %s is not the same on ranks %d and %d", name, label, (int)a,
                 (int)b);
        return;
    }
    numbers_text(na->number[i], nb->number[i], ta, tb, sizeof(ta));
    snprintf(buffer, nbytes, "%s of %s is %s on rank %d and %s on rank %d", name, label, ta, (int)a,
             tb, (int)b);
}

static bool same_subject(const msi_note *a, const msi_note *b)
{
    return memcmp(&a->label, &b->label, sizeof(a->label)) == 0 && a->model == b->model &&
           a->n_numbers == b->n_numbers &&
           (a->n_numbers == 0 || memcmp(&a->text, &b->text, sizeof(a->text)) == 0);
}

const char *msi_notes_text(ms_comm *c, int32_t a, uint64_t noted_a, int32_t b, uint64_t noted_b,
                           char *buffer, size_t nbytes)
{
    const int32_t ra = c->in_job[a], rb = c->in_job[b];
    uint64_t last_a, last_b, hash_a, hash_b;
    char ta[MSI_SUBJECT_TEXT], tb[MSI_SUBJECT_TEXT];
    msi_note na, nb;

    snprintf(buffer, nbytes, "ranks %d and %d noted different things, too long ago to name them",
             (int)ra, (int)rb);
    if (!find(c, a, noted_a, &last_a) || !find(c, b, noted_b, &last_b)) {
        return buffer;
    }
    const uint64_t last = last_a > last_b ? last_a : last_b;
    bool known = last < MSI_NOTES; /* everything so far was equal */

    for (uint64_t n = last >= MSI_NOTES ? last - MSI_NOTES + 1 : 1; n <= last; n++) {
        const bool has_a = n <= last_a && note_read(c, a, n, &na, &hash_a);
        const bool has_b = n <= last_b && note_read(c, b, n, &nb, &hash_b);

        if (has_a && has_b && hash_a == hash_b) {
            known = true;
            continue;
        }
        if (!known || has_a != (n <= last_a) || has_b != (n <= last_b)) { /* overwritten */
            known = false;
            continue;
        }
        if (has_a && has_b && same_subject(&na, &nb)) {
            values_text(&na, ra, &nb, rb, buffer, nbytes);
        } else if (has_a && has_b) {
            snprintf(buffer, nbytes, "rank %d has %s where rank %d has %s", (int)ra,
                     subject_text(&na, ta, sizeof(ta)), (int)rb, subject_text(&nb, tb, sizeof(tb)));
        } else {
            snprintf(buffer, nbytes, "rank %d has %s, rank %d has not", (int)(has_a ? ra : rb),
                     subject_text(has_a ? &na : &nb, ta, sizeof(ta)), (int)(has_a ? rb : ra));
        }
        break;
    }
    return buffer;
}
