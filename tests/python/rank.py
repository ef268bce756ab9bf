# SPDX-License-Identifier: Apache-2.0
"""One rank of a gang: rank.py DESCRIPTOR. Orders come on standard input, answers go to the descriptor."""

import importlib
import json
import os
import sys
import traceback

import fsdp
import torch


def main():
    torch.set_num_threads(1)
    answers = os.fdopen(int(sys.argv[1]), "w")
    world = fsdp.init(os.environ["FSDP_TEST_TRANSPORT"])
    for line in sys.stdin:
        order = json.loads(line)
        try:
            function = getattr(importlib.import_module(order["module"]), order["function"])
            answer = {"value": function(world, **order["arguments"])}
        except Exception as error:
            traceback.print_exc()
            world.publish_failure(str(error))
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
