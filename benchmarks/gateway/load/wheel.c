#include "wheel.h"

#include <stddef.h>

enum { SLOTS = 16384, SLOT_NS = 100000, LOOK_AHEAD = 50 };

static struct timer *slots[SLOTS];
static uint64_t turned; /* slots up to here have been run */
static int set;

void wheel_start(uint64_t now) { turned = now / SLOT_NS; }

void wheel_add(struct timer *timer, uint64_t due) {
    uint64_t slot = due / SLOT_NS;
    if (slot <= turned) slot = turned + 1;
    if (slot >= turned + SLOTS) slot = turned + SLOTS - 1;
    struct timer **head = &slots[slot % SLOTS];
    *timer = (struct timer){*head, head, due, timer->owner};
    if (*head) (*head)->link = &timer->next;
    *head = timer;
    set++;
}

void wheel_remove(struct timer *timer) {
    if (!timer->link) return;
    *timer->link = timer->next;
    if (timer->next) timer->next->link = timer->link;
    timer->link = NULL;
    timer->next = NULL;
    set--;
}

bool wheel_wait(uint64_t now, struct timespec *wait) {
    uint64_t slot = turned + 1;
    if (!set) return false;
    while (slot < turned + LOOK_AHEAD && !slots[slot % SLOTS]) slot++;
    uint64_t at = (slot + 1) * SLOT_NS;
    *wait = (struct timespec){0, at > now ? (long)(at - now) : 0};
    return true;
}

void wheel_turn(uint64_t now, void (*run)(struct timer *)) {
    uint64_t target = now / SLOT_NS;
    target = target ? target - 1 : 0; /* a slot is due when its last instant has passed */
    while (turned < target) {
        struct timer **head = &slots[++turned % SLOTS];
        for (struct timer *timer; set && (timer = *head);) {
            wheel_remove(timer);
            run(timer);
        }
    }
}
