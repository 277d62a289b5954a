/* Regular expressions of Oniguruma as PCRE2 reads them. */
#ifndef MSI_TRANSLATE_H
#define MSI_TRANSLATE_H

#include "text.h"

/* The members of \w in a class: Alphabetic, Mark, Decimal_Number, Connector_Punctuation. PCRE2's
 * own \w is another set. Letters and numbers in circles and squares are alphabetic symbols. */
#define MSI_WORD_MEMBERS                                                                           \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}"                    \
    "\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}"

/* Append `regex`, translated. MS_NOT_IMPLEMENTED_ERROR names a construct that PCRE2 reads
 * otherwise: a wrong split gives wrong tokens without a sign. */
ms_status msi_translate(msi_bytes *out, const char *regex, int64_t n);

#endif
