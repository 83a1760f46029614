"""The kinds of requests that vLLM answers with 500 (docs/requests-at-fault.md), read by vLLM's own classes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.component.bad_requests import KINDS

PAGE: Final = Path(__file__).parents[2] / "docs/requests-at-fault.md"
_READ: Final = """
import json, sys, traceback
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import construct_input_messages
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
def read(path, body):
    if path == "/v1/responses":
        items = ResponsesRequest.model_validate(body).input
        construct_input_messages(request_instructions=None, request_input=items)
    else:
        (ChatCompletionRequest if "chat" in path else CompletionRequest).model_validate(body)

for path, body in json.load(sys.stdin):
    try:
        read(path, body)
        print(json.dumps([200, "", ""]))
    except Exception as error:
        answer = create_error_response(error).error
        last = [each for each in traceback.extract_tb(error.__traceback__) if "/entrypoints/" in each.filename][-1]
        line = f"{last.filename.rpartition('/entrypoints/')[2]}:{last.lineno}"
        print(json.dumps([answer.code, answer.message, line]))
"""


def test_vllm_answers_500_to_each_kind() -> None:
    """With the message and at the line that the page shows. The simulated engines have the same messages."""
    bodies = json.dumps([(path, body) for path, body, _ in KINDS.values()])
    run = subprocess.run([sys.executable, "-c", _READ], input=bodies, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("[")]
    assert [(code, message) for code, message, _ in found] == [(500, message) for _, _, message in KINDS.values()]
    page = PAGE.read_text()
    assert all(line in page for _, _, line in found), found
