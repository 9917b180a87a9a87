/* The two services: tables that end with a NULL path. */
#pragma once

#include "rpc.h"

extern const struct rpc_method process_methods[];
extern const struct rpc_method filesystem_methods[];
