#include "ledger.h"

#include "wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BASE_PORT = 5600, BLOCKS = 30000 };
enum ticket_state { FINISHED = 1, FETCHED = 2 };

struct ticket {
    uint8_t state, engine;
};

struct counts counts;
static char first[128], last[128];
static struct ticket *tickets;
static uint64_t issued, capacity;

bool violation(const char *text) {
    counts.violations++;
    snprintf(last, sizeof last, "%s", text);
    if (!*first) snprintf(first, sizeof first, "%s", text);
    return false;
}

const char *first_violation(void) { return first; }
const char *last_violation(void) { return last; }

bool ledger_check_prefill(struct span body) {
    struct span value = json_value(body, "\"stream\"");
    if (value.data && !json_is(value, "false")) return violation("a prefill leg streams");
    if (!json_has(body, "\"max_tokens\"", "1")) return violation("a prefill leg asks for more than one token");
    value = json_value(body, "\"max_completion_tokens\"");
    if (value.data && !json_is(value, "1")) return violation("max_completion_tokens of a prefill leg is not 1");
    if (json_value(body, "\"stream_options\"").data) return violation("stream_options without stream");
    if (json_count(body, "\"kv_transfer_params\"") != 1)
        return violation("a prefill leg without one kv_transfer_params");
    struct span params = json_object(json_value(body, "\"kv_transfer_params\""));
    if (!json_has(params, "\"do_remote_decode\"", "true") || json_has(params, "\"do_remote_prefill\"", "true"))
        return violation("a prefill leg does not say do_remote_decode");
    return true;
}

int ledger_finish_prefill(int engine, char *out, size_t size) {
    if (issued == capacity) {
        capacity = capacity ? 2 * capacity : 1 << 20;
        tickets = realloc(tickets, capacity * sizeof *tickets);
        if (!tickets) die("no memory for %" PRIu64 " tickets", capacity);
    }
    uint64_t number = issued++;
    int block = (int)(number % BLOCKS);
    tickets[number] = (struct ticket){FINISHED, (uint8_t)engine};
    counts.prefills_finished++;
    return snprintf(out, size,
                    "{\"do_remote_prefill\":true,\"do_remote_decode\":false,\"remote_block_ids\":[[%d,%d,%d,%d]],"
                    "\"remote_engine_id\":\"bench-engine-%d\",\"remote_request_id\":\"cmpl-bench-%016" PRIx64 "\","
                    "\"remote_host\":\"127.0.0.1\",\"remote_port\":%d,\"tp_size\":1,\"dcp_size\":1,\"pp_size\":1,"
                    "\"remote_num_tokens\":1000,\"transfer_mode\":\"pull\",\"remote_prefill_cached_tokens\":0}",
                    block, block + 1, block + 2, block + 3, engine, number, BASE_PORT + engine);
}

static bool same_blocks(struct span value, int block) {
    int found[4] = {0};
    char text[64];
    size_t size = value.size < sizeof text - 1 ? value.size : sizeof text - 1, kept = 0;
    for (size_t i = 0; i < size; i++)
        if (value.data[i] > ' ') text[kept++] = value.data[i];
    text[kept] = 0;
    if (sscanf(text, "[[%d,%d,%d,%d]]", found, found + 1, found + 2, found + 3) != 4) return false;
    return found[0] == block && found[1] == block + 1 && found[2] == block + 2 && found[3] == block + 3;
}

bool ledger_check_decode(struct span body) {
    static const char PREFIX[] = "\"cmpl-bench-";
    char literal[48];
    if (json_count(body, "\"kv_transfer_params\"") != 1) return violation("kv_transfer_params twice");
    struct span params = json_object(json_value(body, "\"kv_transfer_params\""));
    struct span id = json_value(params, "\"remote_request_id\"");
    if (!json_has(params, "\"do_remote_prefill\"", "true")) return violation("a decode leg without do_remote_prefill");
    if (!id.data || id.size < sizeof PREFIX + 17 || memcmp(id.data, PREFIX, sizeof PREFIX - 1))
        return violation("a decode leg without a remote_request_id of ours");
    uint64_t number = strtoull(id.data + sizeof PREFIX - 1, NULL, 16);
    if (number >= issued) return violation("a decode leg for a prefill that never finished");
    struct ticket *ticket = &tickets[number];
    if (ticket->state != FINISHED) return violation("a decode leg for a prefill that was fetched before");
    snprintf(literal, sizeof literal, "\"bench-engine-%d\"", ticket->engine);
    if (!json_has(params, "\"remote_engine_id\"", literal)) return violation("another remote_engine_id");
    snprintf(literal, sizeof literal, "%d", BASE_PORT + ticket->engine);
    if (!json_has(params, "\"remote_port\"", literal)) return violation("another remote_port");
    if (!json_has(params, "\"remote_host\"", "\"127.0.0.1\"")) return violation("another remote_host");
    if (!json_has(params, "\"tp_size\"", "1")) return violation("another tp_size");
    if (!same_blocks(json_value(params, "\"remote_block_ids\""), (int)(number % BLOCKS)))
        return violation("other remote_block_ids");
    ticket->state = FETCHED;
    counts.prefills_fetched++;
    return true;
}

/* Rooms: chains of those that one leg has entered. */
struct room {
    uint64_t number;
    struct waiter waiter; /* fd -1: it is P that came first */
    struct room *next;
};
enum { BUCKETS = 65536 };
static struct room *rooms[BUCKETS];

static struct room **room_place(uint64_t number) {
    struct room **place = &rooms[(number * 0x9E3779B97F4A7C15u) >> 48];
    while (*place && (*place)->number != number) place = &(*place)->next;
    return place;
}

static void room_enter(struct room **place, uint64_t number, struct waiter waiter) {
    struct room *room = malloc(sizeof *room);
    if (!room) die("no memory for a room");
    *room = (struct room){number, waiter, NULL};
    *place = room;
    counts.rooms_opened++;
}

static struct waiter room_leave(struct room **place) {
    struct room *room = *place;
    struct waiter waiter = room->waiter;
    *place = room->next;
    free(room);
    counts.rooms_paired++;
    return waiter;
}

bool room_prefill(uint64_t number, struct waiter *waiting) {
    struct room **place = room_place(number);
    if (*place) {
        if ((*place)->waiter.fd < 0) return violation("a room was prefilled twice");
        *waiting = room_leave(place);
        return true;
    }
    room_enter(place, number, (struct waiter){-1, 0});
    return false;
}

bool room_decode(uint64_t number, struct waiter waiter) {
    struct room **place = room_place(number);
    if (*place && (*place)->waiter.fd < 0) {
        room_leave(place);
        return true;
    }
    if (*place) return violation("a room was decoded twice");
    room_enter(place, number, waiter);
    return false;
}
