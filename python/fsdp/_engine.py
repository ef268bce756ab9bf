# SPDX-License-Identifier: Apache-2.0
"""Where torch has to know of the library: the end of backward, and how a weight is shown."""

from typing import Any

import torch

from fsdp import _C

_is_installed = False


def install() -> None:
    """Once per process, when the first module is sharded."""
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    _see_the_end_of_backward()
    _show_weights_without_reading_them()


def _see_the_end_of_backward() -> None:
    """torch.autograd asks this object, and not the process's engine, to run a backward."""
    inner = torch.autograd.Variable._execution_engine

    class Engine(type(inner)):
        def run_backward(self, *args: Any, **kwargs: Any) -> Any:
            return _C.run_backward(inner.run_backward, *args, **kwargs)

    torch.autograd.Variable._execution_engine = Engine()


def _show_weights_without_reading_them() -> None:
    """repr() of a weight is what a debugger or a log line calls, on one rank: it must not gather."""
    whole = torch._tensor_str._str

    def shown(self: torch.Tensor, *, tensor_contents: Any = None) -> str:
        if tensor_contents is None and type(self) in (torch.Tensor, torch.nn.Parameter) and _C.has_touch_key(self):
            grad = ", requires_grad=True" if self.requires_grad else ""
            return f"tensor(<sharded by fsdp>, size={tuple(self.shape)}, dtype={self.dtype}{grad})"
        return whole(self, tensor_contents=tensor_contents)

    torch._tensor_str._str = shown
