"""The smallest engine that a daemon can start with ``engine: command``: answers after ``--start`` seconds, at once from then on."""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event

ANSWER = {
    "id": "x",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


class Handler(BaseHTTPRequestHandler):
    """Health and chat."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:  # the name is http.server's
        """GET /health."""
        self._send(b"{}")

    def do_POST(self) -> None:
        """A chat request."""
        self.rfile.read(int(self.headers.get("content-length", "0")))
        self._send(json.dumps(ANSWER).encode())

    def log_message(self, *_args: object) -> None:
        """Nothing."""


def main() -> None:
    """Listen after the given delay."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--start", type=float, default=0.0)
    args = parser.parse_args()
    Event().wait(args.start)  # the work of a start that takes so long
    ThreadingHTTPServer(("127.0.0.1", args.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
