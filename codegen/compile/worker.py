# SPDX-License-Identifier: Apache-2.0
"""One NVRTC compilation in a process of its own: NVRTC locks itself while it compiles, so threads take turns.

`python -m attnsmith.codegen.compile.worker` reads a pickled request from stdin and writes a pickled reply to stdout.
Not responsible for how many run at once (build.build_kernels).
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from attnsmith.codegen.compile import nvrtc
from attnsmith.codegen.errors import AttnsmithError, CompileError, ToolchainError
from attnsmith.codegen.toolchain import Toolchain


def compile_source_apart(
    source: str, name: str, *, target: str, toolchain: Toolchain, extra_flags: Sequence[str] = ()
) -> nvrtc.CompiledKernel:
    """nvrtc.compile_source in a new process: the same result, the same errors."""
    request = pickle.dumps((source, name, target, toolchain, tuple(extra_flags)))
    command = [sys.executable, "-m", "attnsmith.codegen.compile.worker"]
    run = subprocess.run(command, input=request, capture_output=True, check=False)
    if run.returncode != 0:
        raise CompileError(
            asked=f"compile {name} for {target}",
            got=f"exit status {run.returncode} of the compiling process",
            allowed="exit status 0",
            do="If it was killed, memory is short: lower --jobs.",
            log=run.stderr.decode(errors="replace"),
        )
    kind, fields = pickle.loads(run.stdout)
    if kind == "compiled":
        return nvrtc.CompiledKernel(**fields)
    raise (CompileError if kind == "compile" else ToolchainError)(**fields)


def _reply(request: bytes) -> tuple[str, dict[str, Any]]:
    source, name, target, toolchain, extra_flags = pickle.loads(request)
    try:
        compiled = nvrtc.compile_source(source, name, target=target, toolchain=toolchain, extra_flags=extra_flags)
    except CompileError as error:
        return "compile", {**_parts(error), "log": error.log}
    except ToolchainError as error:
        return "toolchain", _parts(error)
    return "compiled", asdict(compiled)


def _parts(error: AttnsmithError) -> dict[str, Any]:
    return {"asked": error.asked, "got": error.got, "allowed": error.allowed, "do": error.do}


if __name__ == "__main__":
    sys.stdout.buffer.write(pickle.dumps(_reply(sys.stdin.buffer.read())))
