# The operator: pdx_api, pdx_operator and what requirements/operator.lock names. `make images` builds it.
#
# The base is named by tag, because which digest stands behind it is the registry's to say; pin it where images are
# published: --build-arg BASE=docker.io/library/python:3.11-slim-bookworm@sha256:...
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS build
RUN python3 -m venv /build && python3 -m venv --without-pip /opt/pdx
COPY images/build.lock requirements/operator.lock /locks/
# The secret is optional: a pip.conf for those who reach the package index through a mirror.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    /build/bin/pip install --no-cache-dir --no-deps --require-hashes -r /locks/build.lock && \
    /build/bin/pip --python /opt/pdx/bin/python install \
        --no-cache-dir --no-compile --no-deps --only-binary :all: --require-hashes -r /locks/operator.lock
# Bytecode is compiled here because the root file system is read-only later: without it every start would compile anew.
# The Kubernetes client loads its thousand models and APIs lazily, and PDX's dynamic client needs none of them.
RUN /opt/pdx/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash \
        -x '/kubernetes/(aio/)?client/(api|models)/[^_]' /opt/pdx/lib
COPY pyproject.toml LICENSE /checkout/
COPY packaging/pypi.md /checkout/packaging/
COPY api /checkout/api
COPY operator /checkout/operator
# The wheel holds the packages that were copied. Its `pdx` and `kubectl-pdx` are the command line, which is not among them.
RUN /build/bin/pip wheel -q --no-index --no-deps --no-build-isolation --wheel-dir /wheel /checkout && \
    /build/bin/pip --python /opt/pdx/bin/python install -q --no-index --no-deps --no-compile /wheel/*.whl && \
    /opt/pdx/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/pdx/lib/python3*/site-packages/pdx_* && \
    rm /opt/pdx/bin/pdx /opt/pdx/bin/kubectl-pdx

FROM ${BASE}
# kopf asks for the user's name. pip of the base is of no use to a program that installs nothing.
RUN echo 'pdx:x:65532:65532:PDX:/tmp:/usr/sbin/nologin' >> /etc/passwd && echo 'pdx:x:65532:' >> /etc/group && \
    rm -rf /usr/local/lib/python3*/site-packages/* /usr/local/lib/python3*/ensurepip /usr/local/bin/pip* /usr/local/bin/wheel
COPY --from=build /opt/pdx /opt/pdx
ENV PATH=/opt/pdx/bin:/usr/local/bin:/usr/bin:/bin HOME=/tmp PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1
# The base may hold its standard library without bytecode: one start writes what a start needs.
RUN python -m pdx_operator --help > /dev/null
USER 65532:65532
ENTRYPOINT ["/opt/pdx/bin/python", "-m", "pdx_operator"]
# Version and revision are added by whoever builds.
LABEL org.opencontainers.image.title="pdx-operator" \
      org.opencontainers.image.description="Operator of PDX: turns PDDeployments into vLLM engines and their gateway" \
      org.opencontainers.image.licenses="Apache-2.0"
