# jetstream-server, with the `jetstream` command line and a nats-server for --dev. It takes its
# configuration from /etc/jetstream/cluster.yaml and keeps its data in /data:
#
#     docker build -t jetstream-log .
#     docker compose up          (docker-compose.yml: three nodes and NATS)

FROM python:3.11-slim AS build
# The compiler builds the hot path of ingest; the image itself has none.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv --without-pip /opt/jetstream && python -m venv /opt/build
WORKDIR /build
# What is installed is pinned, with hashes: scripts/lock.
COPY ops/image ops/image
RUN /opt/build/bin/pip install --no-cache-dir --require-hashes --no-deps --requirement ops/image/build.txt \
    && /opt/build/bin/pip --python /opt/jetstream install --no-cache-dir --no-compile \
        --require-hashes --no-deps --requirement ops/image/server.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY proto proto
COPY src src
# Without debugging symbols the image is half as large.
RUN JETSTREAM_REQUIRE_COMPILED=1 \
    /opt/build/bin/pip wheel --no-build-isolation --no-deps --wheel-dir wheels . \
    && /opt/build/bin/pip --python /opt/jetstream install --no-cache-dir --no-compile --no-index \
        --no-deps wheels/*.whl \
    && /opt/build/bin/pip --python /opt/jetstream check \
    && find /opt/jetstream -name '*.so*' -exec strip --strip-unneeded {} + \
    && /opt/jetstream/bin/python -m compileall -q /opt/jetstream/lib

FROM python:3.11-slim
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin jetstream \
    && install -d -o jetstream -g jetstream -m 0750 /data
COPY --from=build /opt/jetstream /opt/jetstream
ENV PATH=/opt/jetstream/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    JETSTREAM_DATA=/data \
    HEALTH_URL=http://127.0.0.1:9295/healthz
USER jetstream
VOLUME /data
EXPOSE 9292 9293 9294 9295
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(os.environ['HEALTH_URL'], timeout=2)"]
# SIGTERM drains: leaderships are handed over, logs are flushed.
STOPSIGNAL SIGTERM
ENTRYPOINT ["jetstream-server"]
CMD ["--config", "/etc/jetstream/cluster.yaml"]
