"""Objects that the API server would refuse are errors of one sentence; objects that it accepts are not."""

from pathlib import Path

import pytest

from pdx_cli.errors import InputError
from pdx_cli.inputs.document import load

EXAMPLE = Path(__file__).parents[4] / "examples" / "tiny-cpu.yaml"


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        (f"metadata.name={'a' * 300}", "…': write at most 41 lower-case letters, digits and -, with a letter"),
        ("metadata.name=A", "write at most 41 lower-case letters, digits and -, with a letter first and no - at the"),
        ("spec.prefill={null: 1}", "spec.prefill has the key null, which is not a text; put it in quotes, or remove"),
        ("spec.prefill={true: 1}", "spec.prefill has the key true, which is not a text; put it in quotes, or remove"),
        ("spec.prefill={off: 1}", "spec.prefill has the key false, which is not a text; put it in quotes, or remove"),
        (
            "spec.decode.resources.limits={true: 1}",
            "spec.decode.resources.limits has the key true, which is not a text",
        ),
        ("spec.model.name=''", "spec.model.name is empty; write a value."),
        ("spec.engine.image=''", "spec.engine.image is empty; write a value, or leave it out."),
        ("spec.prefill={1: 1}", "spec.prefill has the key 1, which is not a text; put it in quotes, or remove it."),
        ("metadata.labels={true: a}", "metadata.labels has the key true, which is not a text"),
        ("metadata.labels={a: 1}", "metadata.labels.a is 1; write a text, in quotes."),
        ("metadata.labels={a b: c}", "metadata.labels has the key 'a b'; write a key of at most 63 letters"),
        ("metadata.labels={a..b/c: d}", "metadata.labels has the key 'a..b/c'"),
        ("metadata.labels={a: b c}", "metadata.labels.a is 'b c'; write at most 63 letters, digits"),
        ("metadata.annotations={a: 1}", "metadata.annotations.a is 1; write a text, in quotes."),
        ("metadata.labels=[a]", "metadata.labels is ['a']; write a mapping."),
        ("spec.prefill.resources.limits={nvidia.com/gpu: 500m}", "is '500m'; write a whole number, for example 1."),
        ("spec.decode.resources.limits={nvidia.com/gpu: one}", "is 'one'; write a whole number, for example 1."),
        ("spec.engine.image=a b", "write an image as NAME:TAG or NAME@DIGEST, for example vllm/vllm-openai:v"),
    ],
)
def test_what_the_api_server_would_refuse(assignment: str, sentence: str) -> None:
    with pytest.raises(InputError) as raised:
        load(EXAMPLE, [assignment])
    assert sentence in str(raised.value)
    assert not raised.value.details, "one error"


@pytest.mark.parametrize(
    "assignment",
    [
        f"metadata.name={'a' * 41}",
        "metadata.labels={example.org/app: a.b_c, empty: ''}",
        "metadata.annotations={example.org/note: any text}",
        "spec.prefill.resources.limits={nvidia.com/gpu: 1, cpu: 500m, example.com/nic: 2k}",
    ],
)
def test_what_the_api_server_accepts(assignment: str) -> None:
    load(EXAMPLE, [assignment])
