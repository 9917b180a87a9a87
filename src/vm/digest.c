#include "vm/digest.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/str.h"

#define SHA256_LEN 32

struct digest {
        EVP_MD_CTX *whole, *chunk;
        char *buffer;                      /* of one chunk */
        unsigned char zeros[SHA256_LEN];   /* of a chunk of zeros */
        bool have_zeros;
};

static void chunk_digest(struct digest *d, const void *data, size_t len, unsigned char *ret)
{
        EVP_DigestInit_ex(d->chunk, EVP_sha256(), NULL);
        EVP_DigestUpdate(d->chunk, data, len);
        EVP_DigestFinal_ex(d->chunk, ret, NULL);
}

static int read_chunk(int fd, char *to, size_t len, off_t at)
{
        while (len) {
                ssize_t n = pread(fd, to, len, at);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        return n < 0 ? -errno : -EIO;
                to += n;
                at += n;
                len -= (size_t)n;
        }
        return 0;
}

static int add_data(struct digest *d, int fd, off_t at, size_t len)
{
        unsigned char one[SHA256_LEN];
        int r = read_chunk(fd, d->buffer, len, at);

        if (r < 0)
                return r;
        chunk_digest(d, d->buffer, len, one);
        EVP_DigestUpdate(d->whole, one, sizeof(one));
        return 0;
}

static void add_hole(struct digest *d)
{
        if (!d->have_zeros) {
                memset(d->buffer, 0, DIGEST_CHUNK);
                chunk_digest(d, d->buffer, DIGEST_CHUNK, d->zeros);
                d->have_zeros = true;
        }
        EVP_DigestUpdate(d->whole, d->zeros, sizeof(d->zeros));
}

/* Where the next data at or behind `at` begins; the size when there is none. */
static off_t next_data(int fd, off_t at, off_t size)
{
        off_t data = lseek(fd, at, SEEK_DATA);

        if (data < 0)
                return errno == ENXIO ? size : -errno;
        return data < size ? data : size;
}

static int add_chunks(struct digest *d, int fd, off_t size)
{
        off_t data = -1;

        for (off_t at = 0; at < size; at += DIGEST_CHUNK) {
                size_t len = size - at < (off_t)DIGEST_CHUNK ? (size_t)(size - at) : DIGEST_CHUNK;
                int r = 0;

                if (data < at)
                        data = next_data(fd, at, size);
                if (data < 0)
                        return (int)data;
                if (len == DIGEST_CHUNK && data >= at + (off_t)DIGEST_CHUNK)
                        add_hole(d);
                else
                        r = add_data(d, fd, at, len);
                if (r < 0)
                        return r;
        }
        return 0;
}

int digest_file(int fd, uint64_t *ret_size, char *ret_hex)
{
        struct digest d = {.whole = EVP_MD_CTX_new(), .chunk = EVP_MD_CTX_new(), .buffer = xmalloc(DIGEST_CHUNK)};
        unsigned char sum[SHA256_LEN];
        struct stat st;
        int r;

        EVP_DigestInit_ex(d.whole, EVP_sha256(), NULL);
        r = fstat(fd, &st) < 0 ? -errno : add_chunks(&d, fd, st.st_size);
        if (r == 0) {
                EVP_DigestFinal_ex(d.whole, sum, NULL);
                hex_encode(sum, sizeof(sum), ret_hex);
                *ret_size = (uint64_t)st.st_size;
        }
        EVP_MD_CTX_free(d.whole);
        EVP_MD_CTX_free(d.chunk);
        free(d.buffer);
        return r;
}
