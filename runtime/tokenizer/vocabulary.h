/* Tokens and their ids, in both directions. */
#ifndef MSI_VOCABULARY_H
#define MSI_VOCABULARY_H

#include "text.h"

typedef struct msi_token {
    int64_t start; /* in `text` */
    int32_t n;     /* bytes */
    int32_t id;
} msi_token;

/* Zeroed: empty. */
typedef struct msi_vocabulary {
    msi_bytes text;
    msi_token *tokens; /* (n) in the order of insertion */
    int32_t n, capacity;
    int32_t *slots; /* (n_slots), a power of two: 1 + index of a token, 0: free */
    int64_t n_slots;
    int32_t *by_id; /* (n_ids): 1 + index of a token, 0: no token has this id */
    int32_t n_ids;  /* 1 + the largest id */
    int32_t id_capacity;
} msi_vocabulary;

enum { MSI_MAX_ID = (1 << 26) - 1 };

/* Add a token. Of two with one text the later one is found, and of two with one id the later one is
 * the id's token.
 * @param id  0 to MSI_MAX_ID */
ms_status msi_vocabulary_add(msi_vocabulary *v, const char *text, int64_t n, int32_t id);
/* The token with this text, by its index; -1 if no token has it. */
int32_t msi_vocabulary_find(const msi_vocabulary *v, const char *text, int64_t n);
/* The id of this text; -1 if it is no token. */
static inline int32_t msi_vocabulary_id(const msi_vocabulary *v, const char *text, int64_t n)
{
    const int32_t index = msi_vocabulary_find(v, text, n);

    return index < 0 ? -1 : v->tokens[index].id;
}
/* The token with this id; NULL if no token has it. */
static inline const msi_token *msi_vocabulary_token(const msi_vocabulary *v, int32_t id)
{
    return id < 0 || id >= v->n_ids || v->by_id[id] == 0 ? NULL : &v->tokens[v->by_id[id] - 1];
}
void msi_vocabulary_dispose(msi_vocabulary *v);

#endif
