"""The operator's command line."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from pdx_api import logs
from pdx_api.kube import informer
from pdx_operator.app import main
from pdx_operator.app.main import handle_loop_error, parse_arguments


def test_flags() -> None:
    settings = parse_arguments(["--namespace", "a", "--namespace", "b", "--namespace", "a", "--health-port", "1"])
    assert settings.namespaces == ("a", "b")
    assert settings.health_port == 1
    assert not parse_arguments([]).verbose


@pytest.mark.parametrize("flags", [[], ["--verbose"]], ids=["usual", "verbose"])
def test_verbose_shows_what_informers_watch(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """They are a part of another package than the operator."""
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    loggers = [logging.getLogger(name) for name in ("", "pdx_operator", "pdx_api", "kopf", "kopf.objects")]
    before = [logger.level for logger in loggers]
    try:
        main._configure_logs(parse_arguments(flags))
        assert informer.log.isEnabledFor(logging.DEBUG) is bool(flags)
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def test_flags_of_gateways() -> None:
    settings = parse_arguments(["--gateway-pull-policy", "Always", "--max-gateway-upgrades", "9"])
    assert (settings.gateway_pull_policy, settings.max_gateway_upgrades) == ("Always", 9)
    usual = parse_arguments([])
    assert (usual.gateway_pull_policy, usual.max_gateway_upgrades) == ("", 4)


def test_at_least_one_gateway_is_upgraded_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--max-gateway-upgrades", "0"])
    assert "--max-gateway-upgrades is 0; write at least 1" in capsys.readouterr().err


def test_a_watch_that_fails_to_close_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "pdx_operator")
    started: list[AsyncIterator[int]] = []

    async def watch() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            raise RuntimeError("generator didn't stop after athrow()")

    async def end_in_the_middle() -> None:
        asyncio.get_running_loop().set_exception_handler(handle_loop_error)
        started.append(watch())
        await anext(started[0])

    asyncio.run(end_in_the_middle())
    assert [record.levelname for record in caplog.records if "athrow" in record.getMessage()] == ["DEBUG"]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_other_errors_of_the_loop_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    handle_loop_error(loop, {"message": "a task failed", "exception": ValueError("why")})
    loop.close()
    assert "a task failed" in caplog.text
