"""The rules and settings of all connectors. A connector's rules apply to the objects that name it."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from pdx_api.connectors import CONNECTORS
from pdx_api.connectors.base import Connector
from pdx_api.connectors.checks import Setting
from pdx_api.names import Mode, Order
from pdx_api.rule import Rule, cel_list

CONNECTOR_EXISTS: Final = Rule(
    f"self in {cel_list(CONNECTORS)}",
    f"this connector does not exist; write one of: {', '.join(CONNECTORS)}",
    lambda connector: connector in CONNECTORS,
)


def order_rules(connectors: Iterable[Connector]) -> tuple[Rule, ...]:
    """For each connector that does not allow every order: the orders that it allows."""

    def rule(connector: Connector) -> Rule:
        return Rule(
            f"self.connector != '{connector.name}' || !has(self.order) || self.order in {cel_list(connector.orders)}",
            f"connector {connector.name} does not allow this order; write one of: {', '.join(connector.orders)}",
            lambda kv: kv.connector != connector.name or kv.order is None or kv.order in connector.orders,
            ("connector", "order"),
        )

    return tuple(rule(connector) for connector in connectors if set(connector.orders) != set(Order))


def transfer_rules(connectors: Iterable[Connector]) -> Iterator[Rule]:
    """Their rules of `spec.kvTransfer`."""
    for one in connectors:
        for rule in one.checks.transfer:
            yield _unless(f"self.connector != '{one.name}'", lambda kv, name: kv.connector != name, one.name, rule)


def transfer_rules_of_others(connectors: Iterable[Connector]) -> Iterator[Rule]:
    """Their rules of `spec.kvTransfer` in objects that name another connector."""
    for one in connectors:
        for rule in one.checks.transfer_of_others:
            yield _unless(f"self.connector == '{one.name}'", lambda kv, name: kv.connector == name, one.name, rule)


def spec_rules(connectors: Iterable[Connector]) -> Iterator[Rule]:
    """Their rules of a whole spec."""
    for one in connectors:
        other = f"self.mode != '{Mode.DISAGGREGATED}' || self.kvTransfer.connector != '{one.name}'"
        for rule in one.checks.spec:
            yield _unless(other, _has_no_pairs_of, one.name, rule)


def _has_no_pairs_of(spec: Any, connector: str) -> bool:
    return bool(spec.mode is not Mode.DISAGGREGATED or spec.kv_transfer.connector != connector)


def _unless(cel: str, is_exempt: Callable[[Any, str], bool], connector: str, rule: Rule) -> Rule:
    """The rule, for values that are not exempt. `cel` is the same condition as `is_exempt`."""

    def holds(value: Any) -> bool:
        return is_exempt(value, connector) or rule.holds(value)

    return Rule(f"{cel} || ({rule.cel})", rule.message, holds, rule.fields)


def settings(connectors: Iterable[Connector]) -> dict[Setting, str]:
    """Every setting once, with the names of its connectors.

    Raises ValueError if two connectors differ in a setting of one name: the schema is the same for all connectors.
    """
    found: dict[str, tuple[Setting, list[str]]] = {}
    for connector in connectors:
        for setting in connector.checks.settings:
            first, names = found.setdefault(setting.name, (setting, []))
            if first != setting:
                raise ValueError(f"{connector.name} and {names[0]} do not agree on the setting {setting.name}")
            names.append(connector.name)
    return {setting: ", ".join(names) for setting, names in found.values()}
