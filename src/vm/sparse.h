/* Files with holes. */
#pragma once

#include <stdint.h>

#include "base/error.h"

/* Makes holes of the runs of zero pages in the data of `fd` (open for writing), so that they take no room on the disk. What
 * reads as zeros still does. `ret_bytes` (may be NULL) gets how many bytes were punched. A file system without holes is
 * no error. ERROR_INTERNAL with the errno's text otherwise. */
int sparse_punch_zeros(int fd, uint64_t *ret_bytes, struct error *err);
