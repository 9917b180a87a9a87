/* Two TCP streams, joined: what one sends, the other gets, in both directions and at the speed of the slower one. Each direction ends by itself (a FIN
 * is passed on); both are closed when both have ended, or at an error of either. One loop's thread only.
 */
#pragma once

#include <stddef.h>
#include <uv.h>

#define RELAY_CHUNK 65536

struct relay;

enum relay_side_index { RELAY_FROM, RELAY_TO };

/* Two streams of `loop`, initialised and not connected: the caller accepts or connects them, then calls relay_start(); until then their reads are his.
 * `on_end` (may be NULL) comes once, when both are closed; the relay is freed after it. */
struct relay *relay_new(uv_loop_t *loop, void (*on_end)(void *data), void *data);

uv_tcp_t *relay_stream(struct relay *r, enum relay_side_index side);
/* The `data` of relay_new(), from one of its streams. */
void *relay_data(const uv_stream_t *stream);
/* RELAY_CHUNK bytes, free to use until relay_start(). */
char *relay_buffer(struct relay *r);

/* Both are connected. The first `len` bytes of relay_buffer() have been read from RELAY_FROM already and go to RELAY_TO first. */
void relay_start(struct relay *r, size_t len);

/* Closes both; further calls do nothing. */
void relay_close(struct relay *r);
/* Closes both, RELAY_FROM with a reset: its peer sees that he was refused. */
void relay_reset(struct relay *r);
