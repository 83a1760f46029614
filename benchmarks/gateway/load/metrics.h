/* An engine's metrics page, with the names of vLLM 0.32 (v1/metrics/loggers.py), true numbers, and the size of a real
 * page. */
#ifndef METRICS_H
#define METRICS_H

#include "wire.h"

#include <stdint.h>

struct load {
    uint64_t running;  /* requests whose answer has not ended */
    uint64_t finished; /* answers that have ended */
    uint64_t prompt_tokens, generated_tokens;
    uint64_t busy_ns; /* the sum of the times from a request to the end of its answer */
};

/* Append an HTTP answer with the page. */
void metrics_answer(struct buffer *out, const struct load *load);

#endif
