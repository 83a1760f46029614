#define _GNU_SOURCE
#include "reader.h"

#include "wire.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

void reader_reset(struct reader *r) {
    r->state = HEAD;
    r->left = r->size = r->events = 0;
    r->status = 0;
    r->head_size = 0;
    r->newline = false;
    memset(r->tail, 0, sizeof r->tail);
}

/* Take body bytes. */
static void take(struct reader *r, const char *data, size_t size) {
    const char *at = data, *end = data + size;
    r->size += size;
    if (r->newline && size && *data == '\n') r->events++;
    while ((at = memchr(at, '\n', (size_t)(end - at)))) {
        at++;
        if (at < end && *at == '\n') {
            r->events++;
            at++;
        }
        if (at >= end) break;
    }
    r->newline = size && end[-1] == '\n' && (size < 2 || end[-2] != '\n');
    if (size >= sizeof r->tail) {
        memcpy(r->tail, end - sizeof r->tail, sizeof r->tail);
    } else {
        memmove(r->tail, r->tail + size, sizeof r->tail - size);
        memcpy(r->tail + sizeof r->tail - size, data, size);
    }
}

static void head_complete(struct reader *r) {
    const char *length = head_value(r->head, r->head_size, "content-length");
    const char *encoding = head_value(r->head, r->head_size, "transfer-encoding");
    const char *connection = head_value(r->head, r->head_size, "connection");
    r->status = atoi(r->head + 9);
    r->chunked = encoding && !strncasecmp(encoding, "chunked", 7);
    r->closes = connection && !strncasecmp(connection, "close", 5);
    r->left = !r->chunked && length ? strtoull(length, NULL, 10) : 0;
    r->state = r->chunked ? SIZE : !length ? BROKEN : r->left ? LENGTH : DONE;
}

/* Take bytes of the head; returns how many. */
static size_t take_head(struct reader *r, const char *data, size_t size) {
    size_t before = r->head_size, room = sizeof r->head - 1 - before;
    size_t taken = size < room ? size : room;
    memcpy(r->head + before, data, taken);
    size_t length = head_length(r->head, before + taken, before);
    if (!length) {
        r->head_size += taken;
        if (taken < size) r->state = BROKEN;
        return taken;
    }
    r->head_size = length;
    r->head[length] = 0;
    head_complete(r);
    return length - before;
}

static int digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Take one byte of a chunk's frame. */
static void take_frame(struct reader *r, char c) {
    if (r->state == SIZE) {
        if (digit(c) >= 0)
            r->left = r->left * 16 + (uint64_t)digit(c);
        else if (c == '\n')
            r->state = r->left ? DATA : TRAILER;
        else if (c != '\r')
            r->state = BROKEN;
    } else if (r->state == DATA_END) {
        if (c == '\n') r->state = SIZE;
        r->left = 0;
    } else if (c == '\n') {
        r->state = DONE; /* no trailers are sent */
    }
}

void reader_feed(struct reader *r, const char *data, size_t size) {
    while (size && r->state != BROKEN) {
        size_t taken = 1;
        if (r->state == DONE) {
            r->state = BROKEN; /* bytes behind the end */
        } else if (r->state == HEAD) {
            taken = take_head(r, data, size);
        } else if (r->state == DATA || r->state == LENGTH) {
            taken = size < r->left ? size : r->left;
            take(r, data, taken);
            r->left -= taken;
            if (!r->left) r->state = r->state == DATA ? DATA_END : DONE;
        } else {
            take_frame(r, *data);
        }
        data += taken;
        size -= taken;
    }
}
