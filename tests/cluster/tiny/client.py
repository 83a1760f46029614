"""Runs in the client's pod: sends requests to the gateway, with only Python's own library. Prints JSON lines.

client.py send URL BODY                  one request; prints status, seconds and answer
client.py steady URL BODY FILE SECONDS   a request every so many seconds until FILE exists; prints the result of each
"""

import http.client
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

_PATIENCE_SECONDS = 300.0


def send(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send one request; the status is 0 without a complete answer."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
    began = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE_SECONDS) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    except (OSError, http.client.HTTPException) as error:
        status, text = 0, repr(error)
    return {"status": status, "seconds": round(time.monotonic() - began, 3), "text": text}


def steady(url: str, body: dict[str, Any], stop: Path, every: float) -> None:
    """Send a request every `every` seconds, each with another prompt, without waiting for answers."""
    threads: list[threading.Thread] = []
    while not stop.exists():
        number = len(threads)
        content = {**body, "prompt": f"{number} {body['prompt']}"}
        threads.append(threading.Thread(target=_send_and_print, args=(number, url, content)))
        threads[-1].start()
        time.sleep(every)
    for thread in threads:
        thread.join()


def _send_and_print(number: int, url: str, body: dict[str, Any]) -> None:
    answer = send(url, body)
    if answer["status"] == 200:
        answer["text"] = ""
    sys.stdout.write(json.dumps({"number": number, "at": round(time.time(), 1), **answer}) + "\n")
    sys.stdout.flush()


def _main(arguments: list[str]) -> None:
    if arguments[0] == "send":
        body = json.loads(arguments[2]) if len(arguments) > 2 else None
        sys.stdout.write(json.dumps(send(arguments[1], body)) + "\n")
    else:
        steady(arguments[1], json.loads(arguments[2]), Path(arguments[3]), float(arguments[4]))


if __name__ == "__main__":
    _main(sys.argv[1:])
