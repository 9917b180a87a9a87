/* GET /health, without authentication (sandbox-api 20). */
#pragma once

#include "api/api.h"

void api_health_routes(struct api *a);
