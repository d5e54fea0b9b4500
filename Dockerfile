# Two images: `product` for all processes but one, and `reports`, the same with
# Spark and Java, for the worker of that queue. compose.yaml puts them together.
# Both hold the clients of all kinds of brokers.
# Linters check this file (`make check`); it has not been built yet. Tell us how it went.

FROM python:3.13-slim AS packages
RUN python -m venv --without-pip /opt/venv
COPY requirements.txt /tmp/
RUN pip --python /opt/venv/bin/python install --no-cache-dir \
    --require-hashes --only-binary :all: -r /tmp/requirements.txt
COPY apps/brokers/requirements /tmp/brokers/
RUN for pins in /tmp/brokers/*.txt; do \
        pip --python /opt/venv/bin/python install --no-cache-dir \
        --require-hashes --only-binary :all: -r "$pins" || exit 1; \
    done


FROM packages AS packages-of-reports
COPY poisonweb/embedded/requirements/build.txt spark/requirements.txt /tmp/spark/
# There is no wheel of pyspark. It is built with what is pinned, not with the newest.
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir \
    --require-hashes --only-binary :all: -r /tmp/spark/build.txt \
    && /opt/build/bin/pip wheel --no-cache-dir --no-build-isolation --wheel-dir /tmp/wheels \
    --require-hashes --only-binary :all: --no-binary pyspark -r /tmp/spark/requirements.txt \
    && pip --python /opt/venv/bin/python install --no-cache-dir \
    --no-index --no-deps /tmp/wheels/*.whl


FROM python:3.13-slim AS tree
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin poisonweb \
    && install --directory --owner=poisonweb --mode=0700 /var/lib/poisonweb
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/app/sdk:/app/sdk/conformance:/app/sdk/for_django \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    POISONWEB_VAR=/var/lib/poisonweb
WORKDIR /app
COPY . .
USER 10001


FROM tree AS reports
COPY --from=packages-of-reports /opt/venv /opt/venv
CMD ["celery", "-A", "poisonweb", "worker", "--queues", "reports", "--concurrency", "1"]


FROM tree AS product
COPY --from=packages /opt/venv /opt/venv
EXPOSE 8000
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
CMD ["python", "-m", "poisonweb.web", "--host", "0.0.0.0", "--port", "8000"]
