# SPDX-License-Identifier: Apache-2.0
"""Grids of ranks with named axes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Union

from fsdp import _C
from fsdp._C import World
from fsdp._world import current_world

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh as TorchMesh

# What torch's FSDP calls the axes of a mesh is by position: the first replicates, the last shards.
_POSITIONS = {1: ("shard",), 2: ("replicate", "shard")}


class DeviceMesh:
    """The ranks of a world as a grid, the last axis innermost: with axes a x b, rank = index(a) * size(b) + index(b).

        fsdp.DeviceMesh(replicate=2, shard=4)
        fsdp.DeviceMesh(axes={"pipeline": 2, "replicate": 2, "shard": 2})

    Strategies read "replicate" and "shard" and refuse other axes of more than one rank. Collective: all ranks, the
    same axes. Raises fsdp.Error unless the sizes' product is the world's size.
    """

    def __init__(
        self,
        world: World | None = None,
        *,
        replicate: int = 1,
        shard: int = 1,
        axes: Mapping[str, int] | None = None,
    ) -> None:
        named = dict(axes) if axes is not None else {"replicate": replicate, "shard": shard}
        self._inner = _C.DeviceMesh(world or current_world(), list(named.items()))

    def size(self, axis: str) -> int:
        """Ranks along an axis; 1 for one that is not there."""
        return self._inner.size(axis)

    def index(self, axis: str) -> int:
        """This rank's position on an axis."""
        return self._inner.index(axis)

    def along(self, axis: str) -> World:
        """The ranks that differ from this one in this axis only."""
        return self._inner.along(axis)

    @property
    def axes(self) -> dict[str, int]:
        """Sizes by name, the outermost first."""
        return dict(self._inner.axes)

    def __repr__(self) -> str:
        return repr(self._inner)


def mesh_of(mesh: Union[DeviceMesh, Mapping[str, int], "TorchMesh", None], world: World) -> DeviceMesh | None:
    """A mesh out of what users pass: ours, sizes by name, or one of torch over all ranks in their order."""
    if mesh is None or isinstance(mesh, DeviceMesh):
        return mesh
    if isinstance(mesh, Mapping):
        return DeviceMesh(world, axes=mesh)
    ranks = mesh.mesh.flatten().tolist()
    if ranks != list(range(world.size)):
        raise ValueError(
            f"the mesh has the ranks {ranks}, in this order, and the world has 0 to {world.size - 1}: a torch "
            "DeviceMesh must hold all ranks in their order"
        )
    shape = tuple(mesh.mesh.shape)
    names = mesh.mesh_dim_names
    if names is None or not set(names) <= {"replicate", "shard"}:
        if len(shape) not in _POSITIONS:
            raise ValueError(f"a torch DeviceMesh of {len(shape)} axes needs names among which are replicate and shard")
        names = _POSITIONS[len(shape)]
    return DeviceMesh(world, axes=dict(zip(names, shape, strict=True)))
