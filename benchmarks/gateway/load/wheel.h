/* A timing wheel: timers of up to a second and a half, in slots of 100 microseconds. */
#ifndef WHEEL_H
#define WHEEL_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

struct timer {
    struct timer *next, **link; /* link NULL: not set */
    uint64_t due;               /* ns */
    void *owner;
};

void wheel_start(uint64_t now);
/* Set a timer that is not set. */
void wheel_add(struct timer *timer, uint64_t due);
/* Unset a timer, if it is set. */
void wheel_remove(struct timer *timer);
/* How long to wait at most; false when no timer is set. */
bool wheel_wait(uint64_t now, struct timespec *wait);
/* Run the timers that are due. */
void wheel_turn(uint64_t now, void (*run)(struct timer *));

#endif
