# SPDX-License-Identifier: Apache-2.0
"""Parse errors and unsupported instructions of the simulator name their line; `attnsmith sim` reports them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from attnsmith.tools import ptxsim
from attnsmith.tools.cli.sim import command
from click.testing import CliRunner

from tests.sim.ptx.builder import entry, line_of

GOOD = entry("add.u32 %r0, %t, 1;\nst.global.u32 [%out], %r0;")

BROKEN = {
    "missing semicolon": ("add.u32 %r0, %t, 1;", "add.u32 %r0, %t, 1", 1),
    "undeclared register": ("add.u32 %r0, %t, 1;", "add.u32 %nowhere, %t, 1;", 0),
    "unknown label": ("add.u32 %r0, %t, 1;", "bra NOWHERE;", 0),
    "too few operands": ("add.u32 %r0, %t, 1;", "add.u32 %r0, %t;", 0),
    "too many operands": ("add.u32 %r0, %t, 1;", "add.u32 %r0, %t, 1, 2;", 0),
    "unknown symbol": ("add.u32 %r0, %t, 1;", "ld.shared.u32 %r0, [missing];", 0),
    "unbalanced brace": ("add.u32 %r0, %t, 1;", "}}", 1),
    "stray character": ("add.u32 %r0, %t, 1;", "add.u32 %r0, ?, 1;", 0),
    "unknown parameter": ("add.u32 %r0, %t, 1;", "ld.param.u32 %r0, [p_missing];", 0),
    "unterminated vector": ("add.u32 %r0, %t, 1;", "ld.global.v2.u32 {%r0, %r1, [%out];", 0),
}


@pytest.mark.parametrize("case", BROKEN)
def test_parse_error_names_the_line(case: str) -> None:
    old, new, slack = BROKEN[case]
    ptx = GOOD.replace(old, new)
    with pytest.raises(ptxsim.PtxSimError) as caught:
        ptxsim.load(ptx)
    assert isinstance(caught.value, (ptxsim.ParseError, ptxsim.UnsupportedInstruction))
    line = line_of(ptx, new)
    assert caught.value.line is not None and line <= caught.value.line <= line + slack, str(caught.value)
    assert str(caught.value.line) in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "hello", "\x7fELF\2\1\1", "__global__ void k() {}", ".version 8.0", ".target sm_80\n.address_size 64\n"],
)
def test_text_that_is_no_ptx(text: str) -> None:
    with pytest.raises(ptxsim.ParseError):
        ptxsim.load(text)


UNSUPPORTED = ["frobnicate.u32 %r0, %t;", "tex.1d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [tex0, {%f4}];",
               "add.rn.wobbly.f32 %f0, %f1, %f2;", "tcgen05.wait::ld.sync.aligned;",
               "suld.b.1d.b32.trap {%r0}, [surf, {%r1}];"]  # fmt: skip


@pytest.mark.parametrize("instruction", UNSUPPORTED)
def test_unsupported_instruction_is_refused_at_load_time_with_its_line(instruction: str) -> None:
    ptx = GOOD.replace("add.u32 %r0, %t, 1;", f"add.u32 %r0, %t, 1;\n{instruction}")
    with pytest.raises((ptxsim.UnsupportedInstruction, ptxsim.ParseError)) as caught:
        ptxsim.load(ptx)
    assert caught.value.line == line_of(ptx, instruction)


def test_every_unsupported_instruction_is_collected_and_launch_refuses() -> None:
    ptx = GOOD.replace(
        "add.u32 %r0, %t, 1;", "add.u32 %r0, %t, 1;\nfrobnicate.u32 %r0, %t;\nadd.u32 %r0, %r0, 1;\nfoo.b32 %r1, %r0;"
    )
    module = ptxsim.parse(ptx)
    assert [item["line"] for item in module.unsupported] == [line_of(ptx, "frobnicate"), line_of(ptx, "foo.b32")]
    assert "frobnicate" in module.unsupported[0]["text"]
    with pytest.raises(ptxsim.UnsupportedInstruction):
        module.launch("k", 1, 32, [np.zeros(1, np.uint32)])


def test_an_unsupported_modifier_is_not_ignored() -> None:
    """Silently dropping a modifier would change the result."""
    with pytest.raises((ptxsim.UnsupportedInstruction, ptxsim.ParseError)):
        ptxsim.load(entry("add.rn.ftz.sat.bogus.f32 %f0, %f1, %f2;"))


@pytest.mark.parametrize(
    "text",
    [
        "// comment with ; and }\nadd.u32 %r0, %t, 1; /* block\n comment; { */ add.u32 %r0, %r0, 0;",
        ".loc 1 5 3\nadd.u32 %r0, %t, 1;",
        ".loc 1 5 3, function_name foo, inlined_at 1 2 3\nadd.u32 %r0, %t, 1;",
        '.pragma "nounroll";\nadd.u32 %r0, %t, 1;',
        "add.u32\n  %r0,\n  %t,\n  1\n  ;",
        "// begin inline asm\n\tadd.u32 %r0, %t, 1;\n// end inline asm\n",
    ],
    ids=["comments", "loc", "loc inlined", "pragma", "split over lines", "inline asm"],
)
def test_forms_that_compilers_write(text: str) -> None:
    ptx = GOOD.replace("add.u32 %r0, %t, 1;", text)
    if "inlined_at" in text or ".loc" in text:
        ptx += '\n.file 1 "kernel.cu"\n.section .debug_str\n{\nfoo:\n.b8 102,111,0\n}\n'
    out = np.zeros(1, np.uint32)
    ptxsim.load(ptx).launch("k", 1, 1, [out])
    assert out[0] == 1


# attnsmith sim -----------------------------------------------------------------------------------------------------


def invoke(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, args)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_cli_lists_entries(tmp_path: Path) -> None:
    path = tmp_path / "k.ptx"
    path.write_text(GOOD)
    code, text = invoke(str(path), "--list")
    assert code == 0
    assert "p_out" in text and "every instruction can be simulated" in text
    code, text = invoke(str(path), "--list", "--json")
    facts = json.loads(text)
    assert code == 0
    assert facts["target"] == "sm_80"
    assert facts["entries"][0]["name"] == "k"
    (parameter,) = facts["entries"][0]["params"]
    assert (parameter["name"], parameter["size"], parameter["align"]) == ("p_out", 8, 8)
    assert facts["entries"][0]["instructions"] == 6
    assert facts["unsupported"] == []


def test_cli_names_unsupported_instructions_and_exits_1(tmp_path: Path) -> None:
    path = tmp_path / "k.ptx"
    ptx = GOOD.replace("add.u32 %r0, %t, 1;", "frobnicate.u32 %r0, %t;")
    path.write_text(ptx)
    code, text = invoke(str(path))
    assert code == 1
    assert f"line {line_of(ptx, 'frobnicate')}" in text and "frobnicate" in text
    code, text = invoke(str(path), "--json")
    assert code == 1
    assert json.loads(text)["unsupported"][0]["line"] == line_of(ptx, "frobnicate")


@pytest.mark.parametrize(
    "content", [None, "", "int main() {}", "\x7fELF\2\0\0\0"], ids=["missing", "empty", "C", "cubin"]
)
def test_cli_exits_2_for_a_file_that_is_no_ptx(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "k.ptx"
    if content is not None:
        path.write_text(content)
    code, text = invoke(str(path), "--list")
    assert code == 2
    assert text.startswith("error: ") and str(path) in text and "Traceback" not in text


def test_cli_names_the_line_of_a_parse_error(tmp_path: Path) -> None:
    path = tmp_path / "k.ptx"
    ptx = GOOD.replace("add.u32 %r0, %t, 1;", "add.u32 %nowhere, %t, 1;")
    path.write_text(ptx)
    code, text = invoke(str(path))
    assert code in (1, 2)
    assert str(line_of(ptx, "%nowhere")) in text


def test_cli_directory_and_no_argument(tmp_path: Path) -> None:
    assert invoke(str(tmp_path))[0] == 2
    assert invoke()[0] == 2


def test_cli_devices() -> None:
    code, text = invoke("--devices")
    assert code == 0
    assert all(name in text for name in ("a100", "rtx3090", "rtx4090", "h100", "h200"))
    code, text = invoke("--devices", "--json")
    assert code == 0
    assert "a100" in json.loads(text)
