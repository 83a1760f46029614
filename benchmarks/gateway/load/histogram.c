#include "histogram.h"

enum { SUB = 1 << HISTOGRAM_BITS };

static int bucket_of(uint64_t ns) {
    if (ns < 2 * SUB) return (int)ns;
    int shift = 63 - __builtin_clzll(ns) - HISTOGRAM_BITS;
    return (shift << HISTOGRAM_BITS) + (int)(ns >> shift);
}

static double middle_of(int bucket) {
    if (bucket < 2 * SUB) return bucket;
    int shift = (bucket >> HISTOGRAM_BITS) - 1;
    return ((double)(bucket - (shift << HISTOGRAM_BITS)) + 0.5) * (double)(1ull << shift);
}

void histogram_add(struct histogram *h, uint64_t ns, uint64_t times) {
    h->total += times;
    h->buckets[bucket_of(ns)] += times;
}

double histogram_us(const struct histogram *h, double share) {
    uint64_t seen = 0, wanted = (uint64_t)(share * (double)h->total);
    if (!h->total) return 0;
    for (int i = 0; i < HISTOGRAM_BUCKETS; i++) {
        seen += h->buckets[i];
        if (seen > wanted || seen == h->total) return middle_of(i) / 1000;
    }
    return 0;
}
