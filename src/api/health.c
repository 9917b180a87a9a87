/* Tells load balancers and scripts that the server answers. */
#include "api/health.h"

#include "base/mem.h"

static int health(void *data, struct api_request *q, struct api_response *p, struct error *err)
{
        (void)data, (void)q, (void)err;
        p->status = 200;
        p->text = xstrdup("Health check successful");
        p->content_type = "text/plain; charset=utf-8";
        return 0;
}

void api_health_routes(struct api *a)
{
        static const struct api_route route = { "GET", "/health", API_AUTH_NONE, 0, health, NULL, NULL };
        api_add_routes(a, &route, 1);
}
