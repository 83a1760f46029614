"""How soon a namespace has credit again."""

from pdx_operator.controller.credit import CREDIT_SECONDS, Credit


def test_debt_counts_up_to_one_second() -> None:
    """After an hour of work, a namespace with a share of 0.1 has credit again after ten seconds."""
    now = [0.0]
    credit = Credit(lambda: now[0], 0.1)
    credit.use("a", 3600.0)
    credit.use("b", CREDIT_SECONDS + 0.5)
    now[0] = 4.9
    credit.update()
    assert not credit.is_left("b")
    now[0] = 5.1
    credit.update()
    assert (credit.is_left("a"), credit.is_left("b")) == (False, True)
    now[0] = 9.9
    credit.update()
    assert not credit.is_left("a")
    now[0] = 10.1
    credit.update()
    assert credit.is_left("a")
