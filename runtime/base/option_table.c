/* Options of public structs: defaults, checks, and texts of their numbers. */
#include "option_table.h"

#include "moonshard/tensor.h"

#include <stdio.h>
#include <string.h>

static ms_status check(const msi_option *option, int32_t number)
{
    switch (option->kind) {
    case MSI_OPTION_CHOICE:
        return number >= 0 && number < option->n_names
                   ? MS_OK
                   : MS_FAIL(MS_VALUE_ERROR, "%s is %d, expected 0 to %d", option->name,
                             (int)number, (int)option->n_names - 1);
    case MSI_OPTION_FLOATING:
        return number == MS_DTYPE_NONE || ms_dtype_is_floating(number)
                   ? MS_OK
                   : MS_FAIL(MS_TYPE_ERROR, "%s is %s (%d), expected a floating dtype",
                             option->name, ms_dtype_name(number), (int)number);
    case MSI_OPTION_COUNT:
        return number >= 0 ? MS_OK
                           : MS_FAIL(MS_VALUE_ERROR, "%s is %d, expected 0 or more", option->name,
                                     (int)number);
    case MSI_OPTION_FLAG:
    case MSI_OPTION_HANDLE:
        break;
    }
    return MS_OK;
}

static int32_t number_of(const msi_option_table *table, const void *options, int32_t i)
{
    const char *at = (const char *)options + table->fields[i + 1].begin;
    int32_t number = 0;

    if (table->options[i].kind == MSI_OPTION_FLAG) {
        number = *(const bool *)at;
    } else if (table->options[i].kind != MSI_OPTION_HANDLE) {
        memcpy(&number, at, sizeof(number));
    }
    return number;
}

ms_status msi_options_take(void *out, const void *given, const msi_option_table *table)
{
    memcpy(out, table->defaults, table->fields->whole);
    if (given != NULL) {
        MS_TRY(msi_struct_take(out, given, table->name, table->fields, table->n_options + 1));
    }
    for (int32_t i = 0; i < table->n_options; i++) {
        MS_TRY(check(&table->options[i], number_of(table, out, i)));
    }
    return MS_OK;
}

void msi_options_record(msi_option_record *out, const void *options, const msi_option_table *table)
{
    *out = (msi_option_record){{0}};
    for (int32_t i = 0; i < table->n_options; i++) {
        out->numbers[i] = table->options[i].compared ? number_of(table, options, i) : 0;
    }
}

int32_t msi_options_differ(const msi_option_record *a, const msi_option_record *b)
{
    for (int32_t i = 0; i < MSI_MAX_OPTIONS; i++) {
        if (a->numbers[i] != b->numbers[i]) {
            return i;
        }
    }
    return -1;
}

const char *msi_option_text(const msi_option_table *table, int32_t i, const msi_option_record *in,
                            char text[MSI_OPTION_TEXT])
{
    const msi_option *option = &table->options[i];
    const int32_t number = in->numbers[i];

    switch (option->kind) {
    case MSI_OPTION_CHOICE:
        return option->names[number];
    case MSI_OPTION_FLOATING:
        return ms_dtype_name(number);
    case MSI_OPTION_FLAG:
        return number != 0 ? "true" : "false";
    case MSI_OPTION_COUNT:
    case MSI_OPTION_HANDLE:
        break;
    }
    snprintf(text, MSI_OPTION_TEXT, "%d", (int)number);
    return text;
}
