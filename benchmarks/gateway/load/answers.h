/* The bytes of vLLM's answers, as uvicorn sends them. */
#ifndef ANSWERS_H
#define ANSWERS_H

#include "wire.h"

enum kind { COMPLETIONS, CHAT };

/* Ready-made bytes of a stream. */
struct stream_bytes {
    struct buffer head;   /* the head, and for chat the event that names the role */
    struct buffer events; /* `burst` events, each a chunk of its own */
    struct buffer last;   /* the event with the finish reason, [DONE], the end */
    size_t event_size;
};

/* Make the bytes of both kinds; `burst` is how many events may be written at once. */
void answers_prepare(int burst);
const struct stream_bytes *answers_stream(enum kind kind);
/* A whole JSON answer with its head. */
void answer_json(struct buffer *out, int status, const char *body, size_t size);
/* A completed request; `params` is NULL or the kv_transfer_params. */
void answer_completion(struct buffer *out, enum kind kind, int tokens, const char *params);
/* vLLM's error object. */
void answer_error(struct buffer *out, int status, const char *message);

#endif
