# SPDX-License-Identifier: Apache-2.0
"""ptxsim: executes PTX on the CPU, with every memory access checked and every instruction counted.

Usable on its own, for any PTX:

    from attnsmith.tools import ptxsim
    module = ptxsim.load(ptx_text)
    stats = module.launch("saxpy", grid=4, block=256, args=[x, y, 2.0, x.numel()])

Responsible for naming the public interface; docs/ptxsim.md explains it. Importing it loads neither torch nor the core.
"""

from attnsmith.tools.ptxsim.arguments import Allocation, ReadOnly
from attnsmith.tools.ptxsim.errors import (
    Deadlock,
    LaunchError,
    MbarrierError,
    MemoryAccessError,
    MisalignedAccess,
    ParseError,
    ProxyError,
    PtxSimError,
    RaceError,
    StepBudgetExceeded,
    TrapError,
    UninitializedRead,
    UnsupportedInstruction,
    WgmmaError,
)
from attnsmith.tools.ptxsim.module import Entry, Module, load, parse
from attnsmith.tools.ptxsim.stats import Stats
from attnsmith.tools.ptxsim.tensor_map import encode_tensor_map

__all__ = [
    "Allocation",
    "Deadlock",
    "Entry",
    "LaunchError",
    "MbarrierError",
    "MemoryAccessError",
    "MisalignedAccess",
    "Module",
    "ParseError",
    "ProxyError",
    "PtxSimError",
    "RaceError",
    "ReadOnly",
    "Stats",
    "StepBudgetExceeded",
    "TrapError",
    "UninitializedRead",
    "UnsupportedInstruction",
    "WgmmaError",
    "encode_tensor_map",
    "load",
    "parse",
]
