/* What has happened between the engines: tickets of finished prefills (vLLM), rooms (SGLang), counts, violations. */
#ifndef LEDGER_H
#define LEDGER_H

#include "json.h"

#include <stdint.h>

struct counts {
    uint64_t prefill_requests, decode_requests;
    uint64_t prefills_finished; /* vLLM's protocol: parameters were given out */
    uint64_t prefills_fetched;  /* of these, how many a decode leg has taken */
    uint64_t decodes_alone;     /* decode legs without parameters: legal, but not disaggregated */
    uint64_t rooms_opened, rooms_paired;
    uint64_t left;       /* connections closed in the middle of an answer */
    uint64_t violations; /* of the protocol: answered 400 */
    uint64_t pages;      /* GETs of anything but /counts */
};

extern struct counts counts;

/* Count a violation and remember it; returns false, so that a check can end with it. */
bool violation(const char *text);
/* What the first violation was, and the last; empty when there was none. */
const char *first_violation(void);
const char *last_violation(void);

/* Whether a prefill leg is as vLLM wants it. */
bool ledger_check_prefill(struct span body);
/* A finished prefill of an engine: writes its kv_transfer_params into `out`, returns their length. */
int ledger_finish_prefill(int engine, char *out, size_t size);
/* Whether a decode leg's parameters are those of a prefill that finished and was not fetched before. */
bool ledger_check_decode(struct span body);

/* A waiting decode leg: the connection and which life of it. */
struct waiter {
    int fd;
    unsigned life;
};
/* P's leg of a room has come: true and the waiter when D was there already. */
bool room_prefill(uint64_t room, struct waiter *waiting);
/* D's leg of a room has come: true when P was there already, else it waits. */
bool room_decode(uint64_t room, struct waiter waiter);

#endif
