/* The parts of tokenizer.json by name: each family has a table, to which a new part adds a row. */
#ifndef MSI_PARTS_H
#define MSI_PARTS_H

#include "bpe.h"
#include "stages.h"

#include <jansson.h>

/* Ids before and after those of a text. Zeroed: none. */
typedef struct msi_template {
    msi_ids before, after;
} msi_template;

typedef struct msi_part_family msi_part_family;
extern const msi_part_family msi_normalizers, msi_pre_tokenizers, msi_decoders; /* of msi_stages */
extern const msi_part_family msi_post_processors; /* of msi_template */

/* Read the part in field `key` of a tokenizer and add it to `out`, a msi_stages or msi_template; of
 * null nothing is added. MS_NOT_IMPLEMENTED_ERROR for a part that no row has; errors begin with the
 * place in the file. */
ms_status msi_part_read(void *out, const json_t *tokenizer, const char *key,
                        const msi_part_family *family);

#endif
