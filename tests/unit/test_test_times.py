"""The summary of what tests took."""

from scripts.test_times import table


def test_folders_and_tests_are_summed_and_the_slowest_comes_first() -> None:
    lines = [
        {"test": "tests/unit/a.py::one", "start": 10.0, "seconds": 1.0},
        {"test": "tests/unit/a.py::one", "start": 11.0, "seconds": 2.0},
        {"test": "tests/engines/b.py::two[x]", "start": 10.5, "seconds": 7.0},
    ]
    shown = [line.split() for line in table(lines)]
    assert shown[1:4] == [
        ["tests/engines", "1", "7", "7"],
        ["tests/unit", "1", "3", "3"],
        ["all", "2", "8", "10"],
    ]
    assert shown[-2:] == [["7.0", "tests/engines/b.py::two[x]"], ["3.0", "tests/unit/a.py::one"]]
