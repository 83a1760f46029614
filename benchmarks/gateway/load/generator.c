/* The load generator: so many connections, each with one request at a time, for so long.
 *
 * Prints "measuring" when the warm-up is over and "measured" when the time is, so that others can look at the same
 * window, then lets what is open finish, then prints one line of JSON: counts of the window, durations in microseconds.
 *
 * usage: generator key=value...   ports=P[,P...] connections= prompt=BYTES tokens= stream=0|1 rate=TOKENS_PER_SECOND
 *                                 burst= pause=SECONDS seconds= warmup= path= */
#define _GNU_SOURCE
#include "histogram.h"
#include "reader.h"
#include "wheel.h"
#include "wire.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_PORTS = 16, RECEIVE = 1 << 18, DRAIN_SECONDS = 15, MOST_ERRORS = 100000 };
static const uint64_t SECOND = 1000000000, TICK = 1000000;

struct options {
    int ports[MAX_PORTS], port_count;
    int connections, tokens, stream, burst;
    size_t prompt;
    double rate, pause, seconds, warmup; /* pause: the longest before the next request */
    const char *path;
};

struct client {
    int fd, port;
    bool open, busy, writable, reused;
    size_t sent;
    uint64_t began, last; /* ns: the request was begun; bytes of body came last */
    uint64_t events;      /* of this answer, as counted when bytes came last */
    struct reader reader;
    struct timer timer; /* the next request waits for it */
};

static struct options options = {.connections = 64, .prompt = 4096, .tokens = 16, .burst = 1, .seconds = 5, .warmup = 1,
                                 .path = "/v1/completions"};
static struct histogram latency, first, gap;
static uint64_t requests, events, errors, reconnects, window_begins, window_ends;
static char first_error[160];
static struct buffer request;
static struct client *clients;
static int poller;

static void read_options(int count, char **arguments) {
    for (int i = 1; i < count; i++) {
        char *value = strchr(arguments[i], '=');
        if (!value) die("%s is no key=value", arguments[i]);
        *value++ = 0;
        const char *key = arguments[i];
        if (!strcmp(key, "ports")) {
            for (char *port = strtok(value, ","); port && options.port_count < MAX_PORTS; port = strtok(NULL, ","))
                options.ports[options.port_count++] = atoi(port);
        } else if (!strcmp(key, "connections")) {
            options.connections = atoi(value);
        } else if (!strcmp(key, "prompt")) {
            options.prompt = strtoull(value, NULL, 10);
        } else if (!strcmp(key, "tokens")) {
            options.tokens = atoi(value);
        } else if (!strcmp(key, "stream")) {
            options.stream = atoi(value);
        } else if (!strcmp(key, "burst")) {
            options.burst = atoi(value);
        } else if (!strcmp(key, "rate")) {
            options.rate = atof(value);
        } else if (!strcmp(key, "pause")) {
            options.pause = atof(value);
        } else if (!strcmp(key, "seconds")) {
            options.seconds = atof(value);
        } else if (!strcmp(key, "warmup")) {
            options.warmup = atof(value);
        } else if (!strcmp(key, "path")) {
            options.path = value;
        } else {
            die("%s is no option", key);
        }
    }
    if (!options.port_count || options.connections < 1) die("name at least one port and one connection");
}

/* The one request that everyone sends: the prompt says its length, pace and burst, and is text behind that. */
static void prepare_request(void) {
    static const char TEXT[] = "all work and no play makes a dull benchmark ";
    char before[512], head[512];
    bool chat = strstr(options.path, "chat") != NULL;
    int size = snprintf(before, sizeof before, "{\"model\":\"bench\",%s\"",
                        chat ? "\"messages\":[{\"role\":\"user\",\"content\":" : "\"prompt\":");
    struct buffer body = {0};
    buffer_append(&body, before, (size_t)size);
    size_t begin = body.end;
    size = snprintf(before, sizeof before, "%zu:%g:%d:", options.prompt, options.rate, options.burst);
    buffer_append(&body, before, (size_t)size);
    while (body.end - begin < options.prompt) {
        size_t left = options.prompt - (body.end - begin);
        buffer_append(&body, TEXT, left < sizeof TEXT - 1 ? left : sizeof TEXT - 1);
    }
    size = snprintf(before, sizeof before, "\"%s,\"max_tokens\":%d,\"temperature\":0.0,\"stream\":%s}",
                    chat ? "}]" : "", options.tokens, options.stream ? "true" : "false");
    buffer_append(&body, before, (size_t)size);
    size = snprintf(head, sizeof head,
                    "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: bench\r\nAccept: */*\r\n"
                    "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                    options.path, body.end);
    buffer_append(&request, head, (size_t)size);
    buffer_append(&request, body.data, body.end);
    buffer_free(&body);
}

static bool in_window(uint64_t now) { return now >= window_begins && now < window_ends; }

static void watch(struct client *c, bool writable) {
    struct epoll_event event = {.events = EPOLLIN | (writable ? EPOLLOUT : 0), .data.ptr = c};
    if (c->writable == writable) return;
    c->writable = writable;
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
}

static void push(struct client *c) {
    while (c->sent < request.end) {
        ssize_t n = send(c->fd, request.data + c->sent, request.end - c->sent, MSG_NOSIGNAL);
        if (n <= 0) break;
        c->sent += (size_t)n;
    }
    watch(c, c->sent < request.end);
}

static void begin(struct client *c, uint64_t now) {
    reader_reset(&c->reader);
    c->busy = true;
    c->sent = 0;
    c->events = 0;
    c->began = now;
    c->last = 0;
    push(c);
}

static void connect_client(struct client *c) {
    c->fd = connect_to(c->port);
    c->open = c->fd >= 0;
    c->reused = false;
    c->writable = true;
    if (!c->open) die("port %d: %s", c->port, strerror(errno));
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event);
}

static void disconnect(struct client *c) {
    wheel_remove(&c->timer);
    close(c->fd);
    c->open = c->busy = false;
}

static void fail(const struct client *c, const char *what) {
    const struct reader *r = &c->reader;
    errors++;
    if (!*first_error)
        snprintf(first_error, sizeof first_error, "%s (status %d, %" PRIu64 " bytes, %" PRIu64 " events)", what,
                 r->status, r->size, r->events);
    if (errors > MOST_ERRORS) die("more than %d errors; the first: %s", MOST_ERRORS, first_error);
}

/* What is wrong with a complete answer, or NULL. */
static const char *complaint(const struct reader *r) {
    static const char END[] = "data: [DONE]\n\n";
    if (r->status != 200) return "refused";
    if (!options.stream) return r->size > 100 ? NULL : "an answer without a body";
    if (r->events != (uint64_t)options.tokens + 1) return "a stream of another length";
    return memcmp(r->tail + sizeof r->tail - (sizeof END - 1), END, sizeof END - 1) ? "a stream without [DONE]" : NULL;
}

static void finish(struct client *c, uint64_t now) {
    const char *wrong = complaint(&c->reader);
    c->busy = false;
    c->reused = true;
    if (wrong) {
        fail(c, wrong);
    } else if (in_window(now)) {
        requests++;
        histogram_add(&latency, now - c->began, 1);
    }
    if (c->reader.closes) {
        disconnect(c);
        reconnects++;
        if (now < window_ends) connect_client(c);
    } else if (now < window_ends) {
        if (options.pause > 0)
            wheel_add(&c->timer, now + (uint64_t)(drand48() * options.pause * (double)SECOND));
        else
            begin(c, now);
    }
}

/* Streams of one length that were held up together once would go on in step: random pauses part them. */
static void on_timer(struct timer *timer) {
    uint64_t now = now_ns();
    if (now < window_ends) begin(timer->owner, now);
}

/* Count the events that have just come. */
static void count_events(struct client *c, uint64_t now) {
    uint64_t fresh = c->reader.events - c->events;
    c->events = c->reader.events;
    if (c->reader.state == DONE && fresh) fresh--; /* [DONE] is no token */
    if (!fresh) return;
    if (in_window(now)) {
        events += fresh;
        if (c->last) {
            histogram_add(&gap, now - c->last, 1);
            histogram_add(&gap, 0, fresh - 1);
        } else {
            histogram_add(&first, now - c->began, 1);
        }
    }
    c->last = now;
}

static void lost(struct client *c, uint64_t now) {
    if (c->busy && c->reused && !c->reader.head_size)
        reconnects++; /* an idle connection closed in the instant it was used */
    else if (c->busy)
        fail(c, "the connection was lost");
    disconnect(c);
    if (now < window_ends) connect_client(c);
}

static void receive(struct client *c, uint64_t now) {
    static char data[RECEIVE];
    for (;;) {
        ssize_t n = recv(c->fd, data, sizeof data, 0);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n <= 0) return lost(c, now);
        reader_feed(&c->reader, data, (size_t)n);
        if (c->reader.state == BROKEN || !c->busy) {
            fail(c, "not an answer");
            disconnect(c);
            if (now < window_ends) connect_client(c);
            return;
        }
        if (options.stream) count_events(c, now);
        if (c->reader.state == DONE) return finish(c, now);
        if ((size_t)n < sizeof data) return;
    }
}

static void on_event(const struct epoll_event *event, uint64_t now) {
    struct client *c = event->data.ptr;
    if (!c->open) return;
    if (event->events & EPOLLOUT) {
        if (c->busy)
            push(c);
        else if (now < window_ends)
            begin(c, now);
        else
            watch(c, false);
    }
    if (event->events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c, now);
}

static int count_busy(void) {
    int busy = 0;
    for (int i = 0; i < options.connections; i++) busy += clients[i].busy;
    return busy;
}

static void run(void) {
    uint64_t start = now_ns(), ramp = (uint64_t)(options.warmup * 0.5 * (double)SECOND);
    uint64_t total = (uint64_t)options.connections, connected = 0;
    int said = 0;
    struct epoll_event ready[1024];
    window_begins = start + (uint64_t)(options.warmup * (double)SECOND);
    window_ends = window_begins + (uint64_t)(options.seconds * (double)SECOND);
    for (;;) {
        uint64_t now = now_ns();
        uint64_t begun = now > start + ramp ? total : 1 + (now - start) * total / (ramp + 1);
        while (connected < total && connected < begun) connect_client(&clients[connected++]);
        if (!said && now >= window_begins) said = 1, puts("measuring"), fflush(stdout);
        if (said == 1 && now >= window_ends) said = 2, puts("measured"), fflush(stdout);
        if (now >= window_ends && (!count_busy() || now >= window_ends + DRAIN_SECONDS * SECOND)) return;
        struct timespec wait, tick = {0, TICK};
        bool sooner = wheel_wait(now_ns(), &wait) && wait.tv_nsec < tick.tv_nsec;
        int n = epoll_pwait2(poller, ready, 1024, sooner ? &wait : &tick, NULL);
        now = now_ns();
        for (int i = 0; i < n; i++) {
            if (n > 16 && !(i & 7)) now = now_ns();
            on_event(&ready[i], now);
        }
        wheel_turn(now_ns(), on_timer);
    }
}

static void print_histogram(const char *name, const struct histogram *h) {
    printf("\"%s\":{\"count\":%" PRIu64 ",\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"max\":%.1f},", name, h->total,
           histogram_us(h, 0.5), histogram_us(h, 0.9), histogram_us(h, 0.99), histogram_us(h, 1));
}

int main(int count, char **arguments) {
    read_options(count, arguments);
    prctl(PR_SET_TIMERSLACK, 1);
    prepare_request();
    poller = epoll_create1(EPOLL_CLOEXEC);
    clients = calloc((size_t)options.connections, sizeof *clients);
    if (!clients) die("no memory for %d connections", options.connections);
    for (int i = 0; i < options.connections; i++) {
        clients[i].port = options.ports[i % options.port_count];
        clients[i].timer.owner = &clients[i];
    }
    wheel_start(now_ns());
    run();
    printf("{\"seconds\":%g,\"requests\":%" PRIu64 ",\"events\":%" PRIu64 ",\"errors\":%" PRIu64
           ",\"reconnects\":%" PRIu64 ",\"unfinished\":%d,",
           options.seconds, requests, events, errors, reconnects, count_busy());
    print_histogram("latency", &latency);
    print_histogram("first", &first);
    print_histogram("gap", &gap);
    printf("\"error\":\"%s\"}\n", first_error);
    return 0;
}
