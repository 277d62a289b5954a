/* What a rank says that should be the same on every rank of its group: "this step of SGD has
 * lr 0.1". Notes cost no traffic of their own: their running hash rides in the fingerprint of the
 * group's next collective, and only on a difference are the notes themselves looked at. */
#ifndef MSI_NOTE_H
#define MSI_NOTE_H

#include "label.h"

enum { MSI_NOTE_NUMBERS = 8 };

typedef struct msi_note {
    msi_label label; /* what it is about */
    /* With numbers: their names, a space between two. A name that ends with '#' is that of a hash
     * (msi_note_hash), of which only the difference is told. Without numbers: a value of its own.
     */
    msi_label text;
    double number[MSI_NOTE_NUMBERS];
    int32_t n_numbers;
    int32_t model; /* of FSDP whose business it is: see msi_comm_count_model() */
} msi_note;

/* As many bits of a hash as a number holds. */
static inline double msi_note_hash(uint64_t hash)
{
    return (double)(hash >> 11);
}

#endif
