/* Options of public structs, as tables that the generator makes from the comments of a header
 * (bindings/generator/options.lua). */
#ifndef MSI_OPTION_TABLE_H
#define MSI_OPTION_TABLE_H

#include "base.h"

enum { MSI_MAX_OPTIONS = 16, MSI_OPTION_TEXT = 16 };

/** A number (bool or int32_t), or a handle, which is neither checked nor compared. */
typedef struct msi_option {
    const char *name; /* as scripts write it */
    msi_field field;
    bool is_dtype;            /* a floating dtype or MS_DTYPE_NONE */
    bool compared;            /* equal on all ranks */
    const char *const *names; /* (n_names) by number; NULL: any number from 0 on */
    int32_t n_names;
} msi_option;

/** The options of a struct that begins with its size. */
typedef struct msi_option_table {
    const char *name; /* of the struct */
    const void *defaults;
    uint32_t nbytes;
    const msi_option *options; /* (n_options) in order */
    int32_t n_options;
} msi_option_table;

/** The numbers of compared options, for peers; 0 for the others. */
typedef struct msi_option_record {
    int32_t numbers[MSI_MAX_OPTIONS];
} msi_option_record;

/** Fill `out` with the caller's options, or with the defaults where `given` (NULL: everywhere) has
 * none. MS_VALUE_ERROR, MS_TYPE_ERROR for an invalid number and an invalid size. */
ms_status msi_options_take(void *out, const void *given, const msi_option_table *table);
msi_option_record msi_options_record(const void *options, const msi_option_table *table);
/** A number of an option in words: a name, a dtype, "3". @return `text`, or a constant */
const char *msi_option_text(const msi_option *option, int32_t number, char text[MSI_OPTION_TEXT]);

#endif
