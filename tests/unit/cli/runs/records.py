"""The record of a run for tests."""

from pdx_cli.runs.run_record import Process, Run

RUN = Run(
    name="tiny",
    pid=1,
    started=0.0,
    mode="Disaggregated",
    connector="NIXL",
    order="PrefillFirst",
    engine="sim",
    model="tiny",
    endpoint="http://127.0.0.1:1",
    admin="http://127.0.0.1:1",
    processes=(Process("prefill-0", 2**22 + 1, "http://127.0.0.1:1", "/logs/prefill-0.log"),),
)
