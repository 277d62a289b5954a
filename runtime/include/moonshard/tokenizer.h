/* Tokenizers of tokenizer.json: byte-pair encoding, with the ids of the library `tokenizers`. */
#ifndef MOONSHARD_TOKENIZER_H
#define MOONSHARD_TOKENIZER_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A tokenizer, for one thread at a time. */
typedef struct ms_tokenizer ms_tokenizer;

/**
 * Read a tokenizer. `truncation` and `padding` of the file are ignored.
 * @param out   the caller owns `*out`
 * @param path  tokenizer.json, or a folder that has it; add_bos_token and add_eos_token of a
 *              folder's tokenizer_config.json replace the file's post-processor
 * @return MS_IO_ERROR with the system's reason; MS_FORMAT_ERROR, with the place in the file;
 *         MS_NOT_IMPLEMENTED_ERROR for a model, a part or an option that is not supported;
 *         MS_RUNTIME_ERROR if PCRE2 or utf8proc is needed and missing
 */
MS_API ms_status ms_tokenizer_load(ms_tokenizer **out, const char *path);
MS_API void ms_tokenizer_free(ms_tokenizer *t);

/** Flags of ms_tokenizer_encode() and ms_tokenizer_decode(). */
enum {
    MS_TOKENIZER_ADD_SPECIAL = 1,   /* encode: add the post-processor's tokens (BOS, EOS) */
    MS_TOKENIZER_PARSE_SPECIAL = 2, /* encode: text that looks like a special token becomes it */
    MS_TOKENIZER_SKIP_SPECIAL = 4   /* decode: special tokens are no text */
};

/**
 * The ids of a text.
 * @param ids        borrowed from `t`, (n); valid until its next call
 * @param n_invalid  maximal invalid parts of UTF-8 in the text; each is taken for U+FFFD
 */
MS_API ms_status ms_tokenizer_encode(ms_tokenizer *t, const char *text, int64_t nbytes,
                                     int32_t flags, const int32_t **ids, int64_t *n,
                                     int64_t *n_invalid);
/**
 * Are the ids of every text those of its parts, if it is cut between an ASCII letter or digit and
 * \r or \n? The post-processor's tokens are not considered. False: not known for this tokenizer.
 */
MS_API bool ms_tokenizer_cuts_lines(const ms_tokenizer *t);
/**
 * The text of ids. Ids without a token have none, as models have more rows than tokenizers tokens.
 * @param text  borrowed from `t`, (nbytes); valid until its next call
 * @return MS_VALUE_ERROR for a negative id
 */
MS_API ms_status ms_tokenizer_decode(ms_tokenizer *t, const int32_t *ids, int64_t n, int32_t flags,
                                     const char **text, int64_t *nbytes);

/** 1 + the largest id. */
MS_API int32_t ms_tokenizer_n_ids(const ms_tokenizer *t);
/** The id of a token by its text in the vocabulary; -1 if the vocabulary has no such token. */
MS_API int32_t ms_tokenizer_id(const ms_tokenizer *t, const char *token, int64_t nbytes);
/** A token as the vocabulary writes it, `*nbytes` long; borrowed from `t`. NULL if no token has
 * this id. */
MS_API const char *ms_tokenizer_token(const ms_tokenizer *t, int32_t id, int64_t *nbytes);

/** Bytes of valid UTF-8 at the beginning of a text. */
MS_API int64_t ms_utf8_valid(const char *text, int64_t nbytes);
/**
 * Copy a text, with U+FFFD for each maximal invalid part.
 * @param out        room for 3 * nbytes bytes
 * @param n_invalid  their number
 * @return bytes written
 */
MS_API int64_t ms_utf8_replace(char *out, const char *text, int64_t nbytes, int64_t *n_invalid);

#ifdef __cplusplus
}
#endif

#endif
