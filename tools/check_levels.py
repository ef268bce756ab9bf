# SPDX-License-Identifier: Apache-2.0
"""A module includes itself and lower levels only, no sibling; torch and models stay in their place.

--torch-free-sources lists the .cpp files of torch-free modules instead, for clang-tidy.
"""

import re
import sys

from repo import ROOT, cpp_files, finish, where

LEVELS = {
    0: ["base"],
    1: ["net", "layout", "schedule", "memory", "trace", "format", "shm", "tokens"],
    2: ["comm", "launch", "data", "models", "archive"],
    3: ["engine"],
    4: ["optim"],
    5: ["checkpoint"],
    6: ["timeline"],
    7: ["train"],
    8: ["apps"],
}
LEVEL_OF = {module: level for level, modules in LEVELS.items() for module in modules}
# Floors inside of a module or of a folder in it, low to high: a folder, or a source by its stem,
# includes lower floors only, and no sibling. A source that is not named is above all that are; each
# folder is named.
FLOORS = {
    "comm": [
        ["timeout", "fingerprint", "dispatch_guard", "wire", "staging_pool", "clock"],
        ["deadline", "failure", "reduce_slices"],
        ["checks", "seat", "join"],
        ["device"],
        ["host_transport", "shared_file", "transport_row"],
        ["group_of_one"],
        ["threads", "shm", "gloo"],
        ["two_level", "c10d"],
        ["nccl", "staged"],
        ["transport_table"],
    ],
    "engine": [
        ["touch"],
        ["unit", "deferred", "recompute"],
        ["partition", "store", "sink"],
        ["executor"],
        ["sharded", "shard_access"],
    ],
    # Weights and gradients know nothing of each other; who carries out the schedule knows both.
    "engine/executor": [
        ["events", "health", "promise", "refusals", "setup", "strangers"],
        ["residency", "gradients"],
        ["executor", "initial_weights"],
        ["full_scope"],
        ["engine"],
        ["participate"],
    ],
}
TORCH_FREE = set(LEVELS[0] + LEVELS[1] + ["launch", "data", "archive"])
# The half that FSDP_BUILD_LM=OFF leaves out; the core must not reach into it, whatever the level.
LANGUAGE_MODELS = {"tokens", "data", "models", "train"}
# Where a public header may include all of torch/torch.h.
WHOLE_TORCH = {"models", "train"}

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]')
TORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")


def module_of(path):
    """The module a file belongs to, or None for tests, examples and the umbrella header."""
    parts = path.relative_to(ROOT).parts
    if parts[0] == "apps":
        return "apps"
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    if parts[:2] == ("include", "fsdp") and len(parts) > 3:
        return parts[2]
    return None


def target_of(include):
    """The module an include reaches: "fsdp/comm/x.hpp" or, privately, "comm/x.hpp"."""
    parts = include.split("/")
    if parts[0] == "fsdp":
        parts = parts[1:]
    return parts[0] if len(parts) > 1 and parts[0] in LEVEL_OF else None


def room_of(parts):
    """The room that a private file is in: a folder, else its stem."""
    return parts[0] if len(parts) > 1 else parts[0].rsplit(".", 1)[0]


def floor_of(place, room):
    for floor, rooms in enumerate(FLOORS[place]):
        if room in rooms:
            return floor
    return len(FLOORS[place])


def upward(place, path, include):
    """Why a file inside of `place` must not include `include` from there, or None."""
    inside = tuple(place.split("/"))
    parts, target = path.relative_to(ROOT).parts, tuple(include.split("/"))
    depth = len(inside)
    if parts[0] != "src" or parts[1 : depth + 1] != inside or target[:depth] != inside:
        return None
    own, other = room_of(parts[depth + 1 :]), room_of(target[depth:])
    if own == other:
        return None
    own_floor, other_floor = floor_of(place, own), floor_of(place, other)
    top = len(FLOORS[place])
    if other_floor < own_floor or own_floor == other_floor == top:
        return None
    return (
        f"{place}/{own} (floor {own_floor}) includes {place}/{other} (floor {other_floor}); "
        "only lower floors are allowed"
    )


def nameless_folders(paths):
    """Folders of a place with floors that stand on none: they could include all that the place has."""
    for place, floors in FLOORS.items():
        named = {room for floor in floors for room in floor}
        inside = ["src", *place.split("/")]
        parts = [list(path.relative_to(ROOT).parts) for path in paths]
        below = [part[len(inside) :] for part in parts if part[: len(inside)] == inside]
        for folder in sorted({rest[0] for rest in below if len(rest) > 1} - named):
            yield f"src/{place}/{folder}: has no floor; add it to FLOORS in tools/check_levels.py"


def findings_in(path):
    module = module_of(path)
    if module is None:
        return []
    if module not in LEVEL_OF:
        return [f"{where(path, 1)}: module '{module}' has no level; add it to tools/check_levels.py"]
    found = []
    public = path.relative_to(ROOT).parts[0] == "include"
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        include = match.group(1)
        target = target_of(include)
        if target and target != module and LEVEL_OF[target] >= LEVEL_OF[module]:
            found.append(
                f"{where(path, number)}: {module} (level {LEVEL_OF[module]}) includes "
                f"{target} (level {LEVEL_OF[target]}); only lower levels are allowed"
            )
        if target in LANGUAGE_MODELS and module not in LANGUAGE_MODELS | {"apps"}:
            found.append(
                f"{where(path, number)}: {module} is in the core, yet includes {target}, which "
                "FSDP_BUILD_LM=OFF leaves out"
            )
        for reason in filter(None, (upward(place, path, include) for place in FLOORS)):
            found.append(f"{where(path, number)}: {reason}")
        if TORCH.match(include) and module in TORCH_FREE:
            found.append(f"{where(path, number)}: {module} is torch-free, yet includes {include}")
        if public and include == "torch/torch.h" and module not in WHOLE_TORCH:
            found.append(
                f"{where(path, number)}: a public header includes torch/torch.h (35 s a file); "
                "include ATen/core/Tensor.h and forward-declare torch::nn::Module"
            )
    return found


if __name__ == "__main__":
    if "--torch-free-sources" in sys.argv:
        for path in cpp_files():
            if path.suffix == ".cpp" and module_of(path) in TORCH_FREE:
                print(path.relative_to(ROOT))
        sys.exit(0)
    files = list(cpp_files())
    found = [finding for path in files for finding in findings_in(path)]
    finish([*nameless_folders(files), *found])
