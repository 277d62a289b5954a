/* Options of a public struct, as tables that the generator makes from the comments of its header
 * (bindings/generator/options.lua). */
#ifndef MSI_OPTION_TABLE_H
#define MSI_OPTION_TABLE_H

#include "base.h"

enum { MSI_MAX_OPTIONS = 16, MSI_OPTION_TEXT = 16 };

typedef enum msi_option_kind {
    MSI_OPTION_HANDLE,   /* not compared, not checked */
    MSI_OPTION_FLAG,     /* bool */
    MSI_OPTION_CHOICE,   /* int32_t, a number that has a name */
    MSI_OPTION_FLOATING, /* int32_t, a floating dtype or MS_DTYPE_NONE */
    MSI_OPTION_COUNT     /* int32_t, 0 or more */
} msi_option_kind;

typedef struct msi_option {
    const char *name; /* as scripts write it */
    msi_option_kind kind;
    bool compared;            /* equal on all ranks */
    const char *const *names; /* (n_names) of a choice, by number */
    int32_t n_names;
} msi_option;

/** The options of a struct that begins with its size. `options[i]` is `fields[i + 1]`. */
typedef struct msi_option_table {
    const char *name; /* of the struct */
    const void *defaults;
    const msi_option *options; /* (n_options) */
    const msi_field *fields;   /* (n_options + 1) */
    int32_t n_options;
} msi_option_table;

/** Fill `out` with the caller's options, or with the defaults where `given` (NULL: everywhere) has
 * none. MS_VALUE_ERROR, MS_TYPE_ERROR for an invalid number and an invalid size. */
ms_status msi_options_take(void *out, const void *given, const msi_option_table *table);
/** The numbers of the compared options, for peers; 0 for the others. */
typedef struct msi_option_record {
    int32_t numbers[MSI_MAX_OPTIONS];
} msi_option_record;
void msi_options_record(msi_option_record *out, const void *options, const msi_option_table *table);
/** The first option in which two records differ; -1: none. */
int32_t msi_options_differ(const msi_option_record *a, const msi_option_record *b);
/** The number of an option in a record, in words: a name, a dtype, "true".
 * @param text  room for a whole number
 * @return `text`, or a constant */
const char *msi_option_text(const msi_option_table *table, int32_t i, const msi_option_record *in,
                            char text[MSI_OPTION_TEXT]);

#endif
