/* What the fake engines and the load generator share: a clock, buffers, sockets, HTTP heads. */
#ifndef WIRE_H
#define WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that grow at the end and are consumed at the start. */
struct buffer {
    char *data;
    size_t start, end, capacity;
};

/* Monotonic time in nanoseconds. */
uint64_t now_ns(void);
/* Print a message to stderr and exit with status 1. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

static inline size_t buffer_size(const struct buffer *b) { return b->end - b->start; }
static inline char *buffer_begin(const struct buffer *b) { return b->data + b->start; }
/* Make room for `more` bytes behind the end; dies when there is no memory. */
void buffer_reserve(struct buffer *b, size_t more);
void buffer_append(struct buffer *b, const void *data, size_t size);
void buffer_consume(struct buffer *b, size_t size);
void buffer_free(struct buffer *b);

/* A listening socket on 127.0.0.1; dies when the port is taken. */
int listen_on(int port);
/* A socket that connects to 127.0.0.1 without blocking, -1 when refused at once. */
int connect_to(int port);
/* No blocking, no Nagle. */
void tune_socket(int fd);

/* Length of a head including its empty line, 0 while it is incomplete. `from` is where to go on searching. */
size_t head_length(const char *data, size_t size, size_t from);
/* The value of a header in a complete head, NULL when it has none. `name` is in lower case. */
const char *head_value(const char *head, size_t size, const char *name);

#endif
