/* The agent's one loop: calls into it from other threads, and timers that own their memory. */
#pragma once

#include <stdint.h>
#include <uv.h>

extern uv_loop_t *agent_loop;

/* Prepares the loop; on the loop thread, once. */
void loop_init(void);

/* Runs `fn` on the loop thread and returns when it has returned. From any other thread. */
void loop_call(void (*fn)(void *data), void *data);

struct timer;
/* Calls `fn` after `delay_ms`, then every `repeat_ms` unless 0. Loop thread only. */
struct timer *timer_start(uint64_t delay_ms, uint64_t repeat_ms, void (*fn)(void *data), void *data);
/* Counts from now again, with the same period (needs repeat_ms). */
void timer_again(struct timer *t);
/* Stops and frees; returns NULL; NULL is fine. */
struct timer *timer_free(struct timer *t);
