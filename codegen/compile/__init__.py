# SPDX-License-Identifier: Apache-2.0
"""The two compilers, NVRTC in this process and nvcc through ninja, and what they share. build.py is their caller."""
