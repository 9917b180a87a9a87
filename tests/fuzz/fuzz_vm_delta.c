/* A saved memory is refused or its table is sound, whatever the bytes are. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "vm/delta.h"

#define MEMORY (64u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct memory_delta_header h;
        struct memory_delta_run *runs;
        struct error err = {};
        int fd = memfd_create("delta", MFD_CLOEXEC);

        if (fd < 0 || write(fd, data, size) != (ssize_t)size)
                abort();
        if (memory_delta_read_table(fd, MEMORY, &h, &runs, &err) == 0) {
                uint64_t next = 0;

                for (uint64_t i = 0; i < h.runs; i++) {
                        if (runs[i].first < next || (runs[i].first + runs[i].count) * h.page_size > MEMORY)
                                abort();
                        next = runs[i].first + runs[i].count;
                }
                free(runs);
        }
        close(fd);
        return 0;
}
