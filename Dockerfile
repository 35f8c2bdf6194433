# Forebay in a container: `docker build -t forebay .`, then docs/deploy.md.
# Runs as nobody in particular, writes to no file: start it with --read-only --cap-drop=ALL.

FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY proxy/ proxy/
# An environment without pip: the image's own pip fills it from outside, and stays behind with this stage.
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /dist . \
 && python -m venv --without-pip /opt/forebay \
 && python -m pip --python /opt/forebay/bin/python install --no-cache-dir /dist/*.whl

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="Forebay" \
      org.opencontainers.image.description="Reverse-proxy sidecar for model servers" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN python -m pip uninstall --yes --quiet pip setuptools wheel
COPY --from=build /opt/forebay /opt/forebay
COPY config/container.yaml /etc/forebay/forebay.yaml
ENV PATH=/opt/forebay/bin:$PATH
# A first run while files can still be written: it proves that all is there and leaves the compiled modules,
# which the base image lacks and a read-only file system would make Python compile again at every start.
RUN forebay check /etc/forebay/forebay.yaml \
 && python -c "import proxy.sidecar"
USER 65532:65532
EXPOSE 8080 9901
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["forebay", "health"]
ENTRYPOINT ["forebay"]
CMD ["serve", "--config", "/etc/forebay/forebay.yaml"]
