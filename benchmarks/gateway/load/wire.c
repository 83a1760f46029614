#define _GNU_SOURCE
#include "wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

void buffer_reserve(struct buffer *b, size_t more) {
    if (b->end + more <= b->capacity) return;
    if (b->start) {
        memmove(b->data, b->data + b->start, buffer_size(b));
        b->end -= b->start;
        b->start = 0;
    }
    if (b->end + more <= b->capacity) return;
    size_t capacity = b->capacity ? b->capacity : 4096;
    while (capacity < b->end + more) capacity *= 2;
    b->data = realloc(b->data, capacity);
    if (!b->data) die("no memory for a buffer of %zu bytes", capacity);
    b->capacity = capacity;
}

void buffer_append(struct buffer *b, const void *data, size_t size) {
    buffer_reserve(b, size);
    memcpy(b->data + b->end, data, size);
    b->end += size;
}

void buffer_consume(struct buffer *b, size_t size) {
    b->start += size;
    if (b->start == b->end) b->start = b->end = 0;
}

void buffer_free(struct buffer *b) {
    free(b->data);
    memset(b, 0, sizeof *b);
}

static struct sockaddr_in loopback(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

void tune_socket(int fd) {
    int one = 1;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

int listen_on(int port) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = loopback(port);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 4096))
        die("port %d: %s", port, strerror(errno));
    tune_socket(fd);
    return fd;
}

int connect_to(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = loopback(port);
    if (fd < 0) return -1;
    tune_socket(fd);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS) {
        close(fd);
        return -1;
    }
    return fd;
}

size_t head_length(const char *data, size_t size, size_t from) {
    from = from > 3 ? from - 3 : 0;
    if (size < from + 4) return 0;
    const char *end = memmem(data + from, size - from, "\r\n\r\n", 4);
    return end ? (size_t)(end - data) + 4 : 0;
}

const char *head_value(const char *head, size_t size, const char *name) {
    size_t length = strlen(name);
    const char *end = head + size;
    for (const char *line = memchr(head, '\n', size); line && line + 1 + length < end;) {
        line++;
        if (!strncasecmp(line, name, length) && line[length] == ':') {
            line += length + 1;
            while (line < end && *line == ' ') line++;
            return line;
        }
        line = memchr(line, '\n', (size_t)(end - line));
    }
    return NULL;
}
