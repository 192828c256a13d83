"""Whether the node lives, whether it can serve, and its metrics."""

from __future__ import annotations

from litestar import Controller, Response, get

from gateway.http.documentation import answer
from gateway.http.ports import Ports
from gateway.http.schemas import Health, Readiness

# The framework adds the charset.
PROMETHEUS_TEXT = "text/plain; version=0.0.4"


class HealthRoutes(Controller):
    path = "/"
    tags = ("health",)

    @get("/healthz", summary="Is the process alive?")
    async def healthz(self) -> Health:
        """Says nothing about the store: restarting a node does not mend one."""
        return Health()

    @get(
        "/readyz",
        summary="Can the node serve?",
        responses={503: answer(Readiness, "Not now, and why.")},
    )
    async def readyz(self, ports: Ports) -> Response[Readiness]:
        reasons = ports.readiness()
        if not reasons:
            return Response(Readiness(ready=True))
        return Response(Readiness(ready=False, reason="; ".join(reasons), reasons=reasons), status_code=503)

    @get("/metrics", summary="Metrics for Prometheus", media_type=PROMETHEUS_TEXT)
    async def metrics(self, ports: Ports) -> bytes:
        return ports.metrics()
