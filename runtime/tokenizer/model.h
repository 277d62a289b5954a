/* The model and the added tokens of a tokenizer.json. */
#ifndef MSI_MODEL_H
#define MSI_MODEL_H

#include "bpe.h"

#include <jansson.h>

/* Read the model from a tokenizer. Errors begin with the place in the file. */
ms_status msi_model_read(msi_bpe *m, const json_t *tokenizer);

#endif
