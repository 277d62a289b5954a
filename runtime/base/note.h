/* A value that must be equal on every rank of a group: "this step of SGD has lr 0.1". Notes need no
 * communication: the fingerprint of the group's next collective carries their running hash, and
 * only on a difference are the notes read. */
#ifndef MSI_NOTE_H
#define MSI_NOTE_H

#include "label.h"

enum { MSI_NOTE_NUMBERS = 8 };

typedef struct msi_note {
    msi_label label; /* its subject */
    /* With numbers: their names, separated by spaces. A name that ends with '#' is a hash's
     * (msi_note_hash): messages do not show its value. Without numbers: the value. */
    msi_label text;
    double number[MSI_NOTE_NUMBERS];
    int32_t n_numbers;
    int32_t model; /* FSDP model, or 0: see msi_comm_count_model() */
} msi_note;

/* As many bits of a hash as a double can hold. */
static inline double msi_note_hash(uint64_t hash)
{
    return (double)(hash >> 11);
}

#endif
