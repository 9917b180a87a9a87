/* Makes services on the guest's loopback reachable from outside (envd.md 5.5). Loop thread only. */
#pragma once

/* Scans once a second from now on. */
void forward_start(void);
