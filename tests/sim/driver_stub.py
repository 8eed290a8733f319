# SPDX-License-Identifier: Apache-2.0
"""A stand-in for libcuda that records every driver call, and scripts that run the launcher against it in a process of
their own. Not responsible for what a driver would do: each function does the least that the launcher needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from attnsmith.codegen.render import include_dir

STUB = r"""
#include "attnsmith/sm90/params.hpp"
#include <stdint.h>
#include <stdio.h>
#include <string.h>
extern "C" {
static char text[1 << 16] = "";
static void* current = 0;
static int fail_next = 0, is_sm90 = 0;
void stub_expect_sm90(int is) { is_sm90 = is; }
static void note(const char* line) { strncat(text, line, sizeof(text) - strlen(text) - 2); strcat(text, "\n"); }
const char* stub_log(void) { return text; }
void stub_clear(void) { text[0] = 0; }
void stub_set_current(uint64_t context) { current = (void*)context; }
void stub_fail_next_launch(void) { fail_next = 1; }
int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int* device, int index) { if (index > 3) return 101; *device = index; return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  static const int major[] = {8, 8, 12, 9}, minor[] = {0, 6, 0, 0}, smem[] = {166912, 101376, 101376, 232448};
  if (attribute == 16) *value = 132;
  else if (attribute == 75) *value = major[device];
  else if (attribute == 76) *value = minor[device];
  else if (attribute == 97) *value = smem[device];
  else return 1;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) { *context = (void*)(uintptr_t)(100 + device); return 0; }
int cuCtxGetCurrent(void** context) { *context = current; return 0; }
static void* saved;
int cuCtxPushCurrent_v2(void* context) { saved = current; current = context; note("push"); return 0; }
int cuCtxPopCurrent_v2(void** context) { *context = current; current = saved; note("pop"); return 0; }
int cuModuleLoadData(void** module, const void* image) {
  char line[256];
  snprintf(line, sizeof line, "load %.10s context=%d", (const char*)image, (int)(uintptr_t)current);
  note(line);
  *module = (void*)0x11;
  return 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) { *function = (void*)0x22; return 0; }
int cuFuncSetAttribute(void* function, int attribute, int value) {
  char line[64];
  snprintf(line, sizeof line, "attribute %d=%d", attribute, value);
  note(line);
  return 0;
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned smem, void* stream, void** params, void** extra) {
  char line[256];
  if (fail_next) { fail_next = 0; return 719; }
  snprintf(line, sizeof line, "launch grid=%u,%u,%u block=%u,%u,%u smem=%u stream=%llu q=%llu context=%d", gx, gy, gz,
           bx, by, bz, smem, (unsigned long long)stream, *(unsigned long long*)params[0], (int)(uintptr_t)current);
  if (is_sm90) {
    attnsmith::FwdSm90Params const& p = *(attnsmith::FwdSm90Params const*)params[0];
    snprintf(line, sizeof line,
             "launch grid=%u block=%u tiles=%d m_blocks=%d per_l2=%d counter=%llx maps=%llx,%llx,%llx,%llx", gx, bx,
             p.num_tiles, p.fwd.num_m_blocks, p.num_heads_per_l2, (unsigned long long)p.tile_counter,
             (unsigned long long)p.tma_q.words[0], (unsigned long long)p.tma_k.words[0],
             (unsigned long long)p.tma_v.words[0], (unsigned long long)p.tma_o.words[0]);
  }
  note(line);
  return 0;
}
int cuTensorMapEncodeTiled(void* map, int type, uint32_t rank, void* address, const uint64_t* sizes,
                           const uint64_t* strides, const uint32_t* box, const uint32_t* steps, int interleave,
                           int swizzle, int l2_promotion, int oob_fill) {
  char line[512];
  int n = snprintf(line, sizeof line, "encode type=%d at=%llx", type, (unsigned long long)address);
  for (uint32_t k = 0; k < rank; ++k)
    n += snprintf(line + n, sizeof line - n, " %llu/%u/%llu", (unsigned long long)sizes[k], box[k],
                  k ? (unsigned long long)strides[k - 1] : 0ull);
  snprintf(line + n, sizeof line - n, " steps=%u interleave=%d swizzle=%d l2=%d oob=%d context=%d", steps[rank - 1],
           interleave, swizzle, l2_promotion, oob_fill, (int)(uintptr_t)current);
  note(line);
  memset(map, 0, 128);
  memcpy(map, &address, 8);
  return 0;
}
static uint64_t allocated = 0x100000;
static int capturing = 0, capture_mode = 0;
void stub_set_capturing(int is_capturing) { capturing = is_capturing; }
int cuMemAlloc_v2(unsigned long long* pointer, size_t bytes) {
  *pointer = allocated += 0x1000000;
  if (capturing && capture_mode != 2) return 900;
  note("alloc");
  return 0;
}
int cuMemsetD8Async(unsigned long long pointer, unsigned char value, size_t bytes, void* stream) {
  note(value || !stream ? "bad memset" : "memset");
  return 0;
}
int cuStreamCreate(void** stream, unsigned flags) { *stream = (void*)0x77; return flags == 1 ? 0 : 1; }
int cuStreamDestroy_v2(void* stream) { return 0; }
int cuStreamSynchronize(void* stream) { if (capturing && capture_mode != 2) return 900; note("synchronize"); return 0; }
int cuStreamIsCapturing(void* stream, int* status) { *status = capturing && stream == (void*)99; return 0; }
int cuStreamGetId(void* stream, unsigned long long* id) { *id = (uintptr_t)stream + 1000; return 0; }
int cuThreadExchangeStreamCaptureMode(int* mode) {
  int const old = capture_mode;
  capture_mode = *mode;
  *mode = old;
  return 0;
}
int cuGetErrorName(int error, const char** name) { *name = "CUDA_ERROR_LAUNCH_FAILED"; return 0; }
int cuGetErrorString(int error, const char** string) { *string = "unspecified launch failure"; return 0; }
}
"""

PRELUDE = r"""
import ctypes, json, os
from attnsmith import launcher
from attnsmith.capi import DescaleArg, ForwardArgs, TensorArg
from attnsmith.codegen.dispatch import entry
from attnsmith.codegen.spec import *
api = launcher.load()
stub = ctypes.CDLL(os.environ["ATTNSMITH_LIBCUDA"]) if os.path.exists(os.environ["ATTNSMITH_LIBCUDA"]) else None
if stub:
    stub.stub_log.restype = ctypes.c_char_p
    stub.stub_set_current.argtypes = (ctypes.c_uint64,)

def spec(mask=Mask.FULL, block_m=128, block_n=64, num_warps=4, num_stages=1, head_dim=128, pads=False):
    key = ProblemKey(arch=Arch.SM80, dtype=DType.BF16, head_dim=head_dim, head_dim_v=head_dim, mask=mask,
                     pads_head_dim=pads)
    tile = TileConfig(block_m=block_m, block_n=block_n, num_warps=num_warps, num_stages=num_stages)
    return KernelSpec(key=key, tile=tile)

def register(spec, target, image, source="AOT", **changes):
    api.register_kernel({**entry(spec, target), **changes}, source=source, cubin=image, ptx=b"")

def args(b=2, sq=200, sk=100, h=4, hk=2, d=128, q=0x1000, dtype=2, out_dtype=2, pack_gqa=0):
    def view(ptr, s, n):
        return TensorArg(ptr=ptr, batch=b, seqlen=s, nheads=n, head_dim=d, stride_batch=s * n * d, stride_row=n * d,
                         stride_head=d, stride_head_dim=1)
    return ForwardArgs(dtype=dtype, causal=0, softmax_scale=0.5, q=view(q, sq, h), k=view(0x2000, sk, hk),
                       v=view(0x3000, sk, hk), out=view(0x4000, sq, h), lse=0x5000, out_dtype=out_dtype,
                       pack_gqa=pack_gqa)

def log():
    lines = stub.stub_log().decode().splitlines()
    stub.stub_clear()
    return lines

def error(call):
    try:
        call()
    except RuntimeError as failure:
        return str(failure)
"""


@pytest.fixture(scope="module")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stub")
    (folder / "stub.cpp").write_text(STUB)
    path = folder / "libcuda_stub.so"
    command = ["g++", "-shared", "-fPIC", "-w", f"-I{include_dir()}", str(folder / "stub.cpp"), "-o", str(path)]
    subprocess.run(command, check=True)
    return path


def run(libcuda: Path, script: str) -> Any:
    """The JSON that a script prints in a process of its own: the driver is opened once per process."""
    environment = {**os.environ, "ATTNSMITH_LIBCUDA": str(libcuda), "ATTNSMITH_JIT": "0"}
    command = [sys.executable, "-c", PRELUDE + script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
