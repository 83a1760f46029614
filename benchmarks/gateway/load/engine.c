/* Fake engines: one process plays any number of prefill and decode engines, each on a port of its own.
 *
 * They answer as vLLM does, at once or at the pace that a prompt asks for, and check the protocol: see ledger.h.
 * A prompt of the load generator begins with "LENGTH:RATE:BURST:": its length in bytes (checked: nothing may be lost on
 * the way), the tokens per second of its stream (0: as fast as the connection takes them), and how many events a stream
 * without a pace writes at once. A stream has max_tokens events, each of them a chunk.
 * A body with a bootstrap_room is SGLang's: both legs come at once, and D answers when P's leg has come.
 * /metrics is 404 until a GET of /metrics/on has come to the same port: then it is vLLM's page, with the true numbers.
 *
 * usage: engine p:PORT... d:PORT...   (prefill and decode engines) */
#define _GNU_SOURCE
#include "answers.h"
#include "ledger.h"
#include "metrics.h"
#include "wheel.h"
#include "wire.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_PORTS = 64, MAX_FDS = 65536, READ_SIZE = 65536, MAX_BURST = 64, MOST_BESIDE_PROMPT = 65536 };
enum { BYTES_PER_TOKEN = 4 };

struct port {
    int fd, engine;
    bool prefill, reports; /* reports: /metrics exists */
    struct load load;
};

struct connection {
    int fd;
    unsigned life;
    struct port *port;
    struct buffer in, out;
    size_t head, need;          /* of the request that is being read; 0 while unknown */
    bool busy, waits, writable; /* busy: an answer is due; waits: for its room; writable: EPOLLOUT is asked for */
    enum kind kind;
    bool stream;
    int sent, tokens, burst;
    uint64_t received, began, period; /* ns; period 0: without a pace */
    struct timer timer;
    int active; /* place in `running`, -1 for none */
};

static struct port ports[MAX_PORTS];
static int port_count, poller, running_count;
static struct connection *connections[MAX_FDS], *running[MAX_FDS];
static unsigned lives;

static void serve(struct connection *c);

static void stop_running(struct connection *c) {
    if (c->active < 0) return;
    running[c->active] = running[--running_count];
    running[c->active]->active = c->active;
    c->active = -1;
}

static void close_connection(struct connection *c) {
    if (c->busy) counts.left++, c->port->load.running--;
    stop_running(c);
    wheel_remove(&c->timer);
    connections[c->fd] = NULL;
    close(c->fd);
    buffer_free(&c->in);
    buffer_free(&c->out);
    free(c);
}

static void watch(struct connection *c, bool writable) {
    struct epoll_event event = {.events = EPOLLIN | (writable ? EPOLLOUT : 0), .data.fd = c->fd};
    if (c->writable == writable) return;
    c->writable = writable;
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
}

/* Write what is due; what the socket does not take is kept. */
static void flush(struct connection *c) {
    while (buffer_size(&c->out)) {
        ssize_t n = send(c->fd, buffer_begin(&c->out), buffer_size(&c->out), MSG_NOSIGNAL);
        if (n <= 0) break;
        buffer_consume(&c->out, (size_t)n);
    }
    watch(c, buffer_size(&c->out) > 0);
}

static void send_bytes(struct connection *c, const char *data, size_t size) {
    if (!buffer_size(&c->out)) {
        ssize_t n = send(c->fd, data, size, MSG_NOSIGNAL);
        if (n == (ssize_t)size) return;
        if (n > 0) data += n, size -= (size_t)n;
    }
    buffer_append(&c->out, data, size);
    watch(c, true);
}

static void answered(struct connection *c) {
    struct load *load = &c->port->load;
    stop_running(c);
    if (c->busy) {
        load->running--;
        load->finished++;
        load->generated_tokens += (uint64_t)c->tokens;
        load->busy_ns += now_ns() - c->received;
    }
    c->busy = false;
    flush(c);
}

/* The next events of a stream; `most` bounds their number. */
static void step(struct connection *c, int most) {
    const struct stream_bytes *bytes = answers_stream(c->kind);
    int plain = c->tokens - 1 - c->sent;
    if (plain > most) plain = most;
    if (plain > 0) {
        send_bytes(c, buffer_begin(&bytes->events), (size_t)plain * bytes->event_size);
        c->sent += plain;
    } else {
        send_bytes(c, buffer_begin(&bytes->last), buffer_size(&bytes->last));
        c->sent++;
        answered(c);
    }
}

static void on_timer(struct timer *timer) {
    struct connection *c = timer->owner;
    step(c, 1);
    if (c->busy)
        wheel_add(&c->timer, c->began + (uint64_t)c->sent * c->period);
    else
        serve(c);
}

/* Begin the answer that is due. */
static void begin_answer(struct connection *c) {
    const struct stream_bytes *bytes = answers_stream(c->kind);
    c->waits = false;
    if (!c->stream) {
        answer_completion(&c->out, c->kind, c->tokens, NULL);
        answered(c);
        return;
    }
    buffer_append(&c->out, buffer_begin(&bytes->head), buffer_size(&bytes->head));
    c->sent = 1;
    if (c->tokens == 1) { /* the first event is the last */
        buffer_append(&c->out, buffer_begin(&bytes->last), buffer_size(&bytes->last));
        return answered(c);
    }
    buffer_append(&c->out, buffer_begin(&bytes->events), bytes->event_size);
    flush(c);
    if (c->period) {
        c->began = now_ns();
        wheel_add(&c->timer, c->began + c->period);
    } else {
        c->active = running_count;
        running[running_count++] = c;
    }
}

static void refuse(struct connection *c, int status, const char *message) {
    answer_error(&c->out, status, message);
    answered(c);
}

/* Take the prompt's text out of a body: all else is looked for many times, in each protocol another number of times. */
static void fold(struct span *body, const char *text, size_t length) {
    static char beside[MOST_BESIDE_PROMPT];
    size_t before = (size_t)(text - body->data), behind = body->size - before - length;
    if (before + behind > sizeof beside) return;
    memcpy(beside, body->data, before);
    memcpy(beside + before, text + length, behind);
    *body = (struct span){beside, before + behind};
}

/* Read the prompt's own words and fold it; false when it has lost something. */
static bool read_prompt(struct connection *c, struct span *body) {
    struct span prompt = json_value(*body, c->kind == CHAT ? "\"content\"" : "\"prompt\"");
    char *end;
    c->period = 0;
    c->burst = 1;
    if (!prompt.data || prompt.size < 24 || *prompt.data != '"') return true;
    size_t length = strtoull(prompt.data + 1, &end, 10);
    if (!length || *end != ':') return true; /* not the load generator's: a warm-up */
    double rate = strtod(end + 1, &end);
    c->period = rate > 0 ? (uint64_t)(1e9 / rate) : 0;
    c->burst = *end == ':' ? atoi(end + 1) : 1;
    if (c->burst < 1 || c->burst > MAX_BURST) c->burst = 1;
    if (prompt.size <= length + 1 || prompt.data[length + 1] != '"') return false;
    fold(body, prompt.data + 1, length);
    return true;
}

static void serve_room(struct connection *c, uint64_t room) {
    struct waiter waiter = {c->fd, c->life};
    if (!c->port->prefill) {
        c->waits = !room_decode(room, waiter);
        if (!c->waits) begin_answer(c);
        return;
    }
    c->tokens = 1;
    begin_answer(c);
    if (!room_prefill(room, &waiter)) return;
    struct connection *decode = connections[waiter.fd];
    if (decode && decode->life == waiter.life && decode->waits) {
        begin_answer(decode);
        serve(decode);
    }
}

static void serve_prefill(struct connection *c, struct span body) {
    char params[1024];
    if (!json_value(body, "\"kv_transfer_params\"").data) { /* a warm-up of P alone */
        begin_answer(c);
    } else if (!ledger_check_prefill(body)) {
        refuse(c, 400, last_violation());
    } else {
        ledger_finish_prefill(c->port->engine, params, sizeof params);
        answer_completion(&c->out, c->kind, 1, params);
        answered(c);
    }
}

static void serve_decode(struct connection *c, struct span body) {
    struct span params = json_value(body, "\"kv_transfer_params\"");
    if (!params.data || json_is(params, "null"))
        counts.decodes_alone++;
    else if (!ledger_check_decode(body))
        return refuse(c, 400, last_violation());
    begin_answer(c);
}

static void serve_generate(struct connection *c, struct span body) {
    bool whole = read_prompt(c, &body);
    struct span tokens = json_value(body, "\"max_tokens\"");
    struct span room = json_value(body, "\"bootstrap_room\"");
    c->busy = true;
    c->received = now_ns();
    c->port->load.running++;
    c->port->load.prompt_tokens += (c->need - c->head) / BYTES_PER_TOKEN;
    c->stream = json_has(body, "\"stream\"", "true");
    c->tokens = tokens.data ? atoi(tokens.data) : 16;
    if (c->tokens < 1) c->tokens = 1;
    *(c->port->prefill ? &counts.prefill_requests : &counts.decode_requests) += 1;
    if (!whole) {
        violation("a prompt that has lost bytes");
        refuse(c, 400, last_violation());
    } else if (room.data && !json_is(room, "null")) {
        serve_room(c, strtoull(room.data, NULL, 10));
    } else if (c->port->prefill) {
        serve_prefill(c, body);
    } else {
        serve_decode(c, body);
    }
}

static void serve_counts(struct connection *c) {
    char body[1024];
    int size = snprintf(body, sizeof body,
                        "{\"prefill_requests\":%" PRIu64 ",\"decode_requests\":%" PRIu64
                        ",\"prefills_finished\":%" PRIu64 ",\"prefills_fetched\":%" PRIu64 ",\"decodes_alone\":%" PRIu64 ",\"rooms_opened\":%" PRIu64
                        ",\"rooms_paired\":%" PRIu64 ",\"left\":%" PRIu64 ",\"violations\":%" PRIu64
                        ",\"pages\":%" PRIu64 ",\"first_violation\":\"%s\"}",
                        counts.prefill_requests, counts.decode_requests, counts.prefills_finished,
                        counts.prefills_fetched, counts.decodes_alone, counts.rooms_opened, counts.rooms_paired,
                        counts.left, counts.violations, counts.pages, first_violation());
    answer_json(&c->out, 200, body, (size_t)size);
}

static bool path_is(const char *path, const char *wanted) {
    size_t length = strlen(wanted);
    return !strncmp(path, wanted, length) && (path[length] == ' ' || path[length] == '?');
}

static void serve_metrics(struct connection *c) {
    if (c->port->reports)
        metrics_answer(&c->out, &c->port->load);
    else
        answer_error(&c->out, 404, "Not Found");
}

static void serve_get(struct connection *c, const char *path) {
    static const char MODELS[] = "{\"object\":\"list\",\"data\":[{\"id\":\"bench\",\"object\":\"model\","
                                 "\"created\":1767225600,\"owned_by\":\"vllm\",\"root\":\"bench\","
                                 "\"max_model_len\":1000000}]}";
    static const char INFO[] = "{\"model_path\":\"bench\",\"served_model_name\":\"bench\","
                               "\"is_generation\":true,\"tp_size\":1,\"dp_size\":1,\"version\":\"0.5.0\","
                               "\"model_type\":\"bench\",\"disaggregation_mode\":\"null\"}";
    if (path_is(path, "/metrics/on")) c->port->reports = true;
    if (!path_is(path, "/counts")) counts.pages++;
    if (path_is(path, "/counts"))
        serve_counts(c);
    else if (path_is(path, "/v1/models"))
        answer_json(&c->out, 200, MODELS, sizeof MODELS - 1);
    else if (path_is(path, "/metrics"))
        serve_metrics(c);
    else if (path_is(path, "/health") || path_is(path, "/health_generate") || path_is(path, "/metrics/on"))
        answer_json(&c->out, 200, "", 0);
    else if (strstr(path, "info "))
        answer_json(&c->out, 200, INFO, sizeof INFO - 1);
    else
        answer_error(&c->out, 404, "Not Found");
    flush(c);
}

static void dispatch(struct connection *c) {
    char *head = buffer_begin(&c->in);
    struct span body = {head + c->head, c->need - c->head};
    head[c->head - 1] = 0; /* the head is text from here on */
    if (!strncmp(head, "GET ", 4)) return serve_get(c, head + 4);
    bool chat = !strncmp(head, "POST ", 5) && path_is(head + 5, "/v1/chat/completions");
    c->kind = chat ? CHAT : COMPLETIONS;
    if (chat || (!strncmp(head, "POST ", 5) && path_is(head + 5, "/v1/completions"))) return serve_generate(c, body);
    answer_error(&c->out, 404, "Not Found");
    flush(c);
}

/* Serve the requests that have arrived whole, one after the other. */
static void serve(struct connection *c) {
    while (!c->busy && buffer_size(&c->in)) {
        if (!c->head) {
            c->head = head_length(buffer_begin(&c->in), buffer_size(&c->in), 0);
            if (!c->head) return;
            const char *length = head_value(buffer_begin(&c->in), c->head, "content-length");
            if (head_value(buffer_begin(&c->in), c->head, "transfer-encoding")) {
                violation("a request without Content-Length");
                return refuse(c, 411, last_violation());
            }
            c->need = c->head + (length ? strtoull(length, NULL, 10) : 0);
        }
        if (buffer_size(&c->in) < c->need) return buffer_reserve(&c->in, c->need - buffer_size(&c->in));
        size_t done = c->need;
        dispatch(c);
        c->head = c->need = 0;
        buffer_consume(&c->in, done);
    }
}

/* Take what has arrived; false when the connection is gone. */
static bool receive(struct connection *c) {
    for (;;) {
        size_t missing = c->need > buffer_size(&c->in) ? c->need - buffer_size(&c->in) : READ_SIZE;
        buffer_reserve(&c->in, missing);
        ssize_t n = recv(c->fd, c->in.data + c->in.end, missing, 0);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
        if (n <= 0) return false;
        c->in.end += (size_t)n;
        serve(c);
        if ((size_t)n < missing) return true;
    }
}

static void accept_all(struct port *port) {
    for (int fd; (fd = accept4(port->fd, NULL, NULL, SOCK_CLOEXEC)) >= 0;) {
        if (fd >= MAX_FDS) die("more than %d connections", MAX_FDS);
        struct connection *c = calloc(1, sizeof *c);
        if (!c) die("no memory for a connection");
        tune_socket(fd);
        *c = (struct connection){.fd = fd, .life = ++lives, .port = port, .active = -1};
        c->timer.owner = c;
        connections[fd] = c;
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
    }
}

static void on_event(const struct epoll_event *event) {
    int fd = event->data.fd;
    for (int i = 0; i < port_count; i++)
        if (ports[i].fd == fd) return accept_all(&ports[i]);
    struct connection *c = connections[fd];
    if (!c) return;
    if (event->events & EPOLLOUT) flush(c);
    if (event->events & (EPOLLIN | EPOLLHUP | EPOLLERR) && !receive(c)) close_connection(c);
}

static void run(void) {
    struct epoll_event events[512];
    for (;;) {
        struct timespec wait = {0}, *timeout = &wait;
        if (!running_count && !wheel_wait(now_ns(), &wait)) timeout = NULL;
        int n = epoll_pwait2(poller, events, 512, timeout, NULL);
        for (int i = 0; i < n; i++) on_event(&events[i]);
        wheel_turn(now_ns(), on_timer);
        for (int i = running_count - 1; i >= 0; i--) {
            struct connection *c = running[i];
            if (buffer_size(&c->out)) continue;
            step(c, c->burst);
            if (!c->busy) serve(c);
        }
    }
}

int main(int count, char **arguments) {
    int prefills = 0;
    if (count < 2) die("usage: engine p:PORT... d:PORT...");
    prctl(PR_SET_TIMERSLACK, 1);
    answers_prepare(MAX_BURST);
    poller = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 1; i < count && port_count < MAX_PORTS; i++) {
        bool prefill = arguments[i][0] == 'p';
        int fd = listen_on(atoi(arguments[i] + 2));
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        ports[port_count++] = (struct port){.fd = fd, .engine = prefill ? prefills++ : 0, .prefill = prefill};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
    }
    wheel_start(now_ns());
    run();
}
