"""nginx, HAProxy and Forebay before one backend: a process each, on a free port, as transparent as it can be.

The configurations switch off what a proxy does on top of passing on (buffering, rewriting, added fields,
hidden fields, small limits) wherever the proxy has a switch for it. Nothing of the system's own configuration is read.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

Address = tuple[str, int]
START_WITHIN: Final = 20.0  # seconds

_NGINX: Final = """\
daemon off;
pid {folder}/nginx.pid;
error_log stderr crit;
worker_processes 1;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  client_header_buffer_size 64k;
  large_client_header_buffers 8 64k;
  client_max_body_size 0;
  underscores_in_headers on;
  ignore_invalid_headers off;
  merge_slashes off;
  upstream backend {{ server 127.0.0.1:{backend}; keepalive 64; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://backend;
      proxy_http_version 1.1;
      proxy_set_header Host $host;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_request_buffering off;
      proxy_buffer_size 256k;
      proxy_buffers 8 256k;
      proxy_busy_buffers_size 512k;
      proxy_connect_timeout 1s;
      proxy_pass_header Date;
      proxy_pass_header Server;
      proxy_pass_header X-Pad;
      proxy_pass_header X-Accel-Redirect;
      proxy_pass_header X-Accel-Buffering;
      proxy_ignore_headers X-Accel-Redirect X-Accel-Expires X-Accel-Limit-Rate X-Accel-Buffering X-Accel-Charset;
    }}
  }}
}}
"""

_HAPROXY: Final = """\
global
  tune.bufsize 131072
  tune.maxrewrite 8192
  tune.http.maxhdr 2048
defaults
  mode http
  timeout connect 1s
  timeout client 60s
  timeout server 60s
  option http-keep-alive
  option http-no-delay
  http-reuse safe
  retries 1
  retry-on conn-failure empty-response
frontend front
  bind 127.0.0.1:{port}
  http-request disable-l7-retry unless METH_GET or {{ method HEAD OPTIONS }}
  default_backend back
backend back
  server one 127.0.0.1:{backend}
"""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def nginx(backend: int) -> Iterator[Address]:
    """Debian's nginx, in the foreground and as one worker."""
    with _configured("nginx.conf", _NGINX, backend) as (file, port):
        program = shutil.which("nginx", path=_path())
        with _running([str(program), "-p", str(file.parent), "-e", "stderr", "-c", str(file)], port):
            yield "127.0.0.1", port


@contextmanager
def haproxy(backend: int) -> Iterator[Address]:
    """Debian's HAProxy, in the foreground."""
    with _configured("haproxy.cfg", _HAPROXY, backend) as (file, port):
        program = shutil.which("haproxy", path=_path())
        with _running([str(program), "-q", "-db", "-f", str(file)], port):
            yield "127.0.0.1", port


@contextmanager
def forebay(backend: int) -> Iterator[Address]:
    """Forebay out of the box."""
    port = _free_port()
    listen = ("--listen", f"127.0.0.1:{port}", "--admin", "127.0.0.1:0")
    command = [sys.executable, "-m", "proxy", "serve", "--upstream", f"http://127.0.0.1:{backend}", *listen]
    with _running(command, port):
        yield "127.0.0.1", port


def version(program: str) -> str | None:
    """What an installed program says of itself, in short; None where it is not installed."""
    found = shutil.which(program, path=_path())
    if found is None:
        return None
    said = subprocess.run([found, "-v"], capture_output=True, text=True, check=False)
    number = re.search(r"\d+(\.\d+)+", said.stdout + said.stderr)
    return number[0] if number else ""


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"  # not on the path of every user


@contextmanager
def _configured(name: str, text: str, backend: int) -> Iterator[tuple[Path, int]]:
    with tempfile.TemporaryDirectory() as folder:
        file, port = Path(folder) / name, _free_port()
        file.write_text(text.format(folder=folder, backend=backend, port=port))
        yield file, port


@contextmanager
def _running(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _listens(process, port)
        yield
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _listens(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_WITHIN
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError(f"{process.args!r} does not listen; started by hand, it says why")
