# SPDX-License-Identifier: Apache-2.0
"""Whether the extension can be loaded at all: it is built for one minor version of torch."""

import torch  # loads LibTorch, and its Python half, before ours

from fsdp._built_for import TORCH


def minor(version: str) -> str:
    """ "2.13" of "2.13.0+cpu"."""
    return ".".join(version.split("+")[0].split(".")[:2])


def check_torch(version: str = torch.__version__) -> None:
    """Raises ImportError where the extension was built for another torch than the one that is here."""
    if minor(version) != minor(TORCH):
        raise ImportError(
            f"fsdp was built for torch {minor(TORCH)} (with {TORCH}) and this is torch {version}. It uses the inside "
            f"of torch, which differs between minor versions. Install torch {minor(TORCH)}, or build fsdp for this "
            "torch: pip install --no-build-isolation --force-reinstall --no-deps PATH-OF-FSDP"
        )
