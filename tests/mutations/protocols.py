"""Mutations of what is read and written."""

from typing import Final

from tests.mutations.mutation import Mutation

_SUPERVISION: Final = "component/process/test_supervision.py::test_"
_SLOW: Final = "component/http/test_slow_peers.py::test_"
_EVENTS: Final = "component/http/test_event_streams.py::test_"
_ROW: Final = "component/handoff/test_failures.py::test_row"

MUTATIONS: Final = (
    Mutation(
        "an error event is an answer",
        "payload/first_event.py",
        "if event.find(b'\"error\"') >= 0:",
        "if False:",
        f"{_ROW}[decode-load-fails-event-Concurrent-stream-Retry]",
    ),
    Mutation(
        "a silent engine has no deadline",
        "http/upstream/deadline.py",
        "return self._unchanged >= _CHECKS or progress.complete",
        "return progress.complete",
        f"{_ROW}[stream-hangs-PrefillFirst-stream-Retry]",
    ),
    Mutation(
        "the whole request has no deadline",
        "http/upstream/deadline.py",
        "expires if expires < deadline else deadline",
        "expires",
        f"{_ROW}[decode-expires-Concurrent-whole-Retry]",
    ),
    Mutation(
        "arrays and objects are not counted",
        "payload/json_scanner.py",
        "if self._brackets > MAX_BRACKETS:",
        "if False:",
        "component/http/test_large_bodies.py::test_hostile_large_bodies[fast]",
    ),
    Mutation(
        "a request that vLLM refuses is split",
        "payload/decisions.py",
        "if value is REFUSED:",
        "if False:",
        "component/http/test_large_bodies.py::test_what_vllm_refuses_goes_whole_to_one_engine",
    ),
    Mutation(
        "a declared body holds its bytes",
        "http/downstream/http1.py",
        "self._count_arrived(self.size - self._missing)",
        "self._count_arrived(self.size)",
        "component/admission/test_limits.py::test_a_body_that_does_not_come_holds_nothing",
    ),
    Mutation(
        "the accept queue is reset at the end",
        "http/downstream/listener.py",
        "lambda: not has_backlog(sock),",
        "lambda: True,",
        f"{_SUPERVISION}connections_in_the_backlog_are_served",
    ),
    Mutation(
        "a client that accepts nothing stays",
        "http/downstream/transport.py",
        "if left or progress.stalled_seconds(waiting, accepted, now) >= send_seconds:",
        "if left:",
        f"{_SLOW}a_client_that_reads_nothing_is_cut[stream-fast]",
    ),
    Mutation(
        "a connection that closes waits for its client",
        "http/downstream/transport.py",
        "    cut(transport)\n        return False",
        "    transport.close()\n        return False",
        f"{_SLOW}a_client_that_reads_nothing_is_cut[closing-fast]",
    ),
    Mutation(
        "aiohttp's clients are not inspected",
        "http/downstream/listener.py",
        "self._fallback.sweep(now, self.send_seconds)",
        "pass",
        f"{_SLOW}a_client_that_reads_nothing_is_cut[whole-fallback]",
    ),
    Mutation(
        "a client is not seen to leave while it is not read",
        "http/downstream/transport.py",
        "left = closed and not",
        "left = False and not",
        f"{_SLOW}a_pipelining_client_that_leaves_is_noticed[fast]",
    ),
    Mutation(
        "the process ends before the last bytes are sent",
        "http/downstream/listener.py",
        "while transports and self._loop.time() < ends:",
        "while False:",
        f"{_SLOW}the_last_bytes_are_sent_before_the_process_ends[fast]",
    ),
    Mutation(
        "a host that vanishes is not noticed",
        "http/tcp.py",
        "sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))",
        "pass",
        f"{_SLOW}the_kernel_notices_peers_that_vanish",
    ),
    Mutation(
        "a comment is a first event",
        "payload/first_event.py",
        "if not event or name in _ANNOUNCEMENTS:",
        "if name in _ANNOUNCEMENTS:",
        f"{_EVENTS}what_proves_nothing_is_followed_by_another_attempt[comments]",
    ),
    Mutation(
        "an announcement is a first event",
        "payload/first_event.py",
        "if not event or name in _ANNOUNCEMENTS:",
        "if not event:",
        f"{_EVENTS}what_proves_nothing_is_followed_by_another_attempt[response-created]",
    ),
    Mutation(
        "lines that end in CR LF have no events",
        "payload/first_event.py",
        "    if crlf >= 0:",
        "    if False:",
        f"{_EVENTS}crlf_streams_are_relayed_as_they_come[1]",
    ),
    Mutation(
        "a held error has no bound",
        "payload/first_event.py",
        "if not answer.complete and answer.size <= _BUFFERED_BYTES:",
        "if not answer.complete:",
        f"{_EVENTS}an_answer_without_an_end_is_bounded[status-500]",
    ),
    Mutation(
        "an event has no bound",
        "payload/first_event.py",
        "return _is_stream_open(endpoint, answer) or answer.complete or _exceeds(answer, sent)",
        "return _is_stream_open(endpoint, answer) or answer.complete",
        f"{_EVENTS}a_long_event_is_relayed_before_its_end",
    ),
    Mutation(
        "a head has no bound",
        "http/upstream/connection.py",
        "if self._head_bytes > _MAX_HEAD_BYTES:",
        "if False:",
        f"{_EVENTS}an_answer_without_an_end_is_bounded[head]",
    ),
)
