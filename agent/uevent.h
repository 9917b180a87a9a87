/* The kernel's word that a device came, went or changed: what a wait for one has in place of udev. */
#pragma once

/* A descriptor that hears the kernel's uevents from now on; open it before looking for the device. -1 when the kernel
 * refuses it, with which uevent_wait() just waits. The caller closes it. */
int uevent_open(void);

/* Returns after an event (all that are queued are taken) or `timeout_ms`. Look for the device again either way. */
void uevent_wait(int fd, unsigned timeout_ms);
