/* Taking an image into the cache without a registry. */
#pragma once

#include "oci/oci.h"

/* Imports the image for `machine` from an OCI layout directory, a tar of one, or a `docker save` archive, and records it
 * under `name`, or under the name that it carries itself when NULL (ERROR_INVALID when it has none). From then on
 * oci_resolve() of that name answers from the cache. Blobs are verified as they are copied. */
int oci_import(const struct oci_options *o, const char *path, const char *name, const char *machine,
               struct oci_image *ret, struct error *err);
