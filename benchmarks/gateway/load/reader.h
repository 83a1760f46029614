/* An HTTP answer while it arrives: framing checked, events of a stream counted. */
#ifndef READER_H
#define READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum reader_state { HEAD, SIZE, DATA, DATA_END, TRAILER, LENGTH, DONE, BROKEN };

struct reader {
    enum reader_state state;
    uint64_t left; /* bytes of the chunk or of the body */
    int status;
    bool chunked, closes, newline;
    uint64_t size;   /* bytes of body so far */
    uint64_t events; /* empty lines in the body so far */
    char tail[16];   /* the last bytes of the body */
    size_t head_size;
    char head[4096];
};

void reader_reset(struct reader *r);
/* Take bytes; the state is DONE behind the last byte of the answer, and BROKEN when this is no answer. */
void reader_feed(struct reader *r, const char *data, size_t size);

#endif
