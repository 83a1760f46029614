/* Durations counted in buckets of less than half a percent's width. */
#ifndef HISTOGRAM_H
#define HISTOGRAM_H

#include <stdint.h>

enum { HISTOGRAM_BITS = 8, HISTOGRAM_BUCKETS = (64 - HISTOGRAM_BITS + 1) << HISTOGRAM_BITS };

struct histogram {
    uint64_t total, buckets[HISTOGRAM_BUCKETS];
};

void histogram_add(struct histogram *h, uint64_t ns, uint64_t times);
/* The duration that a share (0..1) of all do not exceed, in microseconds; 0 when there is none. */
double histogram_us(const struct histogram *h, double share);

#endif
