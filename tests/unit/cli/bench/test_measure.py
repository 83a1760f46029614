"""Which rates one arm is measured at."""

from pdx_cli.bench.analysis.arms import Arm
from pdx_cli.bench.analysis.steps import Slo, step_result
from pdx_cli.bench.load.connection import Server
from pdx_cli.bench.load.generator import Shape
from pdx_cli.bench.load.workload import Fixed
from pdx_cli.bench.measure import ArmRun, Observer, Plan
from pdx_cli.bench.meters import NoMeters


def test_the_search_ends_where_a_step_has_less_than_one_request() -> None:
    plan = Plan(Fixed(100, 10), Slo(1.0, 0.05), 20.0, 2.0, 3, 0)
    observer = Observer(lambda *_: None, lambda *_: None)
    run = ArmRun(Arm("a"), Server.of("http://h:1"), Shape("m"), NoMeters(), plan, observer, 1.0)
    while (planned := run._next(run._search)) is not None:
        run.steps.append(step_result([], plan.slo, *planned, 20.0, 0.0, is_valid=True))
    assert [step.rate for step in run.steps] == [1.0, 0.5, 0.25, 0.125, 0.0625]
    assert run.result().goodput == 0
