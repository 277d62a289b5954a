/* Options of public structs: defaults, checks, and texts of their numbers. */
#include "option_table.h"

#include "moonshard/tensor.h"

#include <stdio.h>
#include <string.h>

static int32_t number_of(const msi_option *option, const void *options)
{
    const size_t nbytes = option->field.end - option->field.begin;
    int32_t number = 0;

    memcpy(&number, (const char *)options + option->field.begin,
           nbytes <= sizeof(number) ? nbytes : 0);
    return number;
}

static ms_status check(const msi_option *option, int32_t number)
{
    if (option->is_dtype) {
        return number == MS_DTYPE_NONE || ms_dtype_is_floating(number)
                   ? MS_OK
                   : MS_FAIL(MS_TYPE_ERROR, "%s is %s (%d), expected a floating dtype",
                             option->name, ms_dtype_name(number), (int)number);
    }
    if (option->names != NULL) {
        return number >= 0 && number < option->n_names
                   ? MS_OK
                   : MS_FAIL(MS_VALUE_ERROR, "%s is %d, expected 0 to %d", option->name,
                             (int)number, (int)option->n_names - 1);
    }
    return number >= 0
               ? MS_OK
               : MS_FAIL(MS_VALUE_ERROR, "%s is %d, expected 0 or more", option->name, (int)number);
}

ms_status msi_options_take(void *out, const void *given, const msi_option_table *table)
{
    msi_field fields[MSI_MAX_OPTIONS + 1] = {{0, sizeof(uint32_t), table->nbytes}};

    memcpy(out, table->defaults, table->nbytes);
    for (int32_t i = 0; i < table->n_options; i++) {
        fields[i + 1] = table->options[i].field;
    }
    if (given != NULL) {
        MS_TRY(msi_struct_take(out, given, table->name, fields, table->n_options + 1));
    }
    for (int32_t i = 0; i < table->n_options; i++) {
        MS_TRY(check(&table->options[i], number_of(&table->options[i], out)));
    }
    return MS_OK;
}

msi_option_record msi_options_record(const void *options, const msi_option_table *table)
{
    msi_option_record record = {{0}};

    for (int32_t i = 0; i < table->n_options; i++) {
        const msi_option *option = &table->options[i];

        record.numbers[i] = option->compared ? number_of(option, options) : 0;
    }
    return record;
}

const char *msi_option_text(const msi_option *option, int32_t number, char text[MSI_OPTION_TEXT])
{
    if (option->is_dtype || option->names != NULL) {
        return option->is_dtype ? ms_dtype_name(number) : option->names[number];
    }
    snprintf(text, MSI_OPTION_TEXT, "%d", (int)number);
    return text;
}
