"""The operator's command line."""

from pdx_operator.app.main import parse_arguments


def test_flags() -> None:
    settings = parse_arguments(["--namespace", "a", "--namespace", "b", "--namespace", "a", "--health-port", "1"])
    assert settings.namespaces == ("a", "b")
    assert settings.health_port == 1
    assert not parse_arguments([]).verbose
