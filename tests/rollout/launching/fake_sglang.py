"""Stands for a SGLang server where only its processes, ports and health matter; it starts in a moment."""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import socket
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
for name in (
    "--model-path",
    "--host",
    "--served-model-name",
    "--tokenizer-path",
    "--mark",
    "--bad",
    "--until",
    "--sick",
):
    parser.add_argument(name)
for name in ("--port", "--nccl-port", "--status"):
    parser.add_argument(name, type=int)
given = parser.parse_args()


class Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b""
        if self.path == "/model_info":
            told = {"model_path": given.model_path, "served_model_name": given.served_model_name}
            body = json.dumps({**told, "tokenizer_path": given.tokenizer_path or given.model_path}).encode()
        sick = given.sick and Path(given.sick).exists()
        self.send_response(200 if body else 503 if sick else given.status or 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def litter() -> list[mmap.mmap]:
    """What a killed server leaves behind: shared memory, a socket, and a process of another session that uses both.

    One file gets its name once it is mapped, as the C library does with semaphores.
    """
    early, late, moment = (Path(f"/dev/shm/stacx-fake-{given.mark}-{os.getpid()}{end}") for end in ("", "s", "m"))
    early.write_bytes(bytes(4096))
    moment.write_bytes(bytes(32))
    mapped = [map_file(early), map_file(moment)]
    late.hardlink_to(moment)
    moment.unlink()
    socket.socket(socket.AF_UNIX).bind(tempfile.mktemp())
    if os.fork() == 0:
        os.setsid()
        time.sleep(1000)
    return mapped


def map_file(path: Path) -> mmap.mmap:
    """All of it."""
    with path.open("r+b") as stream:
        return mmap.mmap(stream.fileno(), 0)


if given.bad == "1":
    print(f"no such model: {given.model_path}", flush=True)
    sys.exit(3)
if given.until is not None:
    while not Path(given.until).exists():
        time.sleep(0.02)
kept = litter() if given.mark else None
try:
    group = socket.create_server(("", given.nccl_port)) if given.nccl_port else None
    server = ThreadingHTTPServer((given.host, given.port), Pages)
except OSError as error:
    print(f"ERROR: [Errno 98] error while attempting to bind: {error}", flush=True)
    time.sleep(1000)
with contextlib.suppress(KeyboardInterrupt):
    server.serve_forever()
