/* systemd's readiness protocol (sd_notify(3)) without its library: one datagram to $NOTIFY_SOCKET. */
#pragma once

/* Sends `state`, such as "READY=1"; nothing happens when the program was not started by systemd. 0 or -errno. */
int service_notify(const char *state);
